package checker

import (
	"errors"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// crew has the members and the owner of each partition, by the answers of the store. Only an exact ledger knows it.
type crew struct {
	members map[core.Session]*member
	left    map[core.Session]bool // ended by themselves
	ended   map[core.Session]bool // were members once; no late call may bring one back
	owners  map[core.Partition]ownership
}

// member is a session of a process: its latest renewal, and when the store heard of it.
type member struct {
	p          *Process
	answered   bool // the process knows that it is a member
	lease      time.Duration
	heartbeats int64
	at         time.Time
}

type ownership struct {
	owner core.Session
	term  int64
}

// hold is who holds a message. It is not sure if the store may have left it out.
type hold struct {
	by   core.Session
	sure bool
}

func newCrew() crew {
	return crew{
		members: map[core.Session]*member{}, left: map[core.Session]bool{}, ended: map[core.Session]bool{}, owners: map[core.Partition]ownership{},
	}
}

// of returns the process of a session that is a member, or nil.
func (c *crew) of(s core.Session) *Process {
	if m := c.members[s]; m != nil {
		return m.p
	}
	return nil
}

// owner returns the session that owns a message's partition; 0 = none.
func (c *crew) owner(m *message) core.Session {
	slot := core.SlotOf(m.Route, m.key, m.ID)
	for u, o := range c.owners {
		if u.Route == m.Route && u.Slots().Has(slot) {
			return o.owner
		}
	}
	return 0
}

// has reports whether a process has a session that is a member.
func (c *crew) has(p *Process) bool {
	for _, m := range c.members {
		if m.p == p {
			return true
		}
	}
	return false
}

func (c *crew) name(s core.Session) string {
	switch p := c.of(s); {
	case s == 0:
		return "nobody"
	case p == nil:
		return "one that is gone"
	default:
		return p.Name
	}
}

// met notes a membership. The ledger is locked.
func (l *Ledger) met(p *Process, m *core.HeartbeatRequest, r *core.Membership) {
	if !l.opts.Exact {
		return
	}
	c, now, there := &l.crew, l.opts.Now(), map[core.Session]bool{}
	for i := range r.Members {
		x := &r.Members[i]
		there[x.Session] = true
		old := c.members[x.Session]
		if old == nil {
			l.note("joined: %s as %x", p.Name, uint16(x.Session))
			if c.ended[x.Session] {
				l.problem("revived: %x is a member again, says %s", uint16(x.Session), p.Name)
			}
			old = &member{p: p}
			c.members[x.Session] = old
		}
		if x.Heartbeats > old.heartbeats {
			old.heartbeats, old.at, old.lease = x.Heartbeats, now, x.Lease
		}
	}
	for s, x := range c.members {
		if there[s] {
			continue
		}
		removed := slices.ContainsFunc(m.Evict, func(o core.Eviction) bool { return o.Session == s })
		l.note("gone: %s as %x, says %s; removed: %v", x.p.Name, uint16(s), p.Name, removed)
		switch age := now.Sub(x.at); {
		case s == m.Self.Session:
			c.left[s] = true
		case c.left[s]:
		case !removed:
			l.problem("removed: %s is no longer a member, and nobody has removed it", x.p.Name)
		case x.p == p && !x.answered: // a Join of its own that had no answer
		case age < x.lease:
			l.problem("removed: %s removes %s, whose latest renewal is %s old; its lease is %s", p.Name, x.p.Name, age, x.lease)
		}
		delete(c.members, s)
		c.ended[s] = true
	}
	for i := range r.Partitions {
		l.moved(p, &r.Partitions[i])
	}
}

// answered notes that a process knows that it is a member.
func (l *Ledger) answered(s core.Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.crew.members[s]; m != nil {
		m.answered = true
	}
}

// moved notes who owns a partition.
func (l *Ledger) moved(p *Process, u *core.PartitionState) {
	c := &l.crew
	old, known := c.owners[u.Partition]
	if now := (ownership{u.Owner, u.Term}); !known || old != now {
		c.owners[u.Partition] = now
	}
	if !known || old.owner == u.Owner {
		return
	}
	l.note("partition %v: %s after %s, says %s; term %d", u.Partition, c.name(u.Owner), c.name(old.owner), p.Name, u.Term)
	if u.Term <= old.term {
		l.problem("partitions: %v went from %s to %s in term %d; the one before was %d", u.Partition, c.name(old.owner), c.name(u.Owner), u.Term, old.term)
	}
	if c.members[old.owner] != nil && !c.left[old.owner] {
		l.problem("partitions: %v went from %s to %s, and nobody has given it up", u.Partition, c.name(old.owner), c.name(u.Owner))
	}
}

// gaveUp notes that a partition was released, and the records of it that were out.
func (l *Ledger) gaveUp(p *Process, self core.Session, u core.PartitionState, out []core.Ref) {
	l.note("%s gives up %v, term %d, with %d out", p.Name, u.Partition, u.Term, len(out))
	old := l.crew.owners[u.Partition]
	if !l.opts.Exact || old.term > u.Term {
		return
	}
	l.crew.owners[u.Partition] = ownership{0, old.term + 1}
	for _, m := range l.msgs {
		if m.hold.by == self && m.Route == u.Partition.Route && u.Partition.Slots().Has(core.SlotOf(m.Route, m.key, m.ID)) {
			m.hold = hold{}
		}
	}
	for _, ref := range out {
		if m := l.get(Ref{ref.Route, ref.ID}); l.crew.members[m.hold.by] == nil {
			m.hold = hold{self, false}
		}
	}
}

// read notes what a page shows. The ledger is locked.
func (l *Ledger) read(p *Process, result *core.ReadResult) {
	for i := range result.Ranges {
		l.saw(p, result.Ranges[i].Records)
	}
	for i := range result.Keys {
		l.saw(p, result.Keys[i].Records)
	}
	l.saw(p, result.Rechecked)
}

func (l *Ledger) saw(p *Process, records []core.Record) {
	for i := range records {
		r := &records[i]
		m := l.get(Ref{r.Route, r.Envelope.ID})
		if r.Seq != m.last {
			l.note("read by %s: %s/%s key %q seq %d version %d attempts %d crashes %d", p.Name, m.Route, m.ID, r.Envelope.Key, r.Seq, r.Version, r.Attempts, r.Crashes)
		}
		if m.seq == 0 {
			m.seq, m.seen = r.Seq, l.pos
		}
		if r.Seq > m.last {
			m.last, m.version, m.anew = r.Seq, r.Version, false
		} else if r.Seq == m.last {
			m.version = max(m.version, r.Version)
		}
		if l.opts.Exact {
			m.hold = hold{r.HeldBy, true}
			if m.fate != committed {
				l.problem("phantom: %s reads %s/%s, which was not committed", p.Name, m.Route, m.ID)
			}
		}
		if r.Attempts > m.refusals && !l.opts.Unseen {
			l.problem("attempts: %s/%s has %d attempts; it was refused %d times", m.Route, m.ID, r.Attempts, m.refusals)
		}
	}
}

// took notes holds that were written. The ledger is locked.
func (l *Ledger) took(p *Process, self core.Session, taken []core.HoldResult) {
	for _, t := range taken {
		if t.Status == core.HoldGranted {
			l.holdStatus(p, self, t.Ref)
		}
	}
}

// due notes retries that a member holds now.
func (l *Ledger) due(p *Process, self core.Session, result *core.DueResult) {
	for i := range result.Retries {
		l.holdStatus(p, self, result.Retries[i].Ref)
	}
	l.saw(p, result.Retries)
}

func (l *Ledger) holdStatus(p *Process, self core.Session, ref core.Ref) {
	m := l.get(Ref{ref.Route, ref.ID})
	l.note("held by %s: %s/%s", p.Name, m.Route, m.ID)
	other := l.crew.of(m.hold.by)
	if l.crew.left[m.hold.by] { // a late call brought back its row; it sends nothing more
		other = nil
	}
	if l.opts.Exact && m.hold.sure && other != nil && m.hold.by != self {
		l.problem("overlap: %s holds %s/%s, which %s holds", p.Name, m.Route, m.ID, other.Name)
	}
	m.hold = hold{self, true}
}

// settled notes an outcome that was stored.
func (l *Ledger) settled(p *Process, self core.Session, o *core.Outcome) {
	ref := o.Ref()
	m := l.get(Ref{ref.Route, ref.ID})
	l.note("settle by %s: %s/%s %s %s in %s version %d", p.Name, m.Route, m.ID, o.Event(), o.Reason(), o.In(), ref.Version)
	if l.opts.Exact {
		l.fenced(p, self, m, o)
	}
	m.hold = hold{}
	l.moves(m, o.In())
	if o.Event() != core.EventConfirmed && ref.Seq == m.last {
		m.version = max(m.version, ref.Version+1)
	}
	switch o.State() {
	case core.StatePublished:
		if m.first == 0 && l.opts.Exact {
			l.problem("lost: %s settled %s/%s as published; it has not arrived", p.Name, m.Route, m.ID)
		}
	case core.StateAbandoned:
		m.givenUp = append(m.givenUp, giving{reason: o.Reason(), from: l.pos})
		m.decided = o.Event() == core.EventCancelled
	case core.StatePending, core.StateFailed, core.StateNone, core.StateProcessing:
	}
}

// fenced reports an outcome that should have been refused.
func (l *Ledger) fenced(p *Process, self core.Session, m *message, o *core.Outcome) {
	ref := o.Ref()
	switch {
	case l.crew.members[self] == nil:
		l.problem("fencing: %s settled %s/%s (%s) under a session that is gone", p.Name, m.Route, m.ID, o.Event())
	case o.Event() == core.EventConfirmed:
	case m.hold.by != self && l.crew.owner(m) != self:
		l.problem("fencing: %s settled %s/%s (%s), which is %s's", p.Name, m.Route, m.ID, o.Event(), l.crew.name(l.crew.owner(m)))
	case ref.Seq < m.last, ref.Seq == m.last && ref.Version < m.version:
		l.problem("fencing: %s settled %s/%s (%s) as number %d, version %d; it is %d, %d", p.Name, m.Route, m.ID, o.Event(), ref.Seq, ref.Version, m.last, m.version)
	}
}

// sending notes that a process begins to publish, and landed that it has the result.
func (l *Ledger) sending(p *Process, route string, batch []waybill.Envelope) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range batch {
		m := l.get(Ref{route, batch[i].ID})
		l.note("send by %s: %s/%s", p.Name, route, m.ID)
		if l.opts.Exact {
			l.mayPublish(p, m)
			if l.opts.Routes[route].Block && m.key != "" {
				l.passed(m, "published")
			}
			l.waited(m)
		}
		if m.flying == nil {
			m.flying = map[*Process]int{}
		}
		m.flying[p]++
	}
}

