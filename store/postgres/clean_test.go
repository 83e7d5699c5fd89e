package postgres_test

import (
	"context"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/storetest"
	"github.com/waybill-go/waybill/store/postgres"
)

// WithRetention makes the harness a storetest.Retainer.
func (h *harness) WithRetention(_ context.Context, r core.Retention) (storetest.Harness, error) {
	o, err := postgres.NewOutbox(h.pool, postgres.Options{Source: "/test", Retention: r})
	return &harness{h.pool, o}, err
}
