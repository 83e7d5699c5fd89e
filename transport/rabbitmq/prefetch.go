package rabbitmq

import (
	"context"
	"sync/atomic"
	"time"
)

// RabbitMQ fixes the prefetch of a consumer when it begins. To change it the consumer is cancelled and begun again on
// the same channel, so that the deliveries in hand stay valid. A message that is on its way to a cancelled consumer
// goes back to the queue with a count, so the cancel waits for a moment in which none is.

// sizes says how many deliveries fit into Options.PrefetchBytes. RabbitMQ bounds what it sends ahead by a number of
// messages only, so that number follows the size of the bodies that came.
type sizes struct {
	bound     int64        // bytes; 0 = none
	byLargest bool         // body is about the largest of the latest ones, else their average
	body      atomic.Int64 // bytes
}

// saw notes the size of a body. The latest eight weigh two thirds in the average. The largest one counts for a thousand
// messages.
func (z *sizes) saw(bytes int64) {
	body := z.body.Load()
	switch {
	case body == 0:
		body = bytes
	case z.byLargest:
		body = max(bytes, body-(body-bytes)/1024)
	default:
		body += (bytes - body) / 8
	}
	z.body.Store(body)
}

// fit returns how many deliveries of such a size fit: at least 1, at most most.
func (z *sizes) fit(bytes int64, most int) int {
	body := z.body.Load()
	if z.bound == 0 || body <= 0 {
		return most
	}
	return int(max(1, min(bytes/body, int64(most))))
}

// adapt ends the consumer of s if another prefetch is due: a smaller one when more bytes are held than the bound, or,
// for a consumer that adapts, could be; a larger one when the bodies have become small, or when Resume has said so.
// Receive then returns the deliveries at hand, and begins to consume with the new one. A difference of less than a
// quarter, or than double, is let be: each change costs two questions to the broker.
//
// It waits until the broker has sent all that it may. Then nothing is on its way, and nothing will be until the broker
// reads an acknowledgement, which comes behind the cancel. A message on its way to a consumer that is cancelled would
// go back to the queue, with a count. Acknowledgements of quick handlers never leave such a moment. So for a larger
// prefetch they are held back, for as long as the broker takes to send the rest.
func (r *receiver) adapt(s *session, tag uint64) {
	if r.sub.InOrder || s.throttled.Load() {
		return
	}
	if s.arrived++; s.arrived == 1 {
		s.first.Store(tag)
	}
	held, wanted := s.acks.bytes.Load(), int(s.wanted.Load())
	lower := r.sizes.bound > 0 && (held > r.sizes.bound || r.sizes.byLargest) && r.sizes.fit(r.sizes.bound, wanted) <= s.prefetch*3/4
	raise := s.arrived >= s.prefetch && r.raises(s)
	if raise {
		s.acks.holdBack()
	}
	if lower || raise {
		s.throttle()
	}
	if raise && s.throttled.Load() {
		s.acks.goOn(time.Time{})
	}
}

// raises reports whether a larger prefetch is due.
func (r *receiver) raises(s *session) bool {
	wanted := int(s.wanted.Load())
	fits := r.sizes.fit(r.sizes.bound-s.acks.bytes.Load(), wanted)
	return s.prefetch < wanted && (fits >= 2*s.prefetch || fits == wanted)
}

// raise lets the broker send wanted ahead. If all that it may send is here, nothing arrives that could call adapt.
func (r *receiver) raise(s *session, wanted int) {
	s.wanted.Store(int64(wanted))
	if r.raises(s) {
		s.throttle()
	}
}

// throttle ends the consumer if the broker has sent all that it may.
func (s *session) throttle() {
	first := s.first.Load()
	if first == 0 {
		return
	}
	s.acks.ifSent(first, s.prefetch, func() {
		if s.throttled.CompareAndSwap(false, true) {
			_ = s.ch.Cancel(s.tag, true) // an error is that of a closed channel
		}
	})
}

// tooMuch reports whether a delivery with a body of so many bytes is more than the bound allows. The broker has sent
// ahead as many as fit when they were small. The consumer of s ends, and this delivery and all behind it go back. The
// pump sends them back when the broker has ended the consumer: before, they would come here again.
func (r *receiver) tooMuch(s *session, bytes int) bool {
	if s.ending != nil {
		return true
	}
	held := s.acks.bytes.Load()
	if !r.sizes.byLargest || held == 0 || held+int64(bytes) <= r.sizes.bound || !s.throttled.CompareAndSwap(false, true) {
		return false
	}
	s.ending = make(chan struct{})
	go func() {
		defer close(s.ending)
		_ = s.ch.Cancel(s.tag, false) // an error is that of a closed channel: the broker takes all back
	}()
	return true
}

// sendBack requeues what was too much. The broker's channel holds requeues beyond some tens back for a moment. So the
// next consumer begins later: else messages behind them would come first.
func (r *receiver) sendBack(s *session) {
	if s.ending == nil {
		return
	}
	<-s.ending // one question at a time to a channel
	for _, tag := range s.surplus {
		_ = s.acks.requeue(tag)
	}
	r.mu.Lock()
	r.requeuedAt = time.Now()
	r.mu.Unlock()
	wait := time.NewTimer(requeueTime)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-r.closing:
	}
}

// roomPatience is how long a consumer waits for half of the bound to be free. Then it is content with less.
const roomPatience = time.Second

// awaitRoom waits, before a consumer that adapt has ended begins again, until half of the bound is free, and after
// roomPatience until anything of it is. It reports whether Receive may go on: not if ctx has ended.
func (r *receiver) awaitRoom(ctx context.Context) bool {
	r.mu.Lock()
	s, begun := r.sess, r.reopening != nil
	r.mu.Unlock()
	if s == nil || !s.throttled.Load() || begun || r.sizes.bound == 0 {
		return true
	}
	look := time.NewTicker(patience) // at whether the channel is open, and at the time
	defer look.Stop()
	for s.over() && !s.ch.IsClosed() {
		if s.fullSince.IsZero() {
			s.fullSince = time.Now()
		}
		limit := r.sizes.bound / 2
		if time.Since(s.fullSince) > roomPatience {
			limit = r.sizes.bound - 1
		}
		if s.acks.bytes.Load() <= limit {
			break
		}
		select {
		case <-s.acks.freed:
		case <-look.C:
		case <-r.closing:
			return true
		case <-ctx.Done():
			return false
		}
	}
	return true
}
