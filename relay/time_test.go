package relay_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/relay"
)

// RL-01 P8: what is in flight may finish, what was not sent goes back at once.
func TestStopDrains(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		b.latency = 5 * time.Second
		stage(t, s, msgs(10, func(i int) string { return strconv.Itoa(i % 2) })...)
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		time.Sleep(time.Second) // two are in flight, eight wait behind them
		done := make(chan error)
		go func() { done <- stop() }()
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if st := states(s); st[core.StatePending] != 8 || st[core.StateProcessing] != 2 {
			t.Errorf("just after the stop: %v", st)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if b.count() != 2 || states(s)[core.StatePending] != 8 || len(s.Records()) != 8 {
			t.Errorf("%d published, %v", b.count(), states(s))
		}
	})
}

// RL-01 P8: results that are unknown at the drain limit are released; a publisher that ignores its context is left behind.
func TestStopAtTheDrainLimit(t *testing.T) {
	t.Parallel()
	for _, deaf := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, b := newStore(t), newBus()
			b.latency = time.Second // after its context ended: no success
			free := make(chan struct{})
			b.before = func(ctx context.Context, _ []core.Envelope) {
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

// RL-01: a claim that is in progress at the stop is answered and handed back.
func TestStopDuringClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		s := &faulty{OutboxStore: mem, claim: func(_ core.ClaimRequest, next func() (core.Claim, error)) (core.Claim, error) {
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

// P4: without renewal no publish starts near the end of the lease; what waits goes back.
func TestNoPublishAfterTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		b.latency = 900 * time.Millisecond
		s := &faulty{OutboxStore: plain{mem}}
		stage(t, mem, msgs(40, func(int) string { return "k" })...)
		begun := map[string]time.Time{} // of the claim, by message
		s.claim = func(_ core.ClaimRequest, next func() (core.Claim, error)) (core.Claim, error) {
			at := time.Now()
			time.Sleep(2 * time.Second) // a slow answer counts against the lease
			c, err := next()
			for i := range c.Records {
				begun[c.Records[i].Envelope.ID] = at
			}
			return c, err
		}
		b.before = func(_ context.Context, batch []core.Envelope) {
			if d := time.Since(begun[batch[0].ID]); d > 9*time.Second {
				t.Errorf("%s was sent %s after its claim began; the lease is 10 s", batch[0].ID, d)
			}
		}
		stop := begin(t, newRelay(t, s, b, relay.Options{Lease: 10 * time.Second, PublishTimeout: 5 * time.Second, PollMax: time.Second}))
		within(t, 2*time.Minute, "published", func() bool { return b.count() == 40 })
		if err := errors.Join(stop(), b.firstsInOrder()); err != nil {
			t.Error(err)
		}
		for _, r := range mem.Records() {
			t.Errorf("%s: %d crashes", r.Envelope.ID, r.Crashes)
		}
		for id, n := range b.tried {
			if n != 1 {
				t.Errorf("%s was sent %d times", id, n)
			}
		}
	})
}

// P4 RL-08: leases of a long batch are renewed.
func TestLeasesAreRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		b.latency = time.Second
		s := &faulty{OutboxStore: mem}
		stage(t, mem, msgs(60, func(int) string { return "k" })...)
		stop := begin(t, newRelay(t, s, b, relay.Options{Lease: 10 * time.Second, PublishTimeout: 2 * time.Second, PollMax: 5 * time.Second}))
		within(t, 62*time.Second, "published from one claim", func() bool { return b.count() == 60 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		for _, o := range s.settls {
			for i := range o {
				if o[i].State() != core.StatePublished {
					t.Fatalf("%s: %s", o[i].ID(), o[i].Event())
				}
			}
		}
	})
}

// P4 RL-04: a lost lease is noted and changes nothing; its neighbours are settled.
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
				if o[i].ID() == "m00001" {
					res[i] = fmt.Errorf("settle: %w", core.ErrLeaseLost)
				}
			}
			return res
		}
		var lost []string
		o := relay.Options{Hooks: relay.Hooks{OnLeaseLost: func(e relay.Event) { lost = append(lost, e.ID) }}}
		stop := begin(t, newRelay(t, s, b, o))
		within(t, 10*time.Second, "published", func() bool { return b.count() == 3 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		if len(lost) != 1 || lost[0] != "m00001" || len(s.settls) != 1 {
			t.Errorf("lost %v, %d settles", lost, len(s.settls))
		}
	})
}

// P4: a lease that an extension finds lost is not published, nor is what stands behind it.
func TestLeaseLostAtExtension(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		b.latency = time.Second
		s := &thief{faulty: faulty{OutboxStore: mem}, id: "m00020"}
		stage(t, mem, msgs(30, func(int) string { return "k" })...)
		var lost []string
		o := relay.Options{Lease: 10 * time.Second, PublishTimeout: 2 * time.Second, PollMax: 5 * time.Second}
		o.Hooks.OnLeaseLost = func(e relay.Event) { lost = append(lost, e.ID) }
		stop := begin(t, newRelay(t, s, b, o))
		time.Sleep(24 * time.Second)
		synctest.Wait()
		if n := b.count(); n != 20 {
			t.Errorf("%d published; the lease of the 21st was lost", n)
		}
		within(t, time.Minute, "published after the thief's lease", func() bool { return b.count() == 30 })
		if err := errors.Join(stop(), b.firstsInOrder()); err != nil {
			t.Error(err)
		}
		if len(lost) != 1 {
			t.Errorf("lost %v", lost)
		}
	})
}

