package consumer

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill/internal/errtext"
	"github.com/waybill-go/waybill/internal/sleep"
)

// onceIdle is how long RunOnce waits for more, if Options do not say.
const onceIdle = time.Second

// Counts is what one RunOnce did, by how the handling of deliveries ended.
type Counts struct {
	Received   int // deliveries
	Processed  int // handled
	Duplicates int // had been handled before
	Retried    int // failed, and come again later
	Parked     int
	Released   int // their handler gave up at an outage or a stop
	Dropped    int // without a handler, as Options.Unknown says
}

type counts struct {
	received atomic.Int64
	by       [statuses]atomic.Int64
}

func (c *counts) addTo(t *Counts) {
	n := func(s status) int { return int(c.by[s].Load()) }
	t.Received += int(c.received.Load())
	t.Processed += n(statusSuccess)
	t.Duplicates += n(statusDuplicate)
	t.Retried += n(statusRetried)
	t.Parked += n(statusParked)
	t.Released += n(statusFailed)
	t.Dropped += n(statusDropped)
}

// RunOnce handles the messages that are there, for batch jobs: it is Run until all subscriptions have had nothing to do
// for Options.IdleTimeout, or for 1 s if that is not set. Where Run would wait for an outage to end, of the broker or
// of a need of handlers, RunOnce drains and returns an error; nothing is lost. Messages that wait in the broker for a
// later retry are left there. If ctx ends it returns nil and the counts so far.
func (c *Consumer) RunOnce(ctx context.Context) (Counts, error) {
	idle := c.opts.IdleTimeout
	if idle <= 0 {
		idle = onceIdle
	}
	return c.run(ctx, idle, true)
}

// troubleError is an outage that ended RunOnce.
type troubleError struct {
	queue string
	err   error
}

func (t *troubleError) Error() string {
	return errtext.Within("waybill/consumer: queue "+t.queue+": gave up at an outage", t.err).Error()
}

func (t *troubleError) Unwrap() error { return t.err }

// awaitIdle returns when none of the runners has had anything to do for idle, or when ctx ends.
func awaitIdle(ctx context.Context, runners []*runner, idle time.Duration) {
	wait := idle
	for sleep.For(ctx, wait) == nil {
		wait = 0
		for _, r := range runners {
			wait = max(wait, r.idleIn(idle))
		}
		if wait <= 0 {
			return
		}
	}
}

// idleIn returns in how long it will be idle, at the earliest.
func (r *runner) idleIn(idle time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.load.held > 0 || r.down || r.pause.state != open {
		return idle
	}
	return idle - time.Since(r.active)
}
