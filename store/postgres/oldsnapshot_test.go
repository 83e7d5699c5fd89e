package postgres_test

// An old snapshot anywhere in the server keeps rows that were deleted since from being removed: a dump, a report, a
// replication slot. The reads of a call must not grow with it.

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/store/postgres"
)

// behind is a member of an outbox in virtual time, whose calls are counted in blocks.
type behind struct {
	*testing.T
	server *scaled
	name   string
	o      *postgres.Outbox
	pool   *pgxpool.Pool
	d      *dispatch.Dispatcher
	now    time.Time
	route  string
	blocks map[string]float64 // by call: the most of one
	out    func(item *dispatch.Item) core.Outcome
	done   int
}

// newBehind begins a member of a route, in a database of its own that has what first stages.
func newBehind(t *testing.T, s *scaled, name, first string, opts dispatch.Options) *behind {
	t.Helper()
	if _, err := s.side.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	pool := openPool(t, s.server.DSN(name))
	b := &behind{
		T: t, server: s, name: name, o: outboxOn(t, pool, postgres.Options{}), pool: pool, now: time.Now(), route: opts.Routes[0].Name,
		out: func(item *dispatch.Item) core.Outcome { return core.Published(&item.Record) },
	}
	b.snapshot()
	if first != "" {
		exec(t, pool, first)
	}
	opts.Lease, opts.NewSession = time.Minute, newSession
	b.d = dispatch.New(opts)
	b.d.SetFree(opts.Handlers)
	b.until("it has joined", func() bool { return b.d.Deadline().After(b.now) })
	return b
}

// step lets some time pass, makes the calls that are due, and handles all that is handed out.
func (b *behind) step() {
	b.Helper()
	b.now = b.now.Add(20 * time.Millisecond)
	for calls := b.d.Calls(b.now); len(calls) > 0; calls = b.d.Calls(b.now) {
		for _, c := range calls {
			if b.blocks == nil {
				c.Do(b.Context(), b.o)
			} else {
				n := b.server.blocks(b.T, b.name, func() { c.Do(b.Context(), b.o) })
				b.blocks[c.Kind().String()] = max(b.blocks[c.Kind().String()], n)
			}
			if c.Err() != nil {
				b.Fatal(c.Kind().String(), c.Err())
			}
			b.d.Done(b.now, c)
		}
		for _, item := range b.d.HandOut(b.now, b.route, 500) {
			b.done++
			b.d.Conclude(b.now, item, b.out(item))
		}
	}
}

// until lets time pass until it is so.
func (b *behind) until(what string, so func() bool) {
	b.Helper()
	for range 2000 {
		if so() {
			return
		}
		b.step()
	}
	b.Fatalf("not in 40 s: %s (%d are done)", what, b.done)
}

// pass stages n messages, of keys of their own or without one, and handles them.
func (b *behind) pass(n int, keyed bool) {
	b.Helper()
	for left := n; left > 0; left -= 500 {
		some := min(left, 500)
		exec(b, b.pool, `INSERT INTO waybill.waybill_outbox (route, topic, key, body) SELECT $1, 't.x', CASE WHEN $3 THEN gen_random_uuid()::text ELSE '' END, ''
			FROM generate_series(1, $2::int)`, b.route, some, keyed)
		goal := b.done + some
		b.d.Wake(b.now, b.route)
		b.until("all are handled", func() bool { return b.done >= goal })
	}
}

// most returns the most blocks of one call, by call, while fn runs.
func (b *behind) most(fn func()) map[string]float64 {
	b.blocks = map[string]float64{}
	fn()
	defer func() { b.blocks = nil }()
	return b.blocks
}

// snapshot keeps the rows that are deleted from now on.
func (b *behind) snapshot() {
	b.Helper()
	snapshot(b, b.pool)
}

// snapshot opens a transaction until the test ends that keeps the rows that are deleted from now on.
func snapshot(tb testing.TB, pool *pgxpool.Pool) {
	tb.Helper()
	old, err := pool.BeginTx(tb.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = old.Rollback(context.WithoutCancel(tb.Context())) })
	if _, err := old.Exec(tb.Context(), "SELECT 1"); err != nil {
		tb.Fatal(err)
	}
}

// same fails if a call touches more blocks than before.
func (b *behind) same(before, after map[string]float64) {
	b.Helper()
	for _, call := range slices.Sorted(func(yield func(string) bool) {
		for call := range after {
			if !yield(call) {
				return
			}
		}
	}) {
		b.Logf("%s: at most %.0f blocks, %.0f behind what has passed", call, before[call], after[call])
		if after[call] > 2*before[call]+50 {
			b.Errorf("%s: touches %.0f blocks behind what has passed, and %.0f before", call, after[call], before[call])
		}
	}
}

