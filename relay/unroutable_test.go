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
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
)

// newUnbound returns a store, and a bus that no queue is bound to for the topic no.queue, until bound is set.
func newUnbound(t *testing.T) (s *memory.Store, b *bus, bound *atomic.Bool) {
	t.Helper()
	s, b, bound = newStore(t), newBus(), &atomic.Bool{}
	b.answer = func(e *waybill.Envelope, _ int) error {
		if e.Topic != "no.queue" || bound.Load() {
			return nil
		}
		return &waybill.Error{Class: waybill.ClassRejected, Reason: waybill.ReasonUnroutable, Err: waybill.ErrUnroutable}
	}
	return s, b, bound
}

// logged returns a relay that writes a log.
func logged(t *testing.T, s *memory.Store, b *bus) (*relay.Relay, *sharedtest.Log) {
	t.Helper()
	var log sharedtest.Log
	return newRelay(t, s, b, relay.Options{Logger: log.Logger(slog.LevelInfo)}), &log
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
		s, b, bound := newUnbound(t)
		r, log := logged(t, s, b)
		stop := begin(t, r)
		stage(t, s, of("no.queue", 3)...)
		stage(t, s, msg("behind", "no.queue-0"), msg("free", ""))
		patience.Pass(t, 20*time.Minute)
		if b.count() != 1 {
			t.Errorf("%d arrived, want the one that is free", b.count())
		}
		expect(t, r.Health(t.Context()), "route default", waybill.HealthDegraded, "paused topics: no.queue for 20m0s; the first one: unroutable")
		// the head of the third one tries
		expect(t, r.Health(t.Context()), "route default", waybill.HealthDegraded, "2 keys wait for a paused topic")
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
		s, b, bound := newUnbound(t)
		r, log := logged(t, s, b)
		stop := begin(t, r)
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
		s, b, bound := newUnbound(t)
		b.latency = time.Millisecond
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		stage(t, s, of("no.queue", 5000)...)
		patience.Pass(t, time.Minute) // the messages in flight when the first result came were tried, too
		tried := func() (n int) {
			b.mu.Lock()
			defer b.mu.Unlock()
			for _, k := range b.tried {
				n += k
			}
			return n
		}
		before := tried()
		patience.Pass(t, time.Hour)
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
		s, b, bound := newUnbound(t)
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		stage(t, s, waybill.RawMessage("no.queue", "text/plain", nil, waybill.ID("first"), waybill.TTL(time.Minute)))
		patience.Pass(t, time.Second)
		stage(t, s, of("no.queue", 5)...)
		patience.Pass(t, 10*time.Minute)
		bound.Store(true)
		within(t, 5*time.Second, "the others arrived", func() bool { return b.count() == 5 })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A topic whose messages have all ended is forgotten: health does not tell of it for ever.
func TestUnroutableTopicIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b, _ := newUnbound(t)
		r := newRelay(t, s, b, relay.Options{})
		stop := begin(t, r)
		stage(t, s, waybill.RawMessage("no.queue", "text/plain", nil, waybill.TTL(time.Minute)))
		patience.Pass(t, 30*time.Second)
		expect(t, r.Health(t.Context()), "route default", waybill.HealthDegraded, "paused topics: no.queue for 30s")
		patience.Pass(t, 5*time.Minute)
		expect(t, r.Health(t.Context()), "route default", waybill.HealthOK, "")
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
