package rabbitmq

import (
	"slices"
	"sync"
)

// acker is the part of a channel that settles.
type acker interface {
	Ack(tag uint64, multiple bool) error
	Nack(tag uint64, multiple, requeue bool) error
}

// acks settles the deliveries of one channel. It knows which of them are not settled, so that a batch can be acknowledged with one frame: basic.ack
// with multiple means every delivery up to the tag, so it is sent only if nothing else below is open.
type acks struct {
	ch acker

	mu   sync.Mutex // held while writing: what another call is about to settle counts as open until its frame was written
	open map[uint64]struct{}
}

// shareOfOpen bounds the search for open deliveries: with more of them for each one to settle, single frames cost less.
const shareOfOpen = 16

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

// ackAll acknowledges tags, which it sorts: those below the first other open one with a single frame.
func (a *acks) ackAll(tags []uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	slices.Sort(tags)
	for _, tag := range tags {
		delete(a.open, tag)
	}
	n := a.below(tags)
	if n > 1 {
		if err := a.ch.Ack(tags[n-1], true); err != nil {
			return err
		}
		tags = tags[n:]
	}
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
