package consumer

import (
	"cmp"
	"slices"
	"time"
)

// A ready message becomes a job, and a worker runs the job. Each time that something changes (a message arrives, a job
// ends, a verdict is stored, a permit comes) the runner asks next under its lock. next looks at all limits and waits
// for none: a message that may not begin stays where it is, and the pick says when to look again. A job that next
// returns counts as running until done.

// batching stands between the schedule and the workers. It makes jobs of ready deliveries: one delivery, or a batch for
// one handler. The runner's mu guards it.
type batching struct {
	schedule
	load    load
	limit   int   // how many jobs run at a time
	running int   // how many run; a batch counts once, whatever its size
	gate    *gate // nil without a limit over all processes
}

// load is what a subscription has in hand.
type load struct {
	prefetch  int   // how many it may hold
	held      int   // received and not settled
	unsettled int   // decided and not settled
	locked    int   // of them that another program has locked
	heldBytes int64 // of the bodies of the held ones
	adaptive
	kept   kept   // those that must be renewed; see renew.go
	blames blames // those that are to blame for outages; see blame.go
}

// job is what a worker handles. The zero job is none.
type job struct {
	lead  *message
	batch *batch // all that is handled together, including lead; nil if lead goes alone
}

// none reports whether there is nothing to do.
func (j job) none() bool { return j.lead == nil }

// pick is what batching decides.
type pick struct {
	job     job        // what to run now; it counts as running
	release []*message // messages to release before a suspect can run alone
	again   time.Time  // when to look again: a batch fills until then; zero = not
}

// next decides what to run. The oldest ready message goes first, unless its batch waits to fill. The questions, in
// order:
//
//  1. A worker must be free, and no suspect may run.
//  2. Groups at their limit take their messages out of the way (sift).
//  3. The shared limit must have a permit (gate).
//  4. A batch may wait to fill (eligible).
//  5. A suspect runs when nothing else runs and everything is settled: if it ends the process, the broker counts a
//     delivery for each message that is not. The messages that wait go back before (release).
func (b *batching) next() pick {
	if b.ready.len() == 0 && b.groups == nil || b.alone || b.running >= b.limit {
		return pick{}
	}
	var again time.Time
	if b.groups != nil {
		if again = b.sift(); b.ready.len() == 0 || b.suspectWaits(&again) {
			return pick{again: again}
		}
	}
	if b.gate != nil && !b.gate.open(b.running) {
		return pick{again: again}
	}
	at, again := b.eligible()
	if at < 0 {
		return pick{again: again}
	}
	lead := b.ready.list[at]
	if lead != nil {
		b.ready.remove(at)
		return pick{job: b.begin(lead)}
	}
	if b.running > 0 || b.load.unsettled > 0 {
		return pick{}
	}
	suspect, others := b.isolate(at)
	if !b.alone {
		return pick{release: others}
	}
	return pick{job: b.begin(suspect)}
}

// eligible returns the index in ready of a message that may run now: the first one that need not wait for its batch to
// fill. If there is none it returns -1, and when to look again.
func (b *batching) eligible() (at int, again time.Time) {
	if first := b.ready.peek(); first == nil || first.h.wait == 0 {
		return b.ready.head, again
	}
	now := time.Now()
	for at := b.ready.head; at < len(b.ready.list); at++ {
		m := b.ready.list[at]
		if m == nil || m.h.wait == 0 || m.h.waiting >= m.h.size || b.free() == 0 {
			return at, again
		}
		end := m.since.Add(m.h.wait)
		if !end.After(now) {
			return at, again
		}
		if again.IsZero() || end.Before(again) {
			again = end
		}
	}
	return -1, again
}

// begin makes a job of lead, which was taken out, and of the messages that may be handled with it. A batch of one is
// none: it goes the ordinary way.
func (b *batching) begin(lead *message) job {
	b.running++
	lead.h.waiting--
	if b.groups != nil {
		b.comeBack(b.groups.began(lead, time.Now()))
	}
	size := lead.h.size
	if b.gate != nil {
		size = b.gate.room(size)
		b.gate.use(1)
	}
	if lead.h.batch == nil || lead.suspect || lead.h.waiting == 0 || size == 1 {
		return job{lead: lead}
	}
	members := b.collect(lead, size)
	if b.gate != nil {
		b.gate.use(len(members) - 1)
	}
	if len(members) == 1 {
		return job{lead: lead}
	}
	return job{lead: lead, batch: newBatch(members)}
}

