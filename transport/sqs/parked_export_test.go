package sqs

import (
	"context"

	"github.com/waybill-go/waybill/core/parked"
)

// Walks are the walks over parked messages of t, which hide at most so many messages that are not selected.
func Walks(t *Transport, most int) parked.Walks {
	w := t.walks()
	open := w.Open
	w.Open = func(ctx context.Context, op, queue string) (parked.Walk, error) {
		walk, err := open(ctx, op, queue)
		if p, ok := walk.(*parkedWalk); ok {
			p.most = most
		}
		return walk, err
	}
	return w
}
