package memory

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/check"
)

var _ core.Transport = (*Transport)(nil)

// DefaultMaxMessages is how many messages a queue holds by default.
const DefaultMaxMessages = 1_000_000

// Options configures a Transport. The zero value is usable.
type Options struct {
	// Queues are declared at once, so that messages can be published before the first subscription.
	Queues []Queue
	// MaxMessages bounds the messages of each queue: ready, delayed and unsettled, not parked; default 1,000,000,
	// negative = no bound. A message for a full queue is an outage of its topic.
	MaxMessages int
	// MaxBodyBytes bounds a message as Envelope.Size counts it, with its names and headers; default none. A larger
	// one is refused for good as too large.
	MaxBodyBytes int
	// ConfirmHandled makes Publish wait until every queue's copy was settled as done, so that a message leaves its
	// outbox only when it was handled, and nothing is lost if the process dies. A retry or a rejection fails the
	// publish instead of being held in memory: the outbox repeats or abandons the message. Default off: a message
	// is confirmed when it is queued.
	ConfirmHandled bool
}

// Queue declares a queue and the topics it receives.
type Queue struct {
	// Name is the queue's name. Required.
	Name string
	// Bindings are topics; * stands for one word, # for any number of words.
	Bindings []string
}

// Validate reports all problems of o at once; the error matches waybill.ErrInvalid.
func (o Options) Validate() error {
	var p []string
	for i, q := range o.Queues {
		p = append(p, checkQueue(fmt.Sprintf("Queues[%d]", i), q.Name, q.Bindings)...)
	}
	if o.MaxBodyBytes < 0 {
		p = append(p, fmt.Sprintf("MaxBodyBytes: %d is negative; leave it 0 for no bound", o.MaxBodyBytes))
	}
	return waybill.Invalid("waybill/memory: options", p...)
}

func checkQueue(field, name string, bindings []string) []string {
	var p []string
	if name == "" {
		p = append(p, field+".Name: is empty; name the queue")
	} else if s := check.Name(name); s != "" {
		p = append(p, field+".Name: "+s)
	}
	for i, b := range bindings {
		if b == "" {
			p = append(p, fmt.Sprintf("%s.Bindings[%d]: is empty; name a topic, or # for all", field, i))
		} else if s := check.Name(b); s != "" {
			p = append(p, fmt.Sprintf("%s.Bindings[%d]: %s", field, i, s))
		}
	}
	return p
}

// Transport is a broker in this process. Make it with [New]; all users of it share its queues.
//
// It is an [admin.ParkedQueue]. A message that finds its queue full stays parked and ends a replay with an outage. A
// queue that was never declared is waybill.ErrNotFound.
type Transport struct {
	parkedQueue

	maxMessages    int // ≤ 0 = no bound
	maxBodyBytes   int
	confirmHandled bool

	mu     sync.Mutex
	closed bool
	queues map[string]*queue
	order  []*queue // in order of declaration, so that runs are reproducible
	seq    uint64   // last place given in any queue
}

// New returns a broker with the declared queues and no messages.
func New(opts Options) (*Transport, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	t := &Transport{maxMessages: opts.MaxMessages, maxBodyBytes: opts.MaxBodyBytes, confirmHandled: opts.ConfirmHandled, queues: map[string]*queue{}}
	t.parkedQueue = t.walks()
	t.maxMessages = cmp.Or(t.maxMessages, DefaultMaxMessages)
	for _, q := range opts.Queues {
		t.declare(q.Name, q.Bindings)
	}
	return t, nil
}

// Declare makes a queue, if there is none of this name, and adds bindings to it. It is idempotent.
func (t *Transport) Declare(queue string, bindings ...string) error {
	if err := waybill.Invalid("waybill/memory: declare", checkQueue("Queue", queue, bindings)...); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return closed("declare")
	}
	t.declare(queue, bindings)
	return nil
}

// declare needs the lock, except in New.
func (t *Transport) declare(name string, bindings []string) *queue {
	q := t.queues[name]
	if q == nil {
		q = &queue{t: t, name: name}
		t.queues[name] = q
		t.order = append(t.order, q)
	}
	for _, b := range bindings {
		q.bind(b)
	}
	return q
}

