package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// A session ends in one of these ways. The receiver then opens the next one, on the same channel where that is
// possible: deliveries that Receive has returned can be settled only on the channel on which they came.
//
//   ended by                 | channel | deliveries not returned   | deliveries returned      | next session
//   -------------------------|---------|---------------------------|--------------------------|------------------
//   Pause, Resume (paused)   | open    | are released              | are settled as before    | same channel
//   adapt (throttled)        | open    | are returned first        | are settled as before    | same channel
//   broker cancels (retire)  | closed  | are returned first        | come again, unless they  | new channel
//                            | then    |                           | are settled by then      |
//   lost channel             | closed  | come again                | come again               | new channel, or
//                            |         |                           |                          | connection

// session is one channel with one consumer. One goroutine moves deliveries to ready; the prefetch bounds it.
type session struct {
	ch   *amqp.Channel
	acks *acks
	tag  string
	// frameMax is the largest frame of the connection, in bytes.
	frameMax int
	// prefetch is what the broker sends ahead; wanted is that without Options.PrefetchBytes, and Resume raises it.
	prefetch int
	wanted   atomic.Int64
	arrived  int           // how many deliveries have arrived; the pump's
	first    atomic.Uint64 // tag of the first delivery; 0 = none has arrived
	paused   atomic.Bool   // by Pause: its consumer is cancelled, its channel is open
	// throttled: by adapt, which ends the consumer but not the channel.
	throttled atomic.Bool
	fullSince time.Time     // since when awaitRoom waits for bytes before it lets the next session begin
	surplus   []uint64      // tags of deliveries beyond PrefetchBytes; the pump sends them back (sendBack)
	ending    chan struct{} // of a session with surplus: closed when the broker has ended the consumer; the pump's
	wake      chan struct{} // capacity 1: there is something in ready, or the session ended
	// cancelled and closed say how the broker ended the consumer.
	cancelled <-chan string
	closed    <-chan *amqp.Error

	mu    sync.Mutex          // guards ready, ended and next
	ready []*waybill.Delivery // arrived, and not returned by Receive; in the order of tags
	ended bool                // the pump has ended: nothing more arrives
	next  *session            // on the same channel: what is made ready again is made ready there
	done  chan struct{}       // closed when the pump has ended
}

// handle is what a delivery keeps for its settlement, apart from the fields that the consumer may change.
type handle struct {
	raw                   amqp.Delivery
	topic                 string
	expires, notBefore    time.Time
	attempt, redeliveries int
	early                 bool // it came before notBefore
	from                  *receiver
	sess                  *session
	settled               atomic.Bool
	refusals              int // of its copies, by the broker; the settle that owns it counts
}

// Native returns the message as the driver delivered it, but for its acknowledger; see [waybill.Native].
func (h *handle) Native() amqp.Delivery {
	d := h.raw
	d.Acknowledger = nil
	return d
}

// item is a delivery and its handle in one allocation.
type item struct {
	delivery waybill.Delivery
	handle   handle
}

