package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/relay"
)

// P7, RL-06.
func TestOutageCostsTimeNotAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(62*time.Second, "half a minute of outage, and the pause of the last probe")
		mem, b := newStore(t), newBus()
		up := time.Now().Add(10 * time.Minute)
		b.answer = func(*waybill.Envelope, int) error {
			if time.Now().Before(up) {
				return down()
			}
			return nil
		}
		s := &faulty{OutboxStore: mem}
		stage(t, mem, msgs(2000, func(i int) string { return strconv.Itoa(i % 10) })...)
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		patience.Pass(t, 9*time.Minute+30*time.Second)
		synctest.Wait()
		if b.maxAfter(time.Minute) > 1 {
			t.Error("more than one record is tried at a time")
		}
		if b.count() != 0 {
			t.Error("published in an outage")
		}
		b.mu.Lock()
		n := len(b.started)
		b.mu.Unlock()
		if n < 15 || n > 60 {
			t.Errorf("%d publishes in ten minutes of outage; the back-off is broken", n)
		}
		within(t, time.Minute, "healed", func() bool { return b.count() == 2000 })
		if d := time.Since(up); d > 31*time.Second {
			t.Errorf("healed %s after the outage", d)
		}
		for id, n := range b.tried {
			if n > 60 {
				t.Errorf("%s tried %d times", id, n)
			}
		}
		if err := errors.Join(stop(), b.firstsInOrder()); err != nil {
			t.Error(err)
		}
		for _, o := range s.settls {
			for i := range o {
				if o[i].CountsAttempt() && o[i].State() != core.StatePublished {
					t.Fatal("an attempt was counted")
				}
			}
		}
	})
}

// RL-06
func TestOutageOfOneTopic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(41*time.Second, "the pause of the last probe")
		mem, b := newStore(t), newBus()
		var full atomic.Bool
		full.Store(true)
		b.answer = func(e *waybill.Envelope, _ int) error {
			if e.Topic == "t.full" && full.Load() {
				return &waybill.Error{Class: waybill.ClassOutage, TopicOnly: true, Err: errors.New("full")}
			}
			return nil
		}
		s := &faulty{OutboxStore: mem}
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		for i := range 200 {
			f := msg(fmt.Sprint("f", i), "")
			f.Topic = "t.full"
			stage(t, mem, f, msg(fmt.Sprint("o", i), ""))
			patience.Pass(t, 100*time.Millisecond)
			synctest.Wait()
			if n := b.count(); n != i+1 {
				t.Fatalf("%d of the other topic published after %d", n, i+1)
			}
		}
		b.mu.Lock()
		n := b.tried["f199"]
		b.mu.Unlock()
		if n > 1 {
			t.Errorf("a record behind a full queue was sent %d times", n)
		}
		full.Store(false)
		within(t, 40*time.Second, "healed", func() bool { return b.count() == 400 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		if n := len(mem.Records()); n > 0 {
			t.Errorf("%d left", n)
		}
	})
}

// RL-05 RL-12
func TestRejectedUntilAttemptsAreSpent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(25*time.Second, "four retries")
		s, b := newStore(t), newBus()
		b.answer = func(*waybill.Envelope, int) error { return errNo }
		var retries []time.Duration
		var given []relay.Event
		o := relay.Options{
			Routes: []relay.Route{{Backoff: &waybill.Backoff{Base: 2 * time.Second, Cap: 10 * time.Second, Attempts: 5, Jitter: waybill.JitterNone}}},
			Hooks: relay.Hooks{
				OnRetry:     func(e relay.Event) { retries = append(retries, e.RetryIn) },
				OnAbandoned: func(e relay.Event) { given = append(given, e) },
			},
		}
		stage(t, s, msg("a", "k"))
		start := time.Now()
		stop := begin(t, newRelay(t, s, b, o))
		within(t, time.Minute, "abandoned", func() bool { return states(s)[core.StateAbandoned] == 1 })
		if d := time.Since(start); d < 24*time.Second || d > 24200*time.Millisecond { // 2+4+8+10
			t.Errorf("took %s: a retry did not come when it was due", d)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if d := cmp.Diff([]time.Duration{2e9, 4e9, 8e9, 10e9}, retries); d != "" {
			t.Error(d)
		}
		r := s.Records()[0]
		if r.Attempts != 5 || r.Reason != waybill.ReasonAttempts || !strings.Contains(r.LastError, "no") {
			t.Errorf("%+v", r)
		}
		if len(given) != 1 || given[0].Attempt != 5 || given[0].Reason != waybill.ReasonAttempts {
			t.Errorf("%+v", given)
		}
	})
}

