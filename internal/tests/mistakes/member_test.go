package mistakes_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
)

// Wrong rows of members, partitions and records are healed, or reported: no message is lost, and keys keep their order.

// firsts returns how many messages arrived at bus, and fails the test if the first arrivals of a key are not in order.
func firsts(tb testing.TB, bus *sharedtest.Publisher) (n int) {
	tb.Helper()
	arrived := map[string][]string{}
	for _, e := range bus.Sent() {
		if ids := arrived[e.Key]; !slices.Contains(ids, e.ID) {
			arrived[e.Key] = append(ids, e.ID)
		}
	}
	for key, ids := range arrived {
		if key != "" && !slices.IsSorted(ids) {
			tb.Errorf("key %s arrived as %v", key, ids)
		}
		n += len(ids)
	}
	return n
}

// desk is an outbox on Postgres with a bus that relays publish to.
type desk struct {
	tb   testing.TB
	dsn  string
	pool *pgxpool.Pool
	o    *postgres.Outbox
	bus  *sharedtest.Publisher
	n    int
}

func newDesk(tb testing.TB) *desk {
	tb.Helper()
	d := &desk{tb: tb, dsn: testenv.Postgres(tb).DSN, bus: &sharedtest.Publisher{}}
	d.pool = openPool(tb, d.dsn)
	migrate(tb, d.pool)
	d.o = newOutbox(tb, d.pool, postgres.Options{})
	return d
}

// stage stages n messages of five keys.
func (d *desk) stage(n int) {
	d.tb.Helper()
	if _, err := stageOn(d.tb, d.pool, d.o, d.messages(n)...); err != nil {
		d.tb.Fatal(err)
	}
}

func (d *desk) messages(n int) (msgs []waybill.Message) {
	for range n {
		d.n++
		msgs = append(msgs, raw("a.b", waybill.ID(fmt.Sprintf("m-%05d", d.n)), waybill.Key(fmt.Sprint("k", d.n%5))))
	}
	return msgs
}

// relay runs a relay as another process would: with connections of its own.
func (d *desk) relay(opts relay.Options) (*running, *sharedtest.Log) {
	d.tb.Helper()
	log, book := newLog(d.tb)
	opts.Logger = log
	opts.Lease, opts.PollMax, opts.DrainTimeout = 2*time.Second, time.Second, time.Second
	o := newOutbox(d.tb, openPool(d.tb, d.dsn), postgres.Options{})
	return start(d.tb, newRelay(d.tb, o, d.bus, opts)), book
}

// drained waits until all that was staged has arrived and nothing is left.
func (d *desk) drained(what string) {
	d.tb.Helper()
	patience.Moving(d.tb, what+": everything is published", func() (int, bool) {
		left := number(d.tb, d.pool, "SELECT count(*) FROM waybill.waybill_outbox")
		return left, left == 0 && firsts(d.tb, d.bus) == d.n
	})
}

func (d *desk) members() int {
	d.tb.Helper()
	return number(d.tb, d.pool, "SELECT count(*) FROM waybill.waybill_outbox_members")
}

// Two programs that want another number of partitions work with the number of the first one.
func TestPartitionsOfTwoPrograms(t *testing.T) { // DB-24
	t.Parallel()
	d := newDesk(t)
	d.relay(relay.Options{Routes: []relay.Route{{Partitions: 4}}})
	patience.Until(t, "the first one owns its partitions", func() bool {
		return number(t, d.pool, "SELECT count(*) FROM waybill.waybill_outbox_partitions WHERE owner <> 0") == 4
	})
	d.relay(relay.Options{Routes: []relay.Route{{Partitions: 16}}})
	patience.Until(t, "they share", func() bool {
		return number(t, d.pool, "SELECT count(DISTINCT owner) FROM waybill.waybill_outbox_partitions WHERE owner <> 0") == 2
	})
	d.stage(500)
	d.drained("two programs")
	if n := number(t, d.pool, "SELECT count(*) FROM waybill.waybill_outbox_partitions"); n != 4 {
		t.Errorf("%d partitions", n)
	}
}

// A person deletes the rows of members that are alive: they join anew.
func TestMemberRowsDeleted(t *testing.T) { // DB-24
	t.Parallel()
	d := newDesk(t)
	for range 2 {
		d.relay(relay.Options{})
	}
	patience.Until(t, "two members", func() bool { return d.members() == 2 })
	for range 3 {
		d.stage(300)
		exec(t, d.pool, "DELETE FROM waybill.waybill_outbox_members")
		d.stage(300)
		d.drained("without its row")
		patience.Until(t, "they are members again", func() bool { return d.members() == 2 })
	}
}

