package relay

import (
	"log/slog"
	"time"

	"github.com/waybill-go/waybill"
)

// Hooks observe messages. They are called one at a time on a goroutine of their own, in the order of events. A hook
// that panics is logged; one that is slow loses events beyond a buffer of 4096, which is logged too. Neither touches
// the relay.
type Hooks struct {
	// OnPublished: the broker confirmed and routed the message.
	OnPublished func(Event)
	// OnRetry: an attempt failed; RetryIn says when the next one is due.
	OnRetry func(Event)
	// OnAbandoned: the message was given up, with a Reason.
	OnAbandoned func(Event)
	// OnLeaseLost: the record went to another relay while it was here: the member's lease ended, or a settle was
	// refused. Of a refused settle only Route and ID are set.
	OnLeaseLost func(Event)
	// OnBreaker: deliveries to a route, or to one topic of it, were paused (Err says why) or resumed (Err is nil).
	// Only Route, Topic, RetryIn and Err are set.
	OnBreaker func(Event)
}

// Event tells a hook what happened. It holds no body.
type Event struct {
	Route, ID, Topic, Key string
	// Attempt is the number of this attempt, from 1.
	Attempt int
	// Age is the time since the record was due, by the store's clock.
	Age     time.Duration
	Reason  waybill.Reason
	RetryIn time.Duration
	Err     error
}

const hookBuffer = 4096

// observer runs the hooks. A nil observer does nothing.
type observer struct {
	queue   chan func()
	done    chan struct{}
	log     *slog.Logger
	dropped int // touched by the loop only
	warned  bool
}

// newObserver returns the observer of hooks, nil if there is none.
func newObserver(h Hooks, log *slog.Logger) *observer {
	if h.OnPublished == nil && h.OnRetry == nil && h.OnAbandoned == nil && h.OnLeaseLost == nil && h.OnBreaker == nil {
		return nil
	}
	o := &observer{queue: make(chan func(), hookBuffer), done: make(chan struct{}), log: log}
	go func() {
		defer close(o.done)
		for call := range o.queue {
			o.run(call)
		}
	}()
	return o
}

// tell queues one event for hook. It never blocks.
func (o *observer) tell(hook func(Event), ev Event) {
	if o == nil || hook == nil {
		return
	}
	select {
	case o.queue <- func() { hook(ev) }:
	default:
		if o.dropped++; o.dropped == 1 {
			o.log.Warn("a hook is too slow; it will miss events", "event", "relay.hook_slow", "route", ev.Route, "id", ev.ID, "attempt", ev.Attempt)
		}
	}
}

// run runs one call of a hook.
func (o *observer) run(call func()) {
	defer func() {
		if p := recover(); p != nil && !o.warned {
			o.warned = true
			o.log.Error("a hook panicked; more panics are not logged", "event", "relay.hook_panic", "panic", p)
		}
	}()
	call()
}

// close waits for queued events, at most for limit.
func (o *observer) close(limit time.Duration) {
	if o == nil {
		return
	}
	close(o.queue)
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-o.done:
	case <-t.C:
	}
}
