package consumer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/internal/patience"
)

// CO-13: handlers that begin within some seconds share the parent of their contexts, so that none costs them an
// allocation. Each has a quarter of an hour, and no more than a hundredth of it beyond.
func TestHandlersShareALimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		var l limits
		made := map[context.Context]bool{}
		for range 1000 {
			now := time.Now()
			ctx := l.from(t.Context(), now)
			made[ctx] = true
			if deadline, _ := ctx.Deadline(); deadline.Sub(now) < DefaultTimeout || deadline.Sub(now) > DefaultTimeout+limitSlack {
				t.Fatalf("a handler has %s", deadline.Sub(now))
			}
			patience.Pass(t, time.Second/10)
		}
		if most := int(100*time.Second/limitSlack) + 1; len(made) > most {
			t.Errorf("%d contexts in 100 seconds, want %d at most", len(made), most)
		}
	})
}
