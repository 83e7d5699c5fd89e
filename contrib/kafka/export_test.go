package kafka

import "github.com/twmb/franz-go/pkg/kgo"

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
