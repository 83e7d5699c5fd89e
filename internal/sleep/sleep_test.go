package sleep_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sleep"
)

func TestFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(62*time.Minute, "a pause of an hour, and one of a minute")
		start := time.Now()
		if err := sleep.For(t.Context(), time.Hour); err != nil || time.Since(start) != time.Hour {
			t.Errorf("a pause of an hour ended after %s: %v", time.Since(start), err)
		}
		why := errors.New("why")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(why) })
		start = time.Now()
		if err := sleep.For(ctx, time.Hour); !errors.Is(err, why) || time.Since(start) != time.Minute {
			t.Errorf("the context ended after a minute, and the pause after %s: %v", time.Since(start), err)
		}
		if err := sleep.For(ctx, 0); !errors.Is(err, why) {
			t.Errorf("no pause under an ended context: %v", err)
		}
	})
}