// thief takes the lease of id, once, just before an extension, for 40 s.
type thief struct {
	faulty
	id   string
	done bool
}

func (s *thief) ExtendLeases(ctx context.Context, records []core.Record, lease time.Duration) core.Results {
	x, _ := core.As[core.LeaseExtender](s.OutboxStore)
	for i := range records {
		if records[i].Envelope.ID == s.id && !s.done {
			s.done = true
			s.OutboxStore.Settle(ctx, []core.Outcome{core.Release(&records[i], 40*time.Second)})
		}
	}
	return x.ExtendLeases(ctx, records, lease)
}

// DB-10: an idle relay makes few claims, wakes for far timers when they are due, and needs no wake-up to find messages.
func TestIdle(t *testing.T) {
	t.Parallel()
	for _, hidden := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			mem, b := newStore(t), newBus()
			s := &faulty{OutboxStore: mem}
			if hidden {
				s.OutboxStore = plain{mem}
			}
			stop := begin(t, newRelay(t, s, b, relay.Options{}))
			time.Sleep(time.Minute)
			before := s.numClaims()
			due := time.Now().Add(50*time.Minute + 3*time.Second)
			stage(t, mem, msg("later", "", core.Delay(time.Until(due))))
			time.Sleep(50 * time.Minute)
			synctest.Wait()
			if n := s.numClaims() - before; n > 50*60/7 || n < 50*60/10 {
				t.Errorf("%d claims in 50 minutes", n)
			}
			within(t, time.Until(due)+2*time.Millisecond, "published when due", func() bool { return b.count() == 1 })
			if time.Now().Before(due) {
				t.Error("published early")
			}
			time.Sleep(time.Minute)
			stage(t, mem, msg("now", ""))
			limit := 2 * time.Millisecond
			if hidden {
				limit = 10 * time.Second
			}
			within(t, limit, "published", func() bool { return b.count() == 2 })
			time.Sleep(time.Minute)
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
		time.Sleep(time.Second)
		start := time.Now()
		for _, m := range msgs(20, func(int) string { return "k" }) {
			stage(t, mem, m)
			time.Sleep(10 * time.Millisecond)
		}
		within(t, 3*time.Second, "published", func() bool { return b.count() == 20 })
		if d := time.Since(start); d > 2200*time.Millisecond {
			t.Errorf("took %s; 20 messages need 2 s one by one", d)
		}
		if n := s.numClaims(); n > 60 {
			t.Errorf("%d claims", n)
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
		time.Sleep(time.Minute)
		if n := s.numClaims(); n > 60 {
			t.Errorf("%d claims in a minute", n)
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
		time.Sleep(10 * time.Second)
		if n := s.numClaims(); n > 300 {
			t.Errorf("%d claims in ten seconds", n)
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

// DB-10: without any help of the store, a retry is claimed when it is due, and what stood behind a held key when the key
// is free.
func TestPollsWhenDue(t *testing.T) {
	t.Parallel()
	o := relay.Options{
		PollMin: 10 * time.Second, PollMax: 10 * time.Second,
		Routes: []relay.Route{{Backoff: &core.Backoff{Kind: core.BackoffConstant, Base: 3 * time.Second, Jitter: core.JitterOff}}},
	}
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		b.answer = func(_ *core.Envelope, nth int) error {
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
		mem, b := newStore(t), newBus()
		b.latency = 12 * time.Second
		stage(t, mem, msg("a", "k"))
		stop := begin(t, newRelay(t, plain{mem}, b, o))
		time.Sleep(time.Second)
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

// A store that always says that there may be more is not asked all the time either.
func TestBusyRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &faulty{OutboxStore: newStore(t), claim: func(core.ClaimRequest, func() (core.Claim, error)) (core.Claim, error) {
			return core.Claim{More: true, Suspects: true}, nil
		}}
		stop := begin(t, newRelay(t, s, newBus(), relay.Options{}))
		time.Sleep(10 * time.Second)
		if n := s.numClaims(); n > 300 {
			t.Errorf("%d claims in ten seconds", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// RL-02: rare polls become no rarer than PollMax, however many there were.
func TestRarePolls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &faulty{OutboxStore: newStore(t)}
		stop := begin(t, newRelay(t, plain{s}, newBus(), relay.Options{PollMin: 3 * time.Hour, PollMax: 4 * time.Hour, Lease: 5 * time.Hour}))
		time.Sleep(10 * 24 * time.Hour)
		if n := s.numClaims(); n < 50 || n > 100 {
			t.Errorf("%d claims", n)
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

// RL-02: a store that ends waits at once, whatever it says, is polled.
func TestBrokenWaiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &waits{OutboxStore: newStore(t)}
		stop := begin(t, newRelay(t, s, newBus(), relay.Options{}))
		time.Sleep(time.Minute)
		if n := s.calls.Load(); n < 2 || n > 100 {
			t.Errorf("%d waits", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
