package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/core"
)

// Timeout returns a middleware that ends the handler's context after d. A handler that fails then is retried by policy,
// even if it took the end of its context for an outage. A d of zero or less means no limit.
func Timeout(d time.Duration) core.Middleware {
	return func(next core.HandleFunc) core.HandleFunc {
		if d <= 0 {
			return next
		}
		return func(ctx context.Context, del *core.Delivery) (core.HandlerStatus, error) {
			limited, cancel := context.WithTimeout(ctx, d)
			defer cancel()
			st, err := next(limited, del)
			if err == nil || ctx.Err() != nil || core.ClassOf(err) == core.ClassPermanent || !errors.Is(limited.Err(), context.DeadlineExceeded) {
				return st, err
			}
			return st, &core.Error{
				Op: "waybill/consumer: timeout", Class: core.ClassRejected,
				Err: fmt.Errorf("the handler took longer than %s: %w", d, err),
			}
		}
	}
}
