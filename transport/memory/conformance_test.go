package memory_test

import (
	"context"
	"testing"

	"github.com/waybill-go/waybill/core/transporttest"
	"github.com/waybill-go/waybill/internal/tier"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// TR-01, TR-06, TE-01.
func TestConformance(t *testing.T) {
	t.Parallel()
	transporttest.RunInBubble(t, newHarness)
}

// The same on real time: goroutines meet in other ways there.
func TestConformanceRealTime(t *testing.T) {
	tier.Nightly(t, "waits in real time: 15 s (TestConformance is virtual)")
	t.Parallel()
	transporttest.Run(t, func(t *testing.T) transporttest.Harness {
		t.Helper()
		t.Parallel()
		return newHarness(t)
	})
}

func newHarness(t *testing.T) transporttest.Harness {
	t.Helper()
	tr, err := memtransport.New(memtransport.Options{MaxBodyBytes: 2 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tr.Close(context.Background()) })
	h := transporttest.Of(tr)
	h.Parked = func(_ context.Context, queue string) ([]transporttest.Parked, error) {
		var out []transporttest.Parked
		for _, p := range tr.Parked(queue) {
			out = append(out, transporttest.Parked{Envelope: p.Envelope, Reason: p.Reason, Err: p.Err})
		}
		return out, nil
	}
	return h
}
