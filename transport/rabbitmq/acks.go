package rabbitmq

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
)

// The broker does more work for single acknowledgements than for one frame with multiple. So a batch of verdicts
// becomes one frame where that is right.

// acker is the part of a channel that settles.
type acker interface {
	Ack(tag uint64, multiple bool) error
	Nack(tag uint64, multiple, requeue bool) error
}

// acks acknowledges the deliveries of one channel. It knows which of them are unacknowledged, so that one frame can
// acknowledge a batch. A basic.ack with multiple means every delivery up to the tag. So it is sent only if all
// deliveries below the tag are done. A batch that ended before an earlier one waits for it a moment.
type acks struct {
	ch acker

	// mu is held while writing: a delivery counts as unacknowledged until its frame was written.
	mu      sync.Mutex
	unacked held        // deliveries without a verdict
	waiting []uint64    // tags that are done, and wait for a delivery below
	timer   *time.Timer // flushes waiting after maxWait; nil before the first time
	held    *time.Timer // nil: acknowledgements go out
	inVain  time.Time   // when they were held back for nothing for the last time
	singly  time.Time   // when a frame for one delivery was written for the last time

	bytes atomic.Int64  // of the bodies of unacked
	freed chan struct{} // capacity 1: there are fewer of them
}

// unacked is a delivery without an acknowledgement.
type unacked struct {
	since time.Time
	bytes int64
	d     *waybill.Delivery // nil: there is none, or it has left
}

// held is a queue of unacknowledged deliveries, by tag: the broker counts the tags of a channel up by one.
type held struct {
	list []unacked
	head int    // of list; a delivery is there, or the list is at its end
	base uint64 // the tag at head
	n    int    // how many deliveries are there
}

// add takes in a delivery, whose tag is above all others.
func (q *held) add(tag uint64, u unacked) {
	if q.n == 0 {
		q.list, q.head, q.base = q.list[:0], 0, tag
	}
	if len(q.list) == cap(q.list) && q.head > len(q.list)/2 {
		left := copy(q.list, q.list[q.head:])
		clear(q.list[left:])
		q.list, q.head = q.list[:left], 0
	}
	for q.base+uint64(len(q.list)-q.head) < tag {
		q.list = append(q.list, unacked{}) // the driver dropped it with its consumer
	}
	q.list = append(q.list, u)
	q.n++
}

// from returns the deliveries from tag on. Some of them have left.
func (q *held) from(tag uint64) []unacked {
	if tag <= q.base {
		return q.list[q.head:]
	}
	return q.list[min(q.head+int(min(tag-q.base, uint64(len(q.list)))), len(q.list)):]
}

// remove takes out a delivery, and returns the bytes of its body.
func (q *held) remove(tag uint64) int64 {
	at := q.head + int(tag-q.base)
	if tag < q.base || at >= len(q.list) || q.list[at].d == nil {
		return 0
	}
	bytes := q.list[at].bytes
	q.list[at] = unacked{}
	for q.n--; q.head < len(q.list) && q.list[q.head].d == nil; {
		q.head++
		q.base++
	}
	return bytes
}

func newAcks(ch acker) *acks { return &acks{ch: ch, freed: make(chan struct{}, 1)} }

const (
	// minWaiting is the least number of acknowledgements that wait for deliveries below. Fewer are written one by
	// one.
	minWaiting = 16
	// maxWait is how long they wait at most. If the process ends meanwhile, the broker delivers them again, as
	// after a lost connection.
	maxWait = 20 * time.Millisecond
)

// arrived notes d, with a body of so many bytes. It must be called for every one, in order.
func (a *acks) arrived(tag uint64, now time.Time, bytes int, d *waybill.Delivery) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unacked.add(tag, unacked{now, int64(bytes), d})
	a.bytes.Add(int64(bytes))
}

// ifSent calls do if n deliveries from tag first on are without an acknowledgement that was sent. Meanwhile none is
// sent.
func (a *acks) ifSent(first uint64, n int, do func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, u := range a.unacked.from(first) {
		if u.d != nil {
			n--
		}
	}
	for _, tag := range a.waiting {
		if tag >= first {
			n--
		}
	}
	if n == 0 {
		do()
	}
}

