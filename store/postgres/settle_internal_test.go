package postgres

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
)

// The first try leaves half of the time, and each look for a slow record leaves time for those after it. The last part
// uses up what is left, so that the dispatcher gives more to the next call if everything is slow.
func TestSettleParts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		for _, tc := range []struct {
			within time.Duration // 0: for ever
			part   settlePart
			n      int
			want   time.Duration
		}{
			{0, wholeSettle, 100, settleLimit},
			{0, someOfSettle, 50, someLimit},
			{0, restOfSettle, 50, settleLimit},
			{5 * time.Second, wholeSettle, 100, 2500 * time.Millisecond},
			{5 * time.Second, wholeSettle, 1, 5 * time.Second},
			{5 * time.Second, restOfSettle, 50, 5 * time.Second},
			{8 * time.Second, someOfSettle, 50, time.Second},
			{4 * time.Second, someOfSettle, 50, 500 * time.Millisecond},
			{time.Minute, wholeSettle, 100, settleLimit},
			{time.Nanosecond, someOfSettle, 1, time.Millisecond},
		} {
			ctx := t.Context()
			if tc.within > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, tc.within)
				defer cancel()
			}
			if got := tc.part.limit(ctx, tc.n); got != tc.want {
				t.Errorf("part %d of %d, within %s: %s, want %s", tc.part, tc.n, tc.within, got, tc.want)
			}
		}
	})
}

// A statement that the server ended is no outage: a part of its records may be quicker.
func TestSlowIsNoOutage(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{tookTooLong: false, "55P03": false, "23514": false, "57P01": true, "08006": true} {
		if err := dberr.Failure("settle", &pgconn.PgError{Code: code}); isOutage(err) != want {
			t.Errorf("%s is an outage: %v, want %v", code, !want, want)
		}
	}
}
