package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
)

// RL-01 P8: a publish in flight may finish; a record that was not sent goes back at once.
func TestStopDrains(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		b.latency = 5 * time.Second
		stage(t, s, msgs(10, func(i int) string { return strconv.Itoa(i % 2) })...)
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		patience.Pass(t, time.Second) // two are in flight, eight wait behind them
		done := make(chan error)
		go func() { done <- stop() }()
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if b.count() != 2 || states(s)[core.StatePending] != 8 || len(s.Records()) != 8 {
			t.Errorf("%d published, %v", b.count(), states(s))
		}
	})
}

// RL-01 P8: results that are unknown at the drain limit are released; a publisher that ignores its context is left
// behind.
func TestStopAtTheDrainLimit(t *testing.T) {
	t.Parallel()
	for _, deaf := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, b := newStore(t), newBus()
			b.latency = time.Second // after its context ended: no success
			free := make(chan struct{})
			b.before = func(ctx context.Context, _ []waybill.Envelope) {
				if deaf {
					<-free
				}
				<-ctx.Done()
			}
			stage(t, s, msgs(3, noKey)...)
			stop := begin(t, newRelay(t, s, b, relay.Options{DrainTimeout: 2 * time.Second}))
			time.Sleep(time.Second)
			start := time.Now()
			if err := stop(); err != nil {
				t.Error(err)
			}
			if d := time.Since(start); d < 2*time.Second || d > 4*time.Second {
				t.Errorf("stopped after %s", d)
			}
			if st := states(s); st[core.StatePending] != 3 || s.Records()[0].Attempts != 0 {
				t.Errorf("%v", st)
			}
			close(free)
		})
	}
}

// TestStopWhileTheStoreHangs: a relay whose store answers nothing any more, as a database that is frozen, stops. It has
// DrainTimeout for the messages that are out, a second for those that it then cancels, and five seconds to store the
// outcomes.
func TestStopWhileTheStoreHangs(t *testing.T) { // RL-01
	t.Parallel()
	for name, c := range map[string]struct {
		publisher bool // it hangs, too
		want      time.Duration
	}{
		"the store":               {false, 5 * time.Second},
		"store and publisher too": {true, 7 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				mem, b := newStore(t), newBus()
				var frozen, deaf atomic.Bool
				free := make(chan struct{})
				s := &sharedtest.Store{OutboxStore: mem, Before: func(ctx context.Context, _ string, _ any) error {
					if !frozen.Load() {
						return nil
					}
					<-ctx.Done()
					return down()
				}}
				b.before = func(context.Context, []waybill.Envelope) {
					if deaf.Load() {
						<-free
					}
				}
				stop := begin(t, newRelay(t, s, b, relay.Options{DrainTimeout: time.Second}))
				stage(t, mem, msg("a", "k"))
				within(t, time.Second, "it flows", func() bool { return b.count() == 1 })
				if c.publisher {
					deaf.Store(true)
					stage(t, mem, msg("b", "k"))
					within(t, time.Second, "it is out", func() bool { return len(b.started) == 2 })
				}
				frozen.Store(true)
				stage(t, mem, msgs(100, noKey)...)
				patience.Pass(t, 2*time.Second)
				begun := time.Now()
				if err := stop(); err != nil {
					t.Error(err)
				}
				if took := time.Since(begun); took != c.want {
					t.Errorf("the stop took %s, want %s", took, c.want)
				}
				close(free)
				patience.Pass(t, time.Minute) // calls that still hang end by their own limits
			})
		})
	}
}

// TestStopDuringAPublish: a message whose publish is cut off at the drain limit may have arrived, so no caller is told
// that it has not.
func TestStopDuringAPublish(t *testing.T) { // ST-09
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		free := make(chan struct{})
		b.before = func(context.Context, []waybill.Envelope) { <-free } // it does not heed its context
		stage(t, s, msg("a", "", waybill.Cancellable()))
		stop := begin(t, newRelay(t, s, b, relay.Options{DrainTimeout: time.Second}))
		within(t, time.Second, "the publish", func() bool { return len(b.started) == 1 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		stage(t, s, msg("b", "", waybill.Cancellable()))
		tx := s.Begin()
		defer tx.Rollback()
		for id, want := range map[string]waybill.CancelStatus{"a": waybill.CancelUncertain, "b": waybill.CancelDone} {
			if got, err := tx.Cancel(waybill.DefaultRoute, id); got != want || err != nil {
				t.Errorf("cancelling %s says %s, %v, want %s", id, got, err, want)
			}
		}
		close(free)
	})
}

