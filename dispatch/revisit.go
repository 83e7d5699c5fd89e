package dispatch

import (
	"cmp"
	"container/heap"
	"time"

	"github.com/waybill-go/waybill/core"
)

// A record that another session holds, or that a transaction has locked, cannot go now, and no call tells when it can.
// So it waits here, outside the window, and a Read asks about it by its number (addRechecks, takeRevisits). The pause
// is a second for a held record. For a locked one it begins at 0.1 s and doubles.

const (
	// againAfter is when to read a record again that another session holds.
	againAfter = time.Second
	// lockedAfter is when to ask again for a record that was locked. It doubles up to a second. When many are
	// locked, it doubles up to lockedPace for each, so that they cost little beside the others.
	lockedAfter = 100 * time.Millisecond
	lockedPace  = 500 * time.Microsecond
	// maxDoubled is how often it doubles.
	maxDoubled = 12
)

// revisit is a record that another session holds, or that was locked, or about which an operator has decided. It is
// read again. It takes no place in the window meanwhile: it can be long until it is free.
type revisit struct {
	ref  core.Ref
	slot uint8
	key  string
	at   time.Time
	// locked: a transaction has locked it. tries is how often it was found so.
	locked bool
	tries  int
	// decision is an operator's decision, if that is the reason.
	decision *core.Notice
	place    int // the index in revisits.line
}

// revisits are the records of a route that are read again.
type revisits struct {
	bySeq  map[int64]*revisit // by sequence: all of them
	line   revisitLine        // the same, by the time of their next read
	locked int                // how many are locked
	freed  time.Time          // when unlocked had the locked ones read at once for the last time
	tries  map[int64]int      // by sequence: how often a record that left bySeq was locked; newItem takes it over
}

// revisitLine is a heap: the next one is first.
type revisitLine []*revisit

func (l revisitLine) Len() int { return len(l) }
func (l revisitLine) Less(i, j int) bool {
	return cmp.Or(l[i].at.Compare(l[j].at), cmp.Compare(l[i].ref.Seq, l[j].ref.Seq)) < 0
}
func (l revisitLine) Swap(i, j int) { l[i], l[j] = l[j], l[i]; l[i].place, l[j].place = i, j }
func (l *revisitLine) Push(v any) {
	r := v.(*revisit) //nolint:forcetypeassert // nothing else is in it
	r.place = len(*l)
	*l = append(*l, r)
}

func (l *revisitLine) Pop() any {
	last := len(*l) - 1
	r := (*l)[last]
	(*l)[last] = nil
	*l = (*l)[:last]
	return r
}

// add has a record read again, in place of an earlier visit of it.
func (rs *revisits) add(v *revisit) {
	rs.remove(v.ref.Seq)
	rs.bySeq[v.ref.Seq] = v
	heap.Push(&rs.line, v)
	if v.locked {
		rs.locked++
	}
}

func (rs *revisits) remove(seq int64) {
	v := rs.bySeq[seq]
	if v == nil {
		return
	}
	delete(rs.bySeq, seq)
	heap.Remove(&rs.line, v.place)
	if v.locked {
		rs.locked--
	}
}

// next returns when the next one is to be read; zero = there is none.
func (rs *revisits) next() time.Time {
	if len(rs.line) == 0 {
		return time.Time{}
	}
	return rs.line[0].at
}

// put sets when a record is read again.
func (rs *revisits) put(v *revisit, at time.Time) {
	v.at = at
	heap.Fix(&rs.line, v.place)
}

// visit schedules another read of a record, unless a decision has scheduled one.
func (rt *route) visit(v *revisit) {
	if old := rt.revisits.bySeq[v.ref.Seq]; old == nil || old.decision == nil {
		rt.revisits.add(v)
	}
}

// visitLater schedules another read of a record that another session holds.
func (rt *route) visitLater(ref core.Ref, slot uint8, name string) {
	if rt.revisits.bySeq[ref.Seq] == nil && !rt.forAnyMember(name) {
		rt.revisits.add(&revisit{ref: ref, slot: slot, key: name, at: rt.now.Add(againAfter)})
	}
}

// visitLocked schedules another read of a record that was locked.
func (rt *route) visitLocked(item *Item) {
	most := max(time.Second, lockedPace*time.Duration(rt.revisits.locked))
	rt.visit(&revisit{
		ref: item.Record.Ref, slot: item.Record.Slot, key: item.Record.Envelope.Key, locked: true, tries: item.tries + 1,
		at: rt.now.Add(min(lockedAfter<<min(item.tries, maxDoubled), most)),
	})
}

// isLocked reports whether a record was locked a short while ago, so that it is not tried yet.
func (rt *route) isLocked(rec *core.Record) bool {
	v := rt.revisits.bySeq[rec.Seq]
	return v != nil && v.locked && v.ref.Version == rec.Version
}

// unlocked notes that a record that was locked is free. Its transaction has ended, perhaps, so that others are free,
// too: they are read soon.
func (rt *route) unlocked() {
	rs := &rt.revisits
	if rs.locked == 0 || rt.now.Sub(rs.freed) < time.Second {
		return
	}
	rs.freed = rt.now
	for _, v := range rs.line {
		if v.locked && v.at.After(rt.now) {
			v.at = rt.now
		}
	}
	heap.Init(&rs.line)
}
