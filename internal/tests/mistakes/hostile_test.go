package mistakes_test

// Services that share an outbox need not trust each other: rows that a producer's role can write stop neither the route
// nor the keys of others. The attacks run as the role that Grants prints, on a real server. Each one is refused by the
// server, or does no harm.

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
)

const (
	denied  = "42501" // no permission
	checked = "23514" // a CHECK constraint
)

// attack is one statement of a producer's role. KEY is the key of another service, ID an id of its own.
type attack struct {
	name string
	sql  string
	code string // with which the server refuses it; empty = it is taken, and does no harm
}

// put is an INSERT with these columns beside those that every row needs.
func put(columns, values string) string {
	return `INSERT INTO waybill.waybill_outbox (topic, source, body, id, key, ` + columns + `) VALUES ('t.x', '/evil', 'x', 'ID', 'KEY', ` + values + `)`
}

var attacks = []attack{
	{"slot above all", put("slot", "256"), checked},
	{"slot below all", put("slot", "-1"), checked},
	{"slot of nobody", put("slot", "200"), checked},
	{"slot of another key", put("slot", "7"), ""},
	{"a retry in a hundred years", put("retry, due_at", "true, now() + interval '100 years'"), denied},
	{"abandoned, and blocks", put("state, reason, blocks, settled_at", "5, 'rejected', true, now()"), denied},
	{"unknown state", put("state", "99"), denied},
	{"version at its maximum", put("version", "2147483647"), denied},
	{"attempts at their maximum", put("attempts", "2147483647"), denied},
	{"deliveries at their maximum", put("deliveries", "2147483647"), denied},
	{"crashes at their maximum", put("crashes", "2147483647"), denied},
	{"held by a ghost", put("hold, held_since", "4711, now()"), denied},
	{"a number of its own", put("seq", "9223372036854775807"), denied},
	{"an error of its own", put("last_error, last_error_at", "'x', now()"), denied},
	{"a stamp at the end of time", put("hlc", strconv.FormatInt(int64(hlc.MaxTimestamp), 10)), ""},
	{"a negative stamp", put("hlc", "-1"), ""},
	{"a schedule in a hundred years", put("due_at", "now() + interval '100 years'"), ""},
	{"due never", put("due_at", "'infinity'"), checked},
	{"due in another age", put("due_at", "'294276-12-31'"), checked},
	{"expired for ever", put("expires_at", "'-infinity'"), checked},
	{"expires in another age", put("expires_at", "'294276-12-31'"), checked},
	{"of another age", put("occurred_at", "'294276-12-31'"), checked},
	{"before our age", put("occurred_at", "'4713-01-01 BC'"), checked},
	{"ready in another age", put("ready_since", "'294276-12-31'"), checked},
	{"ready before our age", put("ready_since", "'4713-01-01 BC'"), checked},
	{"expired already", put("expires_at", "'0001-01-01 00:00+00'"), ""},
	{"attributes that are a number", put("attrs", "'5'"), ""},
	{"attributes of wrong types", put("attrs", `'{"subject":[1],"headers":5,"lineage":"x"}'`), ""},
	{"deep attributes", put("attrs", "(repeat('[', 5000) || repeat(']', 5000))::json"), ""},
	{"attributes without end", put("attrs", `('{"headers":{"a":"' || repeat('x', 2000000) || '"}}')::json`), ""},
	{"terminal escapes", put("type, content_type, correlation_id, trace_parent", `E'\e[2J', E'\n\r', E'\x7f', 'zz'`), ""},
	{"no topic", strings.Replace(put("slot", "3"), "'t.x'", "''", 1), ""},
	{"a topic without end", strings.Replace(put("slot", "3"), "'t.x'", "repeat('t.', 50000)", 1), ""},
	{"a route that nobody serves", put("route", "'nobody''s'"), ""},
	{"an id that others may have, too", put("own_id", "false"), ""},
	{"maybe sent, cancellable", put("maybe_sent, cancellable", "true, true"), ""},
	{"a dedupe key of its own", put("dedupe_key", "'KEY'"), ""},
	{"numbers that nobody uses", `SELECT max(nextval('waybill.waybill_outbox_seq')) FROM generate_series(1, 20000)`, ""},
	{"the numbers set back", `SELECT setval('waybill.waybill_outbox_seq', 1)`, denied},
	{"the sleep of relays", `SELECT setval('waybill.waybill_outbox_wake', 1)`, denied},
	{"a wake-up", `SELECT pg_notify('waybill', 'x')`, ""},
	{"reads bodies", `SELECT body FROM waybill.waybill_outbox`, denied},
	{"reads keys", `SELECT key FROM waybill.waybill_outbox`, denied},
	{"changes", `UPDATE waybill.waybill_outbox SET due_at = now() + interval '1 year'`, denied},
	{"deletes", `DELETE FROM waybill.waybill_outbox`, denied},
	{"truncates", `TRUNCATE waybill.waybill_outbox`, denied},
	{"locks the table", `LOCK TABLE waybill.waybill_outbox IN SHARE MODE`, denied},
	{"locks rows", `SELECT seq FROM waybill.waybill_outbox FOR UPDATE`, denied},
	{"raises the mark", `UPDATE waybill.waybill_meta SET value = 9223372036854775807`, denied},
	{"tells owners", `INSERT INTO waybill.waybill_outbox_notices (slots, kind, route, seq) VALUES (-1, 3, 'default', 0)`, denied},
	{"removes members", `DELETE FROM waybill.waybill_outbox_members`, denied},
	{"takes partitions", `UPDATE waybill.waybill_outbox_partitions SET owner = 4711`, denied},
	{"marks in the inbox", `INSERT INTO waybill.waybill_inbox (consumer, source, id) VALUES ('c', '/payments', '1')`, denied},
}