// A secret in the text of an error is not stored, with a retry and with an abandoned record, if Options.StoredError
// leaves it out. Hooks have the error as it is, and an unroutable message keeps its text.
func TestStoredErrorsAreWithoutSecrets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(10*time.Second, "a retry")
		s, b := newStore(t), newBus()
		secret := &waybill.Error{Class: waybill.ClassRejected, Err: errors.New("token abc123 is refused")}
		b.answer = func(e *waybill.Envelope, _ int) error {
			if e.Topic == "nobody" {
				return fmt.Errorf("token abc123: %w", waybill.ErrUnroutable)
			}
			return secret
		}
		var given []error
		o := relay.Options{
			Routes:            []relay.Route{{Backoff: &waybill.Backoff{Base: 2 * time.Second, Attempts: 2, Jitter: waybill.JitterNone}}},
			UnroutableTimeout: -1,
			StoredError:       func(err error) string { return strings.ReplaceAll(err.Error(), "abc123", "****") },
			Hooks:             relay.Hooks{OnRetry: func(e relay.Event) { given = append(given, e.Err) }},
		}
		stage(t, s, msg("a", "k"))
		unbound := msg("b", "")
		unbound.Topic = "nobody"
		stage(t, s, unbound)
		stop := begin(t, newRelay(t, s, b, o))
		within(t, time.Second, "tried once", func() bool { return states(s)[core.StateFailed] == 1 })
		check := func(id, want string) {
			t.Helper()
			for _, r := range s.Records() {
				if r.Envelope.ID == id && !strings.Contains(r.LastError, want) {
					t.Errorf("%s is stored with %q, want %q", id, r.LastError, want)
				}
			}
		}
		check("a", "token **** is refused")
		within(t, time.Minute, "abandoned", func() bool { return states(s)[core.StateAbandoned] == 2 })
		check("a", "token **** is refused")
		check("b", waybill.ErrUnroutable.Error())
		check("b", "abc123")
		if err := stop(); err != nil {
			t.Error(err)
		}
		if len(given) != 1 || !strings.Contains(given[0].Error(), "abc123") {
			t.Errorf("the hook was given %v", given)
		}
	})
}

// RL-05: a custom policy sees the error; one that panics retries at the cap.
func TestCustomBackoff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(61*time.Second, "a retry at the cap of a minute")
		s, b := newStore(t), newBus()
		b.answer = func(*waybill.Envelope, int) error { return errNo }
		bo := &waybill.Backoff{Kind: waybill.BackoffCustom, Cap: time.Minute, Custom: func(n int, err error) (time.Duration, bool) {
			switch {
			case !errors.Is(err, errNo):
				return 0, false
			case n == 1:
				panic("oops")
			}
			return 0, n < 3
		}}
		stage(t, s, msg("a", ""))
		start := time.Now()
		stop := begin(t, newRelay(t, s, b, relay.Options{Routes: []relay.Route{{Backoff: bo}}}))
		within(t, 2*time.Minute, "given up", func() bool { return states(s)[core.StateAbandoned] == 1 })
		if d := time.Since(start); d < time.Minute {
			t.Errorf("retried after %s, not at the cap", d)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// RL-03 RL-05
func TestUnroutableHasItsOwnHorizon(t *testing.T) {
	t.Parallel()
	unroutableUntil(t, 2*time.Hour, 2*time.Hour, 0)
	unroutableUntil(t, -1, 0, 0)
	// the last hours of the default: the time counts from when it was due, whether a relay runs or not
	unroutableUntil(t, 0, relay.DefaultUnroutableTimeout, relay.DefaultUnroutableTimeout-2*time.Hour)
}

// TestUnroutableForADay does the same with a relay that runs all day.
func TestUnroutableForADay(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "a probe every five seconds for a day: 15 s")
	unroutableUntil(t, 0, relay.DefaultUnroutableTimeout, 0)
}

