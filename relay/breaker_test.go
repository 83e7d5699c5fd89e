package relay_test

// The fate of a topic and of its messages while an outage pauses publishing to this topic alone.

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
)

// full is the outage of one topic.
func full() error {
	return &waybill.Error{Op: "test", Class: waybill.ClassOutage, TopicOnly: true, Err: errors.New("full")}
}

// TestRefusedTrialEndsTheOutageOfATopic: a broker that refuses the record on trial answers again, so the other records
// of the topic go on.
func TestRefusedTrialEndsTheOutageOfATopic(t *testing.T) { // RL-05
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		calls := 0
		b.answer = func(*waybill.Envelope, int) error {
			switch calls++; calls {
			case 1:
				return full()
			case 2: // the trial
				return &waybill.Error{Class: waybill.ClassPermanent, Err: errors.New("never")}
			}
			return nil
		}
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		stage(t, s, msg("a", ""))
		within(t, 100*time.Millisecond, "the outage", func() bool { return len(b.started) == 1 })
		stage(t, s, msg("b", ""), msg("c", ""))
		within(t, time.Second, "the others", func() bool { return b.count() == 2 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestRetriesWaitForTheirTopic: a retry that is due while its topic is paused comes back when the topic is tried again.
// In between the relay does not ask the store for it over and over.
func TestRetriesWaitForTheirTopic(t *testing.T) { // RL-05
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		patience.BudgetOf(t).Time(41*time.Second, "the pause of the last probe")
		up := time.Now().Add(8 * time.Second)
		b.answer = func(e *waybill.Envelope, nth int) error {
			switch {
			case e.ID == "failed" && nth == 1:
				return errNo
			case time.Now().Before(up):
				return full()
			}
			return nil
		}
		f := &faulty{OutboxStore: s}
		stop := begin(t, newRelay(t, f, b, relay.Options{Routes: []relay.Route{{
			Backoff: &waybill.Backoff{Kind: waybill.BackoffConstant, Base: 2 * time.Second, Jitter: waybill.JitterNone},
		}}}))
		stage(t, s, msg("failed", ""))
		within(t, 100*time.Millisecond, "the failure", func() bool { return b.started != nil })
		stage(t, s, msg("other", "")) // its outage is on when the retry is due
		patience.Pass(t, 7*time.Second)
		f.mu.Lock()
		dues, settles := f.dues, len(f.settls)
		f.mu.Unlock()
		if dues > 50 || settles > 50 {
			t.Errorf("in 7 s of outage the store was asked %d times for what is due, and settled %d times", dues, settles)
		}
		within(t, 40*time.Second, "both", func() bool { return b.count() == 2 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestRetriesWaitForATrial: retries of a topic whose trial gets no answer come back once in a second, not at once.
func TestRetriesWaitForATrial(t *testing.T) { // RL-05
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 20
		s, b := newStore(t), newBus()
		patience.BudgetOf(t).Time(25*time.Second, "the trial without an answer, and the pause of the last probe")
		var trial atomic.Int64 // calls so far since the outage
		b.answer = func(e *waybill.Envelope, nth int) error {
			switch {
			case e.ID != "other" && nth == 1:
				return errNo
			case e.ID == "other" && nth == 1:
				trial.Store(1)
				return full()
			}
			return nil
		}
		b.before = func(ctx context.Context, _ []waybill.Envelope) {
			if trial.CompareAndSwap(1, 2) {
				select {
				case <-time.After(10 * time.Second):
				case <-ctx.Done():
				}
			}
		}
		f := &faulty{OutboxStore: s}
		stop := begin(t, newRelay(t, f, b, relay.Options{Routes: []relay.Route{{
			Backoff: &waybill.Backoff{Kind: waybill.BackoffConstant, Base: time.Second, Jitter: waybill.JitterNone},
		}}}))
		stage(t, s, msgs(n, noKey)...)
		within(t, 100*time.Millisecond, "the failures", func() bool { return states(s)[core.StateFailed] == n })
		stage(t, s, msg("other", ""))
		within(t, 2*time.Second, "the trial", func() bool { return trial.Load() == 2 })
		f.mu.Lock()
		dues, settles := f.dues, len(f.settls)
		f.mu.Unlock()
		patience.Pass(t, 8*time.Second)
		f.mu.Lock()
		dues, settles = f.dues-dues, len(f.settls)-settles
		f.mu.Unlock()
		if dues > 3*8 || settles > 3*8 {
			t.Errorf("in 8 s of a trial the store was asked %d times for what is due, and settled %d times", dues, settles)
		}
		within(t, 20*time.Second, "all", func() bool { return b.count() == n+1 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestGaugeOfManyTopics: the gauge of open breakers does not count a topic that was forgotten for another one.
func TestGaugeOfManyTopics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most = 32 // topics that are paused by themselves
		s, b := newStore(t), newBus()
		var up atomic.Bool
		b.answer = func(e *waybill.Envelope, nth int) error {
			switch {
			case up.Load():
				return nil
			case e.Topic == "t.0" && nth > 1:
				return errNo // the broker answers: the breaker closes, and waits for a success
			}
			return full()
		}
		reader := metric.NewManualReader()
		stop := begin(t, newRelay(t, s, b, relay.Options{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))}))
		open := func() int64 {
			return collect(t, reader, "waybill.relay.breaker.state")["route=default,transport=relay_test"]
		}
		pause := func(i int) {
			m := msg(fmt.Sprint("m", i), "")
			m.Topic = fmt.Sprint("t.", i)
			stage(t, s, m)
			time.Sleep(time.Millisecond)
		}
		for i := range most {
			pause(i)
		}
		within(t, time.Second, "a refusal", func() bool { return states(s)[core.StateFailed] == 1 })
		pause(most)
		if n := open(); n != most {
			t.Errorf("%d breakers count as open, want %d: one took the place of another", n, most)
		}
		up.Store(true)
		within(t, time.Minute, "all", func() bool { return b.count() == most+1 })
		if n := open(); n != 0 {
			t.Errorf("%d breakers count as open, although all messages arrived", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
