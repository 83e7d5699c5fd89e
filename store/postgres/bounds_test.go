package postgres_test

// A relay at the bounds of its memory: waiting records, in numbers above every bound, stop no others, and go when their
// wait ends. In the gate the bounds are small; at night they are those of production.

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/store/postgres"
)

// crowded is an outbox with more keys, or locked records, than a relay's memory holds.
type crowded struct {
	testing.TB
	o    *postgres.Outbox
	pool *pgxpool.Pool
	opts dispatch.Options
	n    int // more than the bound that the test is about
}

// atBounds runs a test with small bounds, and at night with those of production.
func atBounds(t *testing.T, small dispatch.Options, n, full int, why string, test func(c *crowded)) {
	t.Helper()
	t.Parallel()
	run := func(t *testing.T, opts dispatch.Options, n int) {
		t.Helper()
		o, pool := newOutbox(t, postgres.Options{})
		opts.PollMax = 50 * time.Millisecond
		test(&crowded{t, o, pool, opts, n})
	}
	t.Run("small", func(t *testing.T) {
		t.Parallel()
		run(t, small, n)
	})
	t.Run("full", func(t *testing.T) {
		t.Parallel()
		tier.Nightly(t, why)
		run(t, dispatch.Options{}, full)
	})
}

// fates are the outcomes of sent messages.
type fates struct {
	of atomic.Pointer[func(item *dispatch.Item) core.Outcome]
}

func (f *fates) set(of func(item *dispatch.Item) core.Outcome) { f.of.Store(&of) }

// start runs a relay until the test, or the function that it returns, ends it.
func (c *crowded) start(f *fates, routes ...dispatch.Route) (b *bus, p *pump, stop func()) {
	c.Helper()
	opts := c.opts
	opts.Lease = patience.For(10 * time.Second)
	opts.Routes = routes
	b = &bus{ids: map[string][]string{}}
	p = newPump(c.o, opts)
	p.outcome = func(item *dispatch.Item) core.Outcome {
		if of := f.of.Load(); of != nil {
			if o := (*of)(item); o.Event() != core.EventConfirmed {
				return o
			}
		}
		b.take([]*dispatch.Item{item})
		return core.Published(&item.Record)
	}
	ctx, end := context.WithCancel(c.Context())
	var wg sync.WaitGroup
	wg.Go(func() { p.run(ctx, nil, 500, 8, func([]*dispatch.Item) {}) })
	stop = func() {
		end()
		wg.Wait()
	}
	c.Cleanup(stop)
	return b, p, stop
}

// stage stages n messages of a topic, each of a key of its own, and returns their ids.
func (c *crowded) stage(prefix, topic string, n int, opts ...waybill.MessageOption) []string {
	c.Helper()
	ids := idsOf(prefix, n)
	for some := range slices.Chunk(ids, 1000) {
		var msgs []waybill.Message
		for _, id := range some {
			msgs = append(msgs, waybill.RawMessage(topic, "text/plain", []byte("body"), append([]waybill.MessageOption{waybill.ID(id), waybill.Key("key " + id)}, opts...)...))
		}
		stage(c, c.pool, c.o, msgs...)
	}
	return ids
}

// others stages a message of a new key, and one without a key, and waits until both arrive.
func (c *crowded) others(b *bus, name string) {
	c.Helper()
	stage(c, c.pool, c.o, message(waybill.ID(name+" keyed"), waybill.Key(name)), message(waybill.ID(name+" keyless")))
	b.has(c, name+" keyed", name+" keyless")
}

// reach waits until so many records are in a state.
func (c *crowded) reach(n int, where string) {
	c.Helper()
	patience.Moving(c, fmt.Sprintf("%d records %s", n, where), func() (int64, bool) {
		at := queryInt(c, c.pool, "SELECT count(*) FROM waybill.waybill_outbox WHERE "+where)
		return at, at >= int64(n)
	})
}

var oneRoute = dispatch.Route{Name: waybill.DefaultRoute, Partitions: 8}

