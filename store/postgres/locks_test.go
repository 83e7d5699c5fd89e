package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/postgres"
)

// begin starts a transaction that the test rolls back.
func begin(tb testing.TB, pool *pgxpool.Pool, sql string, args ...any) pgx.Tx {
	tb.Helper()
	tx, err := pool.Begin(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if _, err := tx.Exec(tb.Context(), sql, args...); err != nil {
		tb.Fatal(err)
	}
	return tx
}

// Every method answers for a record that a caller's transaction has locked without a wait, and for that record alone.
// The lock is held until the end of the test: a method that waits for it fails by the lock timeout.
func TestLockedRecords(t *testing.T) {
	t.Parallel()
	s, pool := newOutbox(t, postgres.Options{})
	self := join(t, s, "r", 1)
	stageRows(t, pool, s, row("r", "a", "k"), row("r", "b", "k"), row("r", "c", ""))
	rs := read(t, s, self, "r").Ranges[0].Records
	begin(t, pool, "SELECT FROM waybill.waybill_outbox WHERE id = 'b' FOR UPDATE")
	read(t, s, self, "r")
	refs := []core.Ref{rs[0].Ref, rs[1].Ref}
	_, _ = s.Hold(t.Context(), self, core.HoldRequest{Refs: refs[:1]}) // statements are prepared
	taken, err := s.Hold(t.Context(), self, core.HoldRequest{Refs: refs})
	if err != nil || taken[0].Status != core.HoldGranted || taken[1].Status != core.HoldSkipped {
		t.Errorf("took %v, %v", taken, err)
	}
	given, err := s.ReleasePartition(t.Context(), self, partitionsOf(t, s, "r")[0], refs)
	if given || err != nil {
		t.Errorf("gave up %v, %v", given, err)
	}
	results := settleBy(t, s, self, core.Retry(&rs[0], errors.New("no"), 0), core.Retry(&rs[1], errors.New("no"), 0))
	if results[0] != nil || !errors.Is(results[1], core.ErrLocked) {
		t.Errorf("settled %v", results)
	}
	results = settleBy(t, s, self, core.Published(&rs[1]), core.Published(&rs[2]))
	if results[1] != nil || !errors.Is(results[0], core.ErrLocked) {
		t.Errorf("settled %v", results)
	}
	if d, err := s.Due(t.Context(), self, []core.RouteSlots{all("r")}, 10); err != nil || len(d.Retries) != 1 {
		t.Errorf("due %v, %v", d, err)
	}
	other := join(t, s, "q", 1)
	r, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: other, Heartbeats: 2}, Evict: []core.Eviction{{Session: self, Heartbeats: 1}}})
	if err != nil || len(r.Members) != 1 {
		t.Errorf("a locked record kept its owner from being removed: %+v, %v", r, err)
	}
}

// A renewal does not wait for a settle under way, a removal neither: it is left out until that ends, or the server
// ends it.
func TestStuckSettle(t *testing.T) {
	t.Parallel()
	s, pool := newOutbox(t, postgres.Options{})
	self, other := join(t, s, "r", 1), join(t, s, "q", 1)
	stageRows(t, pool, s, row("r", "a", ""), row("r", "b", ""))
	exec(t, pool, `CREATE FUNCTION stuck() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN IF OLD.id = 'a' THEN PERFORM pg_advisory_xact_lock(42); END IF; RETURN NEW; END $$`)
	exec(t, pool, `CREATE TRIGGER stuck BEFORE UPDATE ON waybill.waybill_outbox FOR EACH ROW EXECUTE FUNCTION stuck()`)
	begin(t, pool, "SELECT pg_advisory_xact_lock(42)")
	rs := read(t, s, self, "r").Ranges[0].Records
	settled := make(chan core.Results, 1)
	go func() {
		settled <- s.Settle(t.Context(), self, []core.Outcome{core.Retry(&rs[0], errors.New("no"), 0), core.Retry(&rs[1], errors.New("no"), 0)})
	}()
	patience.Until(t, "the settle is stuck", func() bool {
		return query[int](t, pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") > 0
	})
	m := core.Member{Session: self, Heartbeats: 2, Routes: []core.ServedRoute{{Route: "r", InitialPartitions: 1}}}
	besides := func(what string) {
		select {
		case results := <-settled:
			t.Errorf("%s waited for the stuck settle: %v", what, results)
			settled <- results
		default:
		}
	}
	if r, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: m}); err != nil || !r.IsMember {
		t.Error(r, err)
	}
	besides("a renewal")
	remove := core.HeartbeatRequest{Self: core.Member{Session: other, Heartbeats: 2}, Evict: []core.Eviction{{Session: self, Heartbeats: 2}}}
	if r, err := s.Heartbeat(t.Context(), remove); err != nil || len(r.Members) != 2 {
		t.Error(r, err)
	}
	besides("a removal")
	results := <-settled // the stuck one fails alone, when the server ends its wait
	if results[0] == nil || results[1] != nil {
		t.Errorf("settled %v", results)
	}
	if r, err := s.Heartbeat(t.Context(), remove); err != nil || len(r.Members) != 1 {
		t.Error(r, err)
	}
	if results := settleBy(t, s, self, core.Published(&rs[0])); !errors.Is(results[0], core.ErrFenced) {
		t.Errorf("settled %v after its removal", results)
	}
}

