package waybill_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/patience"
)

type runner func(ctx context.Context) error

func (r runner) Run(ctx context.Context) error { return r(ctx) }

func TestRunStopsAllIfOneFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		broken, late := errors.New("broken"), errors.New("late")
		drained := false
		err := waybill.Run(t.Context(),
			runner(func(context.Context) error { return broken }),
			runner(func(ctx context.Context) error { <-ctx.Done(); drained = true; return nil }),
			runner(func(ctx context.Context) error { <-ctx.Done(); return late }))
		if !errors.Is(err, broken) || !errors.Is(err, late) || !drained {
			t.Errorf("drained: %v; %v", drained, err)
		}
	})
}

func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		ctx, cancel := context.WithCancel(t.Context())
		wait := runner(func(ctx context.Context) error { <-ctx.Done(); return nil })
		done := make(chan error, 1)
		go func() { done <- waybill.Run(ctx, wait, wait) }()
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestRunRefusesNil(t *testing.T) {
	t.Parallel()
	if err := waybill.Run(t.Context(), nil); !errors.Is(err, waybill.ErrInvalid) {
		t.Error(err)
	}
}
