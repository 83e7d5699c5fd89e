package memory

import (
	"iter"
	"math"
	"slices"
	"sort"
)

// chunkSize bounds the entries that an insertion moves.
const chunkSize = 256

// entry is a record at its place in an index: by at, then by seq. In indexes by sequence alone at is zero.
type entry struct {
	at, seq int64
	r       *record
}

func (e *entry) before(at, seq int64) bool { return e.at < at || e.at == at && e.seq < seq }

// index is an ordered list of records, cut into chunks so that it can be long. No chunk is empty.
type index struct{ chunks [][]entry }

func (x *index) empty() bool { return len(x.chunks) == 0 }

// find returns where the first entry at or behind (at, seq) is, and whether it is exactly there.
func (x *index) find(at, seq int64) (c, i int, exact bool) {
	c = sort.Search(len(x.chunks), func(c int) bool {
		chunk := x.chunks[c]
		return !chunk[len(chunk)-1].before(at, seq)
	})
	if c == len(x.chunks) {
		return c, 0, false
	}
	chunk := x.chunks[c]
	i = sort.Search(len(chunk), func(i int) bool { return !chunk[i].before(at, seq) })
	return c, i, chunk[i].at == at && chunk[i].seq == seq
}

// insert adds a record. Another one at the same place is a fault of the caller; it is replaced.
func (x *index) insert(at, seq int64, r *record) {
	c, i, exact := x.find(at, seq)
	e := entry{at, seq, r}
	last := len(x.chunks) - 1
	switch {
	case exact:
		x.chunks[c][i] = e
	case c <= last:
		chunk := slices.Insert(x.chunks[c], i, e)
		x.chunks[c] = chunk
		if len(chunk) > chunkSize {
			half := slices.Clone(chunk[chunkSize/2:])
			clear(chunk[chunkSize/2:])
			x.chunks[c] = chunk[:chunkSize/2]
			x.chunks = slices.Insert(x.chunks, c+1, half)
		}
	case last >= 0 && len(x.chunks[last]) < chunkSize:
		x.chunks[last] = append(x.chunks[last], e)
	default:
		x.chunks = append(x.chunks, []entry{e})
	}
}

// remove takes out the record at (at, seq), if there is one.
func (x *index) remove(at, seq int64) {
	c, i, exact := x.find(at, seq)
	if !exact {
		return
	}
	switch chunk := x.chunks[c]; {
	case len(chunk) == 1:
		x.chunks = slices.Delete(x.chunks, c, c+1)
	case i == 0:
		chunk[0] = entry{}
		x.chunks[c] = chunk[1:]
	default:
		x.chunks[c] = slices.Delete(chunk, i, i+1)
	}
}

// after yields the records behind (at, seq) in order. The index must not be changed meanwhile.
func (x *index) after(at, seq int64) iter.Seq[*record] {
	return func(yield func(*record) bool) {
		c, i, exact := x.find(at, seq)
		if exact {
			i++
		}
		for ; c < len(x.chunks); c, i = c+1, 0 {
			for _, e := range x.chunks[c][i:] {
				if !yield(e.r) {
					return
				}
			}
		}
	}
}

// all yields every record in order, as after does.
func (x *index) all() iter.Seq[*record] { return x.after(math.MinInt64, math.MinInt64) }

// first returns the first record, or nil.
func (x *index) first() *record {
	if x.empty() {
		return nil
	}
	return x.chunks[0][0].r
}