// onRoute are attacks of a service on another one's route, ids and dedupe keys, and on its name. On a route that both
// stage on each of them does what it says. Grants of routes and sources of its own refuse them.
var onRoute = []attack{
	{"a message on its route", put("route", "'good'"), denied},
	{"on a lane of it", put("route", "'good/high'"), denied},
	{"on a part of it", put("route", "'good#3'"), denied},
	{"its id, in a hundred years", strings.Replace(put("route, due_at", "'good', now() + interval '100 years'"), "'ID'", "'good-0-0-0'", 1), denied},
	{"its dedupe key", put("route, dedupe_key", "'good', 'month'"), denied},
	{"undecodable, on its key", put("route, attrs", "'good', '5'"), denied},
	{"its name", strings.Replace(put("route", "'evil'"), "'/evil'", "'/good'", 1), denied},
	{"a route that begins as its own", put("route", "'evil2'"), denied},
	{"its own route", put("route", "'evil'"), ""},
	{"a lane of its own", put("route", "'evil/high'"), ""},
	{"a part of its own", put("route", "'evil#3/low'"), ""},
	{"undecodable, on its own", put("route, attrs", "'evil', '5'"), ""},
}

// arrivals is a publisher that remembers what came.
type arrivals struct {
	mu  sync.Mutex
	ids []string
}

func (a *arrivals) Traits() core.PublisherTraits {
	return core.PublisherTraits{KeyOrder: core.KeyOrderSerial, Confirmed: true, DetectsUnroutable: true}
}

func (a *arrivals) Publish(_ context.Context, batch []waybill.Envelope) core.Results {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range batch {
		a.ids = append(a.ids, batch[i].ID)
	}
	return make(core.Results, len(batch))
}

// all returns the ids that arrived, in their order.
func (a *arrivals) all() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.ids)
}

// missing returns those of ids that did not come, in their order.
func (a *arrivals) missing(ids []string) []string {
	came := a.all()
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return slices.Contains(came, id) })
}

// await waits until ids have come.
func (a *arrivals) await(tb testing.TB, ids []string) {
	tb.Helper()
	defer func() {
		if missing := a.missing(ids); tb.Failed() {
			tb.Logf("%d of %d messages have not come: %q", len(missing), len(ids), missing)
		}
	}()
	patience.Moving(tb, "all messages come", func() (int, bool) { n := len(a.missing(ids)); return n, n == 0 })
}

// do runs the attack in the given round as a producer.
func (a *attack) do(tb testing.TB, pool *pgxpool.Pool, i, round int) {
	tb.Helper()
	sql := strings.NewReplacer("KEY", fmt.Sprintf("k%d", i), "'ID'", fmt.Sprintf("'evil-%d-%d'", i, round)).Replace(a.sql)
	err := pgx.BeginFunc(tb.Context(), pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(tb.Context(), sql)
		return err
	})
	var code string
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		code = e.Code
	}
	if code != a.code || err != nil && code == "" {
		tb.Errorf("%s: the server says %q (%v), want %q", a.name, code, err, a.code)
	}
}

