package memory_test

import (
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/ratetest"
	"github.com/waybill-go/waybill/store/memory"
)

// OP-24: a relay that sets no option is near the best settings, also if a call takes as many round trips as one of
// MongoDB.
func TestNearBest(t *testing.T) {
	t.Parallel()
	ratetest.Embedded(t, 20_000, 8, func(t *testing.T) (core.OutboxStore, ratetest.Stage) {
		t.Helper()
		s, err := memory.New(memory.Options{Source: "/rates"})
		if err != nil {
			t.Fatal(err)
		}
		return s, func(t *testing.T, msgs []waybill.Message) {
			t.Helper()
			tx := s.Begin()
			defer tx.Rollback()
			_, err := s.Stage(t.Context(), tx, msgs...)
			if err == nil {
				err = tx.Commit()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}