// TestStopWithoutALeave: a stop does not wait for a store that refuses the leave. The others find out.
func TestStopWithoutALeave(t *testing.T) { // RL-01
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &faulty{OutboxStore: newStore(t)}
		s.heartbeat = func(m core.HeartbeatRequest, next func() (core.Membership, error)) (core.Membership, error) {
			if m.Leave {
				return core.Membership{}, down()
			}
			return next()
		}
		stop := begin(t, newRelay(t, s, newBus(), relay.Options{}))
		patience.Pass(t, time.Second)
		begun := time.Now()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > 100*time.Millisecond {
			t.Errorf("the stop took %s", took)
		}
	})
}

// RL-01: a read that is in progress at the stop is not waited for, and its records are not sent.
func TestStopDuringRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		s := &faulty{OutboxStore: mem, read: func(_ core.ReadRequest, next func() (core.ReadResult, error)) (core.ReadResult, error) {
			c, err := next()
			time.Sleep(500 * time.Millisecond)
			return c, err
		}}
		stage(t, mem, msgs(3, noKey)...)
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		time.Sleep(100 * time.Millisecond)
		if err := stop(); err != nil {
			t.Error(err)
		}
		if st := states(mem); st[core.StatePending] != 3 || b.count() > 0 {
			t.Errorf("%v, %d published", st, b.count())
		}
	})
}

// P4: no publish starts later than a lease after the latest renewal that succeeded, nor goes on then. When the store
// answers again the relay goes on, and nothing was lost.
func TestNoPublishAfterTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(6*time.Minute, "40 publishes of 7 s, and an outage of a minute")
		mem, b := newStore(t), newBus()
		var mu sync.Mutex
		var renewal time.Time // the latest that succeeded
		gone := time.Now().Add(5 * time.Second)
		back := gone.Add(time.Minute)
		s := &faulty{OutboxStore: mem, heartbeat: func(_ core.HeartbeatRequest, next func() (core.Membership, error)) (core.Membership, error) {
			now := time.Now()
			if now.After(gone) && now.Before(back) {
				return core.Membership{}, down()
			}
			r, err := next()
			mu.Lock()
			defer mu.Unlock()
			renewal = now
			return r, err
		}}
		b.before = func(ctx context.Context, batch []waybill.Envelope) {
			mu.Lock()
			until := renewal.Add(10 * time.Second)
			mu.Unlock()
			if time.Now().After(until) {
				t.Errorf("%s was sent after the lease", batch[0].ID)
			}
			select {
			case <-time.After(7 * time.Second):
			case <-ctx.Done():
			}
			mu.Lock()
			until = renewal.Add(10 * time.Second)
			mu.Unlock()
			if d := time.Since(until); d > 0 {
				t.Errorf("%s went on for %s after the lease", batch[0].ID, d)
			}
		}
		b.latency = time.Millisecond
		stage(t, mem, msgs(40, func(int) string { return "k" })...)
		breaks := 0
		o := relay.Options{Hooks: relay.Hooks{OnBreaker: func(relay.Event) { breaks++ }}}
		stop := begin(t, newRelay(t, s, b, o))
		within(t, 10*time.Minute, "published", func() bool { return b.count() >= 40 && len(mem.Records()) == 0 })
		if err := errors.Join(stop(), b.firstsInOrder()); err != nil {
			t.Error(err)
		}
		if breaks > 0 {
			t.Error("the end of a lease is no outage of the broker")
		}
	})
}

// P4 RL-08: a publish may take longer than the lease, which is renewed meanwhile.
func TestPublishLongerThanTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(76*time.Second, "three publishes of 25 s")
		mem, b := newStore(t), newBus()
		b.latency = 25 * time.Second
		stage(t, mem, msgs(3, func(int) string { return "k" })...)
		stop := begin(t, newRelay(t, mem, b, relay.Options{}))
		within(t, 76*time.Second, "published", func() bool { return b.count() == 3 })
		if err := stop(); err != nil || len(b.tried) != 3 || len(mem.Records()) > 0 {
			t.Errorf("%v: tried %v, left %v", err, b.tried, states(mem))
		}
	})
}