// TestManyRetriesStopNobody: more keys wait for a retry than a relay remembers. Other messages go, also after a
// restart, and the retries go when they are due.
func TestManyRetriesStopNobody(t *testing.T) {
	atBounds(t, dispatch.Options{MaxKeys: 20}, 150, 105_000, "105,000 retries: 3 minutes", func(c *crowded) {
		var f fates
		f.set(func(item *dispatch.Item) core.Outcome { return core.Retry(&item.Record, errNo, time.Hour) })
		b, _, stop := c.start(&f, oneRoute)
		ids := c.stage("a", "t.x", c.n)
		c.reach(c.n, "retry")
		after := c.stage("b", "t.x", c.n/10, waybill.Key("key "+ids[0])) // behind a retry
		f.set(func(item *dispatch.Item) core.Outcome { return core.Published(&item.Record) })
		c.others(b, "running")
		stop()
		b, _, _ = c.start(&f, oneRoute)
		c.others(b, "restarted")
		if got := b.count(); got != 2 {
			c.Errorf("%d messages arrived, want 2: the others wait", got)
		}
		exec(c, c.pool, "UPDATE waybill.waybill_outbox SET due_at = statement_timestamp() WHERE retry")
		b.has(c, append(ids, after...)...)
		if got := b.of("key " + ids[0]); !slices.Equal(got, append([]string{ids[0]}, after...)) {
			c.Errorf("the key came in the order %v", got)
		}
	})
}

// TestManyBlockedKeysStopNobody: more keys are blocked than a relay remembers. Other messages go, and a key goes on
// when an operator decides.
func TestManyBlockedKeysStopNobody(t *testing.T) {
	atBounds(t, dispatch.Options{MaxKeys: 20}, 150, 105_000, "105,000 blocked keys: 3 minutes", func(c *crowded) {
		var f fates
		f.set(func(item *dispatch.Item) core.Outcome {
			return core.Abandon(&item.Record, waybill.ReasonRejected, errNo)
		})
		route := oneRoute
		route.Blocks = true
		b, _, stop := c.start(&f, route)
		ids := c.stage("a", "t.x", c.n)
		c.reach(c.n, "settled_at IS NOT NULL")
		f.set(func(item *dispatch.Item) core.Outcome { return core.Published(&item.Record) })
		var after []string
		for i, id := range []string{ids[0], ids[c.n/2], ids[c.n-1]} {
			after = append(after, c.stage(fmt.Sprint("b", i), "t.x", 1, waybill.Key("key "+id))...)
		}
		c.others(b, "running")
		stop()
		b, _, _ = c.start(&f, route)
		c.others(b, "restarted")
		if got := b.count(); got != 2 {
			c.Errorf("%d messages arrived, want 2: the others wait", got)
		}
		for i, id := range []string{ids[0], ids[c.n/2], ids[c.n-1]} {
			if err := c.o.DecideHead(c.Context(), waybill.DefaultRoute, "key "+id, id, admin.HeadSkip); err != nil {
				c.Fatal(err)
			}
			b.has(c, after[i])
		}
	})
}

// TestAPausedTopicStopsNobody: more keys wait for a paused topic than a relay remembers. Other topics go, and all go
// when the topic is open again.
func TestAPausedTopicStopsNobody(t *testing.T) {
	atBounds(t, dispatch.Options{MaxKeys: 20}, 150, 110_000, "110,000 keys of a paused topic: 3 minutes", func(c *crowded) {
		var f fates
		b, p, _ := c.start(&f, oneRoute)
		pause := func(pause bool) {
			p.answers <- func() { p.d.PauseTopic(waybill.DefaultRoute, "t.lost", pause) }
		}
		pause(true)
		ids := c.stage("a", "t.lost", c.n)
		after := c.stage("b", "t.x", 3, waybill.Key("key "+ids[1]))
		c.others(b, "paused")
		if got := b.count(); got != 2 {
			c.Errorf("%d messages arrived, want 2: the others wait", got)
		}
		pause(false)
		b.has(c, append(ids, after...)...)
		if got := b.of("key " + ids[1]); !slices.Equal(got, append([]string{ids[1]}, after...)) {
			c.Errorf("the key came in the order %v", got)
		}
	})
}

