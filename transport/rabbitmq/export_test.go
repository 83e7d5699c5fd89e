package rabbitmq

import (
	"bufio"
	"context"
	"io"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/parked"
)

// Internals for the tests of package rabbitmq_test.
var (
	AddLimits       = addLimits
	Encode          = encode
	MessageError    = messageError
	ClosedByMessage = closedByMessage
	DialError       = dialError
	CheckURL        = checkURL
	DeclareErr      = declareError
	ReadableFrame   = readableFrame
)

// RefreshAt makes t copy a parked message anew after so many looks.
func (t *Transport) RefreshAt(n int64) { t.refreshAt = n }

// Taken returns how many messages a look for limit messages takes.
func (t *Transport) Taken(ctx context.Context, queue string, f admin.ParkedFilter, limit int) (int, error) {
	w, err := t.walkParked(ctx, queue)
	if err != nil {
		return 0, err
	}
	defer w.Close(ctx)
	for limit > 0 {
		m, err := w.Next(ctx, limit)
		if err != nil || m == nil {
			return w.taken, err
		}
		if f.Matches(&m.Parked) {
			limit--
		}
	}
	return w.taken, nil
}

// MostAhead returns how many parked messages a walk through all of them holds at most.
func (t *Transport) MostAhead(ctx context.Context, queue string) (int, error) {
	w, err := t.walkParked(ctx, queue)
	if err != nil {
		return 0, err
	}
	defer w.Close(ctx)
	most := 0
	for {
		_, p, err := w.next(ctx, walkChunk)
		if err != nil || p == nil {
			return most, err
		}
		most = max(most, len(w.ahead)+1)
	}
}

// PrefetchOf returns how many messages the broker may send ahead to r.
func PrefetchOf(r core.Receiver) int {
	rr := r.(*receiver)
	rr.mu.Lock()
	defer rr.mu.Unlock()
	return rr.sess.prefetch
}

// Pushed returns how many messages the broker has pushed to r that Receive has not returned.
func Pushed(r core.Receiver) int {
	rr := r.(*receiver)
	rr.mu.Lock()
	s := rr.sess
	rr.mu.Unlock()
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ready)
}

// AssertEvery sets how often the receivers of t look after their objects. Call it before Subscribe.
func (t *Transport) AssertEvery(d time.Duration) { t.assertEvery = d }

// ConnectionOf returns the open connection that r consumes on, or nil.
func ConnectionOf(r core.Receiver) *amqp.Connection {
	own, ok := r.(*receiver)
	if !ok || own.in.current() == nil {
		return nil
	}
	return own.in.current().Connection
}

// BytesOf returns how many bytes of bodies r holds, beside those that Receive has copied.
func BytesOf(r core.Receiver) int64 {
	own := r.(*receiver)
	own.mu.Lock()
	defer own.mu.Unlock()
	return own.sess.acks.bytes.Load()
}

// UnackedOf returns how many deliveries r has that are not settled, whether Receive returned them or not.
func UnackedOf(r core.Receiver) int {
	own, ok := r.(*receiver)
	if !ok {
		return -1
	}
	own.mu.Lock()
	a := own.sess.acks
	own.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.unacked.n
}

// ChannelOf returns the channel that r consumes on.
func ChannelOf(r core.Receiver) *amqp.Channel {
	own, ok := r.(*receiver)
	if !ok {
		return nil
	}
	own.mu.Lock()
	defer own.mu.Unlock()
	return own.sess.ch
}

// EarlyOf reports whether d came before its NotBefore.
func EarlyOf(d *waybill.Delivery) bool {
	h, ok := d.Handle.(*handle)
	return ok && h.early
}

// SetReplyTo changes the reply-to property of d's copies.
func SetReplyTo(d *waybill.Delivery, replyTo string) {
	if h, ok := d.Handle.(*handle); ok {
		h.raw.ReplyTo = replyTo
	}
}

// Decode returns the delivery of d.
func Decode(d *amqp.Delivery, queue, dlx string, now time.Time) (out waybill.Delivery) {
	decode(&out, d, queue, dlx, now)
	return out
}

// HeaderFrames returns the reader of a connection on in, with a frame_max of limit.
func HeaderFrames(in io.Reader, limit int) io.Reader {
	f := &headerFrames{in: bufio.NewReaderSize(in, readBuffer)}
	f.limit.Store(int64(limit))
	return f
}

// ChannelError is the error of a channel that cannot be opened.
func ChannelError(err error) *waybill.Error { return channelError(err) }

// removedSome is a context that ends when its walk has removed a message, before the walk asks the next question.
type removedSome struct {
	context.Context //nolint:containedctx // it is one
	w               *parkedWalk
	ended           chan struct{}
}

func (c *removedSome) Done() <-chan struct{} {
	if c.w.removed > 0 && !isClosed(c.ended) {
		c.w.asking <- struct{}{} // the question would have to wait
		close(c.ended)
	}
	return c.ended
}

func (c *removedSome) Err() error {
	if isClosed(c.ended) {
		return context.Canceled
	}
	return nil
}

// RemoveFirst removes each other parked message, one at a time, until the first was removed. It returns what the walk
// says about each.
func (t *Transport) RemoveFirst(ctx context.Context, queue string) (items []*parked.Item, err error) {
	w, err := t.walkParked(ctx, queue)
	if err != nil {
		return nil, err
	}
	defer w.Close(ctx)
	for n := 0; ; n++ {
		m, err := w.Next(ctx, w.total)
		if err != nil {
			return nil, err
		}
		if m == nil {
			break
		}
		if n%2 == 0 {
			items = append(items, m)
		}
	}
	err = w.Remove(&removedSome{ctx, w, make(chan struct{})}, items)
	<-w.asking
	return items, err
}
