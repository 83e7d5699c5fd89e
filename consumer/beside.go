package consumer

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sleep"
)

// parkedEvery is how often the number of parked messages is read. parkedTimeout bounds one read.
const (
	parkedEvery   = 30 * time.Second
	parkedTimeout = 10 * time.Second
)

// besides starts the work beside the subscriptions: background functions, and the gauge of parked messages.
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
		for next := time.Duration(0); sleep.For(ctx, next) == nil; next = parkedEvery {
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
		case ctx.Err() != nil || errors.Is(err, waybill.ErrUnsupported):
			return
		case err != nil:
			c.opts.Logger.LogAttrs(ctx, slog.LevelWarn, "cannot read how much is parked", slog.String("event", "consumer.parked_depth"),
				slog.String("queue", sub.Queue), errAttr(err))
		default:
			c.tel.parked.Record(ctx, int64(n), c.tel.forDepth(sub.Queue))
		}
	}
}

// awaitBesides waits until the work beside the subscriptions has ended, but not for ever: background functions are not
// this package's.
func (c *Consumer) awaitBesides(ctx context.Context, wg *sync.WaitGroup) {
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	if !await(done, handlerGrace) {
		c.opts.Logger.LogAttrs(context.WithoutCancel(ctx), slog.LevelError, "the background function of a handler ignores its ended context and is left behind",
			slog.String("event", "consumer.left_behind"))
	}
}
