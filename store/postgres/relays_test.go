package postgres_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/postgres"
)

// bus is a broker that keeps the messages that arrived, by key.
type bus struct {
	mu  sync.Mutex
	ids map[string][]string
}

func (b *bus) take(items []*dispatch.Item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, item := range items {
		e := &item.Record.Envelope
		b.ids[e.Key] = append(b.ids[e.Key], e.ID)
	}
}

func (b *bus) all() map[string]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[string]bool{}
	for _, ids := range b.ids {
		for _, id := range ids {
			all[id] = true
		}
	}
	return all
}

func (b *bus) count() int { return len(b.all()) }

// of returns the messages of a key that arrived.
func (b *bus) of(key string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.ids[key])
}

// forget begins anew.
func (b *bus) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.ids)
}

// has waits until all of ids have arrived.
func (b *bus) has(tb testing.TB, ids ...string) {
	tb.Helper()
	patience.Moving(tb, fmt.Sprintf("%d messages arrive", len(ids)), func() (int, bool) {
		all := b.all()
		return len(all), !slices.ContainsFunc(ids, func(id string) bool { return !all[id] })
	})
}

// runPump runs a relay of o until the test ends.
func runPump(tb testing.TB, o *postgres.Outbox, routes ...string) *bus {
	tb.Helper()
	opts := dispatch.Options{Lease: patience.For(5 * time.Second), PollMax: 50 * time.Millisecond}
	for _, r := range routes {
		opts.Routes = append(opts.Routes, dispatch.Route{Name: r, Partitions: 4})
	}
	b := &bus{ids: map[string][]string{}}
	ctx, stop := context.WithCancel(tb.Context())
	var wg sync.WaitGroup
	wg.Go(func() { newPump(o, opts).run(ctx, nil, 50, 4, b.take) })
	tb.Cleanup(func() {
		stop()
		wg.Wait()
	})
	return b
}

// idsOf are the ids of batch.
func idsOf(prefix string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s-%06d", prefix, i)
	}
	return ids
}

// batch returns n messages of 10 keys; their ids begin with prefix and sort in their order.
func batch(prefix string, n int) []waybill.Message {
	msgs := make([]waybill.Message, n)
	for i, id := range idsOf(prefix, n) {
		msgs[i] = message(waybill.ID(id), waybill.Key(fmt.Sprint("k", i%10)))
	}
	return msgs
}

// OR-02 OR-08: the messages of a long transaction are not skipped, and keep their order, however many later ones were
// published meanwhile.
func TestOrderOfALongTransaction(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	bus := runPump(t, o, waybill.DefaultRoute)
	// it is watched by itself after a second
	for round, pause := range []time.Duration{50 * time.Millisecond, 1500 * time.Millisecond} {
		long := begin(t, pool, "SELECT 1")
		in := func(id string) {
			t.Helper()
			if _, err := o.Stage(t.Context(), long, message(waybill.ID(fmt.Sprint(id, round)), waybill.Key("k"))); err != nil {
				t.Fatal(err)
			}
		}
		in("first")
		for i, end := 0, time.Now().Add(pause); time.Now().Before(end); i++ {
			id := fmt.Sprint("other", round, "-", i)
			stage(t, pool, o, message(waybill.ID(id), waybill.Key("other")), message())
			bus.has(t, id)
		}
		in("second")
		stage(t, pool, o, message(waybill.ID(fmt.Sprint("b", round)), waybill.Key("b")))
		bus.has(t, fmt.Sprint("b", round))
		in("third")
		if err := long.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		bus.has(t, fmt.Sprint("third", round))
		if got, want := bus.of("k"), []string{fmt.Sprint("first", round), fmt.Sprint("second", round), fmt.Sprint("third", round)}; !slices.Equal(got, want) {
			t.Errorf("they came in the order %v, want %v", got, want)
		}
		bus.forget()
	}
}

// OR-02: the records that came due during an outage are put in line in few steps, and drain in their order.
func TestManyDueDrain(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	const due, later = 8000, 1000
	fill := func(from, to int, at string) {
		t.Helper()
		exec(t, pool, `INSERT INTO waybill.waybill_outbox (topic, body, id, key, due_at)
			SELECT 't', 'x', lpad(i::text, 9, '0'), 'k' || i % 2, `+at+` FROM generate_series($1::int, $2::int) i`, from, to)
	}
	fill(1, due, "now() - interval '1 hour' + i * interval '1 ms'")
	self := session(t, o, waybill.DefaultRoute)
	parts := []core.RouteSlots{all(waybill.DefaultRoute)}
	for steps, left := 0, int64(due); left > 0; steps++ {
		d, err := o.Due(t.Context(), self, parts, 1000)
		if err != nil || d.TimersReady == 0 || steps > due/1000 {
			t.Fatalf("%d are left after %d steps: %+v, %v", left, steps, d, err)
		}
		left -= int64(d.TimersReady)
	}
	fill(due+1, due+later, "NULL::timestamptz")
	if _, err := o.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: self}, Leave: true}); err != nil {
		t.Fatal(err)
	}
	bus := runPump(t, o, waybill.DefaultRoute)
	patience.Moving(t, "all of them arrive", func() (int, bool) { n := bus.count(); return n, n == due+later })
	for _, key := range []string{"k0", "k1"} {
		if ids := bus.of(key); !slices.IsSorted(ids) {
			t.Errorf("key %s is out of order", key)
		}
	}
}

