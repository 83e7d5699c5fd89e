package consumer

import (
	"container/heap"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
)

// The limit of a group holds within one process. A message of a group is in one of these places, from the top to the
// bottom:
//
//   place                | left when
//   ---------------------|---------------------------------------------------------------------
//   ready                | it may begin, or its group is at its limit (admits)
//   waiting in its group | the group has room, and no other message of it is woken (next)
//   woken                | it begins: it stands in front of the ready ones, and has a place
//   running              | its job ends (ended)
//
// A group is forgotten when none of its messages is held and its rate has recovered.

// groups applies a [waybill.GroupLimit]. A ready message whose group is at its limit waits in its group, and comes back
// to the front of the ready ones when the limit lets it. Only groups with messages that run or wait are known, and
// those whose rate has not recovered yet. The runner's mu guards it.
type groups struct {
	by      func(d *waybill.Delivery) string
	most    int  // how many of a group run at a time; 0 = unbounded
	pace    pace // none = unbounded
	known   map[string]*group
	timed   timedGroups // those that wait for their time
	waiting int         // messages that wait in their groups
}

// group is the messages of one name. At most one of them is woken: it stands in front of the ready ones, and has a
// place. The next one is woken when that one has begun.
type group struct {
	name    string
	running int       // messages that run
	waiting fifo      // messages that the limit stops, in the order of arrival
	woken   bool      // one of its messages is ready, and has a place
	next    time.Time // the next free place of its rate
	wake    time.Time // when to look at it again
	at      int       // its index in timed; -1 = not there
}

// place is a message's in its group.
type place struct {
	group string
	woken bool // it waited, and may begin now
}

// newGroups returns the groups of a completed limit; nil without a limit.
func newGroups(l *waybill.GroupLimit) *groups {
	if l.Concurrency == 0 && l.Rate == 0 {
		return nil
	}
	g := &groups{by: l.By, most: l.Concurrency, known: map[string]*group{}}
	if l.Rate > 0 {
		g.pace = newPace(l.Rate, l.Burst)
	}
	return g
}

// byTenant is the default of GroupLimit.By.
func byTenant(d *waybill.Delivery) string { return d.Envelope.Tenant }

// groupOf returns the group of d by fn; a panic is an error.
func groupOf(fn func(d *waybill.Delivery) string, d *waybill.Delivery) (name string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("Subscription.PerGroup.By panicked: %v", p)
		}
	}()
	return fn(d), nil
}

// admits reports whether m may begin. If not, m has been put into its group.
func (gs *groups) admits(m *message, now time.Time) bool {
	if m.place == nil {
		return true
	}
	g := gs.known[m.place.group]
	if g == nil || m.place.woken {
		return true
	}
	if !g.woken && g.waiting.len() == 0 && gs.free(g, now) {
		return true
	}
	g.waiting.push(m)
	gs.waiting++
	gs.watch(g, now)
	return false
}

// free reports whether a message of g may begin.
func (gs *groups) free(g *group, now time.Time) bool {
	return (gs.most == 0 || g.running < gs.most) && (gs.pace.none() || gs.pace.wait(now, g.next) == 0)
}

// began notes that m begins. It returns the next message of the group that may, if any.
func (gs *groups) began(m *message, now time.Time) *message {
	if m.place == nil {
		return nil
	}
	g := gs.known[m.place.group]
	if g == nil {
		g = &group{name: m.place.group, at: -1}
		gs.known[g.name] = g
	}
	g.running++
	if !gs.pace.none() {
		g.next = gs.pace.take(now, g.next, 0)
	}
	if m.place.woken {
		m.place.woken, g.woken = false, false
	}
	return gs.next(g, now)
}

// ended notes that m does not run any more. It returns the next message of the group that may begin, if any.
func (gs *groups) ended(m *message, now time.Time) *message {
	if m.place == nil {
		return nil
	}
	g := gs.known[m.place.group] // it is known while something of it runs
	g.running--
	return gs.next(g, now)
}

// due returns a message that had to wait for its time, which has come; nil if there is none.
func (gs *groups) due(now time.Time) *message {
	for len(gs.timed) > 0 && !gs.timed[0].wake.After(now) {
		g := gs.timed[0]
		heap.Pop(&gs.timed)
		if m := gs.next(g, now); m != nil {
			return m
		}
	}
	return nil
}

// next takes the first message out of g if it may begin, and looks again at g later if not. It forgets g if nothing
// is left to know.
func (gs *groups) next(g *group, now time.Time) *message {
	if g.waiting.len() > 0 && !g.woken && gs.free(g, now) {
		m := g.waiting.pop()
		gs.waiting--
		m.place.woken, g.woken = true, true
		return m
	}
	gs.watch(g, now)
	return nil
}

