package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/check"
	"github.com/waybill-go/waybill/internal/content"
)

// Options configures an [Inbox]. The zero value is a good choice.
type Options struct {
	// ID returns the id of a message, for producers that put it elsewhere: into a header or a subject. It replaces
	// the envelope's id. An empty result means that there is none. Nil means the envelope's id: the CloudEvents id,
	// or else the broker's message id. It must be safe for concurrent use and must not change d.
	ID func(d *waybill.Delivery) string
	// Source stands for the source of messages that have none. Set it if one system alone sends such messages, and
	// they can come through more than one queue, as in a move to a new queue. Default none: their queue stands for
	// it, so that a message which comes through two queues has its effect twice. With another value every such
	// message is new.
	Source string
	// AnyBody treats a message with a known id and another body as a duplicate, for producers that encode a message
	// anew for each send. By default such a message is parked with [waybill.ReasonIDConflict], as a message that
	// comes again with another topic, type, key or tenant always is: it is another message, with an id that was
	// taken.
	AnyBody bool
	// Retention is how long marks are kept, and so how long a duplicate is recognised; default 30 days, negative =
	// for ever. It must be longer than RedeliveryWindow. The difference bounds the retry policy of subscriptions. A
	// store that cannot purge keeps all marks, and a Retention is refused.
	Retention time.Duration
	// RedeliveryWindow is how long after its effect the same message can come again without an operator's command;
	// retries at the consumer do not count. It covers how long the producers' outboxes can publish the message
	// again, and how long the broker can deliver it again. The default of 26 h fits the relay's defaults: 24 h for
	// unroutable messages, 1 h of retries, and 1 h for the broker. Declare more for relays with other policies, or
	// for a broker that holds messages for longer.
	RedeliveryWindow time.Duration
	// PurgeEvery is how often old marks are deleted, in batches of 1,000, while a consumer runs a handler of the
	// inbox or [Inbox.RunPurge] runs; default 1 h, negative = only by [Inbox.Purge].
	PurgeEvery time.Duration
	// Logger gets the failures of the purge, and once for each queue that messages without a source come from it;
	// nil means slog.Default().
	Logger *slog.Logger
}

func (o *Options) logger() *slog.Logger {
	if o.Logger == nil {
		return slog.Default()
	}
	return o.Logger
}

// The defaults of Options.
const (
	DefaultRetention        = 30 * 24 * time.Hour
	DefaultRedeliveryWindow = 26 * time.Hour
	DefaultPurgeEvery       = time.Hour
)

// Validate reports all problems of o at once, or nil.
func (o Options) Validate() error { return waybill.Invalid("waybill/inbox: options", o.problems()...) }

func (o *Options) problems() []string {
	var p []string
	if o.Source != "" {
		if s := check.Name(o.Source); s != "" {
			p = append(p, "Source: "+s)
		}
	}
	if o.RedeliveryWindow < 0 {
		p = append(p, fmt.Sprintf("RedeliveryWindow: %s is negative; leave it 0 for %s", o.RedeliveryWindow, DefaultRedeliveryWindow))
	}
	switch horizon, keep := o.horizon(), o.retention(); {
	case keep <= 0 || o.RedeliveryWindow < 0 || keep > horizon:
	case o.RedeliveryWindow == 0:
		p = append(p, fmt.Sprintf("Retention: %s is not longer than the %s during which the same message can come again by default: "+
			"a duplicate that comes after it would have its effect twice; raise it, or declare a shorter RedeliveryWindow "+
			"if relay and broker are bound to one", keep, horizon))
	default:
		p = append(p, fmt.Sprintf("Retention: %s is not longer than RedeliveryWindow, %s: "+
			"a duplicate that comes after it would have its effect twice; raise it", keep, horizon))
	}
	if o.PurgeEvery > 0 && o.PurgeEvery < time.Second {
		p = append(p, fmt.Sprintf("PurgeEvery: %s is less than 1s; raise it, or leave it 0 for %s", o.PurgeEvery, DefaultPurgeEvery))
	}
	return p
}

func (o *Options) retention() time.Duration {
	if o.Retention == 0 {
		return DefaultRetention
	}
	return o.Retention
}

func (o *Options) horizon() time.Duration {
	if o.RedeliveryWindow == 0 {
		return DefaultRedeliveryWindow
	}
	return o.RedeliveryWindow
}

