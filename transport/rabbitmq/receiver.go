package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

const (
	defaultPrefetch = 20
	maxPrefetch     = 65_535
	// returnTime is how long Close waits for what was just given back: if this is the only consumer, the broker sends
	// it here again, and what arrives after the consumer was cancelled is lost with the channel, which counts as a
	// crash. It also waits for many single acks: the broker's channel keeps those beyond some tens to itself for a
	// moment, and loses them if it is closed.
	returnTime = 50 * time.Millisecond
)

// receiver is an open subscription. It has a session with the broker, which is replaced after a loss.
type receiver struct {
	t       *Transport
	sub     core.Subscription
	queue   string // with prefix
	dlx     string
	delays  topology.Delays
	prepare preparation

	closing chan struct{}
	closeMu sync.Mutex // one Close at a time

	opening  chan struct{} // capacity 1: held by who opens a session
	mu       sync.Mutex
	sess     *session
	closed   bool
	failures int
	gaveBack time.Time // when a delivery was given back last
	verified bool
}

// session is one channel with one consumer. One goroutine moves what arrives to ready; the prefetch bounds it.
type session struct {
	ch   *amqp.Channel
	acks acks
	tag  string
	wake chan struct{} // capacity 1: there is something in ready, or the session ended

	mu    sync.Mutex
	ready []*waybill.Delivery
	ended bool
	done  chan struct{} // closed when the pump has ended
}

// handle is what a delivery keeps for its settlement, apart from what the consumer may change.
type handle struct {
	raw                   amqp.Delivery
	topic                 string
	expires               time.Time
	attempt, redeliveries int
	from                  *receiver
	sess                  *session
	settled               atomic.Bool
}

// item is a delivery and its handle in one allocation.
type item struct {
	delivery waybill.Delivery
	handle   handle
}

// Subscribe implements core.Subscriber. It declares the exchanges, the queue, its dead-letter queue and the delay
// queues, or with Options.Passive verifies that they are there; see the package's documentation.
func (t *Transport) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	if isClosed(t.closing) {
		return nil, outage("subscribe", waybill.ErrClosed)
	}
	if err := checkSubscription(&sub, t.opts); err != nil {
		return nil, err
	}
	if sub.Prefetch == 0 {
		sub.Prefetch = defaultPrefetch
		if sub.Concurrency > 0 {
			sub.Prefetch = min(2*sub.Concurrency, maxPrefetch)
		}
	}
	r := &receiver{
		t: t, sub: sub, queue: t.names.Queue(sub.Queue), dlx: t.names.DeadLetterExchange(), delays: topology.DelaysOf(sub.RetryDelays),
		// A queue with a length limit is no error here: consumers may start, to empty a full queue.
		prepare: preparation{opts: t.opts, broker: t.broker, want: topology.Of(t.opts.TopologyOptions(), sub)},
		closing: make(chan struct{}), opening: make(chan struct{}, 1),
	}
	if _, err := r.session(ctx); err != nil {
		return nil, err
	}
	t.mu.Lock()
	t.receivers = append(t.receivers, r)
	t.mu.Unlock()
	if isClosed(t.closing) {
		_ = r.Close(ctx)
		return nil, outage("subscribe", waybill.ErrClosed)
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

// session returns the session, opening one if there is none.
func (r *receiver) session(ctx context.Context) (*session, error) {
	if s, err := r.current(); s != nil || err != nil {
		return s, err
	}
	select {
	case r.opening <- struct{}{}:
		defer func() { <-r.opening }()
	case <-ctx.Done():
		return nil, outage("subscribe", context.Cause(ctx))
	}
	if s, err := r.current(); s != nil || err != nil {
		return s, err
	}
	s, err := r.open(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failures++
		return nil, err
	}
	if r.closed {
		go func() { _ = s.ch.Close() }()
		return nil, waybill.ErrClosed
	}
	if old := r.sess; old != nil && !old.ch.IsClosed() { // the broker cancelled its consumer
		old.retire()
	}
	r.sess, r.failures = s, 0
	return s, nil
}

func (r *receiver) current() (*session, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, waybill.ErrClosed
	}
	if r.sess != nil && !r.sess.over() {
		return r.sess, nil
	}
	return nil, nil
}

