package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/waybill-go/waybill/core"
)

// Options configures an [Inbox]. The zero value is a good choice.
type Options struct {
	// ID returns the id that tells messages of one source apart, for producers that put it elsewhere: a header, a
	// subject. It replaces the envelope's id; an empty result means that there is none. Nil means the envelope's id:
	// the CloudEvents id, or else the broker's message id. It must be safe for concurrent use and must not change d.
	ID func(d *core.Delivery) string
}

// Inbox is a store's inbox under a consumer name.
type Inbox[Tx any] struct {
	store    core.Inbox[Tx]
	consumer string
	opts     Options
}

// New returns an inbox that keeps its marks in store under consumerName, which names the service and must not change
// between releases: under another name every message is new.
func New[Tx any](store core.Inbox[Tx], consumerName string, opts Options) (*Inbox[Tx], error) {
	var p []string
	if core.IsNil(store) {
		p = append(p, "store: is nil; give the inbox of a store")
	}
	if consumerName == "" {
		p = append(p, "consumerName: is empty; name the consuming service, such as \"billing\"")
	} else if s := core.CheckName(consumerName); s != "" {
		p = append(p, "consumerName: "+s)
	}
	if err := core.Invalid("waybill/inbox", p...); err != nil {
		return nil, err
	}
	return &Inbox[Tx]{store: store, consumer: consumerName, opts: opts}, nil
}

// Consumer returns the consumer name.
func (b *Inbox[Tx]) Consumer() string { return b.consumer }

// Key returns the key of d's mark. The error is Permanent with [core.ReasonNoID] if d has no usable id.
func (b *Inbox[Tx]) Key(d *core.Delivery) (core.InboxKey, error) {
	id := d.Envelope.ID
	if b.opts.ID != nil {
		id = b.opts.ID(d)
	}
	source := d.Envelope.Source
	if source == "" {
		source = d.Queue
	}
	switch {
	case id == "" && b.opts.ID != nil:
		return core.InboxKey{}, noID("the message has no id: Options.ID returned none")
	case id == "":
		return core.InboxKey{}, noID("the message has neither a CloudEvents id nor a broker message id; " +
			"let the producer set one, or say with Options.ID where it is")
	case source == "":
		return core.InboxKey{}, noID("the message has no source and its delivery names no queue")
	}
	for _, f := range [...]struct{ name, value string }{{"id", id}, {"source", source}} {
		if s := core.CheckName(f.value); s != "" {
			return core.InboxKey{}, noID(fmt.Sprintf("the %s of the message %s", f.name, s))
		}
	}
	return core.InboxKey{Consumer: b.consumer, Source: source, ID: id}, nil
}

func noID(text string) error {
	return &core.Error{Op: "waybill/inbox", Class: core.ClassPermanent, Reason: core.ReasonNoID, Err: errors.New(text)}
}

// Handler returns a handler for topic that runs fn exactly once a message: fn's writes through tx and the mark are one
// transaction. The value is decoded before the transaction is begun. Under ctx [core.DeliveryFrom] finds the delivery,
// and messages staged with tx are caused by it. An error rolls back; what becomes of the message then is the consumer's
// to decide, by the error ([core.Reject], [core.RetryAfter], [core.Outage]) or its retry policy.
func Handler[Tx, T any](box *Inbox[Tx], topic core.Topic[T], fn func(ctx context.Context, tx Tx, v T) error) core.Handler {
	h := core.Handler{Name: topic.Name()}
	if box == nil || fn == nil {
		return h // without Handle: the consumer refuses it by name
	}
	if c, ok := core.As[core.Checker](box.store); ok {
		h.Check = c.Check
	}
	h.Handle = func(ctx context.Context, d *core.Delivery) (core.HandlerStatus, error) {
		key, err := box.Key(d)
		if err != nil {
			return core.HandlerProcessed, err
		}
		v, err := decode(topic, &d.Envelope)
		if err != nil {
			return core.HandlerProcessed, err
		}
		if cur, ok := core.DeliveryFrom(ctx); !ok || cur != d { // run without the consumer: in a test, say
			ctx = core.WithDelivery(ctx, d)
		}
		first := true
		status, err := box.store.Do(ctx, key, func(ctx context.Context, tx Tx) error {
			if !first { // the database asked for another run: fn must not see what an earlier one did to v
				again, err := decode(topic, &d.Envelope)
				if err != nil {
					return err
				}
				v = again
			}
			first = false
			return fn(ctx, tx, v)
		})
		switch {
		case err != nil:
			return core.HandlerProcessed, err
		case status == core.InboxDuplicate:
			return core.HandlerDuplicate, nil
		case status == core.InboxProcessed:
			return core.HandlerProcessed, nil
		default:
			return core.HandlerProcessed, fmt.Errorf("waybill/inbox: the store answered status %d without an error; its Do is broken", status)
		}
	}
	return h
}

// decode is topic.Decode for codecs that may panic on bytes from outside.
func decode[T any](topic core.Topic[T], e *core.Envelope) (v T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &core.Error{
				Op: "waybill/inbox: decode", Class: core.ClassPermanent, Reason: core.ReasonUndecodable,
				Err: fmt.Errorf("the codec of topic %q panicked (%T)", topic.Name(), p),
			}
		}
	}()
	return topic.Decode(e)
}
