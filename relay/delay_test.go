package relay_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
)

// after is an error of the broker's that says when to come again.
func after(class waybill.Class, d time.Duration) error {
	return &waybill.Error{Op: "test", Class: class, After: d, Err: errNo}
}

// RL-05: a message that the broker wants later comes at the broker's time, not at the policy's.
func TestBrokersDelayOfAMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(17*time.Minute+time.Second, "the delay of the broker")
		s, b := newStore(t), newBus()
		b.answer = func(_ *waybill.Envelope, nth int) error {
			if nth == 1 {
				return after(waybill.ClassRejected, 17*time.Minute)
			}
			return nil
		}
		var retries []time.Duration
		stage(t, s, msg("a", "k"))
		stop := begin(t, newRelay(t, s, b, relay.Options{Hooks: relay.Hooks{OnRetry: func(e relay.Event) { retries = append(retries, e.RetryIn) }}}))
		within(t, time.Hour, "published", func() bool { return b.count() == 1 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		if d := cmp.Diff([]time.Duration{17 * time.Minute}, retries); d != "" {
			t.Error(d)
		}
		if gap := b.started[1].Sub(b.started[0]); gap < 17*time.Minute {
			t.Errorf("it came again after %s", gap)
		}
	})
}

// RL-06: a broker that says how long it will be away is not probed before.
func TestBrokersDelayInAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(7*time.Minute+time.Second, "the delay of the broker")
		s, b := newStore(t), newBus()
		b.answer = func(_ *waybill.Envelope, nth int) error {
			if nth == 1 {
				return after(waybill.ClassOutage, 7*time.Minute)
			}
			return nil
		}
		var probes []time.Duration
		o := relay.Options{Hooks: relay.Hooks{OnBreaker: func(e relay.Event) { probes = append(probes, e.RetryIn) }}}
		stage(t, s, msg("a", "k"))
		stop := begin(t, newRelay(t, s, b, o))
		within(t, time.Hour, "published", func() bool { return b.count() == 1 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		if d := cmp.Diff([]time.Duration{7 * time.Minute, 0}, probes); d != "" {
			t.Error(d)
		}
		if gap := b.started[1].Sub(b.started[0]); gap < 7*time.Minute {
			t.Errorf("it was probed after %s", gap)
		}
	})
}

// ST-11: a message's life counts from when it was read, however long the relay has run.
func TestLifeCountsFromTheRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		// a day of few polls, heartbeats and cleanings, which cost computing
		stop := begin(t, newRelay(t, s, b, relay.Options{PollMax: time.Hour, Lease: time.Hour, CleanInterval: time.Hour, StaleAfter: time.Hour}))
		patience.Pass(t, 24*time.Hour)
		stage(t, s, msg("a", "k", waybill.TTL(time.Minute)))
		within(t, 30*time.Second, "published", func() bool { return b.count() == 1 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// ST-11: a message that expires in centuries, further ahead than a duration reaches, is sent: at once, later, and as a
// retry.
func TestExpiresInYear9999(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		b.answer = func(e *waybill.Envelope, nth int) error {
			if e.ID == "b" && nth == 1 {
				return errNo
			}
			return nil
		}
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		patience.Pass(t, time.Second) // lives count from then
		for _, id := range []string{"a", "b"} {
			m := msg(id, "k")
			m.Expires = time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC)
			stage(t, s, m)
			within(t, time.Minute, id+" is published", func() bool { return slices.Contains(b.ids(), id) })
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// RL-07: a publisher that has worked ends no run: the relay tries again after an error that says misconfigured.
func TestMisconfiguredAfterwards(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		b.answer = func(e *waybill.Envelope, nth int) error {
			if e.ID == "b" && nth < 3 {
				return &waybill.Error{Op: "test", Class: waybill.ClassOutage, Err: waybill.ErrMisconfigured}
			}
			return nil
		}
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		stage(t, s, msg("a", ""))
		within(t, time.Minute, "the first is published", func() bool { return b.count() == 1 })
		stage(t, s, msg("b", ""))
		within(t, time.Minute, "the second is published", func() bool { return b.count() == 2 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// RL-05: a custom policy is asked about refusals only. A message that is unroutable, or that was not tried, is not one.
func TestCustomBackoffIsAskedAboutRefusals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		errs := map[string]error{
			"refused": errNo, "behind": waybill.ErrPredecessorFailed, "unroutable": &waybill.Error{Op: "test", Class: waybill.ClassRejected, Err: waybill.ErrUnroutable}, "outage": down(),
		}
		b.answer = func(e *waybill.Envelope, nth int) error {
			if nth == 1 {
				return errs[e.ID]
			}
			return nil
		}
		var asked []error
		policy := &waybill.Backoff{Kind: waybill.BackoffCustom, Custom: func(_ int, err error) (time.Duration, bool) {
			asked = append(asked, err)
			return time.Second, true
		}}
		for id := range errs {
			stage(t, s, msg(id, ""))
		}
		stop := begin(t, newRelay(t, s, b, relay.Options{Routes: []relay.Route{{Backoff: policy}}}))
		within(t, time.Hour, "published", func() bool { return b.count() == len(errs) })
		if err := stop(); err != nil {
			t.Error(err)
		}
		if len(asked) != 1 || !errors.Is(asked[0], errNo) {
			t.Errorf("asked about %v", asked)
		}
	})
}

// RL-06: a confirm of a call that began before an outage does not end it.
func TestOldConfirmEndsNoOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(92*time.Second, "an outage of a minute, and the pause of the last probe")
		s, b := newStore(t), newBus()
		up := time.Now().Add(time.Minute)
		b.before = func(_ context.Context, batch []waybill.Envelope) {
			if batch[0].ID == "slow" {
				time.Sleep(150 * time.Millisecond) // virtual time
			}
		}
		b.answer = func(e *waybill.Envelope, _ int) error {
			if e.ID == "down" && time.Now().Before(up) {
				return down()
			}
			return nil
		}
		var closed []time.Time
		o := relay.Options{BatchSize: 1, Hooks: relay.Hooks{OnBreaker: func(e relay.Event) {
			if e.Err == nil {
				closed = append(closed, time.Now())
			}
		}}}
		stage(t, s, msg("slow", ""), msg("down", ""))
		stop := begin(t, newRelay(t, s, b, o))
		within(t, time.Hour, "published", func() bool { return b.count() == 2 })
		if err := stop(); err != nil {
			t.Error(err)
		}
		if len(closed) != 1 || closed[0].Before(up) {
			t.Errorf("closed at %v, the outage ended at %s", closed, up)
		}
	})
}
