package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/errtext"
	"github.com/waybill-go/waybill/internal/sleep"
)

// Timeout returns a middleware that ends the handler's context after d. A handler that fails then is retried by policy,
// even if it took the end of its context for an outage. A d of zero or less means no limit. For all handlers of a
// subscription, batches included, there is [waybill.Subscription].Timeout.
func Timeout(d time.Duration) waybill.Middleware {
	return func(next waybill.HandleFunc) waybill.HandleFunc {
		if d <= 0 {
			return next
		}
		return func(ctx context.Context, del *waybill.Delivery) (waybill.HandlerStatus, error) {
			limited, cancel := context.WithTimeout(ctx, d)
			defer cancel()
			st, err := next(limited, del)
			return st, overrun(ctx, limited, err, "the handler took longer than %s", d)
		}
	}
}

// overrun returns err, or a failure of class rejected if err came after limited had reached its deadline. ctx is the
// parent of limited. The text says that the handler took longer than limit.
func overrun(ctx, limited context.Context, err error, text string, limit time.Duration) error {
	if err == nil || ctx.Err() != nil || waybill.ClassOf(err) == waybill.ClassPermanent || !errors.Is(limited.Err(), context.DeadlineExceeded) {
		return err
	}
	return &waybill.Error{Op: "waybill/consumer: timeout", Class: waybill.ClassRejected, Err: errtext.Within(fmt.Sprintf(text, limit), err)}
}

// Throttle returns a middleware that lets at most perSecond handlers begin a second, all users of it together, and
// burst at once (at least 1). The others wait with their place taken; give the rate of a whole service divided by its
// replicas. When the context ends meanwhile, the message is released at no cost. Put it outside of Timeout, or its wait
// counts. A rate of zero or less, or one that is no number, means no limit.
func Throttle(perSecond float64, burst int) waybill.Middleware {
	var (
		mu   sync.Mutex
		free time.Time // when the next may begin, were there no burst
	)
	each := float64(time.Second) / perSecond
	if !(each >= 1) || perSecond <= 0 { // also for NaN
		return func(next waybill.HandleFunc) waybill.HandleFunc { return next }
	}
	gap := time.Duration(min(each, float64(maxThrottle)))
	slack := gap * time.Duration(min(max(burst, 1)-1, int(maxThrottle/gap)))
	reserve := func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		if early := now.Add(-slack); free.Before(early) {
			free = early
		}
		wait := free.Sub(now)
		free = free.Add(gap)
		return wait
	}
	return func(next waybill.HandleFunc) waybill.HandleFunc {
		return func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			if wait := reserve(); wait > 0 && sleep.For(ctx, wait) != nil {
				return waybill.HandlerProcessed, &waybill.Error{Op: "waybill/consumer: throttle", Class: waybill.ClassOutage, Err: context.Cause(ctx)}
			}
			return next(ctx, d)
		}
	}
}

// maxThrottle bounds the time between two handlers, and the time that a burst is worth.
const maxThrottle = 24 * time.Hour
