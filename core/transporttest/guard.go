package transporttest

import (
	"context"
	"errors"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
	"github.com/waybill-go/waybill/internal/patience"
)

// The adapter is called through the guards below, so that none can hang the suite or crash it: a panic, a call that
// goes on after its context ended, and a result of the wrong shape give up the check.

const (
	grace    = 5 * time.Second // for a call to return after its context ended
	maxCalls = 50_000          // in one check; more is a loop
)

// call runs fn, one call of the adapter under ctx.
func call[T any](ctx context.Context, k *kit, what string, fn func() T) T {
	k.failIf(k.calls.Add(1) > maxCalls, "%s: more than %d calls in one check: the adapter never lets it end", what, maxCalls)
	type outcome struct {
		v   T
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		o := outcome{err: errors.New("the call ended its goroutine")}
		defer func() { done <- o }()
		o.err = suitetest.Guard(func() { o.v = fn() })
	}()
	end := func(o outcome) T {
		k.failIf(o.err != nil, "%s: %w", what, o.err)
		return o.v
	}
	limit := time.NewTimer(patience.For(Timeout))
	defer limit.Stop()
	select {
	case o := <-done:
		return end(o)
	case <-ctx.Done():
	case <-limit.C:
	}
	limit.Reset(patience.For(grace))
	select {
	case o := <-done:
		return end(o)
	case <-limit.C:
		k.fail("%s did not return within %s after its context had ended", what, grace)
	}
	panic("unreachable")
}

// answer is what a call returns.
type answer[T any] struct {
	v   T
	err error
}

func asked[T any](ctx context.Context, k *kit, what string, fn func() (T, error)) (T, error) {
	a := call(ctx, k, what, func() answer[T] {
		v, err := fn()
		return answer[T]{v, err}
	})
	return a.v, a.err
}

// results is call for a call that has one result a message.
func results(ctx context.Context, k *kit, what string, n int, fn func() core.Results) core.Results {
	res := call(ctx, k, what, fn)
	k.failIf(len(res) != n, "%s of %d messages returned %d results", what, n, len(res))
	return res
}

type guardedPublisher struct {
	core.Publisher
	k *kit
}

func (p guardedPublisher) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	return results(ctx, p.k, "publish", len(batch), func() core.Results { return p.Publisher.Publish(ctx, batch) })
}

type guardedSubscriber struct {
	core.Subscriber
	k *kit
}

func (s guardedSubscriber) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	inner, err := asked(ctx, s.k, "subscribe", func() (core.Receiver, error) { return s.Subscriber.Subscribe(ctx, sub) })
	if err != nil {
		return nil, err
	}
	s.k.failIf(inner == nil, "subscribe returned neither a receiver nor an error")
	r := guardedReceiver{inner, s.k, sub.Queue}
	s.k.opened(r, sub.Bindings)
	return r, nil
}

type guardedReceiver struct {
	core.Receiver
	k     *kit
	queue string
}

// Unwrap lets core.As find the receiver's capabilities.
func (r guardedReceiver) Unwrap() any { return r.Receiver }

func (r guardedReceiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	ds, err := asked(ctx, r.k, "receive", func() ([]*waybill.Delivery, error) { return r.Receiver.Receive(ctx, limit) })
	switch {
	case len(ds) > max(limit, 0):
		r.k.fail("receive with limit %d returned %d deliveries", limit, len(ds))
	case len(ds) > 0 && err != nil:
		r.k.fail("receive returned %d deliveries together with an error: %w", len(ds), err)
	}
	for i, d := range ds {
		r.k.failIf(d == nil, "receive returned %d deliveries, and number %d is nil", len(ds), i)
	}
	if rest := r.unmarked(ctx, ds); len(rest) > 0 || len(ds) == 0 {
		return rest, err
	}
	return r.Receive(ctx, limit) // there were markers only
}

func (r guardedReceiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	return results(ctx, r.k, "settle", len(acks), func() core.Results { return r.Receiver.Settle(ctx, acks) })
}

func (r guardedReceiver) Close(ctx context.Context) error {
	r.k.closed(r)
	return call(ctx, r.k, "close receiver", func() error { return r.Receiver.Close(ctx) })
}

type guardedParked struct {
	q admin.ParkedQueue
	k *kit
}

func (p guardedParked) ParkedDepth(ctx context.Context, queue string) (int, error) {
	return asked(ctx, p.k, "count the parked messages", func() (int, error) { return p.q.ParkedDepth(ctx, queue) })
}

func (p guardedParked) CountParked(ctx context.Context, queue string) (map[waybill.Reason]int, error) {
	return asked(ctx, p.k, "count by reason", func() (map[waybill.Reason]int, error) { return p.q.CountParked(ctx, queue) })
}

func (p guardedParked) InspectParked(ctx context.Context, queue string, f admin.ParkedFilter) (admin.Parked, error) {
	return asked(ctx, p.k, "inspect", func() (admin.Parked, error) { return p.q.InspectParked(ctx, queue, f) })
}

func (p guardedParked) ListParked(ctx context.Context, queue string, f admin.ParkedFilter, limit int) ([]admin.Parked, error) {
	return asked(ctx, p.k, "list the parked messages", func() ([]admin.Parked, error) { return p.q.ListParked(ctx, queue, f, limit) })
}

func (p guardedParked) ReplayParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	return asked(ctx, p.k, "replay", func() (int, error) { return p.q.ReplayParked(ctx, req) })
}

func (p guardedParked) PurgeParked(ctx context.Context, req admin.ParkedRequest) (int, error) {
	return asked(ctx, p.k, "purge", func() (int, error) { return p.q.PurgeParked(ctx, req) })
}
