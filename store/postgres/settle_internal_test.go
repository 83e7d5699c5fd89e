package postgres

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// What is tried first leaves half of the time, and each look for a slow record leaves time for those after it. The last
// part uses up what is left, so that the dispatcher gives more to the next call if everything is slow.
func TestSettleParts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		within := func(d time.Duration) context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			t.Cleanup(cancel)
			return ctx
		}
		for _, tc := range []struct {
			ctx  context.Context
			part settlePart
			n    int
			want time.Duration
		}{
			{t.Context(), wholeSettle, 100, settleLimit},
			{t.Context(), someOfSettle, 50, someLimit},
			{t.Context(), restOfSettle, 50, settleLimit},
			{within(5 * time.Second), wholeSettle, 100, 2500 * time.Millisecond},
			{within(5 * time.Second), wholeSettle, 1, 5 * time.Second},
			{within(5 * time.Second), restOfSettle, 50, 5 * time.Second},
			{within(8 * time.Second), someOfSettle, 50, time.Second},
			{within(4 * time.Second), someOfSettle, 50, 500 * time.Millisecond},
			{within(time.Minute), wholeSettle, 100, settleLimit},
			{within(time.Nanosecond), someOfSettle, 1, time.Millisecond},
		} {
			if got := tc.part.limit(tc.ctx, tc.n); got != tc.want {
				t.Errorf("part %d of %d has %s, want %s", tc.part, tc.n, got, tc.want)
			}
		}
	})
}
