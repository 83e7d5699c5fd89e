package kafka

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A call that ended without a result is followed by another one for the same messages. The brokers can store the record
// between the two calls. So the transport remembers such results for lateFor, at most maxLate of them.
const (
	lateFor = time.Minute
	maxLate = 100_000
)

// lateResults are records that were stored after their calls had ended. The caller has a lock.
type lateResults struct {
	by  map[string]late // by message id
	old []lateID        // in the order in which they came; those that were taken stay until their time
}

type late struct {
	sum [sha256.Size]byte // of the record
	at  time.Time
}

type lateID struct {
	id string
	at time.Time
}

// add remembers that a record was stored.
func (l *lateResults) add(id string, rec *kgo.Record, now time.Time) {
	l.expire(now)
	if len(l.old) >= maxLate {
		return
	}
	if l.by == nil {
		l.by = map[string]late{}
	}
	l.by[id] = late{sumOf(rec), now}
	l.old = append(l.old, lateID{id, now})
}

// take reports whether the same record was stored, and forgets the result.
func (l *lateResults) take(id string, rec *kgo.Record, now time.Time) bool {
	l.expire(now)
	found, ok := l.by[id]
	delete(l.by, id)
	return ok && found.sum == sumOf(rec)
}

// expire forgets the results whose time is over, in constant time for each.
func (l *lateResults) expire(now time.Time) {
	n := 0
	for n < len(l.old) && now.Sub(l.old[n].at) > lateFor {
		if x := l.old[n]; l.by[x.id].at.Equal(x.at) {
			delete(l.by, x.id)
		}
		n++
	}
	if l.old = l.old[n:]; len(l.old) == 0 {
		l.old = nil
	}
}

// sumOf returns a digest of all that sameRecord compares.
func sumOf(rec *kgo.Record) [sha256.Size]byte {
	h := sha256.New()
	for _, part := range [][]byte{rec.Key, rec.Value} {
		_, _ = fmt.Fprintf(h, "%d ", len(part))
		_, _ = h.Write(part)
	}
	_, _ = fmt.Fprint(h, len(rec.Headers))
	return [sha256.Size]byte(h.Sum(nil))
}

func sameRecord(a, b *kgo.Record) bool {
	return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value) && len(a.Headers) == len(b.Headers)
}
