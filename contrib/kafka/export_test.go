package kafka

import (
	"context"
	"runtime"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Encode is encode.
var Encode = encode

// Decode is decode.
var Decode = decode

// Classify is classify.
func Classify(err error) error { return classify("test", err) }

// MaxMetadata is maxMetadata.
const MaxMetadata = maxMetadata

// HeldBytes returns how many fetched bytes so many partitions of a bus hold when all of them are full.
func HeldBytes(partitions int32) (n int) {
	r := &receiver{positions: map[at]*position{}}
	for i := range partitions {
		r.positions[at{"bus", i}] = &position{}
	}
	for _, p := range r.positions {
		for !r.full(p) {
			p.bytes += 1 << 10
		}
		n += p.bytes
	}
	return n
}

// Position is a position that a test moves.
type Position struct{ p position }

// Restored returns the position that a commit restores.
func Restored(offset int64, metadata string) (*Position, error) {
	x := &Position{}
	return x, x.p.restore(offset, metadata)
}

// Next is the offset that the position expects.
func (x *Position) Next() int64 { return x.p.next }

// Commit returns the offset and the metadata of a commit.
func (x *Position) Commit() (offset int64, metadata string) { return x.p.commit() }

// Fetch takes a record, and reports whether it is to be handed out.
func (x *Position) Fetch(offset int64) bool {
	x.p.fetched(&kgo.Record{Offset: offset}, 0)
	i, ok := x.p.find(offset)
	return ok && x.p.entries[i].record != nil
}

// HandOut hands a message out, if there is room, and returns how often that was done before.
func (x *Position) HandOut(offset int64) (before int, ok bool) {
	i, _ := x.p.find(offset)
	e := x.p.entries[i]
	before = e.count
	return before, x.p.handOut(e)
}

// PutBack undoes HandOut.
func (x *Position) PutBack(offset int64) {
	i, _ := x.p.find(offset)
	x.p.putBack(x.p.entries[i])
}

// Done settles a message, or skips it.
func (x *Position) Done(offset int64) {
	i, _ := x.p.find(offset)
	x.p.done(x.p.entries[i])
}

// LateFor is how long late results are remembered.
const LateFor = lateFor

// LateResults are the transport's.
type LateResults struct{ own lateResults }

func (l *LateResults) Add(id, body string, at time.Time) {
	l.own.add(id, &kgo.Record{Value: []byte(body)}, at)
}

func (l *LateResults) Take(id, body string, at time.Time) bool {
	return l.own.take(id, &kgo.Record{Value: []byte(body)}, at)
}

// Len returns how many results are remembered, and the length of their order.
func (l *LateResults) Len() (by, old int) { return len(l.own.by), len(l.own.old) }

// WaitForJoin waits until so many calls wait for the result of a message.
func WaitForJoin(ctx context.Context, t *Transport, id string, calls int) {
	poll(ctx, t, func() bool { return t.flights[id] != nil && t.flights[id].waits >= calls })
}

// WaitForFlights waits until the client holds no record with an id.
func WaitForFlights(ctx context.Context, t *Transport) {
	poll(ctx, t, func() bool { return len(t.flights) == 0 })
}

// Buffered returns how many records the client holds.
func Buffered(t *Transport) int64 { return t.client.BufferedProduceRecords() }

func poll(ctx context.Context, t *Transport, done func() bool) {
	for ctx.Err() == nil {
		t.mu.Lock()
		ok := done()
		t.mu.Unlock()
		if ok {
			return
		}
		runtime.Gosched()
	}
}