// TestAHeadOfAPausedTopicIsTakenAway: a key whose head waits for a paused topic goes on when the head is skipped, set
// aside, cancelled, or has expired.
func TestAHeadOfAPausedTopicIsTakenAway(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	c := &crowded{t, o, pool, dispatch.Options{PollMax: 50 * time.Millisecond}, 0}
	var f fates
	b, p, _ := c.start(&f, oneRoute)
	p.answers <- func() { p.d.PauseTopic(waybill.DefaultRoute, "t.lost", true) }
	now := time.Now()
	f.set(func(item *dispatch.Item) core.Outcome {
		if item.Record.Expires && item.Record.ExpiresIn <= time.Since(now) {
			return core.Abandon(&item.Record, waybill.ReasonExpired, errNo)
		}
		return core.Published(&item.Record)
	})
	heads := []string{"skipped", "aside", "cancelled", "expired"}
	for _, id := range heads {
		opts := []waybill.MessageOption{waybill.ID(id), waybill.Key(id), waybill.Cancellable()}
		if id == "expired" {
			opts = append(opts, waybill.TTL(time.Second))
		}
		stage(t, pool, o, waybill.RawMessage("t.lost", "text/plain", nil, opts...))
	}
	c.others(b, "before") // all heads have been read
	for _, id := range heads {
		stage(t, pool, o, message(waybill.ID("after "+id), waybill.Key(id)))
	}
	c.others(b, "behind")
	for id, action := range map[string]admin.HeadAction{"skipped": admin.HeadSkip, "aside": admin.HeadSetAside} {
		if err := o.DecideHead(t.Context(), waybill.DefaultRoute, id, id, action); err != nil {
			t.Fatal(err)
		}
		b.has(t, "after "+id)
	}
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := o.Cancel(t.Context(), tx, waybill.CancelKey{ID: "cancelled"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	b.has(t, "after cancelled", "after expired")
}

// TestOpenCancelsStopNobody: a transaction cancels more messages than the window holds, and stays open. Others go. When
// it is rolled back, all go.
func TestOpenCancelsStopNobody(t *testing.T) {
	atBounds(t, dispatch.Options{Window: 20, Batch: 10}, 100, 5_000, "5,000 cancelled messages: a minute", func(c *crowded) {
		ids := c.stage("a", "t.x", c.n, waybill.Cancellable())
		tx := c.cancel(ids...)
		var f fates
		b, _, _ := c.start(&f, oneRoute)
		more := c.stage("b", "t.x", c.n, waybill.Cancellable())
		b.has(c, more...)
		c.others(b, "open")
		if got := b.count(); got != c.n+2 {
			c.Errorf("%d messages arrived, want %d: the others are being cancelled", got, c.n+2)
		}
		if err := tx.Rollback(c.Context()); err != nil {
			c.Fatal(err)
		}
		b.has(c, ids...)
	})
}

// cancel begins a transaction that cancels messages, and leaves it open.
func (c *crowded) cancel(ids ...string) pgx.Tx {
	c.Helper()
	tx, err := c.pool.Begin(c.Context())
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(c.Context())) })
	for some := range slices.Chunk(ids, 500) {
		var keys []waybill.CancelKey
		for _, id := range some {
			keys = append(keys, waybill.CancelKey{ID: id})
		}
		got, err := c.o.Cancel(c.Context(), tx, keys...)
		if err != nil {
			c.Fatal(err)
		}
		if slices.Contains(got, waybill.CancelInFlight) || slices.Contains(got, waybill.CancelNotFound) {
			c.Fatalf("cancel: %v", got)
		}
	}
	return tx
}

// TestLocksStopNobody: another transaction locks more records than the window holds, without a change, and stays open.
// They are published, and their outcomes cannot be stored. Others go.
func TestLocksStopNobody(t *testing.T) {
	atBounds(t, dispatch.Options{Window: 20, Batch: 10}, 100, 5_000, "5,000 locked records: a minute", func(c *crowded) {
		ids := c.stage("a", "t.x", c.n)
		tx, err := c.pool.Begin(c.Context())
		if err != nil {
			c.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(c.Context())) }()
		if _, err := tx.Exec(c.Context(), "SELECT 1 FROM waybill.waybill_outbox FOR UPDATE"); err != nil {
			c.Fatal(err)
		}
		var f fates
		b, _, _ := c.start(&f, oneRoute)
		more := c.stage("b", "t.x", c.n)
		b.has(c, more...)
		c.others(b, "locked")
		if err := tx.Rollback(c.Context()); err != nil {
			c.Fatal(err)
		}
		b.has(c, ids...)
	})
}