// collect returns lead and, up to size in all, the messages that may be handled with it, in the order of arrival. These
// are the ready messages for the same handler, and those behind each of them in its key for that handler.
func (b *batching) collect(lead *message, size int) []*message {
	h := lead.h
	members := append(make([]*message, 0, min(size, h.waiting+1)), lead)
	members = b.follow(members, lead, size)
	if len(members) < size {
		kept := b.ready.list[b.ready.head:b.ready.head]
		for _, m := range b.ready.list[b.ready.head:] {
			if len(members) == size || m == nil || m.h != h {
				kept = append(kept, m)
				continue
			}
			h.waiting--
			members = b.follow(append(members, m), m, size)
		}
		b.ready.cut(b.ready.head + len(kept))
	}
	slices.SortFunc(members, func(x, y *message) int { return cmp.Compare(x.seq, y.seq) })
	return members
}

// follow appends to members the messages behind m that are for the same handler, if there is room.
func (b *batching) follow(members []*message, m *message, size int) []*message {
	h, key := m.h, m.key()
	if key == "" {
		return members
	}
	q := b.keys[key]
	n := 0
	for n < len(q.behind) && len(members) < size && q.behind[n].h == h && !q.behind[n].suspect {
		members = append(members, q.behind[n])
		q.behind[n] = nil
		n++
	}
	if n > 0 {
		h.waiting -= n
		b.behind -= n
		q.behind = q.behind[n:]
		b.keys[key] = q
	}
	return members
}

// done ends a job, and makes the messages behind its deliveries ready. A delivery that waits for its retry in place
// keeps its key, and so does one whose verdict is being stored: afterSettle goes on with that key. done reports
// whether a delivery is held.
func (b *batching) done(j job) (held bool) {
	b.running--
	if b.gate != nil {
		b.gate.ended(b.running)
	}
	if b.groups != nil {
		b.comeBack(b.groups.ended(j.lead, time.Now()))
	}
	if j.batch == nil {
		if j.lead.suspect {
			b.alone, j.lead.suspect = false, false // if it waits for a retry, it has not ended the process
		}
		if held = b.isDelayed(j.lead); !held && !j.lead.storing {
			b.advance(j.lead)
		}
		return held
	}
	for n, m := range j.batch.members {
		if j.batch.states[n] == memberEnded {
			b.advance(m)
		} else {
			held = true
		}
	}
	return held
}

// holdMember takes member n, which is held or whose verdict is being stored, out of its batch. Later members of its key
// go back behind it.
func (b *batching) holdMember(t *batch, n int) {
	t.states[n] = memberTakenOut
	b.putBack(t.members[n], t.takeOut(n))
}

// batch is what is handled together. It belongs to its worker.
type batch struct {
	members []*message    // in the order of arrival
	states  []memberState // of the members, in their order
}

// memberState is the progress of a member of a batch.
type memberState uint8

const (
	memberOpen     memberState = iota // not decided yet
	memberEnded                       // settled
	memberTakenOut                    // in the schedule again: it keeps its key, or waits behind one that does
)

func newBatch(members []*message) *batch {
	return &batch{members: members, states: make([]memberState, len(members))}
}

// open reports whether member n is not decided yet.
func (t *batch) open(n int) bool { return t.states[n] == memberOpen }

// takeOut takes the open members behind member n that have its key out of the batch.
func (t *batch) takeOut(n int) []*message {
	key := t.members[n].key()
	if key == "" {
		return nil
	}
	var left []*message
	for i, m := range t.members {
		if i > n && t.open(i) && m.key() == key {
			t.states[i] = memberTakenOut
			left = append(left, m)
		}
	}
	return left
}