// left forgets a delivery. The caller holds mu.
func (a *acks) left(tag uint64) {
	a.bytes.Add(-a.unacked.remove(tag))
	select {
	case a.freed <- struct{}{}:
	default:
	}
}

// heldFor returns how many deliveries have been unacknowledged for at least d, and since when the oldest of all.
func (a *acks) heldFor(d time.Duration) (n int, oldest time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, u := range a.unacked.from(0) {
		if u.d == nil {
			continue
		}
		if oldest.IsZero() || u.since.Before(oldest) {
			oldest = u.since
		}
		if time.Since(u.since) >= d {
			n++
		}
	}
	return n, oldest
}

func (a *acks) ack(tag uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left(tag)
	return a.each([]uint64{tag})
}

func (a *acks) requeue(tag uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left(tag)
	return a.ch.Nack(tag, false, true)
}

// reject lets the broker dead-letter a delivery.
func (a *acks) reject(tag uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left(tag)
	return a.ch.Nack(tag, false, false)
}

// ackAll acknowledges tags: those below the first unacknowledged one with a single frame. If many are left, they wait
// for the deliveries below, together with those of earlier calls, for maxWait at most. While acknowledgements are held
// back (holdBack) all of them wait.
func (a *acks) ackAll(tags []uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, tag := range tags {
		a.left(tag)
	}
	waited := len(a.waiting) > 0
	tags = append(tags, a.waiting...)
	a.waiting = a.waiting[:0]
	if a.held != nil {
		a.waiting = append(a.waiting, tags...)
		return nil
	}
	tags, err := a.first(tags)
	if err != nil {
		return err
	}
	if len(tags) < minWaiting {
		return a.each(tags)
	}
	a.waiting = append(a.waiting, tags...)
	switch {
	case a.timer == nil:
		a.timer = time.AfterFunc(maxWait, func() { a.flush() })
	case !waited:
		a.timer.Reset(maxWait)
	}
	return nil
}

// first acknowledges the tags below every unacknowledged one by one frame, and returns the others, sorted.
func (a *acks) first(tags []uint64) ([]uint64, error) {
	slices.Sort(tags)
	if n := a.below(tags); n > 1 {
		return tags[n:], a.ch.Ack(tags[n-1], true)
	}
	return tags, nil
}

const (
	// holdBackFor is how long acknowledgements are held back at most: until the broker has sent all that it may, or
	// has nothing more. holdBackAgain is how long after that they are not held back again.
	holdBackFor   = 100 * time.Millisecond
	holdBackAgain = time.Second
)

// holdBack holds acknowledgements back until goOn, or for holdBackFor.
func (a *acks) holdBack() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held == nil && time.Since(a.inVain) >= holdBackAgain {
		a.held = time.AfterFunc(holdBackFor, func() { a.goOn(time.Now()) })
	}
}

// goOn lets acknowledgements out that were held back. InVain is when that was for nothing; zero = it was not.
func (a *acks) goOn(inVain time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held == nil {
		return
	}
	a.held.Stop()
	a.held, a.inVain = nil, inVain
	tags, err := a.first(a.waiting)
	a.waiting = nil
	if err == nil {
		_ = a.each(tags) // an error is that of a closed channel: the broker delivers them again
	}
}

// flush acknowledges what waits, and returns when a frame for one delivery was written for the last time. On a closed
// channel it does nothing: the broker delivers them again.
func (a *acks) flush() (singly time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	tags, _ := a.first(a.waiting)
	a.waiting = nil
	_ = a.each(tags)
	return a.singly
}

func (a *acks) each(tags []uint64) error {
	if len(tags) > 0 {
		a.singly = time.Now()
	}
	for _, tag := range tags {
		if err := a.ch.Ack(tag, false); err != nil {
			return err
		}
	}
	return nil
}

// below returns how many of tags, which are sorted, are below every unacknowledged one.
func (a *acks) below(tags []uint64) int {
	if a.unacked.n == 0 {
		return len(tags)
	}
	n, _ := slices.BinarySearch(tags, a.unacked.base)
	return n
}