// Inbox keeps the marks of one consumer name in a store.
type Inbox[Tx any] struct {
	store    core.Inbox[Tx]
	consumer string
	opts     Options
	purge    purge // deletes old marks
	forgets  bool  // marks do not stay for ever
	// sourceless are the queues that messages without a source came from.
	sourceless sync.Map
}

// New returns an inbox that keeps its marks in store under consumerName. The name stands for the service and must not
// change between releases: under another name every message is new.
func New[Tx any](store core.Inbox[Tx], consumerName string, opts Options) (*Inbox[Tx], error) {
	return newInbox(store, consumerName, opts, false)
}

// newInbox is New for a store whose marks may expire by themselves.
func newInbox[Tx any](store core.Inbox[Tx], consumerName string, opts Options, expires bool) (*Inbox[Tx], error) {
	p := opts.problems()
	if check.Nil(store) {
		p = append(p, "store: is nil; give the inbox of a store")
	}
	if consumerName == "" {
		p = append(p, "consumerName: is empty; name the consuming service, such as \"billing\"")
	} else if s := check.Name(consumerName); s != "" {
		p = append(p, "consumerName: "+s)
	}
	purger, ok := core.As[core.InboxPurger](store)
	if !ok && !expires && opts.Retention > 0 {
		p = append(p, "Retention: this store cannot delete old marks; leave it 0: they are kept for ever")
	}
	if err := waybill.Invalid("waybill/inbox", p...); err != nil {
		return nil, err
	}
	b := &Inbox[Tx]{store: store, consumer: consumerName, opts: opts, forgets: (ok || expires) && opts.retention() > 0}
	b.purge = purge{store: purger, consumer: consumerName, opts: &b.opts, turn: make(chan struct{}, 1)}
	return b, nil
}

// warnNoSource says, once for each queue, that its messages cannot be told from those of another producer.
func (b *Inbox[Tx]) warnNoSource(queue string) {
	if _, said := b.sourceless.LoadOrStore(queue, true); said {
		return
	}
	b.opts.logger().Warn("messages have no source: two producers that use the same id are taken for one, and the second message "+
		"for a duplicate, and a message that comes through two queues for two: let producers set the source, or set Options.Source",
		"event", "inbox.no_source", "consumer", b.consumer, "queue", queue)
}

// Consumer returns the consumer name.
func (b *Inbox[Tx]) Consumer() string { return b.consumer }

// Key returns the key of d's mark. The error is Permanent with [waybill.ReasonNoID] if d has no usable id. The source
// is that of the message, or Options.Source, or the queue.
func (b *Inbox[Tx]) Key(d *waybill.Delivery) (core.InboxKey, error) {
	id := d.Envelope.ID
	if b.opts.ID != nil {
		id = b.opts.ID(d)
	}
	source := d.Envelope.Source
	if source == "" {
		source = b.opts.Source
	}
	if source == "" {
		source = d.Queue
		b.warnNoSource(d.Queue)
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
		if s := check.Name(f.value); s != "" {
			return core.InboxKey{}, noID(fmt.Sprintf("the %s of the message %s", f.name, s))
		}
	}
	return core.InboxKey{Consumer: b.consumer, Source: source, ID: id, ContentHash: content.Hash(&d.Envelope, b.opts.AnyBody)}, nil
}

// again decides about a message whose id another one had before. A repaired message carries its earlier hash: if that
// one had its effect, the repair comes too late, and the message is a duplicate. The store is asked with the earlier
// hash, and with a function that always fails: it runs only if the mark was deleted meanwhile, and then rolls back.
func (b *Inbox[Tx]) again(ctx context.Context, key core.InboxKey, d *waybill.Delivery) (waybill.HandlerStatus, error) {
	was, repaired := content.Before(&d.Envelope)
	if !repaired {
		return waybill.HandlerProcessed, conflict(d)
	}
	key.ContentHash = was
	status, err := b.store.Do(ctx, key, func(context.Context, Tx) error { return errMarkGone })
	switch {
	case err != nil:
		return waybill.HandlerProcessed, err
	case status == core.InboxDuplicate:
		return waybill.HandlerDuplicate, nil
	}
	return waybill.HandlerProcessed, conflict(d)
}

