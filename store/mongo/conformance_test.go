package mongo

import (
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outboxtest"
)

// The members use two stores with a client each, as two processes do.
func TestConformance(t *testing.T) {
	t.Parallel()
	h := newHarness(t, Options{})
	outboxtest.Run(t, func(*testing.T) outboxtest.Harness { return h })
}

// The same with another prefix and published records that are kept.
func TestConformanceKept(t *testing.T) {
	t.Parallel()
	h := newHarness(t, Options{Prefix: "own_", Retention: waybill.Retention{Published: core.Forever}})
	outboxtest.Run(t, func(*testing.T) outboxtest.Harness { return h })
}
