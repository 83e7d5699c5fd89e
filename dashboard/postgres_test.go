package dashboard_test

import (
	"bufio"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
	memtransport "github.com/waybill-go/waybill/transport/memory"
	"github.com/waybill-go/waybill/transport/table"
)

// statements counts the statements of a pool, BEGIN and COMMIT too.
type statements struct{ n atomic.Int64 }

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s.n.Add(1)
	return ctx
}
func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (*statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (s *statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) { s.n.Add(1) }
func (*statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)       {}

// outboxOf returns an outbox on a database, and the count of its statements.
func outboxOf(t *testing.T, dsn string) (*postgres.Outbox, *pgxpool.Pool, *statements) {
	t.Helper()
	sent := &statements{}
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.Tracer, cfg.MaxConns = sent, 8
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	o, err := postgres.NewOutbox(pool, postgres.Options{Source: "/shop", AutoMigrate: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return o, pool, sent
}

// runRelay runs a relay over an outbox of its own until the test ends, or stop is called.
func runRelay(t *testing.T, dsn string) *relay.Relay {
	t.Helper()
	o, _, _ := outboxOf(t, dsn)
	bus, err := memtransport.New(memtransport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := relay.New(o, bus, relay.Options{Name: "relay elsewhere", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		if stop(); <-ended != nil {
			t.Error("the relay has ended with an error")
		}
	})
	return r
}

// A look at a database, for several open pages together, sends fewer than ten statements, although a relay of this
// process and one of another one run. There is one look in two seconds: TestViewersShareTheQuestions. So open pages
// cost fewer than five statements a second. Counted is all that goes out while the pages are told three times, and
// three looks are made.
// OP-07
func TestWhatOpenPagesCost(t *testing.T) {
	t.Parallel()
	dsn := testenv.Postgres(t).DSN
	o, _, sent := outboxOf(t, dsn)
	counted := &shown{OutboxStore: o}
	opts := dashboard.Options{Outboxes: []dashboard.Outbox{{Name: "shop", Store: counted, Relay: runRelay(t, dsn)}}, Open: true}
	runRelay(t, dsn)
	b, _ := open(t, opts)
	patience.Until(t, "the overview shows both relays", func() bool {
		return strings.Count(b.get("/", http.StatusOK), "relay elsewhere") == 2
	})
	page, _ := open(t, opts) // which knows nothing yet
	server := httptest.NewServer(page.page)
	defer server.Close()
	defer server.CloseClientConnections()
	const viewers, events = 3, 3
	before, looked := sent.n.Load(), counted.asked.Load()
	told := make(chan int, viewers)
	for range viewers {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/live", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			n := 0
			defer func() { told <- n }()
			stream, err := http.DefaultClient.Do(r)
			if err != nil {
				return
			}
			defer stream.Body.Close()
			// On a busy machine two events can show the same look.
			for lines := bufio.NewReader(stream.Body); n < events || counted.asked.Load()-looked < events; {
				line, err := lines.ReadString('\n')
				if err != nil {
					return
				}
				if strings.HasPrefix(line, "data: ") {
					n++
				}
			}
		}()
	}
	for range viewers {
		if n := <-told; n < events {
			t.Errorf("a page was told %d times, want %d at least", n, events)
		}
	}
	n, looks := sent.n.Load()-before, counted.asked.Load()-looked
	t.Logf("%d statements by %d looks for %d open pages", n, looks, viewers)
	if n >= 10*looks || n < looks || looks < events {
		t.Errorf("%d statements by %d looks for %d open pages, want fewer than ten a look", n, looks, viewers)
	}
}

// Every page answers although WAYBILL_SCALE records wait, such as 2000000; it says so if one takes longer than a second
// then. The log has the times.
// OP-07
func TestManyRecords(t *testing.T) {
	t.Parallel()
	n, measured := 20_000, os.Getenv("WAYBILL_SCALE") != ""
	if measured {
		var err error
		if n, err = strconv.Atoi(os.Getenv("WAYBILL_SCALE")); err != nil {
			t.Fatal(err)
		}
	}
	o, pool, _ := outboxOf(t, testenv.Postgres(t).DSN)
	if err := o.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	const insert = `INSERT INTO waybill.waybill_outbox (topic, key, body, source, route, own_id, id`
	for _, sql := range []string{
		strings.TrimSuffix(insert, `, id`) + `, slot) SELECT 'orders.placed', 'k' || i % 1000, '{"n":1}', '/shop', 'default', false, i % 64 FROM generate_series(1, ` + strconv.Itoa(n) + `) i`,
		insert + `, due_at) SELECT 'orders.later', 'l' || i, 'body', '/shop', 'default', true, 'later-' || i, now() + interval '1 day' FROM generate_series(1, 2000) i`,
		insert + `, state, retry, due_at, attempts, last_error) SELECT 'orders.refused', 'b' || i, 'body', '/shop', 'default', true, 'failed-' || i, 4, true, now() + interval '1 hour', 1, 'full'
			FROM generate_series(1, 2000) i`,
		insert + `, state, reason, settled_at, attempts, last_error) SELECT 'orders.odd', 'a' || i, 'body', '/shop', r, true, 'odd-' || i, 5, 'rejected', now(), 1, 'odd'
			FROM generate_series(1, 2000) i, unnest(ARRAY['default', 'billing']) r`,
		`VACUUM ANALYZE waybill.waybill_outbox`,
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	var first, last string
	if err := pool.QueryRow(t.Context(), `SELECT min(id) FILTER (WHERE seq = lo), min(id) FILTER (WHERE seq = hi) FROM waybill.waybill_outbox,
		(SELECT min(seq) AS lo, max(seq) AS hi FROM waybill.waybill_outbox WHERE topic = 'orders.placed') x WHERE seq IN (lo, hi)`).Scan(&first, &last); err != nil {
		t.Fatal(err)
	}
	bus, err := table.New(o, table.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := open(t, dashboard.Options{
		Outboxes: []dashboard.Outbox{{Name: "shop", Store: o, Blocking: []string{waybill.DefaultRoute}}}, Queues: []dashboard.Queue{{Name: "billing", Parked: bus}}, ShowBodies: true,
	})
	cold, _ := open(t, dashboard.Options{Outboxes: []dashboard.Outbox{{Name: "shop", Store: o}}})
	if !measured {
		b.unhurried()
		cold.unhurried()
	}
	timed := func(what string, status int, want string, ask func() *httptest.ResponseRecorder) {
		t.Helper()
		began := time.Now()
		w := ask()
		took := time.Since(began)
		t.Logf("%5d ms  %s", took.Milliseconds(), what)
		if w.Code != status {
			t.Errorf("%s: status %d: %s", what, w.Code, text(w.Body.String()))
		}
		has(t, w.Body.String(), want)
		if measured && took > time.Second {
			t.Errorf("%s: took %s, longer than a second", what, took)
		}
	}
	timed("GET /", http.StatusOK, "Members of shop", func() *httptest.ResponseRecorder { return cold.send(http.MethodGet, "/", nil) })
	token := fields(t, b.get("/keys", http.StatusOK), `value="skip"`)["token"]
	const found, none = "orders.placed", "No message matches."
	rare := func(topic string) string { // what comes late is found step by step
		if measured && n > 100_000 {
			return "Searched to number"
		}
		return topic
	}
	for target, want := range map[string]string{
		"/messages":                          found,
		"/messages?state=pending":            found,
		"/messages?state=processing":         none,
		"/messages?state=failed":             rare("orders.refused"),
		"/messages?state=published":          none,
		"/messages?state=abandoned":          "orders.odd",
		"/messages?reason=rejected":          "orders.odd",
		"/messages?reason=crashed":           none,
		"/messages?route=billing":            "orders.odd",
		"/messages?route=nowhere":            none,
		"/messages?topic=orders.later":       rare("orders.later"),
		"/messages?topic=nothing":            none,
		"/messages?key=k7":                   found,
		"/messages?key=nobody":               none,
		"/messages?tenant=nobody":            none,
		"/messages?since=2001-01-01T00:00":   found,
		"/messages?until=2001-01-01T00:00":   none,
		"/messages?id=later-7":               "orders.later",
		"/messages?id=nobody":                none,
		"/messages?id=" + first:              found,
		"/messages?id=" + last:               "",
		"/messages?id=" + waybill.NewID():    none,
		"/messages?after=99999999":           none,
		"/keys":                              "orders.refused",
		"/keys?route=default&after=b1":       "orders.refused",
		"/keys?route=nowhere":                "No key of route nowhere is blocked.",
		"/schedule":                          "Schedule",
		"/parked":                            "2 000 messages",
		"/parked?error=odd&topic=orders.odd": "orders.odd",
		"/parked?error=nothing":              "None matches.",
		"/parked/message?id=odd-1999":        "orders.odd",
		"/parked/message?position=1":         "orders.odd",
		"/message?route=default&id=" + last + "&seq=" + strconv.Itoa(n): found,
		"/message?route=default&id=later-7":                             "orders.later",
		"/message?route=default&id=" + first:                            found,
	} {
		timed("GET "+target, http.StatusOK, want, func() *httptest.ResponseRecorder { return b.send(http.MethodGet, target, nil) })
	}
	// Without its sequence a message is searched for. That may have to go on step by step, in the list.
	for id, want := range map[string]int{waybill.NewID(): http.StatusNotFound, last: http.StatusOK} {
		began := time.Now()
		w := b.send(http.MethodGet, "/message?route=default&id="+id, nil)
		took := time.Since(began)
		t.Logf("%5d ms  GET /message?id=%s: %d", took.Milliseconds(), id, w.Code)
		to := w.Header().Get("Location")
		inList := measured && w.Code == http.StatusSeeOther && to == "/messages?id="+id+"&outbox=shop&route=default"
		if w.Code != want && !inList || measured && took > time.Second {
			t.Errorf("GET /message?id=%s: %d to %q after %s", id, w.Code, to, took)
		}
	}
	for _, form := range []url.Values{
		{"action": {"redrive"}, "state": {"abandoned"}},
		{"action": {"redrive"}, "topic": {"nothing"}},
		{"action": {"redrive"}, "id": {last}},
		{"action": {"purge"}, "state": {"abandoned"}},
		{"action": {"purge"}, "topic": {"orders.later"}, "waiting": {"on"}},
		{"action": {"purge"}, "tenant": {"nobody"}},
		{"action": {"skip"}, "route": {"default"}, "key": {"b7"}, "id": {"failed-7"}},
		{"action": {"replay"}, "queue": {"billing"}, "all": {"1"}},
		{"action": {"purgeparked"}, "queue": {"billing"}, "error": {"odd"}},
	} {
		what := "preview " + form.Encode()
		form["token"], form["outbox"] = token, []string{"shop"}
		timed(what, http.StatusOK, "Leave it", func() *httptest.ResponseRecorder { return b.send(http.MethodPost, "/preview", form) })
	}
}