// A producer's role attacks the route and the key of another service, before the relay begins and while it runs. All
// that the other one stages is sent, in the order of its keys, in the forms that all of pgx's modes read.
func TestHostileProducer(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t)
			admin := openPool(t, pg.DSN)
			m := migrate(t, admin)
			evil, evilName := role(t, pg, admin, "evil")
			good, goodName := role(t, pg, admin, "good")
			exec(t, admin, m.Grants(postgres.Roles{Producer: evilName}))
			exec(t, admin, m.Grants(postgres.Roles{Producer: goodName}))
			relays := openPool(t, changed(t, pg.DSN, func(u *url.URL) {
				q := u.Query()
				q.Set("default_query_exec_mode", mode)
				q.Set("timezone", "Pacific/Kiritimati")
				u.RawQuery = q.Encode()
			}))
			bus := &arrivals{}
			var sent []string
			round := func(n int) {
				for i := range attacks {
					attacks[i].do(t, evil, i, n)
				}
				var msgs []waybill.Message
				for i := range attacks {
					for j := range 2 {
						id := fmt.Sprintf("good-%d-%d-%d", n, i, j)
						sent = append(sent, id)
						msgs = append(msgs, raw("t.x", waybill.ID(id), waybill.Key(fmt.Sprintf("k%d", i))))
					}
				}
				if _, err := stageOn(t, good, newOutbox(t, good, postgres.Options{}), msgs...); err != nil {
					t.Fatalf("round %d: a service cannot stage: %v", n, err)
				}
			}
			round(0)
			run := start(t, newRelay(t, newOutbox(t, relays, postgres.Options{}), bus, relay.Options{}))
			bus.await(t, sent)
			round(1)
			bus.await(t, sent)
			run.stop()
			start(t, newRelay(t, newOutbox(t, relays, postgres.Options{}), bus, relay.Options{}))
			round(2)
			bus.await(t, sent)
			byKey := map[string]string{}
			for _, id := range bus.all() {
				p := strings.Split(id, "-")
				if p[0] != "good" {
					continue
				}
				if p[1]+p[3] < byKey[p[2]] {
					t.Errorf("%s came after %s", id, byKey[p[2]])
				}
				byKey[p[2]] = p[1] + p[3]
			}
			patience.Until(t, "all others are sent or abandoned", func() bool {
				return number(t, admin, `SELECT count(*) FROM waybill.waybill_outbox WHERE due_at IS NULL AND settled_at IS NULL AND route = 'default'`) == 0
			})
		})
	}
}