// unroutableUntil checks that a message whose topic has no queue is given up after want, and not for its attempts. The
// relay begins when the message is as old as idle.
func unroutableUntil(t *testing.T, option, want, idle time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		const late = 10 * time.Minute
		patience.BudgetOf(t).Time(want+late, "until it is given up")
		s, b := newStore(t), newBus()
		b.answer = func(*waybill.Envelope, int) error {
			return &waybill.Error{Class: waybill.ClassRejected, Reason: waybill.ReasonUnroutable, Err: waybill.ErrUnroutable}
		}
		stage(t, s, msg("a", ""))
		start := time.Now()
		time.Sleep(idle)
		stop := begin(t, newRelay(t, s, b, relay.Options{UnroutableTimeout: option}))
		for states(s)[core.StateAbandoned] == 0 {
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		took := time.Since(start)
		if err := stop(); err != nil {
			t.Error(err)
		}
		if r := s.Records()[0]; r.Reason != waybill.ReasonUnroutable {
			t.Errorf("reason %q", r.Reason)
		}
		if want > 0 && (took < want || took > want+late || b.tried["a"] < 250) {
			t.Errorf("abandoned after %s and %d attempts", took, b.tried["a"])
		}
		if want == 0 && b.tried["a"] != 1 {
			t.Errorf("%d attempts", b.tried["a"])
		}
	})
}

// RL-03: a record that is older than the horizon when the broker comes back, empty, is tried for about an hour before
// the relay gives it up.
func TestUnroutableAfterALongOutage(t *testing.T) {
	t.Parallel()
	for _, bound := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t).Time(62*time.Minute, "the hour for which a topic must have no queue")
			s, b := newStore(t), newBus()
			stage(t, s, msg("a", ""))
			patience.Pass(t, 25*time.Hour)
			begun := time.Now()
			b.answer = func(*waybill.Envelope, int) error {
				if bound && time.Since(begun) > 30*time.Minute { // somebody declares the queue
					return nil
				}
				return &waybill.Error{Class: waybill.ClassRejected, Reason: waybill.ReasonUnroutable, Err: waybill.ErrUnroutable}
			}
			stop := begin(t, newRelay(t, s, b, relay.Options{}))
			ended := func() bool { return b.count() == 1 || states(s)[core.StateAbandoned] == 1 }
			within(t, 3*time.Hour, "an end", ended)
			took := time.Since(begun)
			if err := stop(); err != nil {
				t.Error(err)
			}
			if (b.count() == 1) != bound || !bound && (took < time.Hour || took > 61*time.Minute) {
				t.Errorf("%d arrived after %s and %d attempts", b.count(), took, b.tried["a"])
			}
		})
	}
}

// RL-04 RL-06
func TestGivenUpWithoutPublishing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		b.traits.MaxMessageBytes = 500
		big := msg("big", "k")
		big.Body = make([]byte, 500)
		stage(t, s, msg("bad", "k"), big, msg("old", "k", waybill.TTL(time.Second)), msg("good", "k"), msg("free", ""))
		if err := s.Corrupt(s.Records()[0].Seq); err != nil {
			t.Fatal(err)
		}
		patience.Pass(t, 2*time.Second)
		c, err := newRelay(t, s, b, relay.Options{}).RunOnce(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(relay.Counts{HandedOut: 5, Published: 2, Abandoned: 3}, c); d != "" {
			t.Error(d)
		}
		got := map[string]waybill.Reason{}
		for _, r := range s.Records() {
			got[r.Envelope.ID] = r.Reason
			if want := 1; r.Reason == waybill.ReasonExpired && r.Attempts != 0 || r.Reason != waybill.ReasonExpired && r.Attempts != want {
				t.Errorf("%s: %d attempts", r.Envelope.ID, r.Attempts)
			}
		}
		if d := cmp.Diff(map[string]waybill.Reason{"bad": waybill.ReasonUndecodable, "big": waybill.ReasonTooLarge, "old": waybill.ReasonExpired}, got); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff(map[string]int{"good": 1, "free": 1}, b.tried); d != "" {
			t.Error(d)
		}
	})
}

