package faults

import (
	"context"
	"errors"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

var errNoAnswer = errors.New("no answer")

// Store returns next with the faults of s.
func Store(next core.OutboxStore, s Script) core.OutboxStore {
	return &store{OutboxStore: next, b: newBreaker(s)}
}

type store struct {
	core.OutboxStore
	b *breaker
}

// Unwrap returns the store, whose capabilities stay visible.
func (s *store) Unwrap() any { return s.OutboxStore }

func (s *store) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (r core.Membership, err error) {
	if fault := s.b.run(ctx, "heartbeat", m, func() { r, err = s.OutboxStore.Heartbeat(ctx, m) }); fault != nil {
		return core.Membership{}, fault
	}
	return r, err
}

func (s *store) Read(ctx context.Context, self core.Session, request core.ReadRequest) (p core.ReadResult, err error) {
	if fault := s.b.run(ctx, "read", request, func() { p, err = s.OutboxStore.Read(ctx, self, request) }); fault != nil {
		return core.ReadResult{}, fault
	}
	return p, err
}

func (s *store) Hold(ctx context.Context, self core.Session, want core.HoldRequest) (t []core.HoldResult, err error) {
	if fault := s.b.run(ctx, "hold", want, func() { t, err = s.OutboxStore.Hold(ctx, self, want) }); fault != nil {
		return nil, fault
	}
	return t, err
}

func (s *store) ReleasePartition(ctx context.Context, self core.Session, partition core.PartitionState, out []core.Ref) (done bool, err error) {
	if fault := s.b.run(ctx, "release partition", partition, func() { done, err = s.OutboxStore.ReleasePartition(ctx, self, partition, out) }); fault != nil {
		return false, fault
	}
	return done, err
}

func (s *store) Due(ctx context.Context, self core.Session, parts []core.RouteSlots, limit int) (p core.DueResult, err error) {
	if fault := s.b.run(ctx, "due", parts, func() { p, err = s.OutboxStore.Due(ctx, self, parts, limit) }); fault != nil {
		return core.DueResult{}, fault
	}
	return p, err
}

func (s *store) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) (res core.Results) {
	if fault := s.b.run(ctx, "settle", outcomes, func() { res = s.OutboxStore.Settle(ctx, self, outcomes) }); fault != nil {
		return core.AllFailed(len(outcomes), fault)
	}
	return res
}

// SettleGroup refuses: so each member settles alone, with the faults of its calls.
func (s *store) SettleGroup(context.Context, []core.Session, [][]core.Outcome) bool { return false }

// Publisher returns next with the faults of s. A fault is the result of every message of the call.
func Publisher(next core.Publisher, s Script) core.Publisher {
	return &publisher{Publisher: next, b: newBreaker(s)}
}

type publisher struct {
	core.Publisher
	b *breaker
}

// Unwrap returns the publisher, whose capabilities stay visible.
func (p *publisher) Unwrap() any { return p.Publisher }

func (p *publisher) Publish(ctx context.Context, batch []waybill.Envelope) (res core.Results) {
	if fault := p.b.run(ctx, "publish", batch, func() { res = p.Publisher.Publish(ctx, batch) }); fault != nil {
		return core.AllFailed(len(batch), fault)
	}
	return res
}

// Subscriber returns next with the faults of s, also in the calls of its receivers, which count together. The
// deliveries of a broken receive are released; a lost answer of a settle (After) is the result of every delivery of the
// call, and [waybill.ErrLeaseLost] there is a delivery that another receiver has by now.
func Subscriber(next core.Subscriber, s Script) core.Subscriber {
	return &subscriber{Subscriber: next, b: newBreaker(s)}
}

type subscriber struct {
	core.Subscriber
	b *breaker
}

// Unwrap returns the subscriber, whose capabilities stay visible.
func (s *subscriber) Unwrap() any { return s.Subscriber }

func (s *subscriber) Subscribe(ctx context.Context, sub core.Subscription) (r core.Receiver, err error) {
	fault := s.b.run(ctx, "subscribe", sub, func() { r, err = s.Subscriber.Subscribe(ctx, sub) })
	if fault != nil {
		if r != nil {
			_ = r.Close(ctx)
		}
		return nil, fault
	}
	if err != nil {
		return nil, err
	}
	return &receiver{Receiver: r, b: s.b}, nil
}

type receiver struct {
	core.Receiver
	b *breaker
}

// Unwrap returns the receiver, whose capabilities stay visible.
func (r *receiver) Unwrap() any { return r.Receiver }

func (r *receiver) Receive(ctx context.Context, limit int) (ds []*waybill.Delivery, err error) {
	fault := r.b.run(ctx, "receive", limit, func() { ds, err = r.Receiver.Receive(ctx, limit) })
	if fault == nil {
		return ds, err
	}
	acks := make([]core.Ack, len(ds))
	for i, d := range ds {
		acks[i] = core.AckRelease(d)
	}
	if len(acks) > 0 {
		r.Receiver.Settle(context.WithoutCancel(ctx), acks)
	}
	return nil, fault
}

func (r *receiver) Settle(ctx context.Context, acks []core.Ack) (res core.Results) {
	if fault := r.b.run(ctx, "settle", acks, func() { res = r.Receiver.Settle(ctx, acks) }); fault != nil {
		return core.AllFailed(len(acks), fault)
	}
	return res
}

// Inbox returns next with the faults of s. A lost answer (After) is that of a commit: the effect is there, and the
// delivery comes again.
func Inbox[Tx any](next core.Inbox[Tx], s Script) core.Inbox[Tx] {
	return &box[Tx]{Inbox: next, b: newBreaker(s)}
}

type box[Tx any] struct {
	core.Inbox[Tx]
	b *breaker
}

// Unwrap returns the inbox, whose capabilities stay visible.
func (b *box[Tx]) Unwrap() any { return b.Inbox }

func (b *box[Tx]) Do(ctx context.Context, key core.InboxKey, fn func(ctx context.Context, tx Tx) error) (st core.InboxStatus, err error) {
	if fault := b.b.run(ctx, "do", key, func() { st, err = b.Inbox.Do(ctx, key, fn) }); fault != nil {
		return core.InboxNone, fault
	}
	return st, err
}