// A producer that Grants binds to routes and sources of its own reaches no other one's, even where an abandoned message
// blocks its key, and where ids and dedupe keys can be guessed. It sees no row of another route. Others work as before.
func TestProducerOfItsOwnRoute(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	admin := openPool(t, pg.DSN)
	m := migrate(t, admin)
	evil, evilName := role(t, pg, admin, "evil")
	good, goodName := role(t, pg, admin, "good")
	relays, relayName := role(t, pg, admin, "relay")
	for range 2 { // it can run again
		exec(t, admin, m.Grants(postgres.Roles{Producer: evilName, Routes: []string{"evil", "it's"}, Sources: []string{"/evil", "/e2e"}}))
		exec(t, admin, m.Grants(postgres.Roles{Producer: goodName, Relay: relayName}))
	}
	onGood := func(id string, opts ...waybill.MessageOption) waybill.Message {
		return raw("t.x", append(opts, waybill.ID(id), waybill.Routes("good"))...)
	}
	bus := &arrivals{}
	start(t, newRelay(t, newOutbox(t, relays, postgres.Options{}), bus, relay.Options{Routes: []relay.Route{
		{Name: "good", BlockAfterAbandon: true}, {Name: "evil", BlockAfterAbandon: true}, {Name: "evil#3"}, {Name: "it's"},
	}}))
	for i := range onRoute {
		onRoute[i].do(t, evil, i, 0)
	}
	var sent []string
	for i := range onRoute {
		id := fmt.Sprintf("good-0-%d-0", i)
		key := waybill.Key(fmt.Sprintf("k%d", i))
		if s, err := stageOn(t, good, newOutbox(t, good, postgres.Options{}), onGood(id, key)); err != nil || s[0].Duplicate {
			t.Errorf("%+v, %v", s, err)
		}
		sent = append(sent, id)
	}
	if s, err := stageOn(t, good, newOutbox(t, good, postgres.Options{}), onGood("month", waybill.DedupeKey("month"), waybill.Delay(time.Hour))); err != nil || s[0].Duplicate {
		t.Errorf("%+v, %v", s, err)
	}
	// Its own staging works: one message and many, an id and a dedupe key twice, a lane.
	own := newOutbox(t, evil, postgres.Options{})
	for n, msgs := range [][]waybill.Message{
		{raw("t.x", waybill.ID("one"), waybill.Routes("it's"))},
		{raw("t.x", waybill.ID("two"), waybill.Routes("evil")), raw("t.x", waybill.ID("three"), waybill.Routes("evil"), waybill.InLane(waybill.LaneHigh))},
		{raw("t.x", waybill.ID("later"), waybill.Routes("evil"), waybill.DedupeKey("month"), waybill.Delay(time.Hour))},
		{raw("t.x", waybill.ID("again"), waybill.Routes("evil"), waybill.DedupeKey("month"), waybill.Delay(time.Hour))},
		{raw("t.x", waybill.ID("one"), waybill.Routes("it's"), waybill.Delay(time.Hour)), raw("t.x", waybill.ID("one"), waybill.Routes("it's"))},
	} {
		s, err := stageOn(t, evil, own, msgs...)
		if err != nil {
			t.Errorf("its own %q: %v", msgs[0].ID, err)
		} else if s[len(s)-1].Duplicate != (n >= 3) {
			t.Errorf("its own %q: %+v", msgs[0].ID, s)
		}
	}
	if _, err := stageOn(t, evil, own, onGood("x")); !errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("it stages on another route: %v", err)
	}
	if n := number(t, evil, `SELECT count(id) FROM waybill.waybill_outbox WHERE route LIKE 'good%'`); n > 0 {
		t.Errorf("it sees %d rows of another route", n)
	}
	sent = append(sent, "one", "two")
	bus.await(t, sent)
}

// A canceller that Grants binds to routes and sources of its own cancels and replaces nothing of others, and tells
// their relays nothing. Its own messages it can cancel and replace, those that are kept and those that are deleted.
func TestCancellerOfItsOwnRoute(t *testing.T) {
	t.Parallel()
	for name, retention := range map[string]waybill.Retention{"deleted": {}, "kept": {Cancelled: time.Hour}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t)
			admin := openPool(t, pg.DSN)
			m := migrate(t, admin)
			evil, evilName := role(t, pg, admin, "evil")
			good, goodName := role(t, pg, admin, "good")
			for range 2 { // it can run again
				exec(t, admin, m.Grants(postgres.Roles{Canceller: evilName, Routes: []string{"evil", "shared"}, Sources: []string{"/evil"}}))
			}
			exec(t, admin, m.Grants(postgres.Roles{Canceller: goodName}))
			later := func(source, route, id string, opts ...waybill.MessageOption) waybill.Message {
				msg := raw("t.x", append(opts, waybill.ID(id), waybill.Routes(route), waybill.Delay(time.Hour), waybill.Key("k"))...)
				msg.Source = source
				return msg
			}
			options := postgres.Options{Retention: retention}
			from := func(pool *pgxpool.Pool, msgs ...waybill.Message) []waybill.Staged {
				t.Helper()
				s, err := stageOn(t, pool, newOutbox(t, pool, options), msgs...)
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			cancel := func(pool *pgxpool.Pool, route, id string) (st []waybill.CancelStatus, err error) {
				o := newOutbox(t, pool, options)
				err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
					st, err = o.Cancel(t.Context(), tx, waybill.CancelKey{Route: route, ID: id})
					return err
				})
				return st, err
			}
			from(good, later("/good", "good", "1"), later("/good", "shared", "2"), later("/good", "shared", "3", waybill.DedupeKey("month")))
			if st, err := cancel(evil, "good", "1"); err != nil || st[0] != waybill.CancelNotFound {
				t.Errorf("it cancels on another route: %v, %v", st, err)
			}
			if st, err := cancel(evil, "shared", "2"); err == nil {
				t.Errorf("it cancels a message of another source: %v", st)
			}
			thief := later("/evil", "shared", "4", waybill.Replace("month"))
			if _, err := stageOn(t, evil, newOutbox(t, evil, options), thief); err == nil {
				t.Error("it replaces a message of another source")
			}
			for i, sql := range []string{
				`UPDATE waybill.waybill_outbox SET due_at = now() + interval '1 year' WHERE route = 'shared'`,
				`DELETE FROM waybill.waybill_outbox WHERE route = 'shared'`,
				`INSERT INTO waybill.waybill_outbox_notices (slots, kind, route, seq) VALUES (-1, 1, 'good', 0)`,
				`INSERT INTO waybill.waybill_outbox_notices (slots, kind, route, seq, reason) VALUES (-1, 4, 'shared', 1, 'skipped')`,
			} {
				tag, err := evil.Exec(t.Context(), sql)
				if err == nil && tag.RowsAffected() > 0 {
					t.Errorf("attack %d has changed %d rows", i, tag.RowsAffected())
				}
			}
			if n := number(t, admin, `SELECT count(*) FROM waybill.waybill_outbox WHERE source = '/good' AND due_at < now() + interval '2 hours'`); n != 3 {
				t.Errorf("of 3 messages of others %d are as they were", n)
			}
			// Its own.
			from(evil, later("/evil", "evil", "a"), later("/evil", "shared", "b"), later("/evil", "evil", "c", waybill.DedupeKey("month")))
			for _, own := range [][2]string{{"evil", "a"}, {"shared", "b"}} {
				if st, err := cancel(evil, own[0], own[1]); err != nil || st[0] != waybill.CancelDone {
					t.Errorf("its own %q: %v, %v", own[1], st, err)
				}
			}
			if s := from(evil, later("/evil", "evil", "d", waybill.Replace("month"))); s[0].Duplicate || s[0].Replaced != waybill.CancelDone {
				t.Errorf("its own replacement: %+v", s)
			}
			if st, err := cancel(good, "shared", "2"); err != nil || st[0] != waybill.CancelDone {
				t.Errorf("the other one's own: %v, %v", st, err)
			}
		})
	}
}

