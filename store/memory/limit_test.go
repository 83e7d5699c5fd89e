package memory_test

import (
	"testing"
	"testing/synctest"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/limitertest"
	"github.com/waybill-go/waybill/internal/patience"
)

func TestLimiterConformance(t *testing.T) { // TE-01
	for _, c := range limitertest.Checks() {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				patience.BudgetOf(t)
				s := newStore(t)
				if err := c.Run(t.Context(), s, core.Limiter(s)); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