var errMarkGone = errors.New("waybill/inbox: the mark of another message with this id was deleted just now; handle it again")

// conflict is the error about a message whose id another one had before.
func conflict(d *waybill.Delivery) error {
	return &waybill.Error{
		Op: "waybill/inbox", Class: waybill.ClassPermanent, Reason: waybill.ReasonIDConflict,
		Err: fmt.Errorf("another message with this source and id was handled before: topic %.100q, type, key, tenant or body differ; "+
			"find out who sent it", d.Envelope.Topic),
	}
}

func noID(text string) error {
	return &waybill.Error{Op: "waybill/inbox", Class: waybill.ClassPermanent, Reason: waybill.ReasonNoID, Err: errors.New(text)}
}

// Handler returns a handler for topic that runs fn exactly once a message: fn's writes through tx and the mark are one
// transaction. The value is decoded before the transaction is begun. Under ctx [waybill.DeliveryFrom] finds the
// delivery, and messages staged with tx are caused by it. An error rolls back. The consumer then decides about the
// message, by the error ([waybill.Reject], [waybill.RetryAfter], [waybill.Outage]) or by its retry policy.
func Handler[Tx, T any](box *Inbox[Tx], topic waybill.Topic[T], fn func(ctx context.Context, tx Tx, v T) error) waybill.Handler {
	h := waybill.Handler{Name: topic.Name(), NameIsTopic: true}
	if box == nil || fn == nil {
		return h // without Handle: the consumer refuses it by name
	}
	box.complete(&h)
	h.Handle = func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		key, err := box.Key(d)
		if err != nil {
			return waybill.HandlerProcessed, err
		}
		v, err := decode(topic, &d.Envelope)
		if err != nil {
			return waybill.HandlerProcessed, err
		}
		if cur, ok := waybill.DeliveryFrom(ctx); !ok || cur != d { // run without the consumer: in a test, say
			ctx = waybill.WithDelivery(ctx, d)
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
			return waybill.HandlerProcessed, err
		case status == core.InboxDuplicate:
			return waybill.HandlerDuplicate, nil
		case status == core.InboxConflict:
			return box.again(ctx, key, d)
		case status == core.InboxNew:
			return waybill.HandlerProcessed, nil
		default:
			return waybill.HandlerProcessed, fmt.Errorf("waybill/inbox: the store returned status %d without an error; "+
				"its Do is broken", status)
		}
	}
	return h
}

// complete fills in the parts of the inbox that the runner needs.
func (b *Inbox[Tx]) complete(h *waybill.Handler) {
	if c, ok := core.As[core.Checker](b.store); ok {
		h.Check = c.Check
	}
	if p, ok := core.As[interface{ Pool() waybill.Pool }](b.store); ok {
		h.Pool = p.Pool
	}
	if !b.forgets {
		return
	}
	h.MaxRetryTime = b.opts.retention() - b.opts.horizon()
	if b.purge.store != nil && b.opts.PurgeEvery >= 0 {
		h.Background = b.RunPurge
	}
}

// Mark marks the message (source, id) in tx, a transaction of the caller, for handlers that Waybill does not run. With
// [core.InboxNew] do the work in tx and commit both; [core.InboxDuplicate] means that the message had its effect
// before. It waits for a concurrent transaction that marks the same message. An error matches [waybill.ErrUnsupported]
// if the store does not support it; after any other error, roll tx back.
func (b *Inbox[Tx]) Mark(ctx context.Context, tx Tx, source, id string) (core.InboxStatus, error) {
	m, ok := core.As[core.Marker[Tx]](b.store)
	if !ok {
		return core.InboxNone, fmt.Errorf("waybill/inbox: mark in the caller's transaction: %w", waybill.ErrUnsupported)
	}
	return m.Mark(ctx, tx, core.InboxKey{Consumer: b.consumer, Source: source, ID: id})
}

// decode is topic.Decode for codecs that can panic on bytes from outside.
func decode[T any](topic waybill.Topic[T], e *waybill.Envelope) (v T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &waybill.Error{
				Op: "waybill/inbox: decode", Class: waybill.ClassPermanent, Reason: waybill.ReasonUndecodable,
				Err: fmt.Errorf("the codec of topic %q panicked (%T)", topic.Name(), p),
			}
		}
	}()
	return topic.Decode(e)
}