// On a route that services share an id and a dedupe key name one message. The stage of another source's is refused, so
// that no service loses a message silently: with a transaction by hand, and with the unit of work, which is not told of
// duplicates. A role that is bound to its source cannot take the name of another one's.
func TestIDOfAnotherIsTold(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	admin := openPool(t, pg.DSN)
	m := migrate(t, admin)
	evil, evilName := role(t, pg, admin, "evil")
	good, goodName := role(t, pg, admin, "good")
	exec(t, admin, m.Grants(postgres.Roles{Producer: evilName, Sources: []string{"/evil"}}))
	exec(t, admin, m.Grants(postgres.Roles{Producer: goodName}))
	for _, id := range []string{"pay-1", "pay-2", "pay-3"} {
		exec(t, evil, `INSERT INTO waybill.waybill_outbox (topic, source, body, id, slot, due_at) VALUES ('t.x', '/evil', 'x', '`+id+`', 3, now() + interval '100 years')`)
	}
	const keyed = `INSERT INTO waybill.waybill_outbox (topic, source, body, id, slot, dedupe_key, due_at) VALUES ('t.x', '%s', 'x', 'evil-%[2]s', 3, 'pay-%[2]s', now() + interval '100 years')`
	exec(t, evil, fmt.Sprintf(keyed, "/evil", "month"))
	if _, err := evil.Exec(t.Context(), fmt.Sprintf(keyed, "/app", "year")); err == nil {
		t.Error("a role that is bound to its source stages with another one")
	}
	o := newOutbox(t, good, postgres.Options{})
	told := func(what string, err error) {
		t.Helper()
		if waybill.ReasonOf(err) != waybill.ReasonIDConflict || waybill.ClassOf(err) != waybill.ClassPermanent || !strings.Contains(err.Error(), `"pay-`) ||
			!strings.Contains(err.Error(), `route "default"`) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := stageOn(t, good, o, raw("t.x", waybill.ID("pay-1")))
	told("one message", err)
	_, err = stageOn(t, good, o, raw("t.x"), raw("t.x", waybill.ID("pay-2")), raw("t.x", waybill.ID("other")))
	told("among others", err)
	_, err = stageOn(t, good, o, raw("t.x", waybill.DedupeKey("pay-month")), raw("t.x"))
	told("a dedupe key", err)
	told("a dedupe key in a unit of work", o.UnitOfWork().Do(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
		return o.UnitOfWork().Stage(ctx, raw("t.x", waybill.DedupeKey("pay-month")))
	}))
	for _, id := range []string{"pay-3", "fine", "fine"} {
		err = o.UnitOfWork().Do(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
			return o.UnitOfWork().Stage(ctx, raw("t.x", waybill.ID(id)))
		})
		if id == "fine" {
			if err != nil {
				t.Errorf("a free id, and the same again: %v", err)
			}
			continue
		}
		told("a unit of work", err)
	}
	if n := number(t, admin, `SELECT count(*) FROM waybill.waybill_outbox WHERE source <> '/evil'`); n != 1 {
		t.Errorf("%d messages of the service are there, want the one with a free id", n)
	}
}