// Traits declares what Publish promises.
func (t *Transport) Traits() core.PublisherTraits {
	return core.PublisherTraits{KeyOrder: core.KeyOrderSerial, Confirmed: true, DetectsUnroutable: true, MaxMessageBytes: t.maxBodyBytes}
}

// SubscriberTraits declares what receivers promise. Retries are held by this broker and survive the consumer, though
// not the process.
func (t *Transport) SubscriberTraits() core.SubscriberTraits {
	return core.SubscriberTraits{KeyOrder: true, DelaysRetries: true, Parks: true, CountsRedeliveries: true, SingleActive: true, Wildcards: core.WildcardsAll}
}

// Publish puts copies of the messages into all queues that are bound for their topics, in the order of the batch. It
// never blocks, unless Options.ConfirmHandled. Concurrent calls are queued one after the other.
func (t *Transport) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	results, receipts := t.enqueue(ctx, batch)
	for i, r := range receipts {
		if r != nil {
			results[i] = t.await(ctx, r)
		}
	}
	return results
}

// enqueue also returns the receipts to wait for: one a message, nil for a message that failed, or none at all.
func (t *Transport) enqueue(ctx context.Context, batch []waybill.Envelope) (core.Results, []*receipt) {
	if err := ctx.Err(); err != nil {
		return core.AllFailed(len(batch), &waybill.Error{Op: "waybill/memory: publish", Class: waybill.ClassOutage, Err: err}), nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return core.AllFailed(len(batch), closed("publish")), nil
	}
	results := make(core.Results, len(batch))
	var receipts []*receipt
	if t.confirmHandled {
		receipts = make([]*receipt, len(batch))
	}
	now := time.Now()
	for i := range batch {
		var r *receipt
		if r, results[i] = t.publish(&batch[i], now); receipts != nil {
			receipts[i] = r
		}
	}
	for _, q := range t.order {
		if len(q.ready) > 0 {
			q.wakeAll()
		}
	}
	return results, receipts
}

// publish queues one message. The receipt is nil unless Options.ConfirmHandled.
func (t *Transport) publish(e *waybill.Envelope, now time.Time) (*receipt, error) {
	fail := func(class waybill.Class, reason waybill.Reason, err error) (*receipt, error) {
		return nil, &waybill.Error{Op: "waybill/memory: publish", Class: class, Reason: reason, Err: err}
	}
	if s := check.Topic(e.Topic); s != "" {
		return fail(waybill.ClassPermanent, waybill.ReasonRejected, fmt.Errorf("topic %s", s))
	}
	if size := e.Size(); t.maxBodyBytes > 0 && size > t.maxBodyBytes {
		return fail(waybill.ClassPermanent, waybill.ReasonTooLarge, fmt.Errorf("the message has %d bytes; Options.MaxBodyBytes is %d", size, t.maxBodyBytes))
	}
	var to []*queue
	for _, q := range t.order {
		if !q.receives(e.Topic) {
			continue
		}
		if t.maxMessages > 0 && q.size() >= t.maxMessages {
			return nil, &waybill.Error{
				Op: "waybill/memory: publish", Class: waybill.ClassOutage, TopicOnly: true,
				Err: fmt.Errorf("queue %q is full with %d messages: consume them, or raise Options.MaxMessages", q.name, q.size()),
			}
		}
		to = append(to, q)
	}
	if len(to) == 0 {
		return fail(waybill.ClassRejected, waybill.ReasonUnroutable, fmt.Errorf("topic %q: %w: bind one", e.Topic, waybill.ErrUnroutable))
	}
	env := e.Clone() // shared by the queues, which never change it
	var r *receipt
	if t.confirmHandled {
		r = &receipt{open: len(to), settled: make(chan struct{})}
	}
	for _, q := range to {
		q.promote(now)
		q.ready.push(&item{env: &env, receipt: r, place: t.nextPlace(), attempt: 1})
	}
	return r, nil
}