// A person sets the owner of partitions to none, or to another member: they are taken again.
func TestPartitionsByHand(t *testing.T) { // DB-24
	t.Parallel()
	for _, statement := range []string{
		"UPDATE waybill.waybill_outbox_partitions SET owner = 0, term = term + 1",
		"UPDATE waybill.waybill_outbox_partitions SET owner = 12345, term = term + 1",
	} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t)
			d.relay(relay.Options{})
			d.stage(300)
			d.drained("before")
			exec(t, d.pool, statement)
			d.stage(300)
			d.drained(statement)
		})
	}
}

// The sequence is set back: messages that are staged under published numbers arrive, and staging under a number that is
// taken is an error.
func TestSequenceSetBack(t *testing.T) { // DB-22
	t.Parallel()
	d := newDesk(t)
	d.relay(relay.Options{})
	d.stage(500)
	d.drained("before")
	exec(t, d.pool, "SELECT setval('waybill.waybill_outbox_seq', 1, false)")
	d.stage(200)
	d.drained("after it was set back")

	later := raw("a.b", waybill.ID("later"), waybill.Delay(time.Hour))
	if _, err := stageOn(t, d.pool, d.o, later); err != nil {
		t.Fatal(err)
	}
	exec(t, d.pool, "SELECT setval('waybill.waybill_outbox_seq', (SELECT min(seq) FROM waybill.waybill_outbox), false)")
	_, err := stageOn(t, d.pool, d.o, raw("a.b"))
	check(t, err, want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{"waybill/postgres: stage", "sequence", "set it"}})
}

// Rows that are inserted by hand, with the default of every column, go like any other.
func TestRowsByHand(t *testing.T) { // ST-01
	t.Parallel()
	d := newDesk(t)
	d.relay(relay.Options{})
	for i := range 200 {
		d.n++
		exec(t, d.pool, "INSERT INTO waybill.waybill_outbox (id, topic, key, body) VALUES ($1, 'a.b', $2, 'x')", fmt.Sprintf("m-%05d", d.n), fmt.Sprint("k", i%5))
	}
	exec(t, d.pool, `INSERT INTO waybill.waybill_outbox (id, topic, key, body) SELECT 'm-' || lpad((g + 200)::text, 5, '0'), 'a.b', 'k' || g % 5, 'x' FROM generate_series(1, 300) g ORDER BY g`)
	d.n += 300
	d.drained("by hand")
}

// A route is renamed by hand while no relay serves it: its messages go on under the new name.
func TestRouteRenamed(t *testing.T) { // DB-23
	t.Parallel()
	d := newDesk(t)
	old, _ := d.relay(relay.Options{Routes: []relay.Route{{Name: "old"}}})
	msgs := d.messages(300)
	for i := range msgs {
		msgs[i].Routes = []string{"old"}
	}
	if _, err := stageOn(t, d.pool, d.o, msgs[:100]...); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "some are published", func() bool { return firsts(t, d.bus) == 100 })
	old.stop()
	if _, err := stageOn(t, d.pool, d.o, msgs[100:]...); err != nil {
		t.Fatal(err)
	}
	first, _ := d.relay(relay.Options{Routes: []relay.Route{{Name: "new"}}})
	patience.Until(t, "the new route is served", func() bool {
		return number(t, d.pool, "SELECT count(*) FROM waybill.waybill_outbox_partitions WHERE owner <> 0 AND route = 'new'") > 0
	})
	exec(t, d.pool, "UPDATE waybill.waybill_outbox SET route = 'new' WHERE route = 'old'")
	// The renamed rows are behind this relay's reads: the next sweep finds it, after up to five minutes, or when a
	// relay starts.
	first.stop()
	d.relay(relay.Options{Routes: []relay.Route{{Name: "new"}}})
	d.drained("renamed")
}

// twin is the store as a machine sees it that was copied while it ran: its session is that of the original.
type twin struct {
	*postgres.Outbox
	session core.Session
}

func (s twin) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	mine := m.Self.Session
	both := func(id *core.Session, is, becomes core.Session) {
		if *id == is {
			*id = becomes
		}
	}
	m.Self.Session = s.session
	m.Transfers = slices.Clone(m.Transfers)
	for i := range m.Transfers {
		both(&m.Transfers[i].From, mine, s.session)
		both(&m.Transfers[i].To, mine, s.session)
	}
	r, err := s.Outbox.Heartbeat(ctx, m)
	for i := range r.Members {
		both(&r.Members[i].Session, s.session, mine)
	}
	for i := range r.Partitions {
		both(&r.Partitions[i].Owner, s.session, mine)
	}
	return r, err
}