// connect opens a session, in place of one that is over.
func (r *receiver) connect(ctx context.Context) error {
	s, err := r.open(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed && (r.sess == nil || r.sess.ch != s.ch) { // else Close ends it with its channel
		go func() { _ = s.ch.Close() }()
		return waybill.ErrClosed
	}
	if old := r.sess; old != nil && old.ch != s.ch && !old.ch.IsClosed() { // the broker cancelled its consumer
		old.retire()
	}
	old := r.sess
	r.sess = s
	if old != nil && old.ch == s.ch {
		old.handOver(s)
	}
	return nil
}

// reopening opens a session again, for as long as that can help. The receiver's mu guards err.
type reopening struct {
	hidden time.Duration // how long Receive hides that there is no session
	failed chan struct{} // closed after the first failure
	done   chan struct{} // closed at the end
	err    error         // the latest
}

// begun returns the session. If a consumer begins on its channel, begun waits for that: a caller that gave up in the
// middle could only close the channel, and the acknowledgements that the broker has not stored would be lost.
func (r *receiver) begun(ctx context.Context) *session {
	r.mu.Lock()
	s, o := r.sess, r.reopening
	r.mu.Unlock()
	if s == nil || o == nil || s.ch.IsClosed() {
		return s
	}
	select {
	case <-o.done:
	case <-o.failed:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sess
}

// hiddenFor returns how long Receive hides that s is over. A consumer that begins again on an open channel, such as
// with another prefetch, has lost nothing: it may take as long as any question to the broker.
func (r *receiver) hiddenFor(s *session) time.Duration {
	if s.ch.IsClosed() {
		return patience
	}
	return max(patience, r.t.opts.ConnectTimeout)
}

// session returns the session. If there is none it waits until there is one again: at first as long as that is hidden,
// and after Receive has reported the outage for reminder. Then it returns the cause.
func (r *receiver) session(ctx context.Context) (*session, error) {
	s, o, err := r.current()
	if o == nil {
		return s, err
	}
	wait, failed := o.hidden, o.failed
	if r.failed {
		wait, failed = reminder, nil
	}
	late := time.NewTimer(wait)
	defer late.Stop()
	select {
	case <-o.done:
	case <-failed:
	case <-late.C:
	case <-r.closing:
		return nil, waybill.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case o.err != nil:
		return nil, o.err
	case r.sess.over():
		return nil, outage("receive", errReopening)
	default:
		return r.sess, nil
	}
}

// current returns the session, or the reopening, which it begins.
func (r *receiver) current() (*session, *reopening, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, nil, waybill.ErrClosed
	}
	if !r.sess.over() {
		return r.sess, nil, nil
	}
	if r.reopening == nil {
		r.reopening = &reopening{hidden: r.hiddenFor(r.sess), failed: make(chan struct{}), done: make(chan struct{})}
		go r.reopen(r.reopening)
	}
	return nil, r.reopening, nil
}

// reopen tries to open a session until that succeeds, cannot succeed, or the receiver closes. After the first failure
// Receive may report the outage. On a borrowed connection there is one try, since nothing opens that again.
func (r *receiver) reopen(o *reopening) {
	ctx, cancel := context.WithCancel(r.life)
	defer cancel()
	go func() {
		select {
		case <-r.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	for first := true; ; first = false {
		err := r.connect(ctx)
		more := err != nil && ctx.Err() == nil && waybill.ClassOf(err) == waybill.ClassOutage && !errors.Is(err, waybill.ErrMisconfigured) && !r.t.borrowed
		r.mu.Lock()
		o.err = err
		if !more {
			r.reopening = nil
			close(o.done)
		}
		r.mu.Unlock()
		if !more {
			return
		}
		if first {
			close(o.failed)
		}
		t := time.NewTimer(r.t.opts.ReconnectMax)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// open opens a session. RabbitMQ 3.10 has a quorum queue in its tables before the queue's process runs. A client that
// consumes from it in between loses the connection with an internal error (541). Consumers that start together on a new
// broker meet this, so open tries again on a new connection.
func (r *receiver) open(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, r.t.opts.openTimeout())
	defer cancel()
	for pause := firstPause; ; pause *= 2 {
		s, err := r.openOnce(ctx)
		if !refused(err, amqp.InternalError) || pause > lastPause || r.in.borrowed {
			return s, err
		}
		select {
		case <-time.After(pause):
		case <-r.closing:
			return nil, outage("subscribe", waybill.ErrClosed)
		case <-ctx.Done():
			return nil, err
		}
	}
}

func (r *receiver) openOnce(ctx context.Context) (*session, error) {
	c, err := r.in.get(ctx)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	prefetch, old := r.prefetch, r.sess
	r.mu.Unlock()
	s := &session{
		tag: "waybill-" + waybill.NewID(), prefetch: prefetch,
		frameMax: c.Config.FrameSize, wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	s.wanted.Store(int64(prefetch))
	// A consumer that this program ended goes on, on the channel that is still open.
	goesOn := old != nil && (old.paused.Load() || old.throttled.Load()) && !old.ch.IsClosed()
	if !r.sub.InOrder {
		room := r.sizes.bound
		if goesOn && r.sizes.byLargest {
			room -= old.acks.bytes.Load()
		}
		s.prefetch = r.sizes.fit(room, prefetch)
	}
	if goesOn {
		// what Receive returned before that is settled on its channel
		s.ch, s.acks, s.cancelled, s.closed = old.ch, old.acks, old.cancelled, old.closed
	} else {
		if err := r.prepare.run(ctx, c, !r.verified); err != nil {
			return nil, err
		}
		r.verified = true // one session at a time is opened
		if s.ch, err = c.channel(ctx); err != nil {
			return nil, err
		}
		s.acks = newAcks(s.ch)
		s.cancelled, s.closed = s.ch.NotifyCancel(make(chan string, 1)), s.ch.NotifyClose(make(chan *amqp.Error, 1))
	}
	return s, r.consume(ctx, s, c)
}

// consume begins to consume on the channel of s.
func (r *receiver) consume(ctx context.Context, s *session, c *conn) error {
	var deliveries <-chan amqp.Delivery
	err := await(ctx, func() (err error) {
		if err = s.ch.Qos(s.prefetch, 0, false); err != nil {
			return err
		}
		deliveries, err = s.ch.Consume(r.queue, s.tag, false, false, false, false, nil)
		return err
	}, func() { _ = s.ch.Close() })
	if err != nil {
		if e := amqpError(err); e != nil && e.Server {
			switch e.Code {
			case amqp.AccessRefused:
				return misconfigured("subscribe", "the user may not read queue %q: extend its read permission (%w)", r.queue, e)
			case amqp.NotFound, amqp.ResourceLocked:
				return misconfigured("subscribe", "queue %q cannot be consumed (%w)", r.queue, e)
			}
		}
		return outage("subscribe", err)
	}
	go func() {
		r.pump(s, deliveries)
		r.reportEnd(s, c)
	}()
	go r.assert(s, c)
	return nil
}

// assert makes sure, now and then, that the objects of the subscription are there, and its bindings: an exchange that
// was deleted has lost them.
func (r *receiver) assert(s *session, c *conn) {
	tick := time.NewTicker(r.t.assertEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-tick.C:
		}
		r.warnHeld(s)
		ctx, cancel := context.WithTimeout(r.life, r.t.opts.ConnectTimeout)
		err := r.prepare.run(ctx, c, false)
		cancel()
		if err != nil && !isClosed(s.done) {
			r.log.Event(r.life, slog.LevelWarn, "rabbitmq.assert_failed", "cannot make sure that the queue, its exchanges and its bindings are there",
				slog.String("queue", r.queue), slog.Any("error", err))
		}
	}
}

// pump moves deliveries to s.ready until the consumer ends. Each is decoded and counted as unacknowledged
// (acks.arrived) before it is ready. A delivery that is too much for the bound of bytes is not: it goes back when the
// consumer has ended. At the end Receive is woken, and opens the next session when nothing is ready any more.
func (r *receiver) pump(s *session, deliveries <-chan amqp.Delivery) {
	defer close(s.done)
	for {
		both := new(item)
		d, h := &both.delivery, &both.handle
		var open bool
		if h.raw, open = <-deliveries; !open {
			break
		}
		raw := &h.raw
		h.from, h.sess = r, s
		now := time.Now()
		decode(d, raw, r.sub.Queue, r.dlx, now)
		d.Handle = h
		if r.sub.InOrder && r.sub.MaxDeliveries > 0 {
			// The broker also counts messages that are given back at a stop. So its count makes a
			// suspect, and no more. The broker parks at its own limit.
			d.Redeliveries = min(d.Redeliveries, r.sub.MaxDeliveries-1)
		}
		if _, apart := raw.Headers[headerAcquiredCount]; apart {
			d.Redeliveries += r.overdue.of(d)
		}
		size := len(raw.Body)
		r.sizes.saw(int64(size))
		if r.tooMuch(s, size) {
			raw.Body, d.Envelope.Body = nil, nil
			s.acks.arrived(raw.DeliveryTag, now, 0, d)
			s.surplus = append(s.surplus, raw.DeliveryTag)
			continue
		}
		s.acks.arrived(raw.DeliveryTag, now, size, d)
		h.topic, h.expires, h.attempt, h.redeliveries = d.Envelope.Topic, d.Envelope.Expires, d.Attempt, d.Redeliveries
		h.notBefore, h.early = d.NotBefore, d.NotBefore.After(time.Now())
		s.mu.Lock()
		s.ready = append(s.ready, d)
		s.mu.Unlock()
		s.signal()
		r.adapt(s, raw.DeliveryTag)
	}
	r.sendBack(s)
	if limit := r.t.opts.ConsumerTimeout; limit > 0 && len(s.cancelled) > 0 {
		r.overdue.add(s.acks.heldTooLong(limit))
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

// handOver gives next, which consumes on the same channel from now on, the deliveries that are ready, and those that
// will be made ready again later.
func (s *session) handOver(next *session) {
	s.mu.Lock()
	rest := s.ready
	s.ready, s.next = nil, next
	s.mu.Unlock()
	next.again(rest...)
}

// again makes deliveries of the channel ready, in the order of the queue, in the session that consumes on it now.
func (s *session) again(list ...*waybill.Delivery) {
	if len(list) == 0 {
		return
	}
	s.mu.Lock()
	for s.next != nil {
		next := s.next
		s.mu.Unlock()
		s = next
		s.mu.Lock()
	}
	for _, d := range list {
		at, _ := slices.BinarySearchFunc(s.ready, d.Handle.(*handle).raw.DeliveryTag, func(d *waybill.Delivery, tag uint64) int {
			return cmp.Compare(d.Handle.(*handle).raw.DeliveryTag, tag)
		})
		s.ready = slices.Insert(s.ready, at, d)
	}
	s.mu.Unlock()
	s.signal()
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

// take returns deliveries that are ready, as many as one Receive of sub returns. It drops those of a closed channel:
// they come again.
func (s *session) take(sub *core.Subscription, limit int) []*waybill.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch.IsClosed() {
		s.ready = nil
		return nil
	}
	n := sub.ReceiveCount(s.ready, limit)
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