// A partition moves away from a live member only when no statement of that is under way; the next one is fenced.
func TestMoveFromALiveMember(t *testing.T) {
	t.Parallel()
	s, pool := newOutbox(t, postgres.Options{})
	self, other := join(t, s, "r", 1), join(t, s, "q", 1)
	stageRows(t, pool, s, row("r", "a", ""))
	rs := read(t, s, self, "r").Ranges[0].Records
	move := core.HeartbeatRequest{
		Self:      core.Member{Session: other, Heartbeats: 2, Routes: []core.ServedRoute{{Route: "r", InitialPartitions: 1}}},
		Transfers: []core.Transfer{{Partition: core.Partition{Route: "r", To: 64}, From: self, To: other}},
	}
	owner := func() int64 {
		return query[int64](t, pool, "SELECT owner FROM waybill.waybill_outbox_partitions WHERE route = 'r'")
	}
	// as a settle does
	under := begin(t, pool, "SELECT FROM waybill.waybill_outbox_members WHERE session = $1 FOR KEY SHARE", int64(self))
	if _, err := s.Heartbeat(t.Context(), move); err != nil || owner() != int64(self) {
		t.Fatal("it moved beside a statement of its owner", err)
	}
	if err := under.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Heartbeat(t.Context(), move); err != nil || owner() != int64(other) {
		t.Fatal("it did not move", err)
	}
	if results := settleBy(t, s, self, core.Retry(&rs[0], errors.New("no"), 0)); !errors.Is(results[0], core.ErrFenced) {
		t.Errorf("settled %v what is another's", results)
	}
}

// A row that a trigger refuses fails alone, in every kind of outcome.
func TestRefusedOutcome(t *testing.T) {
	t.Parallel()
	s, pool := newOutbox(t, postgres.Options{})
	self := join(t, s, "r", 1)
	exec(t, pool, `CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN IF OLD.key = 'no' THEN RAISE 'not this one'; END IF; RETURN coalesce(NEW, OLD); END $$`)
	exec(t, pool, `CREATE TRIGGER no BEFORE UPDATE OR DELETE ON waybill.waybill_outbox FOR EACH ROW EXECUTE FUNCTION no()`)
	var rows []core.StagedRow
	for i := range 20 {
		rows = append(rows, row("r", waybill.NewID(), []string{"yes", "no"}[min(i%7, 1)^1]))
	}
	stageRows(t, pool, s, rows...)
	rs := read(t, s, self, "r").Ranges[0].Records
	var outcomes []core.Outcome
	for i := range rs {
		if i < 10 {
			outcomes = append(outcomes, core.Published(&rs[i]))
		} else {
			outcomes = append(outcomes, core.Abandon(&rs[i], waybill.ReasonRejected, errors.New("no")))
		}
	}
	for i, err := range append(s.Settle(t.Context(), self, outcomes[:10]), s.Settle(t.Context(), self, outcomes[5:])...) {
		if i >= 10 {
			i -= 5
		}
		e, _ := errors.AsType[*waybill.Error](err)
		if refused := rs[i].Envelope.Key == "no"; refused != (err != nil) || refused && e.Class != waybill.ClassRejected {
			t.Errorf("outcome %d: %v", i, err)
		}
	}
}

