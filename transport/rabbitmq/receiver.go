package rabbitmq

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/obs"
	"github.com/waybill-go/waybill/internal/sleep"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// A receiver outlives its connection: it has a session (session.go), and opens another one when that is lost. An outage
// is an error of Receive, once and then at each reminder. When it is over, Receive returns nil.

const (
	defaultPrefetch = 20
	maxPrefetch     = 65_535
	// requeueTime is how long Close waits after a requeue. If this is the only consumer, the broker delivers the
	// message here again. A message that arrives after the consumer was cancelled is lost with the channel, which
	// counts as a crash.
	requeueTime = 50 * time.Millisecond
	// ackTime is how long Close waits after an acknowledgement of one delivery: the broker's channel holds those
	// beyond some tens back until a quorum queue has stored the others, and forgets them if it is closed.
	ackTime = 50 * time.Millisecond
	// patience is how long Receive hides that there is no session. The driver takes a silent broker for dead after
	// one and a half heartbeats: with this it makes at most two.
	patience = 500 * time.Millisecond
	// firstPause and lastPause bound the pauses before the broker is asked again for a queue that it is still
	// making, each twice as long as the one before: 1.26 s in all.
	firstPause, lastPause = 20 * time.Millisecond, 640 * time.Millisecond
	// reminder is how often Receive says that there is still none.
	reminder = 30 * time.Second
)

// receiver is an open subscription. It has a session with the broker, which is replaced after a loss.
type receiver struct {
	t       *Transport
	in      *link // the connection that receives: the transport's, or its own
	sub     core.Subscription
	queue   string // with prefix
	dlx     string // the dead-letter exchange; retries and releases go through it, too
	delays  topology.Delays
	sizes   sizes
	overdue overdue
	prepare preparation
	log     *obs.Logger

	life    context.Context //nolint:containedctx // of the values of Subscribe's context; it never ends
	unwatch func() bool     // ends the wait for the end of Subscribe's context; guarded by mu
	failed  bool            // the latest Receive returned an error; Receive is called once at a time
	closing chan struct{}
	closeMu sync.Mutex // one Close at a time

	mu         sync.Mutex // guards the fields below, verified apart
	sess       *session   // the latest; over() tells whether it has ended
	prefetch   int        // what Resume asked for last; of the next session, if it fits (openOnce)
	reopening  *reopening // nil = there is a session, or nobody has asked for one
	closed     bool
	requeuedAt time.Time // the latest requeue; Close waits requeueTime after it
	verified   bool      // the topology was verified once; of the one goroutine that opens a session
}

var _ core.Pauser = (*receiver)(nil)

