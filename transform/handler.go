package transform

import (
	"context"

	"github.com/waybill-go/waybill"
)

// Handler returns h, with the steps undone in each delivery before h gets it. It gets a copy: the delivery stays as it
// came, so that it can be parked or handed on. Give it the steps of the publisher; their order does not matter, since
// the message names the steps that were done. It is a [waybill.ErrInvalid] if h has no Handle, or if a step is not
// valid.
func Handler(h waybill.Handler, steps ...Step) (waybill.Handler, error) {
	problems := problemsOf(steps)
	if h.Handle == nil {
		problems = append(problems, "h.Handle: is nil; give the handler its function")
	}
	if err := waybill.Invalid("waybill/transform: handler", problems...); err != nil {
		return waybill.Handler{}, err
	}
	steps = append([]Step(nil), steps...)
	handle, batch := h.Handle, h.Batch
	h.Handle = func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		changed, err := undo(ctx, steps, d)
		if err != nil {
			return waybill.HandlerProcessed, err
		}
		return handle(with(ctx, changed), changed)
	}
	if batch != nil {
		h.Batch = func(ctx context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
			changed := make([]*waybill.Delivery, len(ds))
			for i, d := range ds {
				var err error
				if changed[i], err = undo(ctx, steps, d); err != nil {
					return nil, err // the runner asks Handle for each then, or releases all
				}
			}
			return batch(ctx, changed)
		}
	}
	return h, nil
}

// with returns ctx, in which [waybill.DeliveryFrom] finds d.
func with(ctx context.Context, d *waybill.Delivery) context.Context {
	if old, ok := waybill.DeliveryFrom(ctx); !ok || old == d {
		return ctx
	}
	return waybill.WithDelivery(ctx, d)
}
