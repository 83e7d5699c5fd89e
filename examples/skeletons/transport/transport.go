// Package transport is the smallest transport that passes its conformance suite, to begin an adapter with. Its broker
// is a map in memory. docs/adapters.md explains it; the places where a real broker is asked are marked with BROKER.
//
// # Guarantees
//
// Those of core.Publisher, core.Subscriber and core.Receiver for one process, as far as the traits go. Nothing survives
// its end.
//
// # Concurrency
//
// All methods are safe for concurrent use, but for Receive: one goroutine at a time calls it.
//
// # Ownership
//
// Published messages are copied. Deliveries belong to the caller until they are settled.
//
// # Limits
//
// Bindings are whole topics: there are no wildcards. There is no admin.ParkedQueue; Parked lists the rejected messages.
package transport

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

var (
	_ core.Transport = (*Transport)(nil)
	_ core.Receiver  = (*receiver)(nil)
)

// Transport is a broker in memory, and the connection to it.
type Transport struct {
	mu        sync.Mutex
	queues    map[string]*queue
	receivers map[*receiver]struct{}
	seq       int64
	closed    bool
	changed   chan struct{} // closed and made anew when a message comes, or comes back
}

type queue struct {
	name     string
	bindings []string
	items    []*item // what waits, in order
	parked   []Parked
}

// item is one copy of a message in a queue.
type item struct {
	env                   waybill.Envelope
	seq                   int64 // its place in the queue
	attempt, redeliveries int
	due                   time.Time // of a retry
}

// Parked is a rejected message.
type Parked struct {
	Envelope waybill.Envelope
	Reason   waybill.Reason
	Err      string
}

// New returns a transport without queues.
func New() *Transport {
	return &Transport{queues: map[string]*queue{}, receivers: map[*receiver]struct{}{}, changed: make(chan struct{})}
}

// Traits promises what the suite then tests, and nothing more.
func (t *Transport) Traits() core.PublisherTraits {
	return core.PublisherTraits{KeyOrder: core.KeyOrderSerial, Confirmed: true, DetectsUnroutable: true}
}

// SubscriberTraits promises what the suite then tests, and nothing more.
func (t *Transport) SubscriberTraits() core.SubscriberTraits {
	return core.SubscriberTraits{KeyOrder: true, DelaysRetries: true, Parks: true, CountsRedeliveries: true}
}

// Publish puts each message into every queue that is bound to its topic. A result says what became of one message.
func (t *Transport) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	res := make(core.Results, len(batch))
	for i := range batch {
		res[i] = t.publish(ctx, &batch[i]) // BROKER: send all, then wait for the confirms
	}
	return res
}

func (t *Transport) publish(ctx context.Context, e *waybill.Envelope) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return failure("publish", waybill.ClassOutage, ctx.Err())
	case t.closed:
		return failure("publish", waybill.ClassOutage, waybill.ErrClosed)
	case len(e.Topic) > waybill.MaxNameBytes: // no retry would help
		return failure("publish", waybill.ClassPermanent, fmt.Errorf("the topic has %d bytes; at most %d are allowed", len(e.Topic), waybill.MaxNameBytes))
	}
	routed := false
	for _, q := range t.queues {
		if slices.Contains(q.bindings, e.Topic) {
			t.put(q, &item{env: e.Clone(), attempt: 1})
			routed = true
		}
	}
	if !routed {
		return failure("publish", waybill.ClassRejected, fmt.Errorf("topic %q: %w: bind a queue to it", e.Topic, waybill.ErrUnroutable))
	}
	return nil
}

// failure is an error with its class, which decides what becomes of the message. docs/adapters.md has the classes.
func failure(op string, class waybill.Class, err error) error {
	return &waybill.Error{Op: "skeleton: " + op, Class: class, Err: err}
}

// put adds an item at the end of the queue. mu is held.
func (t *Transport) put(q *queue, m *item) {
	t.seq++
	m.seq = t.seq
	t.putBack(q, m)
}

// putBack puts an item at its place. mu is held.
func (t *Transport) putBack(q *queue, m *item) {
	at, _ := slices.BinarySearchFunc(q.items, m.seq, func(other *item, seq int64) int { return int(other.seq - seq) })
	q.items = slices.Insert(q.items, at, m)
	close(t.changed)
	t.changed = make(chan struct{})
}

// Parked returns the rejected messages of a queue, oldest first.
func (t *Transport) Parked(name string) []Parked {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q := t.queues[name]; q != nil {
		return slices.Clone(q.parked)
	}
	return nil
}

// Close ends the receivers, and every later call.
func (t *Transport) Close(context.Context) error {
	t.mu.Lock()
	t.closed = true
	receivers := t.receivers
	t.receivers = map[*receiver]struct{}{}
	t.mu.Unlock()
	for r := range receivers {
		r.close()
	}
	return nil
}
