package memory_test

import (
	"context"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/storetest"
	"github.com/waybill-go/waybill/store/memory"
)

// WithRetention makes the harness a storetest.Retainer.
func (h harness) WithRetention(_ context.Context, r core.Retention) (storetest.Harness, error) {
	s, err := memory.New(memory.Options{Source: "/test", Retention: r})
	return harness{s}, err
}