func (r *receiver) open(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, r.t.opts.ConnectTimeout+r.t.opts.ReconnectMax)
	defer cancel()
	c, err := r.t.in.get(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.prepare.run(ctx, c, !r.verified); err != nil {
		return nil, err
	}
	r.verified = true // by who holds opening
	ch, err := c.channel(ctx)
	if err != nil {
		return nil, err
	}
	s := &session{
		ch: ch, acks: acks{ch: ch, open: map[uint64]struct{}{}}, tag: "waybill-" + waybill.NewID(), wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	var deliveries <-chan amqp.Delivery
	err = await(ctx, func() (err error) {
		if err = ch.Qos(r.sub.Prefetch, 0, false); err != nil {
			return err
		}
		deliveries, err = ch.Consume(r.queue, s.tag, false, false, false, false, nil)
		return err
	}, func() { _ = ch.Close() })
	if err != nil {
		if e := amqpError(err); e != nil && e.Server {
			switch e.Code {
			case amqp.AccessRefused:
				return nil, misconfigured("subscribe", "the user may not read queue %q: extend its read permission (%w)", r.queue, e)
			case amqp.NotFound, amqp.ResourceLocked:
				return nil, misconfigured("subscribe", "queue %q cannot be consumed (%w)", r.queue, e)
			}
		}
		return nil, outage("subscribe", err)
	}
	go r.pump(s, deliveries)
	return s, nil
}

// pump moves deliveries to s.ready until the consumer ends.
func (r *receiver) pump(s *session, deliveries <-chan amqp.Delivery) {
	defer close(s.done)
	for raw := range deliveries {
		both := &item{handle: handle{raw: raw, from: r, sess: s}}
		d, h := &both.delivery, &both.handle
		*d = decode(&h.raw, r.sub.Queue, r.dlx, time.Now())
		d.Handle = h
		s.acks.arrived(raw.DeliveryTag)
		h.topic, h.expires, h.attempt, h.redeliveries = d.Envelope.Topic, d.Envelope.Expires, d.Attempt, d.Redeliveries
		s.mu.Lock()
		s.ready = append(s.ready, d)
		s.mu.Unlock()
		s.signal()
	}
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.signal()
}

func (s *session) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// retire closes the channel of a consumer that the broker cancelled. What is still held of it comes again.
func (s *session) retire() {
	go func() {
		s.acks.flush()
		_ = s.ch.Close()
	}()
}

// over reports whether the session can deliver nothing more.
func (s *session) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ch.IsClosed() || s.ended && len(s.ready) == 0
}

// take returns up to limit deliveries that are ready. Those of a closed channel are left: they come again.
func (s *session) take(limit int) []*waybill.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch.IsClosed() {
		s.ready = nil
		return nil
	}
	n := min(limit, len(s.ready))
	if n == 0 {
		return nil
	}
	out := append(make([]*waybill.Delivery, 0, n), s.ready[:n]...)
	rest := copy(s.ready, s.ready[n:])
	clear(s.ready[rest:])
	s.ready = s.ready[:rest]
	if rest > 0 {
		s.signal()
	}
	return out
}

// Receive implements core.Receiver. After a lost connection it reconnects by itself, with back-off, until ctx ends.
func (r *receiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	limit = max(limit, 1)
	for {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		s, err := r.session(ctx)
		if err != nil {
			if err := r.recoverable(ctx, err); err != nil {
				return nil, err
			}
			continue
		}
		if got := s.take(limit); len(got) > 0 {
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

// recoverable waits before another attempt to open a session, or returns the error that ends Receive.
func (r *receiver) recoverable(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, waybill.ErrClosed):
		return waybill.ErrClosed
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case waybill.ClassOf(err) != waybill.ClassOutage, errors.Is(err, waybill.ErrMisconfigured), r.t.foreign:
		return err
	}
	r.mu.Lock()
	b := waybill.Backoff{Base: 100 * time.Millisecond, Cap: max(r.t.opts.ReconnectMax, 100*time.Millisecond), Attempts: -1}
	d, _, _ := b.Next(r.failures, err)
	r.mu.Unlock()
	r.t.opts.Logger.Warn("the subscription is interrupted",
		"event", "rabbitmq.interrupted", "queue", r.queue, "retry_in", d, "error", err)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.closing:
		return waybill.ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// Close implements core.Receiver. What was received and not returned by Receive is given back first, then the channel
// is closed, so that the broker gives back the rest.
func (r *receiver) Close(ctx context.Context) error {
	r.closeMu.Lock()
	defer r.closeMu.Unlock()
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	s, gaveBack := r.sess, r.gaveBack
	close(r.closing)
	r.mu.Unlock()
	r.t.forget(r)
	if s == nil || s.ch.IsClosed() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.t.opts.ConnectTimeout)
	defer cancel()
	if s.acks.flush() > 0 {
		gaveBack = time.Now()
	}
	if wait := time.Until(gaveBack.Add(returnTime)); wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
	if r.sub.InOrder { // all at once, and in order: a cancelled consumer would let the next one begin before its messages are back
		if err := await(ctx, s.ch.Close, nil); err != nil && amqpError(err) == nil {
			return outage("close", err)
		}
		return nil
	}
	err := await(ctx, func() error {
		if err := s.ch.Cancel(s.tag, false); err != nil {
			return err
		}
		<-s.done
		return nil
	}, nil)
	if err == nil {
		s.mu.Lock()
		rest := s.ready
		s.ready = nil
		s.mu.Unlock()
		acks := make([]core.Ack, len(rest))
		for i, d := range rest {
			acks[i] = core.AckRelease(d)
		}
		_ = r.Settle(ctx, acks) // what fails goes back with the channel
		err = await(ctx, s.ch.Close, nil)
	} else {
		go func() { _ = s.ch.Close() }()
	}
	if err != nil && amqpError(err) == nil {
		return outage("close", err)
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