// OR-04: also where the publisher pipelines keys, since what it was given cannot be held back any more.
func TestBlockAfterAbandon(t *testing.T) {
	t.Parallel()
	for _, order := range []core.KeyOrder{core.KeyOrderSerial, core.KeyOrderPipelinedPrefix} {
		synctest.Test(t, func(t *testing.T) {
			s, b := newStore(t), newBus()
			b.traits.KeyOrder = order
			b.answer = func(e *waybill.Envelope, _ int) error {
				if e.ID == "a" {
					return &waybill.Error{Class: waybill.ClassPermanent}
				}
				return nil
			}
			stage(t, s, msg("a", "k"), msg("b", "k"), msg("c", "j"))
			c, err := newRelay(t, s, b, relay.Options{Routes: []relay.Route{{BlockAfterAbandon: true}}}).RunOnce(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(relay.Counts{HandedOut: 2, Published: 1, Abandoned: 1}, c); d != "" || b.overlaps > 0 {
				t.Errorf("%v: %d in flight behind another of their key; %s", order, b.overlaps, d)
			}
		})
	}
}

// DB-04: records that crashed relays are sent with nothing else in flight, and given up after ten crashes.
func TestSuspectsTravelAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		b.latency = 50 * time.Millisecond
		stage(t, s, msg("s1", "k"), msg("s2", "k"))
		for range 7 { // 100 >> 7 is none: alone
			crash(t, s)
		}
		stage(t, s, msgs(1000, noKey)...)
		suspect := "" // in flight
		b.before = func(_ context.Context, batch []waybill.Envelope) {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.inCalls == 1 {
				suspect = ""
			}
			for i := range batch {
				if strings.HasPrefix(batch[i].ID, "s") {
					suspect = batch[i].ID
				}
			}
			if suspect != "" && (len(batch) > 1 || b.inCalls > 1) {
				t.Errorf("%s was not alone: %d calls in progress, one of %d", suspect, b.inCalls, len(batch))
			}
		}
		f := &faulty{OutboxStore: s}
		stop := begin(t, newRelay(t, f, b, relay.Options{}))
		within(t, time.Minute, "all published", func() bool { return b.count() == 1002 })
		if err := errors.Join(stop(), b.firstsInOrder()); err != nil {
			t.Error(err)
		}
	})
}

func TestCrashesSpent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		stage(t, s, msg("s1", "k"))
		for range core.MaxCrashes {
			crash(t, s)
		}
		stage(t, s, msg("s2", "k"))
		if _, err := newRelay(t, s, b, relay.Options{}).RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := s.Records(); len(r) != 1 || r[0].Reason != waybill.ReasonCrashed || b.tried["s1"] != 0 || b.tried["s2"] != 1 {
			t.Errorf("%+v %v", r, b.tried)
		}
	})
}

// RL-04: a publisher that panics on one message, or counts wrong, neither ends the relay nor loses anything.
func TestBrokenPublisher(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		b.before = func(_ context.Context, batch []waybill.Envelope) {
			for i := range batch {
				if batch[i].ID == "m00002" {
					panic("poison")
				}
			}
		}
		stage(t, s, msgs(10, noKey)...)
		stop := begin(t, newRelay(t, s, b, relay.Options{Routes: []relay.Route{{Backoff: waybill.RetryDelays(time.Second)}}}))
		within(t, 5*time.Minute, "the others are published", func() bool { return b.count() == 9 })
		within(t, time.Minute, "the poison is given up", func() bool { return states(s)[core.StateAbandoned] == 1 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		stage(t, s, msgs(3, noKey)...)
		c, err := newRelay(t, s, short{newBus()}, relay.Options{}).RunOnce(t.Context())
		if err == nil || c.Released < 3 || c.Published+c.Abandoned+c.Failed > 0 {
			t.Errorf("%+v %v", c, err)
		}
	})
}

type short struct{ *bus }

func (short) Publish(context.Context, []waybill.Envelope) core.Results { return core.Results{nil} }

// RL-07: a run that has settled something is ended by no call of the store, not even by one that is made for the first
// time: a password that was rotated, say, meets a call that releases partitions.
func TestFirstCallAfterSuccess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		s := &keeps{OutboxStore: mem}
		stop := begin(t, newRelay(t, s, b, relay.Options{Name: "one"}))
		stage(t, mem, msg("a", ""))
		within(t, time.Minute, "settled", func() bool { return states(mem)[core.StatePending] == 0 && b.count() == 1 })
		stopOther := begin(t, newRelay(t, mem, b, relay.Options{Name: "two"}))
		within(t, time.Minute, "asked to release partitions", func() bool { return s.asked.Load() > 5 })
		stage(t, mem, msgs(20, noKey)...)
		within(t, time.Minute, "goes on", func() bool { return b.count() == 21 })
		if err := errors.Join(stopOther(), stop()); err != nil {
			t.Error(err)
		}
	})
}

