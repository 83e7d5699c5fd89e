package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outboxes"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// inSchemas makes an outbox in each of these schemas.
func inSchemas(tb testing.TB, pool *pgxpool.Pool, names ...string) map[string]*postgres.Outbox {
	tb.Helper()
	out := map[string]*postgres.Outbox{}
	for _, name := range names {
		o, err := postgres.NewOutbox(pool, postgres.Options{Source: "/test", Schema: name})
		if err == nil {
			err = o.Migrate(tb.Context())
		}
		if err != nil {
			tb.Fatal(err)
		}
		out[name] = o
	}
	return out
}

func newOutboxes(tb testing.TB, pool *pgxpool.Pool, names ...string) *postgres.Outboxes {
	tb.Helper()
	o, err := postgres.NewOutboxes(pool, postgres.Schemas{Names: names}, postgres.Options{Source: "/test"})
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

func lookAll(tb testing.TB, o *postgres.Outboxes) (names []string, last map[string]outboxes.Drawn) {
	tb.Helper()
	last = map[string]outboxes.Drawn{}
	for after, more := "", true; more; {
		page, err := o.Look(tb.Context(), after)
		if err != nil {
			tb.Fatal(err)
		}
		for _, d := range page.Outboxes {
			after = d.Name
			names, last[after] = append(names, after), d
		}
		more = page.More
	}
	return names, last
}

// OP-13: a look finds the outboxes that names and patterns stand for, in order, and the numbers that they have drawn,
// also in a transaction that is open. It takes one statement. A sequence that is locked delays nothing.
func TestLookAtOutboxes(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	made := inSchemas(t, pool, "t_1", "t_2", "T_3", "tx4", "other")
	exec(t, pool, "CREATE SCHEMA t_empty")
	o := newOutboxes(t, pool, "t_*", "other", "gone", "other")
	names, last := lookAll(t, o)
	if want := []string{"gone", "other", "t_1", "t_2"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	if d := last["t_1"]; d.Last != 0 || d.LastNotice != 0 {
		t.Errorf("%+v", d)
	}
	tx, err := pool.Begin(t.Context())
	if err == nil {
		err = made["t_1"].StageRows(t.Context(), tx, row("default", "a", ""), row("default", "b", ""))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	xid := query[int64](t, pool, "SELECT backend_xid::text::bigint FROM pg_stat_activity WHERE pid = $1", int32(tx.Conn().PgConn().PID()))
	page, err := o.Look(t.Context(), "other")
	if err != nil || len(page.Outboxes) != 2 || page.Outboxes[0].Last != 2 || page.Xmin > xid || page.More {
		t.Errorf("%+v, %v; the transaction is %d", page, err, xid)
	}
	if _, err := tx.Exec(t.Context(), "LOCK TABLE t_2.waybill_outbox; ALTER SEQUENCE t_2.waybill_outbox_seq CACHE 1"); err != nil {
		t.Fatal(err)
	}
	ctx, _ := patience.Context(t.Context(), patience.Limit)
	page, err = o.Look(ctx, "other")
	if err != nil || len(page.Outboxes) != 2 || page.Outboxes[0].Last != 2 {
		t.Errorf("beside a lock: %+v, %v", page, err)
	}
}

// OP-13: more outboxes than one page has are all found.
func TestLookAtManyOutboxes(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	const n = 260
	var sql strings.Builder
	for i := range n {
		fmt.Fprintf(&sql, "CREATE SCHEMA s%03d; CREATE SEQUENCE s%03d.waybill_outbox_seq; CREATE SEQUENCE s%03d.waybill_outbox_notices_seq;", i, i, i)
	}
	exec(t, pool, sql.String())
	exec(t, pool, "SELECT setval('s255.waybill_outbox_seq', 7), setval('s255.waybill_outbox_notices_seq', 3)")
	names, last := lookAll(t, newOutboxes(t, pool, "*"))
	if len(names) != n || last["s255"].Last != 7 || last["s255"].LastNotice != 3 {
		t.Errorf("%d outboxes, %+v", len(names), last["s255"])
	}
}

// OP-13: a Peek knows whether records wait. It is not misled by records that are kept, on other routes, or of other
// schemas.
func TestPeekAtAnOutbox(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	made := inSchemas(t, pool, "a", "b")
	many := newOutboxes(t, pool, "*")
	bus, err := memtransport.New(memtransport.Options{Queues: []memtransport.Queue{{Name: "q", Bindings: []string{"#"}}}})
	if err != nil {
		t.Fatal(err)
	}
	peek := func(what string, work, timer bool) (s outboxes.State) {
		t.Helper()
		s, err := many.Peek(t.Context(), "a", []string{"default", "other"})
		if err != nil || s.Work != work || s.Served || (s.NextIn > 0) != timer {
			t.Errorf("%s: %+v, %v", what, s, err)
		}
		return s
	}
	pass := func() {
		t.Helper()
		store, err := many.Open("a")
		if err != nil {
			t.Fatal(err)
		}
		r, err := relay.New(store, bus, relay.Options{Routes: []relay.Route{{}, {Name: "other"}}, CleanInterval: -1})
		if err == nil {
			_, err = r.RunOnce(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	peek("new", false, false)
	stageRows(t, pool, made["b"], row("default", "of b", ""))
	stageRows(t, pool, made["a"], row("third", "of another route", ""))
	peek("records of others", false, false)
	stageRows(t, pool, made["a"], row("default", "x", "k"))
	peek("a record", true, false)
	pass()
	peek("it was published", false, false)
	timer := row("other", "timer", "")
	timer.Delay = time.Hour
	stageRows(t, pool, made["a"], timer)
	if s := peek("a timer", false, true); s.NextIn > time.Hour || s.NextIn < 50*time.Minute {
		t.Errorf("a timer in %s", s.NextIn)
	}
	exec(t, pool, "UPDATE a.waybill_outbox SET due_at = clock_timestamp() - interval '1 second' WHERE id = 'timer'")
	peek("a timer that is due", true, false)
	pass()
	peek("it was published", false, false)
	exec(t, pool, "INSERT INTO a.waybill_outbox_notices (slots, kind, route) VALUES (-1, 1, 'default')")
	peek("a notice", true, false)
	exec(t, pool, "DELETE FROM a.waybill_outbox_notices")

	tx, err := pool.Begin(t.Context())
	if err == nil {
		err = made["a"].StageRows(t.Context(), tx, row("default", "late", ""))
	}
	if err != nil {
		t.Fatal(err)
	}
	if s := peek("an open transaction", false, false); s.Xmin >= s.Xmax {
		t.Errorf("nothing is open: %+v", s)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	peek("it has ended", true, false)
	pass()
	peek("it was published", false, false)

	self := join(t, made["a"], "default", 1)
	if s, err := many.Peek(t.Context(), "a", []string{"default"}); err != nil || !s.Served {
		t.Errorf("a member is there: %+v, %v", s, err)
	}
	if s, err := many.Peek(t.Context(), "a", []string{"other"}); err != nil || s.Served || s.Work {
		t.Errorf("on another route: %+v, %v", s, err)
	}
	exec(t, pool, "UPDATE a.waybill_outbox_members SET renewed_at = renewed_at - interval '2 hours' WHERE session = $1", int64(self))
	peek("a member that died", true, false)
	if _, err := many.Peek(t.Context(), "gone", []string{"default"}); !errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("a schema that is missing: %v", err)
	}
}

// OP-13: the relays of all outboxes of a process show one presence. The connection ends with the last one of them. A
// new one is taken when it was lost.
func TestOutboxesShareThePresence(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	inSchemas(t, pool, "a", "b")
	many := newOutboxes(t, pool, "*")
	open := func(name string) core.Presence {
		t.Helper()
		s, err := many.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		p, ok := core.As[core.Presence](s)
		if !ok {
			t.Fatal("no presence")
		}
		return p
	}
	locks := func() int {
		return query[int](t, pool, "SELECT count(*)::int FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
	}
	a, leaveA := context.WithCancel(t.Context())
	b, leaveB := context.WithCancel(t.Context())
	defer leaveB()
	one, lost, err := open("a").Acquire(a)
	two, _, err2 := open("b").Acquire(b)
	if err != nil || err2 != nil || one == 0 || one != two || locks() != 1 {
		t.Fatalf("%d, %v; %d, %v; %d locks", one, err, two, err2, locks())
	}
	leaveA()
	exec(t, pool, "SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE l.locktype = 'advisory' AND d.datname = current_database()")
	<-lost
	again, leaveAgain := context.WithCancel(t.Context())
	three, _, err := open("a").Acquire(again)
	if err != nil || three == 0 || three == one {
		t.Errorf("%d after %d, %v", three, one, err)
	}
	leaveAgain()
	patience.Until(t, "the connection ends", func() bool { return locks() == 0 })
}

// OP-13: wrong options are told together.
func TestOutboxesOptions(t *testing.T) {
	t.Parallel()
	_, err := postgres.NewOutboxes(nil, postgres.Schemas{Names: []string{"a\x00"}}, postgres.Options{AutoMigrate: true})
	for _, text := range []string{"pool: is nil", `Schemas: "a\x00" holds a NUL`, "AutoMigrate: ", "Source: "} {
		if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), text) {
			t.Errorf("%q is missing in %v", text, err)
		}
	}
	if _, err := postgres.NewOutboxes(newPool(t), postgres.Schemas{}, postgres.Options{Source: "/test"}); !errors.Is(err, waybill.ErrInvalid) {
		t.Error(err)
	}
}

// A tenant that owns its schema, or a table in one, cannot have the relay of all of them run its code: a trigger runs
// with the rights of the role that changes the table.
func TestOutboxesOfAStranger(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	made := inSchemas(t, pool, "t_honest", "t_table", "t_stranger")
	stranger := "tenant_" + strings.ToLower(rand.Text())
	exec(t, pool, fmt.Sprintf("CREATE ROLE %[1]s; "+
		"ALTER SCHEMA t_stranger OWNER TO %[1]s; ALTER TABLE t_table.waybill_outbox_routes OWNER TO %[1]s", stranger))
	defer exec(t, pool, fmt.Sprintf("REASSIGN OWNED BY %[1]s TO current_user; DROP ROLE %[1]s", stranger))
	for _, o := range made {
		stageRows(t, pool, o, row("default", "x", ""))
	}
	many := newOutboxes(t, pool, "t_*", "other")
	names, last := lookAll(t, many)
	if !slices.Contains(names, "t_stranger") || !strings.Contains(last["t_stranger"].Refused, stranger) {
		t.Errorf("%q, %q", names, last["t_stranger"].Refused)
	}
	if last["t_honest"].Refused != "" || last["other"].Refused != "" {
		t.Errorf("%+v", last)
	}
	peek := func(o *postgres.Outboxes, name string) error {
		s, err := o.Peek(t.Context(), name, []string{"default"})
		if (err == nil) != s.Work {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
		return err
	}
	for _, name := range []string{"t_stranger", "t_table"} {
		if err := peek(many, name); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), stranger) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := peek(many, "t_honest"); err != nil {
		t.Error(err)
	}
	trusting, err := postgres.NewOutboxes(pool, postgres.Schemas{Names: []string{"t_*"}, Owners: []string{stranger}}, postgres.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"t_stranger", "t_table"} {
		if err := peek(trusting, name); err != nil {
			t.Error(err)
		}
	}
	if _, last = lookAll(t, trusting); last["t_stranger"].Refused != "" {
		t.Error(last["t_stranger"].Refused)
	}
}
