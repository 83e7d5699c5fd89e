package consumer

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/errtext"
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
	GivenBack  int // after a handler gave up at an outage or a stop
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
	t.GivenBack += n(statusFailed)
	t.Dropped += n(statusDropped)
}

// RunOnce handles what is there, for batch jobs: it is Run until all subscriptions have had nothing to do for
// Options.IdleTimeout, or for 1 s if that is not set. Where Run would wait for an outage to end, of the broker or of
// what a handler needs, RunOnce drains and returns an error; nothing is lost. What waits in the broker for a later
// retry is left there. If ctx ends it returns nil and the counts so far.
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
	for sleep(ctx, wait) {
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
	if r.held > 0 || r.down || r.pause.state != open {
		return idle
	}
	return idle - time.Since(r.active)
}

// parkedEvery is how often the depth of what is parked is read, parkedTimeout for how long at most.
const (
	parkedEvery   = 30 * time.Second
	parkedTimeout = 10 * time.Second
)

// besides starts what runs beside the subscriptions.
func (c *Consumer) besides(ctx context.Context, wg *sync.WaitGroup, subs []*registration) {
	var queues []*waybill.Subscription
	for _, reg := range subs {
		if !reg.sub.DropFailed {
			queues = append(queues, &reg.sub)
		}
		for _, fn := range reg.background {
			wg.Go(func() {
				defer func() {
					if p := recover(); p != nil {
						c.opts.Logger.LogAttrs(ctx, slog.LevelError, "the background function of a handler panicked", slog.String("event", "consumer.background"),
							slog.String("queue", reg.sub.Queue), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
					}
				}()
				fn(ctx)
			})
		}
	}
	parked, ok := core.As[admin.ParkedQueue](c.bus)
	if !ok || len(queues) == 0 {
		return
	}
	wg.Go(func() {
		for next := time.Duration(0); sleep(ctx, next); next = parkedEvery {
			if c.tel.parked.Enabled(ctx) {
				c.readParked(ctx, parked, queues)
			}
		}
	})
}

func (c *Consumer) readParked(ctx context.Context, parked admin.ParkedQueue, subs []*waybill.Subscription) {
	for _, sub := range subs {
		limited, cancel := context.WithTimeout(ctx, parkedTimeout)
		n, err := parked.ParkedDepth(limited, sub.Queue)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.opts.Logger.LogAttrs(ctx, slog.LevelWarn, "cannot read how much is parked", slog.String("event", "consumer.parked_depth"),
				slog.String("queue", sub.Queue), errAttr(err))
		default:
			c.tel.parked.Record(ctx, int64(n), c.tel.forDepth(sub.Queue))
		}
	}
}

// awaitBesides waits until what runs beside the subscriptions has ended, but not for ever: background functions are not
// this package's.
func (c *Consumer) awaitBesides(ctx context.Context, wg *sync.WaitGroup) {
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	if !await(done, handlerGrace) {
		c.opts.Logger.LogAttrs(context.WithoutCancel(ctx), slog.LevelError, "the background function of a handler ignores its ended context and is left behind",
			slog.String("event", "consumer.left_behind"))
	}
}
