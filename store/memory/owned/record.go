package owned

import (
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
)

// record is a row. Only [Store.place] and [Store.unplace] know in which indexes it is.
type record struct {
	route *route
	env   core.Envelope // never changed
	slot  uint8
	mark  int64 // of the transaction that staged it

	seq, version                  int64
	state                         core.State // pending, failed, published or abandoned
	reason                        core.Reason
	lastErr                       string
	attempts, deliveries, crashes int
	waiting                       bool // a timer or a retry waits for due; else it is in line
	due                           time.Time
	since                         time.Time // when it became due
	withdrawable                  bool
	unreadable                    error

	holder outbox.Session // a member, or 0
	left   bool           // the session that held it last has ended
	maybe  bool           // it may have been delivered

	staging *Tx  // it is staged and not committed
	dropped bool // its own transaction withdrew it
	lock    *Tx  // a transaction has locked it
}

func (r *record) live() bool   { return !r.state.Terminal() }
func (r *record) waits() bool  { return r.live() && r.waiting }
func (r *record) ready() bool  { return r.live() && !r.waiting }
func (r *record) retry() bool  { return r.waits() && r.state == core.StateFailed }
func (r *record) timer() bool  { return r.waits() && r.state == core.StatePending }
func (r *record) blocks() bool { return r.state == core.StateAbandoned && r.reason.Blocks() }

// obstacle reports whether it may hold its key, or is held.
func (r *record) obstacle() bool {
	return r.holder != 0 || r.env.Key != "" && (r.retry() || r.blocks())
}

func (r *record) ref() outbox.Ref {
	return outbox.Ref{Route: r.route.name, Seq: r.seq, ID: r.env.ID, Version: r.version}
}

// careful reports whether a member that died may have had it out, and no window has passed it yet.
func (r *record) careful() bool {
	u := r.route.bySlot[r.slot]
	return u != nil && r.seq <= u.Careful && !r.timer()
}

// owned reports whether self, which is a member, owns the record's unit.
func (r *record) owned(self outbox.Session) bool {
	u := r.route.bySlot[r.slot]
	return u != nil && u.Owner == self
}

// route is what belongs to one route.
type route struct {
	name  string
	byID  map[string]*record // staged ones too
	bySeq map[int64]*record  // staged ones too
	keys  map[string]*keyed

	ready   index // by sequence
	free    index // those of ready that have no key and no holder
	timers  index // by due time
	retries index // by due time
	odd     index // what holds a key, or is held, by sequence

	units  []*unit
	bySlot [outbox.NumSlots]*unit
}

// keyed is what belongs to one key of a route.
type keyed struct{ ready, odd index }

// unit is a unit and its owner.
type unit struct{ outbox.Owned }

func (s *Store) route(name string) *route {
	rt := s.routes[name]
	if rt == nil {
		rt = &route{name: name, byID: map[string]*record{}, bySeq: map[int64]*record{}, keys: map[string]*keyed{}}
		s.routes[name] = rt
	}
	return rt
}

// find returns the stored record that ref names, whatever its version, or nil.
func (s *Store) find(ref outbox.Ref) *record {
	rt := s.routes[ref.Route]
	if rt == nil {
		return nil
	}
	if r := rt.bySeq[ref.Seq]; r != nil && r.staging == nil && r.env.ID == ref.ID {
		return r
	}
	return nil
}

// place puts r into the indexes that its state belongs to.
func (s *Store) place(r *record) {
	rt := r.route
	if r.ready() {
		rt.ready.insert(0, r.seq, r)
		if r.env.Key == "" && r.holder == 0 {
			rt.free.insert(0, r.seq, r)
		}
	}
	if r.timer() {
		rt.timers.insert(s.at(r.due), r.seq, r)
	}
	if r.retry() {
		rt.retries.insert(s.at(r.due), r.seq, r)
	}
	if r.obstacle() {
		rt.odd.insert(0, r.seq, r)
	}
	if r.env.Key == "" || !r.ready() && !r.obstacle() {
		return
	}
	k := rt.keys[r.env.Key]
	if k == nil {
		k = &keyed{}
		rt.keys[r.env.Key] = k
	}
	if r.ready() {
		k.ready.insert(0, r.seq, r)
	}
	if r.obstacle() {
		k.odd.insert(0, r.seq, r)
	}
}

// unplace takes r out of its indexes. Whoever changes a record does so between unplace and place.
func (s *Store) unplace(r *record) {
	rt := r.route
	if r.ready() {
		rt.ready.remove(0, r.seq)
		if r.env.Key == "" && r.holder == 0 {
			rt.free.remove(0, r.seq)
		}
	}
	if r.timer() {
		rt.timers.remove(s.at(r.due), r.seq)
	}
	if r.retry() {
		rt.retries.remove(s.at(r.due), r.seq)
	}
	if r.obstacle() {
		rt.odd.remove(0, r.seq)
	}
	k := rt.keys[r.env.Key]
	if k == nil {
		return
	}
	k.ready.remove(0, r.seq)
	k.odd.remove(0, r.seq)
	if k.ready.empty() && k.odd.empty() {
		delete(rt.keys, r.env.Key)
	}
}

// hold makes session the holder of r; 0 = nobody. It is no change of the record's version.
func (s *Store) hold(r *record, session outbox.Session) {
	if r.holder == session {
		return
	}
	s.unplace(r)
	s.setHolder(r, session)
	s.place(r)
}

// setHolder is hold between unplace and place.
func (s *Store) setHolder(r *record, session outbox.Session) {
	if m := s.members[r.holder]; m != nil {
		delete(m.held, r)
	}
	r.holder = session
	if m := s.members[session]; m != nil {
		m.held[r] = struct{}{}
		r.left = false
	}
}

// forget deletes r. It is in no index.
func (s *Store) forget(r *record) {
	delete(r.route.byID, r.env.ID)
	delete(r.route.bySeq, r.seq)
}

// record returns r as the contract shows it.
func (r *record) record(now time.Time) outbox.Record {
	out := outbox.Record{
		Ref: r.ref(), Envelope: r.env.Clone(), Slot: r.slot, Attempts: r.attempts, Deliveries: r.deliveries, Crashes: r.crashes,
		Failed: r.state == core.StateFailed, Withdrawable: r.withdrawable, Holder: r.holder, Age: max(now.Sub(r.since), 0), Err: r.unreadable,
	}
	if !r.env.Expires.IsZero() {
		out.Expires, out.Life = true, r.env.Expires.Sub(now)
	}
	return out
}

// obstructs returns r as what holds its key, seen by self, if it does. Blocking ones count if block.
func (r *record) obstructs(self outbox.Session, block bool) (outbox.Waiting, bool) {
	w := outbox.Waiting{Ref: r.ref(), Slot: r.slot, Key: r.env.Key, Holder: r.holder}
	switch {
	case r.holder != 0 && r.holder != self:
		w.Why = outbox.Held
	case r.retry() && r.env.Key != "":
		w.Why = outbox.Retrying
	case r.blocks() && r.env.Key != "" && block:
		w.Why = outbox.Blocking
	default:
		return w, false
	}
	return w, true
}