// DB-02: an old snapshot does not slow a table queue down, with and without keys. At night 3,000,000 messages without
// keys pass under it.
func TestQueueBehindAnOldSnapshot(t *testing.T) {
	t.Parallel()
	passed := map[bool]int{false: 20_000, true: 20_000}
	if tier.IsNightly() {
		passed = map[bool]int{false: 3_000_000, true: 300_000}
	}
	s := newScaled(t)
	for _, keyed := range []bool{false, true} {
		b := newBehind(t, s, fmt.Sprintf("queue_%v", keyed), "", dispatch.Options{Routes: []dispatch.Route{{Name: "mails", Partitions: 1, Queue: true, Hold: true}}, Handlers: 500})
		few := func() {
			for range 5 {
				b.pass(1, keyed)
			}
		}
		few()
		before := b.most(few)
		b.pass(passed[keyed], keyed)
		few() // the front follows what is visible
		b.same(before, b.most(few))
	}
}

// DB-02: an old snapshot slows neither the retries nor the timers of a relay down.
func TestDueBehindAnOldSnapshot(t *testing.T) {
	t.Parallel()
	s := newScaled(t)
	for name, state := range map[string]string{
		"retries": "retry, state, attempts, due_at) SELECT 'r', 't.x', gen_random_uuid()::text, '', true, 4, 1, clock_timestamp()",
		"timers":  "due_at) SELECT 'r', 't.x', gen_random_uuid()::text, '', clock_timestamp()",
	} {
		var costs []map[string]float64
		for _, passed := range []int{10, 5000} {
			insert := func(n int, ago string) string {
				return fmt.Sprint("INSERT INTO waybill.waybill_outbox (route, topic, key, body, ", state, ago, " FROM generate_series(1, ", n, ")")
			}
			b := newBehind(t, s, fmt.Sprint(name, passed), insert(passed, " - interval '1 hour'"), dispatch.Options{Routes: []dispatch.Route{{Name: "r", Partitions: 1}}})
			b.until("what came due before is handled", func() bool { return b.done >= passed })
			few := func() {
				for range 3 {
					exec(b, b.pool, insert(1, ""))
					goal := b.done + 1
					b.d.Wake(b.now, "r")
					b.until("it is handled", func() bool { return b.done >= goal })
				}
			}
			few()
			costs = append(costs, b.most(few))
			b.Logf("%s, %d have passed", name, passed)
		}
		(&behind{T: t}).same(costs[0], costs[1])
	}
}

// DB-02: an old snapshot slows down neither the reads nor the heartbeats of a relay, however many notices were
// heeded since.
func TestNoticeBehindAnOldSnapshot(t *testing.T) {
	t.Parallel()
	b := newBehind(t, newScaled(t), "notices", "", dispatch.Options{Routes: []dispatch.Route{{Name: "r", Partitions: 1}}})
	insert := "INSERT INTO waybill.waybill_outbox_notices (kind, route, slot, slots, key, id, seq) SELECT 1, 'r', 0, 1, 'k', '', 0 FROM generate_series(1, $1::int)"
	tell := func() {
		exec(b, b.pool, insert, 1)
		b.d.Wake(b.now, "r")
		b.until("it is heeded", func() bool { return queryInt(b, b.pool, "SELECT count(*) FROM waybill.waybill_outbox_notices") == 0 })
	}
	few := func() {
		for range 5 {
			tell()
			b.pass(1, true)
		}
		for range 200 {
			b.step() // heartbeats
		}
	}
	few()
	before := b.most(few)
	exec(b, b.pool, insert, 20_000)
	exec(b, b.pool, "DELETE FROM waybill.waybill_outbox_notices")
	few()
	b.same(before, b.most(few))
	// A member that gets a partition asks for all.
	self := core.Member{Session: b.d.Session(), Routes: []core.ServedRoute{{Route: "r", InitialPartitions: 1}}}
	for name, ask := range map[string]func() error{
		"read": func() error {
			_, err := b.o.Read(b.Context(), self.Session, core.ReadRequest{Slots: []core.RouteSlots{all("r")}})
			return err
		},
		"heartbeat": func() error {
			_, err := b.o.Heartbeat(b.Context(), core.HeartbeatRequest{Self: self})
			return err
		},
	} {
		n := b.server.blocks(b.T, b.name, func() {
			if err := ask(); err != nil {
				b.Error(name, err)
			}
		})
		if n > 100 {
			b.Errorf("%s: for all notices it touches %.0f blocks behind 20,000 that are gone", name, n)
		}
	}
}
