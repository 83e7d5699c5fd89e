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
	"enforce_storage_engine='MyISAM'":           "cannot execute this statement",
	"enforce_storage_engine='Aria'":             "cannot execute this statement",
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

// sessionTexts are values of the settings of a session that are text.
var sessionTexts = map[string][]string{
	"time_zone":                      {"'+13:00'", "'-12:59'", "'SYSTEM'"},
	"character_set_client":           {"'latin1'", "'utf8mb3'", "'cp932'", "'binary'"},
	"character_set_connection":       {"'latin1'", "'utf8mb3'", "'ucs2'", "'binary'"},
	"character_set_results":          {"'latin1'", "NULL", "'utf8mb3'", "'ucs2'"},
	"character_set_database":         {"'latin1'"},
	"character_set_server":           {"'latin1'", "'ucs2'"},
	"character_set_filesystem":       {"'latin1'"},
	"collation_connection":           {"'latin1_general_cs'", "'utf8mb4_bin'", "'utf8mb4_turkish_ci'"},
	"collation_database":             {"'latin1_general_cs'"},
	"collation_server":               {"'utf8mb4_bin'"},
	"lc_messages":                    {"'de_DE'"},
	"lc_time_names":                  {"'ja_JP'"},
	"default_storage_engine":         {"'MyISAM'", "'MEMORY'", "'Aria'"},
	"default_tmp_storage_engine":     {"'MEMORY'"},
	"enforce_storage_engine":         {"'MyISAM'", "'Aria'", "'InnoDB'"},
	"system_versioning_asof":         {"'2000-01-01'"},
	"default_regex_flags":            {"'DOTALL'"},
	"session_track_system_variables": {"'*'"},
	"tx_isolation":                   {"'SERIALIZABLE'", "'READ-UNCOMMITTED'"},
	"sql_mode": {
		"'ANSI'", "'TRADITIONAL'", "'DB2'", "'MAXDB'", "'MSSQL'", "'POSTGRESQL'", "'MYSQL323'",
		"'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,IGNORE_SPACE,PAD_CHAR_TO_FULL_LENGTH,HIGH_NOT_PRECEDENCE,NO_ZERO_DATE,NO_ZERO_IN_DATE,STRICT_ALL_TABLES'",
		"'NO_UNSIGNED_SUBTRACTION,REAL_AS_FLOAT,TIME_ROUND_FRACTIONAL,NO_AUTO_VALUE_ON_ZERO,ONLY_FULL_GROUP_BY'",
	},
}

// DB-29: a session may have each text, and the server may do each of these for a login at its start: every call works,
// or the first one says what is in the way.
func TestEveryTextSetting(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "60 texts, each with a database of its own")
	if root != "" {
		t.Skip("the values are those of MariaDB")
	}
	server, _ := ownServer(t, "--skip-log-bin")
	run := func(t *testing.T, dsn, what string) {
		t.Helper()
		plain, err := sql.Open("mysql", dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = plain.Close() })
		if err := plain.PingContext(t.Context()); err != nil {
			t.Skip(err)
		}
		if refusal := refusedSettings[what]; refusal != "" {
			wantRefused(t, dsn, refusal)
			return
		}
		everyCall(t, dsn)
	}
	for name, values := range sessionTexts {
		for _, v := range values {
			t.Run(name+"="+v, func(t *testing.T) {
				t.Parallel()
				run(t, newDatabase(t, server.dsn)+"?"+name+"="+url.QueryEscape(v), name+"="+v)
			})
		}
	}
}

// DB-29: an init_connect of the server, which runs for each login but an administrator's, may do each of these.
func TestEveryInitConnect(t *testing.T) {
	tier.Nightly(t, "a dozen, one after the other, since a server has one: a minute")
	if root != "" {
		t.Skip("the values are those of MariaDB")
	}
	server, admin := ownServer(t, "--skip-log-bin")
	exec := func(text string, args ...any) {
		t.Helper()
		if _, err := admin.ExecContext(t.Context(), text, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec("CREATE USER 'u'@'%'")
	exec("GRANT ALL ON `w%`.* TO 'u'@'%'")
	for first, refusal := range map[string]string{
		"SET autocommit=0": "", "SET completion_type=1": "", "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE": "", "SET NAMES latin1": "",
		"SET character_set_connection=latin1": "", "SET time_zone='+13:00'": "", "SET sql_mode='ANSI,NO_BACKSLASH_ESCAPES'": "", "SET sql_mode=''": "",
		"SET foreign_key_checks=0": "", "SET ROLE NONE": "", "SET innodb_lock_wait_timeout=1": "", "SET sql_select_limit=1": "",
		"SET SESSION TRANSACTION READ ONLY": "READ ONLY transaction", "SET sql_mode='ORACLE'": "sql_mode has ORACLE",
		"USE information_schema": "information_schema", "NONSENSE": "init_connect command failed",
	} {
		exec("SET GLOBAL init_connect = ''")
		dsn := strings.Replace(newDatabase(t, server.dsn), "root@", "u@", 1)
		exec("SET GLOBAL init_connect = ?", first)
		t.Run(first, func(t *testing.T) {
			if refusal != "" {
				wantRefused(t, dsn, refusal)
				return
			}
			everyCall(t, dsn)
		})
	}
}

// DB-29: the application's connections that speak another character set would store other texts, and tables of an
// engine without transactions would keep what was rolled back. Check refuses both; Open sets its connections right.
func TestCheckRefusesGarbledTextsAndOtherEngines(t *testing.T) {
	t.Parallel()
	s := open(t, waybillmysql.Options{})
	var name string
	if err := s.DB().QueryRowContext(t.Context(), `SELECT DATABASE()`).Scan(&name); err != nil {
		t.Fatal(err)
	}
	for params, refusal := range map[string]string{
		"": "", "?charset=latin1": "character_set_client is latin1", "?charset=utf8mb3": "character_set_client is utf8mb3",
		"?character_set_connection=latin1": "character_set_connection is latin1", "?character_set_connection=binary": "",
	} {
		dsn := dsnOf(t, name)
		if strings.Contains(dsn, "?") {
			params = strings.Replace(params, "?", "&", 1)
		}
		pool, err := sql.Open("mysql", dsn+params)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = pool.Close() })
		given, err := waybillmysql.New(pool, waybillmysql.Options{Source: "/test"})
		if err != nil {
			t.Fatal(err)
		}
		wantError(t, params, given.Check(t.Context()), refusal)
		wantError(t, params, openAt(t, dsn+params, waybillmysql.Options{}).Check(t.Context()), "")
	}
	for _, engine := range []string{"MyISAM", "InnoDB"} {
		if _, err := s.DB().ExecContext(t.Context(), `ALTER TABLE waybill_inbox ENGINE = `+engine); err != nil {
			t.Fatal(err)
		}
		wantError(t, engine, s.Check(t.Context()), map[string]string{"MyISAM": "table waybill_inbox is of the engine MyISAM"}[engine])
	}
}

func wantError(t *testing.T, what string, err error, text string) {
	t.Helper()
	if text == "" && err != nil || text != "" && (!errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), text)) {
		t.Errorf("%s: %v, want an error with %q", what, err, text)
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
