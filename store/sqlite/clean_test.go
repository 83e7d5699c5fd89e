package sqlite

import (
	"context"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/storetest"
)

// WithRetention makes the harness a storetest.Retainer.
func (h harness) WithRetention(_ context.Context, r core.Retention) (storetest.Harness, error) {
	s, err := New(h.store.DB(), Options{Source: "/test", Prefix: h.store.opts.Prefix, Retention: r})
	return harness{s}, err
}
