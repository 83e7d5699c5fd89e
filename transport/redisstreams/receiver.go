package redisstreams

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// A driver's call goes on when its context ends, and a read of a group that goes on may take messages that no caller
// waits for. So a look at the queue runs on its own, one at a time. A Receive that is cancelled leaves it alone, and
// the next one joins it. Messages that come when no Receive waits are released after a second. A blocking read takes
// nothing: it only waits for the moment to look.

const (
	groupName = "waybill"
	// maxBlock bounds how long a receiver waits for messages without a look for changes that bring no wake-up.
	maxBlock = 2 * time.Second
	// unreceived is how long deliveries wait that came after their Receive was cancelled; then they are released.
	unreceived = time.Second
)

// receiver is an open subscription: a consumer of the queue's group.
type receiver struct {
	t    *Transport
	sub  core.Subscription
	name string // of the consumer; no other receiver ever has it

	queue, wakeUps, delayed, due, parked, active string // keys

	life    context.Context //nolint:containedctx // of the values of Subscribe's context; it never ends
	stop    func() bool
	closing chan struct{} // closed when Close begins
	ended   chan struct{} // closed when it is over
	taking  chan struct{} // capacity 1: held while deliveries are taken, and by Close
	idle    *time.Timer   // releases what no Receive takes

	mu          sync.Mutex // guards the fields below
	closed      bool
	receiving   bool                // a Receive is in progress
	step        *step               // the look under way; nil = none
	held        map[string]*handle  // by id: deliveries of this receiver that are not settled
	ready       []*waybill.Delivery // taken, but not returned by Receive
	unsure      bool                // an answer was lost: the server may count more as held, or be another one
	failed      bool                // the latest Receive returned an error
	failing     error               // the latest question to the server
	nextReclaim time.Time           // when to look next for deliveries of dead receivers
}

var (
	_ core.DeliveryRenewer = (*receiver)(nil)
	_ core.Checker         = (*receiver)(nil)
)

// handle is a Delivery's.
type handle struct {
	r       *receiver
	id      string
	attempt int
	unsure  bool  // the answer to a settle was lost
	fields  []any // names and values in turn, but for the body, which would be held twice
}

// Native returns the entry as it is in the stream, but for the field of the body; see [waybill.Native].
func (h *handle) Native() redis.XMessage {
	x := redis.XMessage{ID: h.id, Values: make(map[string]any, len(h.fields)/2)}
	for i := 0; i+1 < len(h.fields); i += 2 {
		name, _ := h.fields[i].(string)
		x.Values[name] = h.fields[i+1]
	}
	return x
}

// withoutBody takes the body out of the fields of an entry.
func withoutBody(fields []any) []any {
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i] == fieldBody {
			return slices.Delete(fields, i, i+2)
		}
	}
	return fields
}

// step is one look at the queue, and the wait if it is empty. It goes on if its Receive is cancelled, since the driver
// does; the next Receive joins it.
type step struct {
	done chan struct{}
	err  error
}

// Receive implements core.Receiver.
func (r *receiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	limit = max(limit, 1)
	defer r.startReceive()()
	for {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		got, s, err := r.next(limit)
		if s == nil {
			return got, err
		}
		select {
		case <-s.done:
		case <-r.closing:
			continue
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		r.mu.Lock()
		recovered := s.err == nil && r.failed
		r.failed = s.err != nil
		nothing := len(r.ready) == 0
		r.mu.Unlock()
		if s.err != nil {
			return nil, s.err
		}
		if recovered && nothing {
			return nil, nil // the caller backs off: tell it that the server answers again
		}
	}
}

// startReceive notes that a Receive is in progress, and returns a function that notes its end.
func (r *receiver) startReceive() func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.receiving = true
	r.idle.Stop()
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.receiving = false
		if len(r.ready) > 0 && !r.closed {
			r.idle.Reset(unreceived)
		}
	}
}

// next returns deliveries, or an error, or the step to wait for.
func (r *receiver) next(limit int) ([]*waybill.Delivery, *step, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, nil, outage("receive", waybill.ErrClosed)
	}
	if n := r.sub.ReceiveCount(r.ready, limit); n > 0 {
		got := slices.Clone(r.ready[:n])
		r.ready = slices.Delete(r.ready, 0, n)
		return got, nil, nil
	}
	if r.step == nil {
		r.step = &step{done: make(chan struct{})}
		go r.run(r.step, limit)
	}
	return nil, r.step, nil
}

func (r *receiver) run(s *step, limit int) {
	err := r.look(limit)
	if err != nil && !errors.Is(err, errNoAnswer) { // a lost connection or queue: recover may help
		err = r.look(limit)
	}
	r.note(err)
	s.err = err
	r.mu.Lock()
	r.step = nil
	if !r.receiving && len(r.ready) > 0 && !r.closed {
		r.idle.Reset(unreceived)
	}
	r.mu.Unlock()
	close(s.done)
}

