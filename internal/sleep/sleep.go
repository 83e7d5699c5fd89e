// Package sleep waits.
package sleep

import (
	"context"
	"time"
)

// For waits for d, or until ctx ends. It returns the cause of that end, and nil if ctx has not ended.
func For(ctx context.Context, d time.Duration) error {
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}