// P4 RL-04: an outcome that is refused is noted; its neighbours are settled.
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		b.latency = time.Second
		s := &faulty{OutboxStore: mem}
		stage(t, mem, msgs(3, noKey)...)
		s.settle = func(o []core.Outcome, next func() core.Results) core.Results {
			res := next()
			for i := range o {
				if o[i].Ref().ID == "m00001" {
					res[i] = fmt.Errorf("settle: %w", core.ErrFenced)
				}
			}
			return res
		}
		var lost []string
		reader := metric.NewManualReader()
		o := relay.Options{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader)), Hooks: relay.Hooks{OnLeaseLost: func(e relay.Event) { lost = append(lost, e.ID) }}}
		stop := begin(t, newRelay(t, s, b, o))
		within(t, 10*time.Second, "published", func() bool { return b.count() == 3 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		if len(lost) != 1 || lost[0] != "m00001" || len(s.settls) != 1 {
			t.Errorf("lost %v, %d settles", lost, len(s.settls))
		}
		if got := collect(t, reader, "waybill.relay.lease.lost"); got["route=default,transport=relay_test"] != 1 {
			t.Errorf("counted as lost: %v", got)
		}
	})
}

// P4: a relay that others took for dead says so, joins anew, and sends again the records that it had out, in order.
func TestSessionLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(26*time.Second, "30 publishes of a second")
		mem, b := newStore(t), newBus()
		b.latency = 1010 * time.Millisecond
		s := &faulty{OutboxStore: mem}
		stage(t, mem, msgs(30, func(int) string { return "k" })...)
		var lost []string
		var log sharedtest.Log
		reader := metric.NewManualReader()
		o := relay.Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))}
		o.Hooks.OnLeaseLost = func(e relay.Event) { lost = append(lost, e.ID) }
		stop := begin(t, newRelay(t, s, b, o))
		patience.Pass(t, 5500*time.Millisecond)
		const other = 7
		membership, err := mem.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: other, Heartbeats: 1}, Join: true})
		for _, m := range membership.Members {
			if m.Session != other {
				_, err = mem.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: other, Heartbeats: 2}, Evict: []core.Eviction{{Session: m.Session, Heartbeats: m.Heartbeats}}})
			}
		}
		if err == nil {
			_, err = mem.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: other, Heartbeats: 3}, Leave: true})
		}
		if err != nil {
			t.Fatal(err)
		}
		within(t, time.Minute, "published", func() bool { return len(mem.Records()) == 0 })
		if err := errors.Join(stop(), b.firstsInOrder()); err != nil {
			t.Error(err)
		}
		if len(lost) != 1 || lost[0] != "m00005" || !strings.Contains(log.Take(), "event=relay.lease_lost") {
			t.Errorf("lost %v", lost)
		}
		// the session, and the record
		if got := collect(t, reader, "waybill.relay.lease.lost"); got["route=default,transport=relay_test"] != 2 {
			t.Errorf("counted as lost: %v", got)
		}
	})
}

// DB-10: an idle relay makes few reads, wakes for far timers when they are due, and needs no wake-up to find messages.
func TestIdle(t *testing.T) {
	t.Parallel()
	for _, hidden := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			mem, b := newStore(t), newBus()
			s, poll := &faulty{OutboxStore: mem}, relay.DefaultPollMax
			if hidden {
				s.OutboxStore, poll = plain{mem}, relay.UnwokenPollMax
			}
			stop := begin(t, newRelay(t, s, b, relay.Options{}))
			patience.Pass(t, time.Minute)
			before := s.numReads()
			due := time.Now().Add(50*time.Minute + 3*time.Second)
			stage(t, mem, msg("later", "", waybill.Delay(time.Until(due))))
			patience.Pass(t, 50*time.Minute)
			synctest.Wait()
			if n := time.Duration(s.numReads() - before); n > 50*time.Minute/(poll*7/10) || n < 50*time.Minute/(poll*11/10) {
				t.Errorf("%d reads in 50 minutes", n)
			}
			within(t, time.Until(due)+2*time.Millisecond, "published when due", func() bool { return b.count() == 1 })
			if time.Now().Before(due) {
				t.Error("published early")
			}
			patience.Pass(t, time.Minute)
			stage(t, mem, msg("now", ""))
			limit := 2 * time.Millisecond
			if hidden {
				limit = poll
			}
			within(t, limit, "published", func() bool { return b.count() == 2 })
			patience.Pass(t, time.Minute)
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// DB-10: messages of a key that come while it is held are found when it is free.
func TestMessagesBehindAHeldKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		b.latency = 100 * time.Millisecond
		s := &faulty{OutboxStore: mem}
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		patience.Pass(t, time.Second)
		start := time.Now()
		for _, m := range msgs(20, func(int) string { return "k" }) {
			stage(t, mem, m)
			time.Sleep(10 * time.Millisecond)
		}
		within(t, 3*time.Second, "published", func() bool { return b.count() == 20 })
		if d := time.Since(start); d > 2200*time.Millisecond {
			t.Errorf("took %s; 20 messages need 2 s one by one", d)
		}
		if n := s.numReads(); n > 60 {
			t.Errorf("%d reads", n)
		}
		if err := errors.Join(stop(), b.firstsInOrder()); err != nil {
			t.Error(err)
		}
	})
}