// nextPlace returns the next place at the end of a queue. It needs the lock.
func (t *Transport) nextPlace() uint64 {
	t.seq++
	return t.seq
}

// Subscribe declares the queue, if need be, adds the bindings, and opens a receiver. Retry delays are held exactly,
// also those that Subscription.RetryDelays does not name. With Subscription.InOrder, which all receivers of a queue
// must share, the deliveries go to the one that subscribed first, until it is closed.
func (t *Transport) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	p := checkQueue("Subscription", sub.Queue, sub.Bindings)
	if sub.Prefetch < 0 || sub.Concurrency < 0 {
		p = append(p, "Subscription: Prefetch and Concurrency must not be negative; leave them 0 for the defaults")
	}
	if err := waybill.Invalid("waybill/memory: subscribe", p...); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, &waybill.Error{Op: "waybill/memory: subscribe", Class: waybill.ClassOutage, Err: err}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, closed("subscribe")
	}
	if q := t.queues[sub.Queue]; q != nil && len(q.receivers) > 0 && q.receivers[0].inOrder != sub.InOrder {
		return nil, &waybill.Error{
			Op: "waybill/memory: subscribe", Class: waybill.ClassOutage,
			Err: fmt.Errorf("%w: queue %q has a receiver with Subscription.InOrder %t, this one has %t: order holds only if all have it",
				waybill.ErrMisconfigured, sub.Queue, !sub.InOrder, sub.InOrder),
		}
	}
	r := &receiver{inOrder: sub.InOrder, q: t.declare(sub.Queue, sub.Bindings), prefetch: prefetch(sub), bytes: sub.ReceiveBytes, drop: sub.DropFailed, held: map[*holding]struct{}{}}
	r.q.receivers = append(r.q.receivers, r)
	r.unwatch = context.AfterFunc(ctx, func() { _ = r.Close(context.WithoutCancel(ctx)) })
	return r, nil
}

func prefetch(sub core.Subscription) int {
	switch {
	case sub.Prefetch > 0:
		return max(sub.Prefetch, sub.MaxPrefetch)
	case sub.Concurrency > 0:
		return 2 * sub.Concurrency
	default:
		return 20
	}
}

// Close ends all receivers and forgets all messages. It is idempotent and never waits.
func (t *Transport) Close(context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	for _, q := range t.order {
		q.forget()
		for _, r := range q.receivers {
			r.closed = true
			r.unwatch()
			clear(r.held)
		}
		q.receivers, q.ready, q.delayed, q.parked = nil, nil, nil, nil
		q.wakeAll()
	}
	return nil
}

// Parked is a message that was rejected.
type Parked struct {
	// Envelope is the message as it was published.
	Envelope waybill.Envelope
	// Queue is where it was rejected.
	Queue string
	// Attempt is the number of the attempt that was rejected.
	Attempt int
	// Reason and Err say why.
	Reason waybill.Reason
	Err    string
	// At is when, by this process's clock.
	At time.Time
}

// Parked returns copies of the queue's parked messages, oldest first; none if there is no such queue.
func (t *Transport) Parked(queue string) []Parked {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.queues[queue]
	if q == nil {
		return nil
	}
	out := make([]Parked, len(q.parked))
	for i, p := range q.parked {
		p.Envelope = p.Envelope.Clone()
		out[i] = p.Parked
	}
	return out
}

// Depth is how many messages a queue holds.
type Depth struct {
	Ready   int // can be delivered now
	Delayed int // wait for their retry
	Held    int // delivered, not settled
	Parked  int // rejected
}

// Depth returns how many messages the queue holds; zeros if there is no such queue.
func (t *Transport) Depth(queue string) Depth {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.queues[queue]
	if q == nil {
		return Depth{}
	}
	q.promote(time.Now())
	return Depth{Ready: len(q.ready), Delayed: len(q.delayed), Held: q.held, Parked: len(q.parked)}
}

func closed(op string) error {
	return &waybill.Error{Op: "waybill/memory: " + op, Class: waybill.ClassOutage, Err: waybill.ErrClosed}
}