// Subscribe implements core.Subscriber. It declares the exchanges, the queue, its dead-letter queue and the delay
// queues, or with Options.Passive verifies that they are there; see the package's documentation.
func (t *Transport) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	if isClosed(t.closing) {
		return nil, outage("subscribe", waybill.ErrClosed)
	}
	if err := checkSubscription(&sub, t.opts); err != nil {
		return nil, err
	}
	if err := t.mayReceive("subscribe"); err != nil {
		return nil, err
	}
	if sub.Prefetch == 0 {
		sub.Prefetch = defaultPrefetch
		if sub.Concurrency > 0 {
			sub.Prefetch = min(2*sub.Concurrency, maxPrefetch)
		}
	}
	r := &receiver{
		t: t, sub: sub, queue: t.names.Queue(sub.Queue), dlx: t.names.DeadLetterExchange(sub.Queue), delays: topology.DelaysOf(sub.RetryDelays),
		// A queue with a length limit is no error here: consumers may start, to empty a full queue.
		prepare:  preparation{opts: t.opts, broker: t.broker, want: topology.Of(t.opts.TopologyOptions(), sub), writer: t.pubs[0].link},
		prefetch: sub.Prefetch,
		log:      obs.NewLogger(t.opts.Logger), life: context.WithoutCancel(ctx), closing: make(chan struct{}),
	}
	r.sizes.bound = int64(max(t.opts.PrefetchBytes, 0))
	// A consumer that adapts wants the bound to hold also when bodies become large at once.
	r.sizes.byLargest = r.sizes.bound > 0 && sub.MaxPrefetch > 0 && !sub.InOrder
	r.in = t.in
	if t.opts.Connection.PerSubscription {
		r.in = newLink("consume "+sub.Queue, t.in.target, t.opts, r.closing)
	}
	if err := r.connect(ctx); err != nil {
		_ = r.Close(ctx)
		return nil, err
	}
	t.mu.Lock()
	t.receivers = append(t.receivers, r)
	t.mu.Unlock()
	// A Close of the transport that ran meanwhile may not have seen the receiver.
	if isClosed(t.closing) {
		_ = r.Close(ctx)
		return nil, outage("subscribe", waybill.ErrClosed)
	}
	unwatch := context.AfterFunc(ctx, func() {
		limit, cancel := context.WithTimeout(r.life, r.t.opts.ConnectTimeout)
		defer cancel()
		_ = r.Close(limit)
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unwatch = unwatch; r.closed {
		unwatch()
	}
	return r, nil
}

func checkSubscription(sub *core.Subscription, opts Options) error {
	return waybill.Invalid("waybill/rabbitmq: subscription", subscriptionProblems(sub, opts)...)
}

func subscriptionProblems(sub *core.Subscription, opts Options) []string {
	p := opts.TopologyOptions().SubscriptionProblems(sub)
	if sub.Prefetch < 0 || sub.Prefetch > maxPrefetch {
		p = append(p, fmt.Sprintf("Prefetch: %d is not between 0 and %d", sub.Prefetch, maxPrefetch))
	}
	return p
}

// Receive implements core.Receiver. After a lost connection a session is opened again. If that fails, or takes longer
// than patience, Receive returns an outage, and again at each reminder.
func (r *receiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	limit = max(limit, 1)
	for {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		if !r.awaitRoom(ctx) { // ctx has ended
			continue
		}
		s, err := r.session(ctx)
		if err != nil {
			r.failed = true
			return nil, err
		}
		if got := s.take(&r.sub, limit); len(got) > 0 || r.failed {
			r.failed = false
			ownBodies(got)
			return got, nil
		}
		select {
		case <-s.wake:
		case <-r.closing:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// ownBodies gives deliveries that leave the receiver bodies of their own: copies are made of the raw messages, also if
// a handler changes its bytes. Until then a body is held once.
func ownBodies(list []*waybill.Delivery) {
	for _, d := range list {
		d.Envelope.Body = bytes.Clone(d.Envelope.Body)
	}
}

// Close implements core.Receiver. It requeues the deliveries that Receive did not return, and then closes the channel,
// so that the broker requeues the rest. The order counts:
//
//  1. Nothing is received or opened any more (closed, closing). A consumer that begins has begun first.
//  2. Requeued messages get requeueTime to come back.
//  3. The consumer is cancelled and its deliveries released. With InOrder the channel alone is closed.
//  4. Acknowledgements that wait are written, and get ackTime to be stored.
//  5. The channel is closed, and a connection of the receiver's own.
func (r *receiver) Close(ctx context.Context) error {
	r.closeMu.Lock()
	defer r.closeMu.Unlock()
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	if r.unwatch != nil {
		r.unwatch()
	}
	requeuedAt := r.requeuedAt
	r.mu.Unlock()
	r.t.forget(r)
	defer r.closeLink(ctx)
	ctx, cancel := context.WithTimeout(ctx, r.t.opts.ConnectTimeout)
	defer cancel()
	s := r.begun(ctx)
	close(r.closing)
	if s == nil || s.ch.IsClosed() {
		return nil
	}
	_ = sleep.For(ctx, time.Until(requeuedAt.Add(requeueTime)))
	// With InOrder all go back at once, and in order. A cancelled consumer would let the next one begin before
	// that.
	var err error
	if !r.sub.InOrder {
		err = r.stopConsumer(ctx, s)
	}
	_ = sleep.For(ctx, time.Until(s.acks.flush().Add(ackTime)))
	if err == nil {
		err = await(ctx, s.ch.Close, nil)
	} else {
		go func() { _ = s.ch.Close() }()
	}
	if err != nil && amqpError(err) == nil {
		return outage("close", err)
	}
	return nil
}

// closeLink closes the connection if it is the receiver's own.
func (r *receiver) closeLink(ctx context.Context) {
	if r.in != r.t.in {
		r.in.close(ctx)
	}
}

// Pause implements core.Pauser. It cancels the consumer, and releases what Receive has not returned.
func (r *receiver) Pause(ctx context.Context) error {
	r.closeMu.Lock()
	defer r.closeMu.Unlock()
	s := r.begun(ctx)
	r.mu.Lock()
	closed := r.closed
	r.mu.Unlock()
	if closed || s == nil || s.ch.IsClosed() || s.paused.Load() {
		return nil
	}
	if err := r.stopConsumer(ctx, s); err != nil {
		return outage("pause", err)
	}
	return nil
}

// Resume implements core.Pauser. The next Receive begins to consume. RabbitMQ fixes the prefetch of a consumer, so
// another prefetch needs another consumer on the same channel:
//
//	prefetch            | the consumer
//	--------------------|--------------------------------------------------------------------------------
//	as it is            | goes on
//	larger, not InOrder | goes on, and ends when all that the broker may send is here (raise, adapt)
//	smaller, or InOrder | ends at once (Pause)
func (r *receiver) Resume(ctx context.Context, prefetch int) error {
	if prefetch <= 0 {
		prefetch = r.sub.Prefetch
	}
	r.mu.Lock()
	r.prefetch = prefetch
	s := r.sess
	r.mu.Unlock()
	switch wanted := int64(prefetch); {
	case s != nil && wanted == s.wanted.Load():
		return nil
	case s != nil && wanted > s.wanted.Load() && !s.paused.Load() && !r.sub.InOrder:
		r.raise(s, prefetch)
		return nil
	}
	return r.Pause(ctx)
}

// stopConsumer cancels the consumer, and releases what Receive has not returned. The channel stays open. The broker
// sends nothing behind its answer to the cancel, and the pump has ended when it has moved all that came before: so
// nothing is left out.
func (r *receiver) stopConsumer(ctx context.Context, s *session) error {
	err := await(ctx, func() error {
		if isClosed(s.done) { // adapt (prefetch.go) has ended it
			return nil
		}
		if err := s.ch.Cancel(s.tag, false); err != nil {
			return err
		}
		<-s.done
		return nil
	}, nil)
	if err != nil {
		return err
	}
	s.paused.Store(true)
	s.mu.Lock()
	rest := s.ready
	s.ready = nil
	s.mu.Unlock()
	acks := make([]core.Ack, len(rest))
	for i, d := range rest {
		acks[i] = core.AckRelease(d)
	}
	for i, err := range r.Settle(ctx, acks) {
		if err != nil && !s.ch.IsClosed() { // no copy could be made: the broker counts this one
			_ = s.acks.requeue(rest[i].Handle.(*handle).raw.DeliveryTag)
		}
	}
	return nil
}

func (t *Transport) forget(r *receiver) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, x := range t.receivers {
		if x == r {
			t.receivers = append(t.receivers[:i], t.receivers[i+1:]...)
			return
		}
	}
}