// RL-07: a store that cannot wake the relay is polled.
func TestWaitFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		s := &deafStore{faulty{OutboxStore: mem}}
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		patience.Pass(t, time.Minute)
		if n := s.numReads(); n > 60 {
			t.Errorf("%d reads in a minute", n)
		}
		stage(t, mem, msg("a", ""))
		within(t, 10*time.Second, "published", func() bool { return b.count() == 1 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

type deafStore struct{ faulty }

func (*deafStore) Wait(context.Context, []string, time.Duration) (core.WakeCause, error) {
	return "", down()
}

// A store that wakes the relay in vain all the time is not asked all the time.
func TestVainWakeups(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &restless{faulty{OutboxStore: newStore(t)}}
		stop := begin(t, newRelay(t, s, newBus(), relay.Options{}))
		patience.Pass(t, 10*time.Second)
		if n := s.numReads(); n > 300 {
			t.Errorf("%d reads in ten seconds", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

type restless struct{ faulty }

func (*restless) Wait(context.Context, []string, time.Duration) (core.WakeCause, error) {
	return core.WakeNotify, nil
}

// DB-10: without any help of the store, a retry is handed out when it is due, and what stood behind a held key when the
// key is free.
func TestPollsWhenDue(t *testing.T) {
	t.Parallel()
	o := relay.Options{
		PollMin: 10 * time.Second, PollMax: 10 * time.Second,
		Routes: []relay.Route{{Backoff: &waybill.Backoff{Kind: waybill.BackoffConstant, Base: 3 * time.Second, Jitter: waybill.JitterNone}}},
	}
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(24*time.Second, "two publishes of 12 s")
		mem, b := newStore(t), newBus()
		b.answer = func(_ *waybill.Envelope, nth int) error {
			if nth == 1 {
				return errNo
			}
			return nil
		}
		stage(t, mem, msg("a", ""))
		stop := begin(t, newRelay(t, plain{mem}, b, o))
		within(t, 3005*time.Millisecond, "retried when due", func() bool { return b.count() == 1 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(24*time.Second, "two publishes of 12 s")
		mem, b := newStore(t), newBus()
		b.latency = 12 * time.Second
		stage(t, mem, msg("a", "k"))
		stop := begin(t, newRelay(t, plain{mem}, b, o))
		patience.Pass(t, time.Second)
		stage(t, mem, msg("b", "k")) // found by the poll at 10 s, but the key is held until 12 s
		within(t, 24*time.Second, "published", func() bool { return b.count() == 2 })
		if d := b.started[1].Sub(b.started[0]); d > 12010*time.Millisecond {
			t.Errorf("the key was free after 12 s; the next was sent after %s", d)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// waits is a store that cannot wait.
type waits struct {
	core.OutboxStore
	calls atomic.Int64
}

func (w *waits) Wait(context.Context, []string, time.Duration) (core.WakeCause, error) {
	w.calls.Add(1)
	return core.WakeStop, errors.New("no")
}

// RL-07: a store that ends each wait at once, with an error or without, is polled.
func TestBrokenWaiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &waits{OutboxStore: newStore(t)}
		stop := begin(t, newRelay(t, s, newBus(), relay.Options{}))
		patience.Pass(t, time.Minute)
		if n := s.calls.Load(); n < 2 || n > 100 {
			t.Errorf("%d waits", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// DB-23: a store that needs longer than a relay is used to wait gets the time that it needs, and nothing goes on in
// circles: not even where it undoes what is interrupted.
func TestSlowStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(32*time.Second, "calls of 1.9 s")
		mem, b := newStore(t), newBus()
		s := sluggish(mem, 450*time.Millisecond, 1900*time.Millisecond)
		stage(t, mem, msgs(100, func(i int) string { return strconv.Itoa(i % 7) })...)
		stop := begin(t, newRelay(t, s, b, relay.Options{Lease: time.Second, BatchSize: 10, DrainTimeout: 10 * time.Second}))
		within(t, 2*time.Minute, "all are settled", func() bool { return len(mem.Records()) == 0 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		for id, n := range b.tried {
			if n != 1 {
				t.Errorf("%s sent %d times", id, n)
			}
		}
	})
}
