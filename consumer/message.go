package consumer

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
)

// message is a delivery in the consumer's hands.
type message struct {
	d        *waybill.Delivery
	session  *session
	h        *entry
	seq      uint64      // its place in the order of arrival
	since    time.Time   // when it arrived
	refused  *verdict    // it must not reach a handler; nil if it may
	place    *place      // in its group; nil if it has none with a limit
	retry    *time.Timer // wakes it, if it waits for its retry in place
	suspect  bool        // it may be ending the process: nothing else runs beside it
	begun    uint64      // how many outages there were when its handler began
	merged   bool        // its stamp was merged into the clock
	storing  bool        // its verdict is being stored, and its key waits for that
	unstored bool        // its verdict could not be stored yet
	locked   bool        // another program has locked it, and its verdict waits for that
	bytes    int64       // of its body
	again    bool        // it came before, and may have ended its process
	releases int         // of it that could not be stored
	yields   *yielding   // its key waits until it has gone back; nil if it does not
	lost     func()      // ends its handler's context; nil if it cannot be lost, or has not begun
	lossTold bool        // it is known to be lost, and the log has a line about that
}

// key returns the ordering key; empty if it has none.
func (m *message) key() string { return m.d.Envelope.Key }

// entry is a registered handler as one runner sees it.
type entry struct {
	handle  waybill.HandleFunc
	batch   func(ctx context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error)
	size    int           // of a batch
	wait    time.Duration // for a batch to fill
	one     *entry        // the same without batches, which is itself if there are none
	waiting int           // its messages that have not begun
}

// handlers are the handlers of one subscription.
type handlers struct {
	byName map[string]*entry
	any    *entry // for messages of no other handler; nil if there is none
}

func newHandlers(sub *waybill.Subscription, registered map[string]waybill.Handler) handlers {
	hs := handlers{byName: make(map[string]*entry, len(registered))}
	for name, h := range registered {
		e := &entry{handle: h.Handle, batch: h.Batch, size: cmp.Or(h.BatchSize, min(DefaultBatchSize, sub.Prefetch))}
		e.one = e
		if h.Batch != nil {
			e.wait = h.BatchWait
			e.one = &entry{handle: h.Handle, size: e.size}
			e.one.one = e.one
		}
		hs.byName[name] = e
	}
	hs.any = hs.byName[waybill.AnyMessage]
	return hs
}

// find returns the handler for e: by type, or else by topic, or else the one for any message. It returns nil if there
// is none.
func (hs *handlers) find(e *waybill.Envelope) *entry {
	if h, ok := hs.byName[e.Type]; ok {
		return h
	}
	if h, ok := hs.byName[e.Topic]; ok {
		return h
	}
	return hs.any
}

// fifo is a queue of messages. It reuses its memory.
type fifo struct {
	list []*message
	head int
}

func (q *fifo) len() int { return len(q.list) - q.head }

func (q *fifo) peek() *message { return q.list[q.head] }

func (q *fifo) push(m *message) {
	if len(q.list) == cap(q.list) && q.head > len(q.list)/2 {
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.list, q.head = q.list[:n], 0
	}
	q.list = append(q.list, m)
}

// unshift puts m before the others.
func (q *fifo) unshift(m *message) {
	if q.head == 0 {
		q.list = slices.Insert(q.list, 0, m)
		return
	}
	q.head--
	q.list[q.head] = m
}

func (q *fifo) pop() *message {
	m := q.list[q.head]
	q.list[q.head] = nil
	if q.head++; q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
	}
	return m
}

// remove takes out the message at index at of list.
func (q *fifo) remove(at int) {
	if at == q.head {
		q.pop()
		return
	}
	copy(q.list[at:], q.list[at+1:])
	q.cut(len(q.list) - 1)
}

// cut keeps the messages before index n.
func (q *fifo) cut(n int) {
	clear(q.list[n:])
	if q.list = q.list[:n]; q.head == n {
		q.list, q.head = q.list[:0], 0
	}
}