// look takes deliveries, or waits for some. After an error the receiver cannot know what the server counts as held by
// it; recover finds out.
func (r *receiver) look(limit int) error {
	w, err := r.take(limit)
	r.mu.Lock()
	failed := r.failed
	r.mu.Unlock()
	if err == nil && w != nil && !failed { // after a failure the caller waits to hear that it is over
		err = r.wait(w)
	}
	if err != nil {
		r.mu.Lock()
		r.unsure = true
		r.mu.Unlock()
	}
	return err
}

// note keeps the outcome of a question to the server, for Check.
func (r *receiver) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failing = err
}

// Check implements core.Checker: the latest question to the server had an answer.
func (r *receiver) Check(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failing
}

// blocking says what to wait for.
type blocking struct {
	last, wake string // ids; last "" = wake-ups only
	limit      time.Duration
}

// take puts deliveries into ready. If there are none it returns what to wait for. The steps:
//
//  1. If an answer was lost, recover releases the deliveries that the server counts as held here and this receiver
//     does not know of.
//  2. The script puts due retries into the queue and, from time to time (reclaim), releases the deliveries of dead
//     receivers. Then it takes released ones, and new ones behind these.
//  3. read decodes them and notes that they are held.
func (r *receiver) take(limit int) (*blocking, error) {
	r.taking <- struct{}{}
	defer func() { <-r.taking }()
	r.mu.Lock()
	closed, unsure := r.closed, r.unsure
	reclaim := !time.Now().Before(r.nextReclaim)
	if reclaim {
		r.nextReclaim = time.Now().Add(min(r.t.opts.HoldFor/5, 5*time.Second))
	}
	r.mu.Unlock()
	if closed {
		return nil, nil
	}
	if unsure {
		if err := r.recover(); err != nil {
			return nil, err
		}
	}
	answer, err := r.askTake(limit, reclaim)
	if err != nil {
		return nil, err
	}
	return r.read(answer), nil
}

func (r *receiver) askTake(limit int, reclaim bool) ([]any, error) {
	return call(r.life, r.t, "receive", func(ctx context.Context) ([]any, error) {
		return takeScript.Run(ctx, r.t.client, []string{r.queue, r.wakeUps, r.delayed, r.due, r.active},
			r.name, limit, flag(r.sub.InOrder), r.t.opts.HoldFor.Milliseconds(), flag(reclaim), r.sub.ReceiveBytes).Slice()
	})
}

func flag(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

// read puts the deliveries of an answer into ready, or returns the wait that it asks for.
func (r *receiver) read(answer []any) *blocking {
	if len(answer) != 5 {
		return &blocking{limit: maxBlock}
	}
	gone, _ := answer[4].(int64)
	r.tellGone(gone)
	list, _ := answer[0].([]any)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range list {
		parts, _ := x.([]any)
		if len(parts) != 3 {
			continue
		}
		id, _ := parts[0].(string)
		deliveries, _ := parts[1].(int64)
		fields, _ := parts[2].([]any)
		e, m := decode(fields, r.sub.Queue)
		h := &handle{r: r, id: id, attempt: m.attempt, fields: withoutBody(fields)}
		r.held[id] = h
		r.ready = append(r.ready, &waybill.Delivery{
			Envelope: e, Queue: r.sub.Queue, Attempt: m.attempt, Redeliveries: m.redeliveries + int(max(deliveries-1, 0)), Handle: h,
		})
	}
	if len(list) > 0 {
		return nil
	}
	b := &blocking{limit: min(maxBlock, time.Until(r.nextReclaim)+time.Millisecond)} // the server counts whole ones
	b.last, _ = answer[1].(string)
	b.wake, _ = answer[2].(string)
	if due, _ := answer[3].(int64); due >= 0 {
		b.limit = min(b.limit, time.Duration(due)*time.Millisecond)
	}
	return b
}

// wait blocks until the queue has something, a wake-up comes, or the time is over. It takes nothing.
func (r *receiver) wait(b *blocking) error {
	streams := []string{r.wakeUps, b.wake}
	if b.last != "" {
		streams = []string{r.queue, r.wakeUps, b.last, b.wake}
	}
	limit := max(b.limit, time.Millisecond) // 0 would be for ever
	_, err := callFor(r.life, limit+r.t.opts.Timeout, "receive", func(ctx context.Context) (any, error) {
		return r.t.waits.XRead(ctx, &redis.XReadArgs{Streams: streams, Count: 1, Block: limit}).Result()
	})
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}