// orphan makes a member that dies: it owns the partitions of routes, and may have had out all that is staged. It
// published nothing.
func (c *crowded) orphan(routes ...dispatch.Route) {
	c.Helper()
	opts := c.opts
	opts.Lease, opts.Routes = time.Second, routes
	p := newPump(c.o, opts)
	killed := make(chan struct{})
	var once sync.Once
	p.run(c.Context(), killed, 1, 1, func([]*dispatch.Item) { once.Do(func() { close(killed) }) })
	// another one, which serves no route, removes it
	ctx, end := context.WithCancel(c.Context())
	var wg sync.WaitGroup
	wg.Go(func() { newPump(c.o, dispatch.Options{Lease: patience.For(10 * time.Second)}).run(ctx, nil, 1, 1, nil) })
	c.Cleanup(func() {
		end()
		wg.Wait()
	})
}

// TestALockedSuspectStopsNobody: after a crash, a transaction that stays open has cancelled one of the messages that
// the dead relay may have had out. The others go, and new ones.
func TestALockedSuspectStopsNobody(t *testing.T) { // RL-16
	atBounds(t, dispatch.Options{Window: 20, Batch: 10}, 100, 5_000, "5,000 messages after a crash: a minute", func(c *crowded) {
		ids := c.stage("a", "t.x", c.n)
		c.orphan(oneRoute)
		tx := c.cancelSuspect(ids[c.n/2])
		var f fates
		b, _, _ := c.start(&f, oneRoute)
		others := slices.Delete(slices.Clone(ids), c.n/2, c.n/2+1)
		b.has(c, others...)
		c.others(b, "locked")
		if err := tx.Rollback(c.Context()); err != nil {
			c.Fatal(err)
		}
		b.has(c, ids[c.n/2])
	})
}

// cancelSuspect waits until the dead member is removed, and cancels a message that it may have had out.
func (c *crowded) cancelSuspect(id string) pgx.Tx {
	c.Helper()
	var tx pgx.Tx
	patience.Until(c, "the dead member is removed", func() bool {
		t, err := c.pool.Begin(c.Context())
		if err != nil {
			c.Fatal(err)
		}
		got, err := c.o.Cancel(c.Context(), t, waybill.CancelKey{ID: id})
		if err != nil {
			c.Fatal(err)
		}
		if got[0] == waybill.CancelUncertain || got[0] == waybill.CancelDone {
			tx = t
			return true
		}
		if err := t.Rollback(c.Context()); err != nil {
			c.Fatal(err)
		}
		return false
	})
	return tx
}

// TestASlowRouteStopsNoOtherAfterACrash: after a crash all messages go in windows. A route whose publisher does not
// answer keeps no other waiting.
func TestASlowRouteStopsNoOtherAfterACrash(t *testing.T) { // RL-16
	atBounds(t, dispatch.Options{}, 300, 18_000, "18,000 messages in windows: a minute", func(c *crowded) {
		slow, fast := dispatch.Route{Name: "slow", Partitions: 1}, dispatch.Route{Name: "fast", Partitions: 1}
		c.stage("s", "t.x", 300, waybill.Routes("slow"))
		ids := c.stage("f", "t.x", c.n, waybill.Routes("fast"))
		c.orphan(slow, fast)
		opts := c.opts
		opts.Lease, opts.Routes = patience.For(10*time.Second), []dispatch.Route{slow, fast}
		b := &bus{ids: map[string][]string{}}
		ctx, end := context.WithCancel(c.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			newPump(c.o, opts).run(ctx, nil, 100, 8, func(items []*dispatch.Item) {
				if items[0].Route() == "slow" {
					<-ctx.Done()
				}
				b.take(items)
			})
		})
		defer wg.Wait()
		defer end()
		b.has(c, ids...)
	})
}