// Services that have an outbox and an inbox of their own in one database keep apart: no role of one reads, writes,
// changes, deletes or locks anything of the other, neither its messages nor its marks, limits and lines of the audit
// record. What each role may do in its own schema the other tests show.
// SE-01
func TestOutboxesOfTheirOwnKeepApart(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	admin := openPool(t, pg.DSN)
	schemas := map[string]*postgres.Migrations{}
	for _, service := range []string{"pay", "mail"} {
		m, err := postgres.NewMigrations(postgres.MigrationOptions{Schema: service})
		if err == nil {
			err = m.Up(t.Context(), admin)
		}
		if err != nil {
			t.Fatal(err)
		}
		schemas[service] = m
	}
	consumers, consumerName := role(t, pg, admin, "consumer_of_pay")
	exec(t, admin, schemas["pay"].Grants(postgres.Roles{Consumer: consumerName}))
	evil := map[string]*pgxpool.Pool{}
	var names postgres.Roles
	for what, name := range map[string]*string{
		"producer": &names.Producer, "canceller": &names.Canceller, "relay": &names.Relay, "consumer": &names.Consumer, "operator": &names.Operator,
	} {
		evil[what], *name = role(t, pg, admin, what)
	}
	exec(t, admin, schemas["mail"].Grants(names))
	var tables, sequences []string
	const listed = `SELECT coalesce(array_agg(relname::text) FILTER (WHERE relkind = 'r'), '{}'), coalesce(array_agg(relname::text) FILTER (WHERE relkind = 'S'), '{}')
		FROM pg_class WHERE relnamespace = 'pay'::regnamespace`
	if err := admin.QueryRow(t.Context(), listed).Scan(&tables, &sequences); err != nil || len(tables) < 8 || len(sequences) < 2 {
		t.Fatal(tables, sequences, err)
	}
	for what, pool := range evil {
		for _, name := range slices.Concat(tables, sequences) {
			on := pgx.Identifier{"pay", name}.Sanitize()
			tries := []string{"SELECT FROM " + on, "INSERT INTO " + on + " DEFAULT VALUES", "DELETE FROM " + on, "TRUNCATE " + on, "LOCK TABLE " + on + " IN ACCESS SHARE MODE"}
			if slices.Contains(sequences, name) {
				tries = []string{"SELECT nextval('" + on + "')", "SELECT setval('" + on + "', 1)", "SELECT last_value FROM " + on}
			}
			for _, sql := range tries {
				a := attack{what + ": " + sql, sql, denied}
				a.do(t, pool, 0, 0)
			}
		}
		for _, sql := range []string{
			`INSERT INTO pay.waybill_inbox (consumer, source, id) VALUES ('billing', '/payments', 'pay-77')`, `UPDATE pay.waybill_inbox SET content_hash = content_hash`,
			`UPDATE pay.waybill_inbox_limits SET state = ''`, `UPDATE pay.waybill_outbox SET due_at = now()`, `UPDATE pay.waybill_meta SET value = 0`,
			`CREATE TABLE pay.x (a int)`, `DROP TABLE pay.waybill_inbox`, `SELECT pg_advisory_xact_lock(1) FROM pay.waybill_outbox_members`,
		} {
			a := attack{what + ": " + sql, sql, denied}
			a.do(t, pool, 0, 0)
		}
	}
	in, err := postgres.NewInbox(consumers, postgres.InboxOptions{Schema: "pay"})
	if err != nil {
		t.Fatal(err)
	}
	status, err := in.Do(t.Context(), core.InboxKey{Consumer: "billing", Source: "/payments", ID: "pay-77"}, func(context.Context, pgx.Tx) error { return nil })
	if err != nil || status != core.InboxNew {
		t.Errorf("the message has no effect: %v, %v", status, err)
	}
}