func (s twin) Read(ctx context.Context, mine core.Session, request core.ReadRequest) (core.ReadResult, error) {
	p, err := s.Outbox.Read(ctx, s.session, request)
	own := func(records []core.Record) {
		for i := range records {
			if records[i].HeldBy == s.session {
				records[i].HeldBy = mine
			}
		}
	}
	for i := range p.Ranges {
		own(p.Ranges[i].Records)
	}
	for i := range p.Keys {
		own(p.Keys[i].Records)
	}
	own(p.Rechecked)
	return p, err
}

func (s twin) Hold(ctx context.Context, _ core.Session, want core.HoldRequest) ([]core.HoldResult, error) {
	return s.Outbox.Hold(ctx, s.session, want)
}

func (s twin) Due(ctx context.Context, _ core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
	return s.Outbox.Due(ctx, s.session, parts, limit)
}

func (s twin) ReleasePartition(ctx context.Context, _ core.Session, u core.PartitionState, out []core.Ref) (bool, error) {
	return s.Outbox.ReleasePartition(ctx, s.session, u, out)
}

func (s twin) Settle(ctx context.Context, _ core.Session, outcomes []core.Outcome) core.Results {
	return s.Outbox.Settle(ctx, s.session, outcomes)
}

// Two members with one session each think that all is theirs. They publish twice, in order, and lose nothing.
func TestTwoMembersWithOneSession(t *testing.T) { // P1 P3
	t.Parallel()
	d := newDesk(t)
	for range 2 {
		log, _ := newLog(t)
		s := twin{newOutbox(t, openPool(t, d.dsn), postgres.Options{}), 4711}
		start(t, newRelay(t, s, d.bus, relay.Options{Logger: log, Lease: 2 * time.Second, PollMax: time.Second, DrainTimeout: time.Second}))
	}
	for range 5 {
		d.stage(200)
	}
	d.drained("one session")
}

// A relay whose role lacks the right to one statement says which one, and what to grant.
func TestRoleWithoutOneRight(t *testing.T) { // RL-07
	t.Parallel()
	pg := testenv.Postgres(t)
	admin := openPool(t, pg.DSN)
	m := migrate(t, admin)
	pool, name := role(t, pg, admin, "partial")
	for _, tc := range []struct{ right, object string }{
		{"SELECT", "TABLE waybill.waybill_outbox"},
		{"DELETE", "TABLE waybill.waybill_outbox"},
		{"UPDATE", "TABLE waybill.waybill_outbox"},
		{"INSERT", "TABLE waybill.waybill_outbox_members"},
		{"DELETE", "TABLE waybill.waybill_outbox_members"},
		{"UPDATE", "TABLE waybill.waybill_outbox_partitions"},
		{"INSERT", "TABLE waybill.waybill_outbox_partitions"},
		{"DELETE", "TABLE waybill.waybill_outbox_notices"},
	} {
		exec(t, admin, m.Grants(postgres.Roles{Relay: name}))
		exec(t, admin, fmt.Sprintf("REVOKE %s ON %s FROM %q", tc.right, tc.object, name))
		o := newOutbox(t, pool, postgres.Options{})
		err := start(t, newRelay(t, o, memoryBus(t), relay.Options{})).end()
		table := strings.TrimPrefix(tc.object, "TABLE waybill.")
		check(t, err, want{is: waybill.ErrMisconfigured, class: waybill.ClassOutage, says: []string{"GRANT ", tc.right, table}})
	}
	exec(t, admin, m.Grants(postgres.Roles{Relay: name}))
	if err := newOutbox(t, pool, postgres.Options{}).Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// A relay that has nothing to do is ready all the time, although it asks the store only now and then.
func TestIdleRelayIsReady(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	r := newRelay(t, newOutbox(t, openPool(t, d.dsn), postgres.Options{}), d.bus, relay.Options{})
	start(t, r)
	patience.Until(t, "ready", func() bool { return r.Health(t.Context()).Ready })
	for range 150 {
		if h := r.Health(t.Context()); !h.Ready {
			t.Fatal(h)
		}
		time.Sleep(10 * time.Millisecond) // more often than it asks
	}
}