// A notice about a whole route stays until the owners of all slots have carried it out.
func TestNoticeFrom(t *testing.T) {
	t.Parallel()
	s, pool := newOutbox(t, postgres.Options{})
	a := join(t, s, "r", 2)
	b := join(t, s, "q", 1)
	partition := core.Partition{Route: "r", From: 32, To: 64}
	if _, err := s.ReleasePartition(t.Context(), a, partitionsOf(t, s, "r")[1], nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: b, Heartbeats: 2}, Transfers: []core.Transfer{{Partition: partition, To: b}}}); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, "INSERT INTO waybill.waybill_outbox_notices (kind, route, slots, seq) VALUES (3, 'r', -1, 5)")
	for i, self := range []core.Session{a, b} {
		part := core.RouteSlots{Route: "r", Slots: core.SlotRange(uint8(32*i), uint8(32*i+32))}
		p, err := s.Read(t.Context(), self, core.ReadRequest{Slots: []core.RouteSlots{part}})
		if err != nil || len(p.Notices) != 1 || p.Notices[0].Kind != core.NoticeReread || p.Notices[0].Seq != 5 || p.Owned[0] != part.Slots {
			t.Fatalf("read %+v, %v", p, err)
		}
		if err := settleBy(t, s, self, core.DeleteNotice(&p.Notices[0])).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	if n := query[int](t, pool, "SELECT count(*) FROM waybill.waybill_outbox_notices"); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// Published records are kept if the options say so, and come no more.
func TestKeepPublished(t *testing.T) {
	t.Parallel()
	s, pool := newOutbox(t, postgres.Options{Retention: waybill.Retention{Published: time.Hour}})
	self := join(t, s, "r", 1)
	stageRows(t, pool, s, row("r", "a", "k"))
	rs := read(t, s, self, "r").Ranges[0].Records
	if err := settleBy(t, s, self, core.Published(&rs[0])).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if n := len(read(t, s, self, "r").Ranges[0].Records); n != 0 {
		t.Errorf("%d are ready", n)
	}
	if state := query[int](t, pool, "SELECT state FROM waybill.waybill_outbox WHERE settled_at IS NOT NULL"); state != 3 {
		t.Errorf("state %d", state)
	}
}

// Without tables the error says what to do.
func TestNotMigrated(t *testing.T) {
	t.Parallel()
	s, pool := newOutbox(t, postgres.Options{})
	m, err := postgres.NewMigrations(postgres.MigrationOptions{Parts: []postgres.Part{postgres.PartOutbox}})
	if err == nil {
		err = m.Down(t.Context(), pool, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Read(t.Context(), 1, core.ReadRequest{})
	if !errors.Is(err, waybill.ErrMisconfigured) {
		t.Error(err)
	}
	if err := s.Settle(t.Context(), 1, []core.Outcome{core.Published(&core.Record{})})[0]; !errors.Is(err, waybill.ErrMisconfigured) {
		t.Error(err)
	}
	if err := s.Migrate(t.Context()); err != nil {
		t.Error(err)
	}
}

// DB-24: a member whose process froze while it sent a batch, so that its row stays locked, is removed all the same.
func TestHalfABatch(t *testing.T) {
	t.Parallel()
	s, pool := newOutbox(t, postgres.Options{})
	a := join(t, s, "r", 1)
	conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	half := conn.PgConn().StartPipeline(t.Context())
	half.SendQueryParams("BEGIN", nil, nil, nil, nil)
	half.SendQueryParams("SELECT FROM waybill.waybill_outbox_members FOR KEY SHARE", nil, nil, nil, nil)
	half.SendFlushRequest()
	if err := half.Flush(); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "the row is locked", func() bool {
		_, err := pool.Exec(t.Context(), "SELECT FROM waybill.waybill_outbox_members FOR UPDATE NOWAIT")
		return err != nil
	})
	b := core.Member{Session: newSession(), Lease: time.Second}
	if _, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: b, Join: true}); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "it is removed", func() bool {
		b.Heartbeats++
		r, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: b, Evict: []core.Eviction{{Session: a, Heartbeats: 1}}})
		return err == nil && len(r.Members) == 1
	})
}
