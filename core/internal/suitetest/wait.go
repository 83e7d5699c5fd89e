package suitetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/patience"
)

// Patience is how long a check waits for an event, from the last progress, on an idle machine.
const Patience = 10 * time.Second

// A Wait counts how long a check waits for an event. The check looks again and again, often at first and then less
// often. The zero value is ready to use.
//
//	for w := (suitetest.Wait{}); !ok(); {
//		if !w.Again(ctx) {
//			fail()
//		}
//	}
type Wait struct {
	// Limit is the time without progress after which the wait is over. It is [Patience] if it is 0. On a busy
	// machine it is longer.
	Limit time.Duration

	since time.Time // of the last progress
	rest  time.Duration
}

const (
	firstRest = 2 * time.Millisecond
	mostLooks = 40 // the longest rest is this part of the limit
)

// Moved says that something has moved: the limit counts from now.
func (w *Wait) Moved() { w.since, w.rest = time.Now(), 0 }

// Again rests a while, and returns true. It returns false if the wait is over, or if ctx has ended.
func (w *Wait) Again(ctx context.Context) bool {
	limit := w.Limit
	limit = cmp.Or(limit, Patience)
	limit = patience.For(limit)
	if w.since.IsZero() {
		w.Moved()
	}
	if time.Since(w.since) > limit {
		return false
	}
	w.rest = min(max(firstRest, w.rest*3/2), limit/mostLooks)
	t := time.NewTimer(w.rest)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Come waits until ch has a value, and returns it; false if none came in time.
func Come[T any](ch <-chan T) (T, bool) { return ComeWithin(ch, patience.For(Patience)) }

// ComeWithin is Come with another limit.
func ComeWithin[T any](ch <-chan T, limit time.Duration) (T, bool) {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case v := <-ch:
		return v, true
	case <-t.C:
		return *new(T), false
	}
}

// Each returns what fn makes of each of all.
func Each[T, U any](all []T, fn func(of *T) U) []U {
	out := make([]U, len(all))
	for i := range all {
		out[i] = fn(&all[i])
	}
	return out
}

// Names replaces ids by their numbers among all, for messages that people can read.
func Names(ids, all []string) string {
	const most = 50
	var out []int
	for _, id := range ids[:min(len(ids), most)] {
		out = append(out, slices.Index(all, id))
	}
	if len(ids) > most {
		return fmt.Sprintf("%v and %d more", out, len(ids)-most)
	}
	return fmt.Sprint(out)
}
