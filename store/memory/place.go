package memory

import (
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// route is a route with its records and partitions.
type route struct {
	name  string
	byID  map[string]*record // staged ones too
	bySeq map[int64]*record  // staged ones too
	keys  map[string]*keyed

	ready   index // by sequence
	free    index // those of ready that have no key and no holder
	timers  index // by due time
	retries index // by due time
	unready index // what holds a key, or is held, by sequence
	aged    index // those of ready that nobody holds, by when they first became due
	expires index // live ones that expire, by when
	// those whose retention ends some day, by class and by when they were settled
	settled [3]index
	counts  map[countKind]int64

	partitions []*partition
	bySlot     [core.NumSlots]*partition
	kept       core.PartitionState // Low, MaybeOutUpTo and Term for the next partitions, while there are none

	version uint64    // Store.changes when a member last got something to do
	seen    uint64    // the version that all who own partitions of it have seen
	rung    time.Time // the time up to which a Wait has reported what is due
	// reminders counts the Waits that began behind the news of the version reminded, since remindedAt.
	reminded   uint64
	remindedAt time.Time
	reminders  int
}

// keyed is a key of a route with its records.
type keyed struct{ ready, unready index }

// partition is a partition and its owner.
type partition struct{ core.PartitionState }

func (s *Store) route(name string) *route {
	rt := s.routes[name]
	if rt == nil {
		rt = &route{name: name, byID: map[string]*record{}, bySeq: map[int64]*record{}, keys: map[string]*keyed{}, counts: map[countKind]int64{}}
		s.routes[name] = rt
	}
	return rt
}

// find returns the stored record that ref names, of any version, or nil.
func (s *Store) find(ref core.Ref) *record {
	rt := s.routes[ref.Route]
	if rt == nil {
		return nil
	}
	if r := rt.bySeq[ref.Seq]; r != nil && r.staging == nil && r.env.ID == ref.ID {
		return r
	}
	return nil
}

// renumbered reports whether another record has the number of ref.
func (s *Store) renumbered(ref core.Ref) bool {
	rt := s.routes[ref.Route]
	return rt != nil && rt.bySeq[ref.Seq] != nil && rt.bySeq[ref.Seq].env.ID != ref.ID
}

// stored returns the committed record with the id, or nil.
func (s *Store) stored(route, id string) *record {
	rt := s.routes[route]
	if rt == nil {
		return nil
	}
	r := rt.byID[id]
	if r != nil && r.staging != nil {
		return r.shadows
	}
	return r
}

// countKind is what the records of a route are counted by.
type countKind struct {
	state  core.State     // as it is shown; none = not counted
	reason waybill.Reason // of abandoned records
}

func kindOf(r *record) (k countKind) {
	f := r.facts()
	k.state, k.reason, _ = f.Counted(false)
	return k
}

func (rt *route) count(r *record, n int64) {
	k := kindOf(r)
	if rt.counts[k] += n; rt.counts[k] == 0 {
		delete(rt.counts, k)
	}
}

// place puts r into the indexes of its state.
func (s *Store) place(r *record) {
	rt := r.route
	rt.count(r, 1)
	if r.ready() {
		rt.ready.insert(0, r.seq, r)
		if r.holder == 0 {
			rt.aged.insert(s.at(r.since), r.seq, r)
			if r.env.Key == "" {
				rt.free.insert(0, r.seq, r)
			}
		}
	}
	if r.timer() {
		rt.timers.insert(s.at(r.due), r.seq, r)
	}
	if r.retry() {
		rt.retries.insert(s.at(r.due), r.seq, r)
	}
	if x, at := s.ends(r); x != nil {
		x.insert(at, r.seq, r)
	}
	if r.blockReason() {
		rt.unready.insert(0, r.seq, r)
	}
	if r.env.Key == "" || !r.ready() && !r.blockReason() {
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
	if r.blockReason() {
		k.unready.insert(0, r.seq, r)
	}
}

// unplace takes r out of its indexes. A function that changes a record does so between unplace and place.
func (s *Store) unplace(r *record) {
	rt := r.route
	rt.count(r, -1)
	if r.ready() {
		rt.ready.remove(0, r.seq)
		if r.holder == 0 {
			rt.aged.remove(s.at(r.since), r.seq)
			if r.env.Key == "" {
				rt.free.remove(0, r.seq)
			}
		}
	}
	if r.timer() {
		rt.timers.remove(s.at(r.due), r.seq)
	}
	if r.retry() {
		rt.retries.remove(s.at(r.due), r.seq)
	}
	if x, at := s.ends(r); x != nil {
		x.remove(at, r.seq)
	}
	if r.blockReason() {
		rt.unready.remove(0, r.seq)
	}
	k := rt.keys[r.env.Key]
	if k == nil {
		return
	}
	k.ready.remove(0, r.seq)
	k.unready.remove(0, r.seq)
	if k.ready.empty() && k.unready.empty() {
		delete(rt.keys, r.env.Key)
	}
}

// ends returns the index of records that time alone will end, and the place of r in it: an expiry, or a retention. It
// can be nil.
func (s *Store) ends(r *record) (x *index, at int64) {
	switch {
	case r.live() && !r.env.Expires.IsZero():
		return &r.route.expires, s.at(r.env.Expires)
	case r.live(), r.class().KeptFor(s.retention) == waybill.Forever:
		return nil, 0
	}
	return &r.route.settled[r.class()], s.at(r.settledAt)
}

// hold makes session the holder of r; 0 ends the hold. The version of the record stays.
func (s *Store) hold(r *record, session core.Session) {
	if r.holder == session {
		return
	}
	s.unplace(r)
	s.setHolder(r, session)
	s.place(r)
	if session == 0 {
		s.changed(r)
	}
}

// setHolder is hold between unplace and place.
func (s *Store) setHolder(r *record, session core.Session) {
	if m := s.members[r.holder]; m != nil {
		delete(m.held, r)
	}
	r.holder = session
	if m := s.members[session]; m != nil {
		m.held[r] = struct{}{}
	}
}

// forget deletes r. It is in no index.
func (s *Store) forget(r *record) {
	rt := r.route
	if rt.byID[r.env.ID] == r {
		s.uncover(r)
	}
	delete(rt.bySeq, r.seq)
}

// uncover gives the id of r back to the record from which r had taken it.
func (s *Store) uncover(r *record) {
	if r.shadows != nil {
		r.route.byID[r.env.ID] = r.shadows
	} else {
		delete(r.route.byID, r.env.ID)
	}
}

// requeue makes r ready again. Earlier decisions about it are void.
func (s *Store) requeue(r *record, now time.Time) {
	s.undecide(r)
	f := r.facts()
	back, _ := rules.Requeue(&f)
	s.unplace(r)
	r.lastErr, r.errAt, r.settledAt, r.env.Expires = "", time.Time{}, time.Time{}, unexpired(r.env.Expires, now)
	if r.dedupe != "" && s.holders[r.liveKey()] == nil {
		s.holders[r.liveKey()] = r
	}
	s.place(r)
	s.become(r, &rules.Change{Row: back, Due: true}, now)
}

// unexpired returns an expiry, or the zero time if it has passed.
func unexpired(at, now time.Time) time.Time {
	if at.After(now) {
		return at
	}
	return time.Time{}
}

// release frees the dedupe key of r.
func (s *Store) release(r *record) {
	if r.dedupe != "" && s.holders[r.liveKey()] == r {
		delete(s.holders, r.liveKey())
	}
}
