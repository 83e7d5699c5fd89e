package cli

import (
	"context"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/transport/memory"
)

// connect makes relays and consumers, each with connections of its own as if it were a process, and the place for the
// messages.
func (b *bench) connect(ctx context.Context) (relays []*relay.Relay, consumers []*consumer.Consumer, err error) {
	open, err := b.transports()
	if err != nil {
		return nil, nil, err
	}
	for i := range b.o.consumers {
		t, err := open(ctx)
		if err != nil {
			return nil, nil, err
		}
		made, err := b.consumer(ctx, t, i == 0)
		if err != nil {
			return nil, nil, err
		}
		consumers = append(consumers, made)
	}
	for i := range b.o.relays {
		t, err := open(ctx)
		if err != nil {
			return nil, nil, err
		}
		if i == 0 && b.o.consumers == 0 && t.Publisher != nil {
			if err := b.sink(ctx, t); err != nil {
				return nil, nil, err
			}
		}
		s, err := b.c.openStore(ctx, b.o.store, b.c.quiet())
		if err != nil {
			return nil, nil, err
		}
		made, err := b.relay(s.Outbox, &benchPublisher{to: t.Publisher, tally: b.tally, ends: b.o.consumers == 0})
		if err != nil {
			return nil, nil, err
		}
		relays = append(relays, made)
	}
	return relays, consumers, nil
}

// transports returns a function that opens the transport once more. Its publisher is nil if messages go nowhere.
func (b *bench) transports() (open func(context.Context) (*Transport, error), err error) {
	switch {
	case b.o.transport != "none":
		return b.openTransport, nil
	case b.o.consumers == 0:
		return func(context.Context) (*Transport, error) { return &Transport{}, nil }, nil
	}
	bus, err := memory.New(memory.Options{})
	if err != nil {
		return nil, err
	}
	t := &Transport{Publisher: bus, Drop: func(context.Context, core.Subscription) error { return nil }, Close: bus.Close}
	b.c.opened = append(b.c.opened, t.Close)
	return func(context.Context) (*Transport, error) { return t, nil }, nil
}

// openTransport opens the transport of the flags, and asks it whether it works.
func (b *bench) openTransport(ctx context.Context) (*Transport, error) {
	t, err := b.c.openTransport(ctx, b.o.transport, b.c.quiet())
	if err != nil {
		return nil, err
	}
	if checker, ok := core.As[core.Checker](t.Publisher); ok {
		ctx, cancel := b.c.limited(ctx)
		defer cancel()
		err = checker.Check(ctx)
	}
	return t, err
}

// sink makes the place for messages that no consumer takes.
func (b *bench) sink(ctx context.Context, t *Transport) error {
	if b.o.topic != benchName {
		return nil
	}
	if t.Sink == nil {
		return withCode(ExitUsage, "this transport has no place of its own for bench: name a --topic that a queue takes, and empty that queue afterwards")
	}
	ctx, cancel := b.c.limited(ctx)
	defer cancel()
	remove, err := t.Sink(ctx, b.o.topic)
	if err == nil {
		b.undo = append(b.undo, remove)
	}
	return err
}

// consumer makes a consumer of the bench's queue. The first one removes the queue and the marks in the end.
func (b *bench) consumer(ctx context.Context, t *Transport, first bool) (*consumer.Consumer, error) {
	bus, err := able[core.Subscriber](t.Publisher, "transport", "be consumed from")
	if err != nil {
		return nil, err
	}
	if t.Drop == nil {
		return nil, withCode(ExitUsage, "this transport cannot delete the queue of bench: leave out --consumers")
	}
	sub := waybill.Subscription{
		Queue: benchName, Bindings: []string{b.o.topic}, Concurrency: b.o.concurrency, Prefetch: b.o.prefetch, InOrder: b.o.inOrder,
		Retry: waybill.RetryDelays(), // no delay queues
	}
	h, err := b.handler(ctx, first)
	if err != nil {
		return nil, err
	}
	env := b.c.quiet()
	c, err := consumer.New(bus, consumer.Options{Logger: env.Logger, MeterProvider: env.MeterProvider, TracerProvider: env.TracerProvider})
	if err != nil {
		return nil, err
	}
	if err := c.Handle(sub, b.tally.handler(h)); err != nil {
		return nil, err
	}
	if first {
		drop := core.SubscriptionOf(&sub)
		b.undo = append(b.undo, func(ctx context.Context) error { return t.Drop(ctx, drop) })
	}
	return c, nil
}

// handler returns a handler that does nothing, in a transaction of an inbox if the flags say so.
func (b *bench) handler(ctx context.Context, first bool) (waybill.Handler, error) {
	if !b.o.inbox {
		return waybill.Handler{Name: b.o.topic, Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) {
			return waybill.HandlerProcessed, nil
		}}, nil
	}
	s, err := b.c.openStore(ctx, b.o.store, b.c.quiet())
	if err != nil {
		return waybill.Handler{}, err
	}
	if s.Mark == nil {
		return waybill.Handler{}, withCode(ExitUsage, "this store has no inbox for bench: leave out --inbox")
	}
	purger, err := able[core.InboxPurger](s.Inbox, "inbox", "delete marks")
	if err != nil {
		return waybill.Handler{}, err
	}
	if first {
		b.undo = append(b.undo, func(ctx context.Context) error { return b.purgeMarks(ctx, purger) })
	}
	return s.Mark(benchName, b.o.topic)
}

// purgeMarks deletes the marks of bench.
func (b *bench) purgeMarks(ctx context.Context, purger core.InboxPurger) error {
	return b.c.eachStep(ctx, func(ctx context.Context, _ int64) (int64, error) {
		n, err := purger.PurgeInbox(ctx, benchName, time.Microsecond, inboxStep)
		if n < inboxStep {
			return 0, err
		}
		return 1, err
	})
}

// ready waits until the consumers have subscribed.
func (b *bench) ready(ctx context.Context, consumers []*consumer.Consumer) error {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	end := time.Now().Add(b.c.timeout)
	for i := 0; i < len(consumers); {
		h := consumers[i].Health(ctx)
		if h.Ready {
			i++
			continue
		}
		if time.Now().After(end) {
			return withCode(ExitFailed, "the consumers have not subscribed within %s: %s", b.c.timeout, h)
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