// watch looks at g again when its rate allows that, or when there is nothing left to know of it.
func (gs *groups) watch(g *group, now time.Time) {
	idle := g.running == 0 && g.waiting.len() == 0 && !g.woken
	var wake time.Time
	switch {
	case idle && !g.next.After(now): // nothing is left to know
		if g.at >= 0 {
			heap.Remove(&gs.timed, g.at)
		}
		delete(gs.known, g.name)
		return
	case idle: // its rate has not recovered
		wake = g.next
	case g.waiting.len() == 0 || g.woken || gs.pace.none() || gs.pace.wait(now, g.next) == 0:
		return // what runs or is ready comes first
	default:
		wake = now.Add(gs.pace.wait(now, g.next))
	}
	switch {
	case g.at < 0:
		g.wake = wake
		heap.Push(&gs.timed, g)
	case wake.Before(g.wake):
		g.wake = wake
		heap.Fix(&gs.timed, g.at)
	}
}

// again returns when to look again; zero = not.
func (gs *groups) again() (at time.Time) {
	if len(gs.timed) > 0 {
		at = gs.timed[0].wake
	}
	return at
}

// suspectWaits returns how long a suspect, which runs alone, must wait for the rate of its group.
func (gs *groups) suspectWaits(m *message, now time.Time) time.Duration {
	if m.place == nil || gs.pace.none() {
		return 0
	}
	g := gs.known[m.place.group]
	if g == nil {
		return 0
	}
	return gs.pace.wait(now, g.next)
}

// takeAll removes and appends all messages that wait in their groups. A message that waits elsewhere has no place any
// more.
func (gs *groups) takeAll(all []*message, now time.Time) []*message {
	for _, g := range gs.known {
		for g.waiting.len() > 0 {
			all = append(all, g.waiting.pop())
		}
		g.woken = false
		gs.watch(g, now)
	}
	gs.waiting = 0
	return all
}

// assign finds the group of m, if groups have a limit. It parks m if its group cannot be found.
func (r *runner) assign(m *message) {
	if r.groups == nil {
		return
	}
	name, err := groupOf(r.groups.by, m.d)
	switch {
	case err != nil:
		m.refused = new(r.judge.park(m.d, waybill.ReasonRejected, err))
	case name != "":
		m.place = &place{group: name}
	}
}

// waits names, for Health, the limits that messages wait for. mu is held.
func (r *runner) waits() string {
	if r.gate != nil && !r.gate.since.IsZero() && r.ready.len() > 0 {
		return fmt.Sprintf("; limited: %d wait for a permit of limit %q", r.ready.len(), r.sub.Limit.Name)
	}
	if r.groups != nil && r.groups.waiting > 0 {
		return fmt.Sprintf("; limited: %d wait for the limit of their group", r.groups.waiting)
	}
	return ""
}

// sift puts ready messages that their group's limit stops into their groups, until the first one may begin. It returns
// when to look again.
func (b *batching) sift() time.Time {
	now := time.Now()
	for m := b.groups.due(now); m != nil; m = b.groups.due(now) {
		b.ready.unshift(m)
	}
	for b.ready.len() > 0 {
		if m := b.ready.peek(); m == nil || b.groups.admits(m, now) {
			break
		}
		b.ready.pop()
	}
	return b.groups.again()
}

// comeBack puts m, which waited in its group, before the other ready messages. M may be nil.
func (b *batching) comeBack(m *message) {
	if m != nil {
		b.ready.unshift(m)
	}
}

// suspectWaits reports whether all that is left is a suspect that must wait for the rate of its group, until again.
func (b *batching) suspectWaits(again *time.Time) bool {
	if len(b.suspects) != 1 || b.ready.len() > 1 {
		return false
	}
	now := time.Now()
	wait := b.groups.suspectWaits(b.suspects[0], now)
	if wait > 0 {
		*again = now.Add(wait)
	}
	return wait > 0
}

// timedGroups is a heap by the time of waking.
type timedGroups []*group

func (h timedGroups) Len() int           { return len(h) }
func (h timedGroups) Less(i, j int) bool { return h[i].wake.Before(h[j].wake) }
func (h timedGroups) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push is for package heap.
func (h *timedGroups) Push(x any) {
	g, _ := x.(*group)
	g.at = len(*h)
	*h = append(*h, g)
}

// Pop is for package heap.
func (h *timedGroups) Pop() any {
	old := *h
	last := len(old) - 1
	g := old[last]
	old[last] = nil
	*h, g.at = old[:last], -1
	return g
}
