package memory

import (
	"container/heap"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/check"
)

// item is one message in one queue.
type item struct {
	env          *waybill.Envelope // shared with other queues: read only
	receipt      *receipt          // nil unless Options.ConfirmHandled
	place        uint64            // in the queue; unique
	due          time.Time         // of a delayed one
	attempt      int
	redeliveries int
}

// queue is guarded by its transport's lock.
type queue struct {
	t         *Transport
	name      string
	bindings  [][]string // split into words
	receivers []*receiver
	ready     byPlace
	delayed   byDue
	held      int
	parked    []kept
	wake      chan struct{} // closed when something may have become possible; nil if nobody waits
}

func (q *queue) bind(binding string) {
	words := strings.Split(binding, ".")
	if !slices.ContainsFunc(q.bindings, func(b []string) bool { return slices.Equal(b, words) }) {
		q.bindings = append(q.bindings, words)
	}
}

func (q *queue) receives(topic string) bool {
	words := strings.Split(topic, ".")
	return slices.ContainsFunc(q.bindings, func(b []string) bool { return check.Matches(b, words) })
}

func (q *queue) size() int { return len(q.ready) + len(q.delayed) + q.held }

// promote moves what is due by now from delayed to the end of ready.
func (q *queue) promote(now time.Time) {
	for len(q.delayed) > 0 && !q.delayed[0].due.After(now) {
		msg := q.delayed.pop()
		msg.place = q.t.nextPlace()
		q.ready.push(msg)
	}
}

// waiting returns the channel that is closed at the next change.
func (q *queue) waiting() <-chan struct{} {
	if q.wake == nil {
		q.wake = make(chan struct{})
	}
	return q.wake
}

func (q *queue) wakeAll() {
	if q.wake != nil {
		close(q.wake)
		q.wake = nil
	}
}

// byPlace is a heap of items by their place, byDue one by due time, then place.
type (
	byPlace []*item
	byDue   []*item
)

func (h *byPlace) push(msg *item) { heap.Push(h, msg) }

func (h *byPlace) pop() *item {
	msg, _ := heap.Pop(h).(*item)
	return msg
}

// Len, Less, Swap, Push and Pop are for container/heap.
func (h byPlace) Len() int           { return len(h) }
func (h byPlace) Less(i, j int) bool { return h[i].place < h[j].place }
func (h byPlace) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *byPlace) Push(x any)        { *h = append(*h, x.(*item)) }

func (h *byPlace) Pop() any {
	n := len(*h) - 1
	msg := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	return msg
}

func (h *byDue) push(msg *item) { heap.Push(h, msg) }

func (h *byDue) pop() *item {
	msg, _ := heap.Pop(h).(*item)
	return msg
}

// Len, Less, Swap, Push and Pop are for container/heap.
func (h byDue) Len() int { return len(h) }

func (h byDue) Less(i, j int) bool {
	if !h[i].due.Equal(h[j].due) {
		return h[i].due.Before(h[j].due)
	}
	return h[i].place < h[j].place
}

func (h byDue) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *byDue) Push(x any)   { *h = append(*h, x.(*item)) }

func (h *byDue) Pop() any {
	n := len(*h) - 1
	msg := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	return msg
}
