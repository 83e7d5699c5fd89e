package rabbitmq

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

// session is one channel with one consumer. One goroutine moves deliveries to ready; the prefetch bounds it.
type session struct {
	ch   *amqp.Channel
	acks acks
	tag  string
	// frameMax is the largest frame of the connection, in bytes.
	frameMax int
	wake     chan struct{} // capacity 1: there is something in ready, or the session ended

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
	r.verified = true // guarded by opening
	ch, err := c.channel(ctx)
	if err != nil {
		return nil, err
	}
	s := &session{
		ch: ch, acks: acks{ch: ch, unacked: map[uint64]struct{}{}}, tag: "waybill-" + waybill.NewID(),
		frameMax: c.Config.FrameSize, wake: make(chan struct{}, 1), done: make(chan struct{}),
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

// retire closes the channel of a consumer that the broker cancelled. The broker delivers again what is unacknowledged.
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

// take returns up to limit deliveries that are ready. It drops those of a closed channel: they come again.
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
