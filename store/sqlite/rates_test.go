package sqlite

import (
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/ratetest"
)

// OP-24: a relay that sets no option is near the best settings.
func TestNearBest(t *testing.T) {
	t.Parallel()
	ratetest.Embedded(t, 10_000, 1, func(t *testing.T) (core.OutboxStore, ratetest.Stage) {
		t.Helper()
		s := open(t, Options{})
		return s, func(t *testing.T, msgs []waybill.Message) {
			t.Helper()
			stage(t, s, msgs...)
		}
	})
}
