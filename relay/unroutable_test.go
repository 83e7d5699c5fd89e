package relay_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
)

// unbound refuses a topic until its queue is bound.
func unbound(topic string) (answer func(*waybill.Envelope, int) error, bound *atomic.Bool) {
	bound = &atomic.Bool{}
	return func(e *waybill.Envelope, _ int) error {
		if e.Topic != topic || bound.Load() {
			return nil
		}
		return &waybill.Error{Class: waybill.ClassRejected, Reason: waybill.ReasonUnroutable, Err: waybill.ErrUnroutable}
	}, bound
}

// of returns n messages of a topic, each with a key of its own.
func of(topic string, n int) []waybill.Message {
	out := make([]waybill.Message, n)
	for i := range out {
		id := fmt.Sprintf("%s-%d", topic, i)
		out[i] = waybill.RawMessage(topic, "text/plain", nil, waybill.ID(id), waybill.Key(id))
	}
	return out
}

// RL-03: a topic without a queue goes on within five seconds after one is bound, however long it took, also for the
// keys that it held back. Other topics flow meanwhile. Health and one log line name the topic.
func TestUnroutableGoesOnAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		answer, bound := unbound("no.queue")
		b.answer = answer
		var log sharedtest.Log
		r := newRelay(t, s, b, relay.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		stop := begin(t, r)
		stage(t, s, of("no.queue", 3)...)
		stage(t, s, msg("behind", "no.queue-0"), msg("free", ""))
		time.Sleep(20 * time.Minute)
		if b.count() != 1 {
			t.Errorf("%d arrived, want the one that is free", b.count())
		}
		expect(t, r.Health(t.Context()), "route default", waybill.HealthDegraded, "paused topics: no.queue for 20m0s; the first one: unroutable")
		if lines := log.Take(); strings.Count(lines, "event=relay.unroutable") != 1 || strings.Contains(lines, "event=relay.retry") {
			t.Error(lines)
		}
		bound.Store(true)
		within(t, 5*time.Second, "all arrived", func() bool { return b.count() == 5 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A consumer that starts a moment after the relay leaves no warning.
func TestUnroutableAtTheStartIsNoWarning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		answer, bound := unbound("no.queue")
		b.answer = answer
		var log sharedtest.Log
		stop := begin(t, newRelay(t, s, b, relay.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
		stage(t, s, of("no.queue", 5)...)
		time.Sleep(150 * time.Millisecond)
		bound.Store(true)
		within(t, time.Second, "all arrived", func() bool { return b.count() == 5 })
		if lines := log.Take(); strings.Contains(lines, "level=WARN") || strings.Contains(lines, "event=relay.breaker_closed") {
			t.Error(lines)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A backlog without a queue costs a probe now and then, and not an attempt of each message.
func TestUnroutableBacklogIsProbed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		answer, bound := unbound("no.queue")
		b.answer, b.latency = answer, time.Millisecond
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		stage(t, s, of("no.queue", 5000)...)
		time.Sleep(time.Minute) // what was in flight when the first result came was tried, too
		tried := func() (n int) {
			b.mu.Lock()
			defer b.mu.Unlock()
			for _, k := range b.tried {
				n += k
			}
			return n
		}
		before := tried()
		time.Sleep(time.Hour)
		twice := 0
		for _, r := range s.Records() {
			if r.Attempts > 0 {
				twice++
			}
		}
		if twice != 1 {
			t.Errorf("%d messages tried, want one for all", twice)
		}
		if n := tried() - before; n < 700 || n > 1440 { // every 2.5 s to 5 s
			t.Errorf("%d publishes in an hour", n)
		}
		bound.Store(true)
		within(t, 10*time.Second, "all arrived", func() bool { return b.count() == 5000 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// The message that tries for its topic may end: then another one tries.
func TestUnroutableAnotherTries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newStore(t), newBus()
		answer, bound := unbound("no.queue")
		b.answer = answer
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		stage(t, s, waybill.RawMessage("no.queue", "text/plain", nil, waybill.ID("first"), waybill.TTL(time.Minute)))
		time.Sleep(time.Second)
		stage(t, s, of("no.queue", 5)...)
		time.Sleep(10 * time.Minute)
		bound.Store(true)
		within(t, 5*time.Second, "the others arrived", func() bool { return b.count() == 5 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
