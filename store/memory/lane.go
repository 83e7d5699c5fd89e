package memory

import (
	"cmp"
	"container/heap"
	"time"

	"github.com/waybill-go/waybill/core"
)

// record is a stored message. A live one is either ready (claimable as far as time is concerned) or in its lane's
// timers (scheduled, waiting for a retry, or leased).
type record struct {
	env   core.Envelope
	route string
	seq   int64

	state      core.State
	failed     bool // an attempt failed before
	attempts   int
	crashes    int
	token      int64     // of the current claim; 0 = none
	session    int64     // of the current claim; 0 = none
	due        time.Time // claimable from then on; the lease's end while processing
	since      time.Time // when it first became due
	reason     core.Reason
	lastErr    string
	errAt      time.Time
	owner      string    // of the latest claim
	settledAt  time.Time // when it became terminal
	unreadable error     // what Claim reports in Record.Err
	dedupe     string
	maybe      bool // it may have arrived: the result of an earlier try is unknown
	reserved   *Tx  // the running transaction that withdraws it

	ready  bool
	joined bool // it has been due, so while it waits its key waits
	timer  int  // place in the lane's timers; -1 = none
}

// suspectNow reports whether taking r over or claiming it must happen alone. A processing record that is asked about
// has an expired lease, which this claim would count.
func (r *record) suspectNow() bool {
	n := r.crashes
	if r.state == core.StateProcessing {
		n++
	}
	return n >= core.SuspectCrashes
}

func bySeq(a, b *record) int { return cmp.Compare(a.seq, b.seq) }

func byHLC(a, b *record) int {
	return cmp.Or(cmp.Compare(a.env.HLC, b.env.HLC), cmp.Compare(a.seq, b.seq))
}

func bySince(a, b *record) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.seq, b.seq)) }

// keyQueue is what is known of one ordering key of a lane.
type keyQueue struct {
	name      string
	ready     ordered[*record] // by sequence
	holds     int              // leased records and those waiting after a claim: the key is closed while there are any
	own       int              // of these, those that holder leased: if these are all, the key is open to it
	holder    int64            // a session
	top       int64            // greatest sequence that is, or was lately, held
	abandoned int
	listed    bool  // in lane.heads
	head      int64 // sequence of the first ready one, as listed
}

// lane is one route.
type lane struct {
	name     string
	live     map[int64]*record // leased, waiting and ready ones, by sequence
	keys     map[string]*keyQueue
	heads    ordered[*keyQueue]   // keys with something ready that are open, to some session at least, by head
	unkeyed  ordered[*record]     // ready ones without a key, by sequence
	ready    ordered[*record]     // all ready ones, by sequence
	hlc      *ordered[*record]    // all ready ones, by stamp; nil until a claim asks for it
	suspects ordered[*record]     // ready suspects, by sequence
	aged     [2]ordered[*record]  // ready pending [0] and failed [1] ones, by age
	counts   map[core.State]int64 // of all records, terminal ones that are kept too
	timers   timers
	version  uint64 // grows when something may have become claimable
	seen     uint64 // the version at the last claim that left nothing
}

func newLane(name string) *lane {
	l := &lane{name: name, live: map[int64]*record{}, keys: map[string]*keyQueue{}, counts: map[core.State]int64{}}
	l.heads.cmp = func(a, b *keyQueue) int { return cmp.Compare(a.head, b.head) }
	l.unkeyed.cmp, l.ready.cmp, l.suspects.cmp = bySeq, bySeq, bySeq
	l.aged[0].cmp, l.aged[1].cmp = bySince, bySince
	return l
}

// add takes in a new or requeued record.
func (l *lane) add(r *record, now time.Time) {
	l.live[r.seq] = r
	l.counts[r.state]++
	l.place(r, now)
}

// drop takes r out of the live ones; its state stays counted if it is kept.
func (l *lane) drop(r *record) {
	delete(l.live, r.seq)
	if r.state == core.StatePublished {
		l.counts[r.state]--
	}
	if r.state == core.StateAbandoned && r.env.Key != "" && r.reason.Blocks() {
		l.key(r.env.Key).abandoned++
	}
}

func (l *lane) setState(r *record, s core.State) {
	l.counts[r.state]--
	l.counts[s]++
	r.state = s
}

