package transport_test

import (
	"context"
	"testing"

	"github.com/waybill-go/waybill/core/transporttest"
	"github.com/waybill-go/waybill/examples/skeletons/transport"
)

// TE-07: the transport with which docs/adapters.md begins passes the suite.
func TestTransport(t *testing.T) {
	t.Parallel()
	transporttest.RunInBubble(t, func(*testing.T) transporttest.Harness {
		tr := transport.New()
		h := transporttest.Of(tr)
		h.Parked = func(_ context.Context, queue string) ([]transporttest.Parked, error) {
			var out []transporttest.Parked
			for _, p := range tr.Parked(queue) {
				out = append(out, transporttest.Parked(p))
			}
			return out, nil
		}
		return h
	})
}
