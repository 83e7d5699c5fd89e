package mongo

import (
	"errors"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core/outboxtest"
)

// The members use two stores with a client each, as two processes do.
// ST-01 ST-02 DB-01 DB-02 DB-03 DB-04 DB-05 DB-10 DB-15 DB-18 DB-25 OR-02 OR-08
func TestConformance(t *testing.T) {
	t.Parallel()
	var harnesses []func(*testing.T) outboxtest.Harness
	for range workers {
		h := newHarness(t, Options{})
		harnesses = append(harnesses, func(*testing.T) outboxtest.Harness { return h })
	}
	outboxtest.RunSpread(t, harnesses...)
}

// The checks of published records, with another prefix and published records that are kept.
func TestConformanceKept(t *testing.T) {
	t.Parallel()
	h := newHarness(t, Options{Prefix: "own_", Retention: waybill.Retention{Published: waybill.Forever}})
	n := 0
	for _, c := range outboxtest.Checks() {
		if !strings.Contains(c.Name, "settle") && !strings.Contains(c.Name, "publish") {
			continue
		}
		n++
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			if err := c.Run(t.Context(), h); err != nil && !errors.Is(err, outboxtest.ErrNotDeclared) {
				t.Error(err)
			}
		})
	}
	if n < 10 {
		t.Errorf("%d checks ran", n)
	}
}