// keeps is a store that releases no partition at first: it lacks a right.
type keeps struct {
	core.OutboxStore
	asked atomic.Int64
}

func (k *keeps) ReleasePartition(ctx context.Context, self core.Session, partition core.PartitionState, out []core.Ref) (bool, error) {
	if k.asked.Add(1) > 5 {
		return k.OutboxStore.ReleasePartition(ctx, self, partition, out)
	}
	return false, &waybill.Error{Op: "test", Class: waybill.ClassOutage, Err: waybill.ErrMisconfigured}
}

// RL-07
func TestMisconfiguration(t *testing.T) {
	t.Parallel()
	bad := fmt.Errorf("no table: %w", waybill.ErrMisconfigured)
	synctest.Test(t, func(t *testing.T) {
		s := &faulty{OutboxStore: newStore(t), read: func(core.ReadRequest, func() (core.ReadResult, error)) (core.ReadResult, error) {
			return core.ReadResult{}, bad
		}}
		if err := newRelay(t, s, newBus(), relay.Options{}).Run(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) {
			t.Errorf("read: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		b.answer = func(*waybill.Envelope, int) error { return bad }
		stage(t, s, msgs(3, noKey)...)
		if err := newRelay(t, s, b, relay.Options{}).Run(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "route default") {
			t.Errorf("publish: %v", err)
		}
		if st := states(s); st[core.StatePending] != 3 {
			t.Errorf("%v", st)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		if err := newRelay(t, newStore(t), checked{newBus(), bad}, relay.Options{}).Run(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) {
			t.Errorf("check: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) { // after a first success nothing ends it
		mem, b := newStore(t), newBus()
		var broken atomic.Bool
		s := &faulty{OutboxStore: mem}
		s.read = func(_ core.ReadRequest, next func() (core.ReadResult, error)) (core.ReadResult, error) {
			if broken.Load() {
				return core.ReadResult{}, bad
			}
			return next()
		}
		b.answer = func(*waybill.Envelope, int) error {
			if broken.Load() {
				return bad
			}
			return nil
		}
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		stage(t, mem, msg("a", ""))
		within(t, time.Second, "first", func() bool { return b.count() == 1 })
		broken.Store(true)
		before := s.numReads()
		stage(t, mem, msg("b", ""))
		patience.Pass(t, 5*time.Minute)
		if n := s.numReads() - before; n < 10 || n > 200 {
			t.Errorf("%d reads in five minutes", n)
		}
		broken.Store(false)
		within(t, 11*time.Second, "resumed", func() bool { return b.count() == 2 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

type checked struct {
	*bus
	err error
}

func (c checked) Check(context.Context) error { return c.err }

// P2 RL-04: outcomes that cannot be stored are stored later, nothing is handed out meanwhile, nothing is sent twice.
func TestSettleOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(30*time.Second, "the last 15 s of the outage, and the pause of the last try")
		mem, b := newStore(t), newBus()
		up := time.Now().Add(45 * time.Second)
		s := &faulty{OutboxStore: mem}
		s.settle = func(o []core.Outcome, next func() core.Results) core.Results {
			if time.Now().Before(up) {
				return core.AllFailed(len(o), down())
			}
			return next()
		}
		stop := begin(t, newRelay(t, s, b, relay.Options{BatchSize: 10, Window: 4}))
		stage(t, mem, msgs(100, noKey)...)
		patience.Pass(t, 30*time.Second)
		if n := b.count(); n > 40 {
			t.Errorf("%d published while nothing could be settled; the window holds 40", n)
		}
		within(t, time.Minute, "settled", func() bool { return len(mem.Records()) == 0 })
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

// RL-06: a record that was handed out while the breaker opened is handed back, not sent.
func TestNothingIsSentBehindAnOpenBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		b.latency = 20 * time.Millisecond
		var opened time.Time
		b.answer = func(*waybill.Envelope, int) error {
			if opened.IsZero() {
				opened = time.Now()
			}
			return down()
		}
		s := &faulty{OutboxStore: mem, read: func(_ core.ReadRequest, next func() (core.ReadResult, error)) (core.ReadResult, error) {
			c, err := next()
			time.Sleep(50 * time.Millisecond)
			return c, err
		}}
		stage(t, mem, msgs(200, noKey)...)
		stop := begin(t, newRelay(t, s, b, relay.Options{BatchSize: 50}))
		time.Sleep(200 * time.Millisecond)
		if err := stop(); err != nil {
			t.Error(err)
		}
		for _, at := range b.started {
			if d := at.Sub(opened); d > 0 && d < 100*time.Millisecond {
				t.Errorf("a publish began %s after the outage was known", d)
			}
		}
	})
}

// P7: while nothing can be settled nothing is handed out, so that a lease that runs out meanwhile makes no duplicate.
func TestSettleOutageLongerThanTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(171*time.Second, "an outage of 150 s, and the pause of the last try")
		mem, b := newStore(t), newBus()
		up := time.Now().Add(150 * time.Second)
		s := &faulty{OutboxStore: mem, settle: func(o []core.Outcome, next func() core.Results) core.Results {
			if time.Now().Before(up) {
				return core.AllFailed(len(o), down())
			}
			return next()
		}}
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		stage(t, mem, msgs(30, noKey)...)
		within(t, 170*time.Second, "settled", func() bool { return len(mem.Records()) == 0 })
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

// RL-06: a publisher that can tell is asked whether it works before anything is sent to it.
func TestProbeAsksThePublisherFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(70*time.Second, "the last minute of the outage")
		mem, b := newStore(t), newBus()
		up := time.Now().Add(5 * time.Minute)
		test := func() error {
			if time.Now().Before(up) {
				return down()
			}
			return nil
		}
		b.answer = func(*waybill.Envelope, int) error { return test() }
		stage(t, mem, msgs(100, noKey)...)
		stop := begin(t, newRelay(t, mem, asked{b, test}, relay.Options{}))
		patience.Pass(t, 4*time.Minute)
		if n := len(b.started); n > 2 {
			t.Errorf("%d publishes in an outage that the publisher knows of", n)
		}
		within(t, 2*time.Minute, "healed", func() bool { return b.count() == 100 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

type asked struct {
	*bus
	test func() error
}

func (a asked) Check(context.Context) error { return a.test() }

// P7: after a long outage publishing goes on within two seconds, if the publisher can be asked whether it works. No
// attempt was spent. The log and the health tell of the outage while it lasts.
func TestBackWithinTwoSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		b := &away{bus: newBus()}
		var log sharedtest.Log
		b.answer = func(*waybill.Envelope, int) error {
			if b.gone.Load() {
				return down()
			}
			return nil
		}
		b.gone.Store(true)
		stage(t, s, msgs(100, noKey)...)
		r := newRelay(t, s, b, relay.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		stop := begin(t, r)
		patience.Pass(t, 3*time.Hour+10*time.Second)
		lines := log.Take()
		// not once only, and not at every check
		if n := strings.Count(lines, "event=relay.breaker_open"); n < 6 || n > 10 {
			t.Errorf("%d lines in three hours:\n%s", n, lines)
		}
		expect(t, r.Health(t.Context()), "route default", waybill.HealthDegraded, "breaker open for 3h0m")
		b.gone.Store(false)
		within(t, 2*time.Second, "published", func() bool { return b.count() == 100 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// away is a bus that can be asked, and is away at times.
type away struct {
	*bus
	gone atomic.Bool
}

func (a *away) Check(context.Context) error {
	if a.gone.Load() {
		return down()
	}
	return nil
}

// nilError panics where a nil one is asked for its text.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

// RL-04: an error of the publisher that panics is a failure of its message alone.
func TestErrorThatPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		b.answer = func(e *waybill.Envelope, _ int) error {
			var err *nilError
			if e.ID == "m00002" {
				return err
			}
			return nil
		}
		stage(t, s, msgs(10, noKey)...)
		c, err := newRelay(t, s, b, relay.Options{}).RunOnce(t.Context())
		if err != nil || c.Published != 9 || c.Failed != 1 {
			t.Errorf("%+v %v", c, err)
		}
	})
}
