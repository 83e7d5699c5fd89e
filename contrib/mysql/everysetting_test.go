package waybillmysql_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/consumer"
	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/transport/table"
)

// refusedSettings are what a store must not start with, or cannot: the first call says so.
var refusedSettings = map[string]string{
	"auto_increment_increment=65535":            "auto_increment_increment is 65535",
	"max_session_mem_used=8192":                 "max-session-mem-used",
	"max_session_mem_used=18446744073709551615": "max-session-mem-used", // more than the server can count
	"sql_mode='EMPTY_STRING_IS_NULL'":           "sql_mode has EMPTY_STRING_IS_NULL",
	"sql_mode='ORACLE'":                         "sql_mode has ORACLE",
	"sql_mode='SIMULTANEOUS_ASSIGNMENT'":        "sql_mode has SIMULTANEOUS_ASSIGNMENT",
	"sql_safe_updates='ON'":                     "sql_safe_updates is ON",
	"tx_read_only='ON'":                         "READ ONLY transaction",
}

// DB-29: a session may have each setting that is no text, at each value of an enumeration and at both ends of a range:
// every call works, or the first one says which setting is in the way.
func TestEverySetting(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "350 settings, each with a database of its own: two minutes")
	if root != "" {
		t.Skip("MySQL has no list of the values that its settings can have")
	}
	server, db := ownServer(t, "--skip-log-bin")
	rows, err := db.QueryContext(t.Context(), `
		SELECT LOWER(VARIABLE_NAME), VARIABLE_TYPE, COALESCE(SESSION_VALUE, ''), COALESCE(NUMERIC_MIN_VALUE, ''), COALESCE(NUMERIC_MAX_VALUE, ''), COALESCE(ENUM_VALUE_LIST, '')
		FROM information_schema.SYSTEM_VARIABLES WHERE VARIABLE_SCOPE = 'SESSION' AND READ_ONLY = 'NO' AND VARIABLE_NAME NOT LIKE 'wsrep%' ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rows.Close() })
	var refused atomic.Int64
	t.Cleanup(func() {
		if n := refused.Load(); n > 40 {
			t.Errorf("the server takes %d values from no session, want at most 40", n)
		}
	})
	n := 0
	for rows.Next() {
		var name, kind, now, least, most, list string
		if err := rows.Scan(&name, &kind, &now, &least, &most, &list); err != nil {
			t.Fatal(err)
		}
		var values []string
		switch {
		case kind == "BOOLEAN" || kind == "ENUM":
			for v := range strings.SplitSeq(list, ",") {
				values = append(values, "'"+v+"'")
			}
		case kind == "SET" || kind == "FLAGSET":
			for v := range strings.SplitSeq(list, ",") {
				if kind == "FLAGSET" {
					v += "=off"
				}
				values = append(values, "'"+v+"'")
			}
			values = append(values, "''")
		case least != "":
			values = []string{least, most}
		}
		for _, v := range values {
			// With the two bounds the server refuses the calls that need more, and names the bound.
			if strings.EqualFold(strings.Trim(v, "'"), now) || name+"="+v == "sort_buffer_size=1024" || name+"="+v == "max_join_size=1" {
				continue
			}
			n++
			t.Run(name+"="+v, func(t *testing.T) {
				t.Parallel()
				dsn := newDatabase(t, server.dsn) + "?" + name + "=" + url.QueryEscape(v)
				plain, err := sql.Open("mysql", dsn)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = plain.Close() })
				if err := plain.PingContext(t.Context()); err != nil {
					refused.Add(1)
					t.Skip(err)
				}
				if refusal := refusedSettings[name+"="+v]; refusal != "" {
					wantRefused(t, dsn, refusal)
					return
				}
				everyCall(t, dsn)
			})
		}
	}
	if err := rows.Err(); err != nil || n < 300 {
		t.Fatalf("%d settings: %v", n, err)
	}
}

func wantRefused(t *testing.T, dsn, refusal string) {
	t.Helper()
	s := openAt(t, dsn, waybillmysql.Options{})
	err := s.Migrate(t.Context())
	if err == nil {
		err = s.Check(t.Context())
	}
	if err == nil {
		_, err = s.Counts(t.Context())
	}
	if err == nil || !strings.Contains(err.Error(), refusal) {
		t.Errorf("%v, want an error with %q", err, refusal)
	}
}

// publisher collects what a relay publishes, and refuses the topic t.no.
type publisher struct {
	mu   sync.Mutex
	came []waybill.Envelope
}

func (p *publisher) Traits() core.PublisherTraits {
	return core.PublisherTraits{KeyOrder: core.KeyOrderSerial, Confirmed: true}
}

func (p *publisher) Publish(_ context.Context, es []waybill.Envelope) core.Results {
	p.mu.Lock()
	defer p.mu.Unlock()
	results := make(core.Results, len(es))
	for i, e := range es {
		if e.Topic == "t.no" {
			results[i] = &waybill.Error{Class: waybill.ClassPermanent, Reason: waybill.ReasonRejected, Err: errors.New(`it says "no", 'no', \no`)}
			continue
		}
		p.came = append(p.came, e)
	}
	return results
}

// everyCall lets messages go through an outbox, a table queue and an inbox at dsn, and asks all that operators ask.
func everyCall(t *testing.T, dsn string) {
	t.Helper()
	s := openAt(t, dsn, waybillmysql.Options{})
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	ctx := t.Context()
	must("migrate", s.Migrate(ctx))
	must("check", s.Check(ctx))
	body := make([]byte, 256)
	for i := range body {
		body[i] = byte(i)
	}
	const odd = "a'b\"c\\d%_\\n ü€😀 "
	send := func(topic string, opts ...waybill.MessageOption) waybill.Message {
		return waybill.RawMessage(topic, "text/plain", body, opts...)
	}
	must("stage", stage(ctx, s, []waybill.Message{
		send("t.x", waybill.ID("one"), waybill.Key(odd), waybill.Header("h", odd)), send("t.x", waybill.ID("two"), waybill.Key(odd)), send("t.x", waybill.ID("three")),
		send("t.x", waybill.ID("late"), waybill.Delay(time.Hour)), send("t.x", waybill.ID("d1"), waybill.DedupeKey("d")), send("t.x", waybill.ID("d2"), waybill.DedupeKey("d")),
		send("t.no", waybill.ID("no")),
		send("t.x", waybill.ID("q1"), waybill.Routes("jobs"), waybill.Key("k")), send("t.x", waybill.ID("q2"), waybill.Routes("jobs")),
	}))
	must("replace", stage(ctx, s, []waybill.Message{send("t.x", waybill.ID("d3"), waybill.Replace("d"))}))
	tx, err := s.DB().BeginTx(ctx, nil)
	must("begin", err)
	got, err := s.Cancel(ctx, tx, waybill.CancelKey{ID: "late"})
	must("cancel", errors.Join(err, tx.Commit()))
	if got[0] != waybill.CancelDone {
		t.Errorf("cancel: %q", got[0])
	}
	p := &publisher{}
	r, err := relay.New(s, p, relay.Options{Logger: slog.New(slog.DiscardHandler)})
	must("relay", err)
	c, err := r.RunOnce(ctx)
	if must("run once", err); c.Published != 4 || c.Abandoned != 1 {
		t.Errorf("%+v", c)
	}
	var ids []string
	for _, e := range p.came {
		ids = append(ids, e.ID)
		if !bytes.Equal(e.Body, body) || e.ID == "one" && (e.Key != odd || e.Headers["h"] != odd) {
			t.Errorf("%s came as %+v", e.ID, e)
		}
	}
	if slices.Sort(ids); !slices.Equal(ids, []string{"d3", "one", "three", "two"}) {
		t.Errorf("%q came", ids)
	}
	l, err := s.List(ctx, admin.Filter{}, admin.PageRequest{})
	if must("list", err); len(l.Records) != 3 {
		t.Errorf("%d records are listed", len(l.Records))
	}
	rec, err := s.Inspect(ctx, waybill.DefaultRoute, "no")
	if must("inspect", err); !strings.Contains(rec.LastError, `'no', \no`) {
		t.Errorf("%+v", rec)
	}
	counts, err := s.Counts(ctx)
	if must("counts", err); len(counts) != 2 {
		t.Errorf("%+v", counts)
	}
	d, err := s.Redrive(ctx, admin.RedriveRequest{Filter: admin.Filter{Reasons: []waybill.Reason{waybill.ReasonRejected}}, Force: true})
	if must("redrive", err); d.Changed != 1 {
		t.Errorf("%+v", d)
	}
	_, err = s.Clean(ctx, "me", time.Minute)
	must("clean", err)
	_, err = s.HighWater(ctx)
	must("high water", err)
	queue, err := table.New(s, table.Options{Logger: slog.New(slog.DiscardHandler)})
	must("table", err)
	marks, err := inbox.New(s, "effects", inbox.Options{})
	must("inbox", err)
	_, err = s.DB().ExecContext(ctx, `CREATE TABLE effects (body VARBINARY(300) NOT NULL)`)
	must("effects", err)
	done := make(chan struct{}, 2)
	work, err := consumer.New(queue, consumer.Options{Logger: slog.New(slog.DiscardHandler)})
	must("consumer", err)
	must("handle", work.Handle(waybill.Subscription{Queue: "jobs", Bindings: []string{"t.x"}}, inbox.Handler(marks, waybill.NewTopic("t.x", waybill.Bytes("text/plain")), func(ctx context.Context, tx *sql.Tx, got []byte) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO effects (body) VALUES (?)`, got)
		done <- struct{}{}
		return err
	})))
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- work.Run(run) }()
	for range 2 {
		select {
		case <-done:
		case err := <-ended:
			t.Fatalf("run: %v", err)
		}
	}
	stop()
	must("run", <-ended)
	var n int
	must("effects", s.DB().QueryRowContext(ctx, `SELECT COUNT(*) FROM effects WHERE body = ?`, body).Scan(&n))
	if n != 2 {
		t.Errorf("%d effects", n)
	}
	_, err = s.PurgeInbox(ctx, "effects", time.Hour, 100)
	must("purge", err)
}