// DB-02: an old snapshot elsewhere, which keeps dead rows from being removed, does not slow a relay down.
func TestOldSnapshotSlowsNobody(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	old, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := old.Exec(t.Context(), `SELECT 1`); err != nil {
		t.Fatal(err)
	}
	self := session(t, o, waybill.DefaultRoute)
	var from int64
	// round publishes 3,000 records, and returns how many buffers its first page touches.
	round := func() int64 {
		exec(t, pool, `INSERT INTO waybill.waybill_outbox (topic, body) SELECT 't.x', '' FROM generate_series(1, 3000)`)
		touched, _ := buffers(t, pool, postgres.SQL(o, postgres.RangesSQL),
			int64(1<<24), []int{0}, []string{waybill.DefaultRoute}, []int64{-1}, []int64{from}, []int64{math.MaxInt64}, []bool{false}, []int{500})
		for done := 0; done < 3000; {
			p, err := o.Read(t.Context(), self, core.ReadRequest{KnownLastSeq: from, Ranges: []core.Range{{RouteSlots: all(waybill.DefaultRoute), AfterSeq: from, UpToSeq: 1 << 62, Limit: 500}}})
			if err != nil {
				t.Fatal(err)
			}
			rs := p.Ranges[0].Records
			out := make([]core.Outcome, len(rs))
			for i := range rs {
				out[i] = core.Published(&rs[i])
			}
			settle(t, o, out...)
			done += len(rs)
			from = rs[len(rs)-1].Seq
		}
		return touched
	}
	first := round()
	var last int64
	for range 9 {
		last = round()
	}
	t.Logf("a page touches %d buffers at first, %d behind 27,000 dead rows", first, last)
	if last > 2*first {
		t.Errorf("a page touches %d buffers behind 27,000 dead rows, and %d at first", last, first)
	}
}

// OR-04 OR-05 DB-12: operators who requeue heads and redrive while a relay publishes never take a message from it, lose
// none, and keep each key in order, on a route that blocks after an abandoned message.
func TestRequeuesRaceWithARelay(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	var msgs []waybill.Message
	for i := range 400 {
		msgs = append(msgs, message(waybill.Key(fmt.Sprint("k", i%20)), waybill.ID(fmt.Sprintf("%03d", i))))
	}
	stage(t, pool, o, msgs...)
	b := &bus{ids: map[string][]string{}}
	p := newPump(o, dispatch.Options{Routes: []dispatch.Route{{Name: waybill.DefaultRoute, Partitions: 4, Blocks: true}}, PollMax: 20 * time.Millisecond})
	p.outcome = func(item *dispatch.Item) core.Outcome {
		switch n := rand.IntN(10); {
		case n < 2:
			return core.Retry(&item.Record, errNo, time.Duration(rand.IntN(20))*time.Millisecond)
		case n < 4:
			return core.Abandon(&item.Record, waybill.ReasonRejected, errNo)
		}
		b.take([]*dispatch.Item{item})
		return core.Published(&item.Record)
	}
	ctx, stop := context.WithCancel(t.Context())
	c := &crowd{t: t, o: o, stop: stop}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { p.run(ctx, nil, 8, 4, func([]*dispatch.Item) {}) })
	var ids []string
	for i := range msgs {
		ids = append(ids, msgs[i].ID)
	}
	for range 2 {
		wg.Go(func() { c.operator(ctx, ids, []admin.HeadAction{admin.HeadRequeue}, false) })
	}
	patience.Moving(t, "all are published", func() (int, bool) {
		if ctx.Err() != nil {
			t.Fatalf("%d of %d messages were published", b.count(), len(msgs))
		}
		n := b.count()
		return n, n >= len(msgs)
	})
	for i := range 20 {
		if ids := b.of(fmt.Sprint("k", i)); !slices.IsSorted(ids) || len(ids) != len(msgs)/20 {
			t.Errorf("key %d was published in the order %v", i, ids)
		}
	}
}
