package rabbitmq

import (
	"slices"
	"sync"
	"time"
)

// acker is the part of a channel that settles.
type acker interface {
	Ack(tag uint64, multiple bool) error
	Nack(tag uint64, multiple, requeue bool) error
}

// acks settles the deliveries of one channel. It knows which of them are not settled, so that a batch can be
// acknowledged with one frame: basic.ack with multiple means every delivery up to the tag, so it is sent only if
// nothing else below is open. A batch that ended before an earlier one waits for it a moment.
type acks struct {
	ch acker

	mu    sync.Mutex // held while writing: what another call is about to settle counts as open until its frame was written
	open  map[uint64]struct{}
	late  []uint64 // of batches: done, and something below is open
	timer *time.Timer
}

const (
	// shareOfOpen bounds the search for open deliveries: with more of them for each one to settle, single frames cost
	// less.
	shareOfOpen = 16
	// minLate is from how many acknowledgements on it is worth to wait for what is below.
	minLate = 16
	// lateTime is how long they wait at most. What they lose if the process ends meanwhile comes again, as after a lost
	// connection.
	lateTime = 20 * time.Millisecond
)

// arrived notes a delivery. It must be called for every one, in order.
func (a *acks) arrived(tag uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open[tag] = struct{}{}
}

func (a *acks) ack(tag uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, tag)
	return a.ch.Ack(tag, false)
}

func (a *acks) requeue(tag uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, tag)
	return a.ch.Nack(tag, false, true)
}

// ackAll acknowledges tags: those below the first other open one with a single frame. If many are left, they wait for
// what is below.
func (a *acks) ackAll(tags []uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, tag := range tags {
		delete(a.open, tag)
	}
	waited := len(a.late) > 0
	tags = append(tags, a.late...)
	a.late = a.late[:0]
	slices.Sort(tags)
	if n := a.below(tags); n > 1 {
		if err := a.ch.Ack(tags[n-1], true); err != nil {
			return err
		}
		tags = tags[n:]
	}
	if len(tags) < minLate {
		return a.each(tags)
	}
	a.late = append(a.late, tags...)
	switch {
	case a.timer == nil:
		a.timer = time.AfterFunc(lateTime, func() { a.flush() })
	case !waited:
		a.timer.Reset(lateTime)
	}
	return nil
}

// flush acknowledges what waits, and returns how many these were. It fails with the channel, whose deliveries come
// again.
func (a *acks) flush() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	tags := a.late
	a.late = nil
	_ = a.each(tags)
	return len(tags)
}

func (a *acks) each(tags []uint64) error {
	for _, tag := range tags {
		if err := a.ch.Ack(tag, false); err != nil {
			return err
		}
	}
	return nil
}

// below returns how many of tags, which are sorted and no longer open, are below every open one.
func (a *acks) below(tags []uint64) int {
	if len(tags) < 2 || len(a.open) > shareOfOpen*len(tags) {
		return 0
	}
	first := tags[len(tags)-1] + 1
	for tag := range a.open {
		first = min(first, tag)
	}
	n, _ := slices.BinarySearch(tags, first)
	return n
}