func (l *Ledger) landed(p *Process, route string, batch []waybill.Envelope) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range batch {
		l.get(Ref{route, batch[i].ID}).flying[p]--
		l.note("result for %s: %s/%s", p.Name, route, batch[i].ID)
	}
}

// mayPublish reports a publish that another process may make too.
func (l *Ledger) mayPublish(p *Process, m *message) {
	c, now := &l.crew, time.Now().UnixNano()
	if d := p.deadline.Load(); now >= d {
		l.problem("lease: %s publishes %s/%s; its lease ended %s ago", p.Name, m.Route, m.ID, time.Duration(now-d))
	}
	if owner := c.owner(m); c.of(owner) != p && c.of(m.hold.by) != p {
		l.problem("two: %s publishes %s/%s, which is %s's, and which %s holds", p.Name, m.Route, m.ID, c.name(owner), c.name(m.hold.by))
	}
	for q, n := range m.flying {
		if q != p && n > 0 && !q.dead.Load() && now < q.deadline.Load() && c.has(q) {
			l.problem("two: %s publishes %s/%s while %s does", p.Name, m.Route, m.ID, q.Name)
		}
	}
}

// passed reports abandoned heads that block the key of m. One that was staged again after it had been published has a
// new number.
func (l *Ledger) passed(m *message, what string) {
	for _, o := range l.msgs {
		if o.Route == m.Route && o.key == m.key && o != m && o.last != 0 && !o.anew && o.last < m.last && o.blocks() {
			l.problem("passed: %s/%s (seq %d) is %s behind %s (seq %d), which is abandoned (%s) and blocks key %s", m.Route, m.ID, m.last, what, o.ID, o.last, o.givenUp[len(o.givenUp)-1].reason, m.key)
		}
	}
}

// blocks reports whether m is abandoned, so that it blocks its key on a route that says so.
func (m *message) blocks() bool {
	n := len(m.givenUp)
	return n > 0 && m.givenUp[n-1].to == 0 && m.givenUp[n-1].reason.Blocks()
}

// Shares returns an error if the partitions are not shared fairly among the members that are able: one has two more
// than another.
func Shares(r *core.Membership) error {
	count := map[core.Session]int{}
	for i := range r.Members {
		m := &r.Members[i]
		if slices.ContainsFunc(m.Routes, func(s core.ServedRoute) bool { return s.Unavailable }) {
			return nil
		}
		count[m.Session] = 0
	}
	for i := range r.Partitions {
		if u := &r.Partitions[i]; u.Owner == 0 {
			return errors.New("a partition is nobody's")
		}
		count[r.Partitions[i].Owner]++
	}
	least, most := len(r.Partitions), 0
	for _, n := range count {
		least, most = min(least, n), max(most, n)
	}
	if len(r.Members) > 0 && most-least > 1 {
		return errors.New("one member has two partitions more than another")
	}
	return nil
}