// place puts r where its due time says. It must not be in any list.
func (l *lane) place(r *record, now time.Time) {
	if r.due.After(now) {
		heap.Push(&l.timers, r)
		if r.joined && r.env.Key != "" {
			k := l.key(r.env.Key)
			k.hold(r)
			l.refresh(k)
		}
		return
	}
	r.ready, r.joined = true, true
	l.ready.insert(r)
	if l.hlc != nil {
		l.hlc.insert(r)
	}
	if r.suspectNow() {
		l.suspects.insert(r)
	}
	if a := l.age(r); a != nil {
		a.insert(r)
	}
	if r.env.Key == "" {
		l.unkeyed.insert(r)
		return
	}
	k := l.key(r.env.Key)
	k.ready.insert(r)
	l.refresh(k)
}

// unplace takes r out of all lists. It must be called before r's state changes.
func (l *lane) unplace(r *record) {
	var k *keyQueue
	if r.env.Key != "" {
		k = l.key(r.env.Key)
		defer l.refresh(k)
	}
	if !r.ready {
		if r.timer >= 0 {
			heap.Remove(&l.timers, r.timer)
		}
		if k != nil && r.joined {
			k.letGo(r)
		}
		return
	}
	r.ready = false
	l.ready.remove(r)
	if l.hlc != nil {
		l.hlc.remove(r)
	}
	l.suspects.remove(r)
	if a := l.age(r); a != nil {
		a.remove(r)
	}
	if k == nil {
		l.unkeyed.remove(r)
	} else {
		k.ready.remove(r)
	}
}

func (l *lane) age(r *record) *ordered[*record] {
	switch r.state {
	case core.StatePending:
		return &l.aged[0]
	case core.StateFailed:
		return &l.aged[1]
	case core.StateNone, core.StateProcessing, core.StatePublished, core.StateAbandoned:
	}
	return nil
}

func (l *lane) key(name string) *keyQueue {
	k := l.keys[name]
	if k == nil {
		k = &keyQueue{name: name}
		k.ready.cmp = bySeq
		l.keys[name] = k
	}
	return k
}

// hold notes that r is leased or waits.
func (k *keyQueue) hold(r *record) {
	if k.holds == 0 {
		k.holder, k.top = r.session, 0
	}
	k.holds++
	k.top = max(k.top, r.seq)
	if r.session != 0 && r.session == k.holder {
		k.own++
	}
}

// letGo undoes hold. It must be called before r's session changes.
func (k *keyQueue) letGo(r *record) {
	k.holds--
	if r.session != 0 && r.session == k.holder {
		k.own--
	}
}

// open reports whether session may claim the first ready record of k. What the session itself holds does not matter,
// unless it comes later: then the first one was put back, and what follows is about to be.
func (k *keyQueue) open(session int64) bool {
	return k.ready.len() > 0 && (k.holds == 0 || k.shared() && k.holder == session && k.top < k.ready.at(0).seq)
}

// shared reports whether one session holds all that is held.
func (k *keyQueue) shared() bool { return k.holds == k.own }

// refresh lists k among the heads, or not, as it now is.
func (l *lane) refresh(k *keyQueue) {
	if k.listed {
		l.heads.remove(k)
	}
	k.listed = k.ready.len() > 0 && k.shared()
	if k.listed {
		k.head = k.ready.at(0).seq
		l.heads.insert(k)
	} else if k.ready.len() == 0 && k.holds == 0 && k.abandoned == 0 {
		delete(l.keys, k.name)
	}
}

// promote makes ready what has become due.
func (l *lane) promote(now time.Time) {
	for len(l.timers) > 0 && !l.timers[0].due.After(now) {
		r := l.timers[0]
		l.unplace(r)
		l.place(r, now)
	}
}

// byStamp returns the ready ones in HLC order.
func (l *lane) byStamp() *ordered[*record] {
	if l.hlc == nil {
		l.hlc = &ordered[*record]{cmp: byHLC}
		for i := range l.ready.len() {
			l.hlc.insert(l.ready.at(i))
		}
	}
	return l.hlc
}

// nextTimer returns the time until the next timer if that is sooner than soonest (negative: none).
func (l *lane) nextTimer(soonest time.Duration, now time.Time) time.Duration {
	if len(l.timers) == 0 {
		return soonest
	}
	d := max(l.timers[0].due.Sub(now), 0)
	if soonest >= 0 {
		d = min(d, soonest)
	}
	return d
}

// timers is a heap of records by due time.
type timers []*record

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].due.Before(t[j].due) }

func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].timer, t[j].timer = i, j
}

func (t *timers) Push(x any) {
	r := x.(*record) //nolint:forcetypeassert // only records are pushed
	r.timer = len(*t)
	*t = append(*t, r)
}

func (t *timers) Pop() any {
	last := len(*t) - 1
	r := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	r.timer = -1
	return r
}
