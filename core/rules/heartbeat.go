package rules

import (
	"context"
	"slices"

	"github.com/waybill-go/waybill/core"
)

// MembershipTx is what a store reads and writes for [Heartbeat], within the transaction of the call.
type MembershipTx interface {
	// Renew stores a member that joins, or that has a later heartbeat now.
	Renew(ctx context.Context, m *core.Member, joins bool) error
	// Suspect stores that a member is suspected.
	Suspect(ctx context.Context, session core.Session) error
	// Kept returns the first state of the next partitions of a route, as Retire stored it, and forgets it.
	Kept(ctx context.Context, route string) (core.PartitionState, error)
	// End ends the holds of a member, whose records may have been sent, and deletes the member. If it died, each
	// hold counts a crash and raises the version, and last is the last number drawn. If another transaction has
	// locked the member or its records, the answer is false, and nothing has changed.
	End(ctx context.Context, session core.Session, died bool) (last int64, ok bool, err error)
	// Transfer reports whether a partition can pass from a member to another now; 0 = no member. If it can, no call
	// of the one that loses it runs until the transaction ends, and the one that gets it stays a member.
	Transfer(ctx context.Context, from, to core.Session) (ok bool, err error)
	// Save stores partitions, which are new or have changed. If an owner has released its partition meanwhile, that
	// stays.
	Save(ctx context.Context, partitions []core.PartitionState) error
	// Retire deletes the partitions of a route. The route keeps ReadAfter, MaybeOutUpTo and Term.
	Retire(ctx context.Context, kept core.PartitionState) error
}

// heartbeat is a call of Heartbeat.
type heartbeat struct {
	*core.HeartbeatRequest
	store   MembershipTx
	now     *core.Membership
	changed map[core.Partition]bool
}

// Heartbeat carries out a call of core.OutboxStore.Heartbeat. now has all members in the order of their sessions, and
// all partitions in that of routes and slots; Heartbeat brings it up to date, and IsMember. The order is:
//
//	the caller joins, or is renewed: a late renewal, behind a later one, changes nothing
//	partitions are made, for routes that have none, unless the caller leaves
//	evictions: of members whose number of heartbeats is still the given one
//	transfers: of partitions that From owns, to a member or to none
//	the caller's own ReadAfter and MaybeOutUpTo, unless the call is late, or of another life of the database
//	suspicions: of members that have the given presence
//	the caller leaves
//	partitions end, of routes that no member serves and of which no member owns one
//
// A session that is not a member changes nothing, and one that removes itself nothing after that.
func Heartbeat(ctx context.Context, store MembershipTx, now *core.Membership, m *core.HeartbeatRequest) error {
	t := heartbeat{m, store, now, map[core.Partition]bool{}}
	var err error
	if now.IsMember, err = t.renew(ctx); err != nil || !now.IsMember {
		return err
	}
	for _, step := range []func(context.Context) error{t.makePartitions, t.evict, t.transfer, t.suspect, t.leave, t.retire, t.save} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	now.IsMember = t.self() != nil
	return nil
}

func (t *heartbeat) member(session core.Session) *core.Member {
	i := slices.IndexFunc(t.now.Members, func(m core.Member) bool { return m.Session == session && session != 0 })
	if i < 0 {
		return nil
	}
	return &t.now.Members[i]
}

// self returns the caller as a member, or nil.
func (t *heartbeat) self() *core.Member { return t.member(t.Self.Session) }

// renew reports whether the caller is a member.
func (t *heartbeat) renew(ctx context.Context) (known bool, err error) {
	self, old := t.Self, t.self()
	self.Suspected, self.PresenceLost, self.Routes = false, false, slices.Clone(self.Routes)
	switch {
	case old == nil && (!t.Join || t.Leave || self.Session == 0):
		return false, nil
	case old == nil:
		i := slices.IndexFunc(t.now.Members, func(m core.Member) bool { return m.Session > self.Session })
		if i < 0 {
			i = len(t.now.Members)
		}
		t.now.Members = slices.Insert(t.now.Members, i, self)
	case self.Heartbeats > old.Heartbeats:
		self.Suspected = old.Suspected && old.Presence == self.Presence
		*old = self
	default:
		return true, nil
	}
	return true, t.store.Renew(ctx, &self, old == nil)
}

func (t *heartbeat) makePartitions(ctx context.Context) error {
	for _, sv := range t.Self.Routes {
		if t.Leave || slices.ContainsFunc(t.now.Partitions, func(u core.PartitionState) bool { return u.Partition.Route == sv.Route }) {
			continue
		}
		kept, err := t.store.Kept(ctx, sv.Route)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(t.now.Partitions, func(u core.PartitionState) bool { return u.Partition.Route > sv.Route })
		if at < 0 {
			at = len(t.now.Partitions)
		}
		var made []core.PartitionState
		for _, u := range core.SplitPartitions(sv.Route, sv.InitialPartitions) {
			made = append(made, core.PartitionState{Partition: u, Term: kept.Term + 1, ReadAfter: kept.ReadAfter, MaybeOutUpTo: kept.MaybeOutUpTo})
			t.changed[u] = true
		}
		t.now.Partitions = slices.Insert(t.now.Partitions, at, made...)
	}
	return nil
}

func (t *heartbeat) evict(ctx context.Context) error {
	for _, r := range t.Evict {
		if m := t.member(r.Session); m != nil && m.Heartbeats == r.Heartbeats {
			if err := t.end(ctx, r.Session, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// end frees the partitions of a member. Those of one that died keep the number up to which it can have read.
func (t *heartbeat) end(ctx context.Context, session core.Session, died bool) error {
	last, ok, err := t.store.End(ctx, session, died)
	if err != nil || !ok {
		return err
	}
	for i := range t.now.Partitions {
		if u := &t.now.Partitions[i]; u.Owner == session {
			if died {
				u.MaybeOutUpTo = max(u.MaybeOutUpTo, last)
			}
			t.give(u, 0)
		}
	}
	t.now.Members = slices.DeleteFunc(t.now.Members, func(m core.Member) bool { return m.Session == session })
	return nil
}

// give changes the owner, and so begins another term.
func (t *heartbeat) give(u *core.PartitionState, to core.Session) {
	u.Owner, t.changed[u.Partition] = to, true
	u.Term++
}

func (t *heartbeat) transfer(ctx context.Context) error {
	for i := range t.Transfers {
		m := &t.Transfers[i]
		at := slices.IndexFunc(t.now.Partitions, func(u core.PartitionState) bool { return u.Owner == m.From && u.Partition == m.Partition })
		self := t.self()
		if at < 0 || self == nil || m.To != 0 && t.member(m.To) == nil {
			continue
		}
		u := &t.now.Partitions[at]
		if m.From == m.To {
			if m.To == self.Session && t.Self.Heartbeats >= self.Heartbeats && SameLife(t.StoreEpoch, t.now.StoreEpoch) {
				u.ReadAfter, u.MaybeOutUpTo, t.changed[u.Partition] = m.ReadAfter, m.MaybeOutUpTo, true
			}
			continue
		}
		ok, err := t.store.Transfer(ctx, m.From, m.To)
		if err != nil {
			return err
		}
		if ok {
			t.give(u, m.To)
		}
	}
	return nil
}

func (t *heartbeat) suspect(ctx context.Context) error {
	for _, f := range t.Suspect {
		m := t.member(f.Session)
		if m == nil || t.self() == nil || m.Suspected || m.Presence != f.Presence || f.Presence == 0 {
			continue
		}
		m.Suspected = true
		if err := t.store.Suspect(ctx, f.Session); err != nil {
			return err
		}
	}
	return nil
}

func (t *heartbeat) leave(ctx context.Context) error {
	if !t.Leave || t.self() == nil {
		return nil
	}
	return t.end(ctx, t.Self.Session, false)
}

// retire ends the partitions of routes that no member serves or owns. Their next owners need the least ReadAfter and
// the greatest MaybeOutUpTo of them, and a later term.
func (t *heartbeat) retire(ctx context.Context) error {
	used := map[string]bool{}
	for i := range t.now.Members {
		for _, sv := range t.now.Members[i].Routes {
			used[sv.Route] = true
		}
	}
	for _, u := range t.now.Partitions {
		used[u.Partition.Route] = used[u.Partition.Route] || u.Owner != 0
	}
	var gone []core.PartitionState
	t.now.Partitions = slices.DeleteFunc(t.now.Partitions, func(u core.PartitionState) bool {
		if used[u.Partition.Route] {
			return false
		}
		if n := len(gone); n > 0 && gone[n-1].Partition.Route == u.Partition.Route {
			k := &gone[n-1]
			k.ReadAfter, k.MaybeOutUpTo, k.Term = min(k.ReadAfter, u.ReadAfter), max(k.MaybeOutUpTo, u.MaybeOutUpTo), max(k.Term, u.Term)
		} else {
			gone = append(gone, u)
		}
		return true
	})
	for _, kept := range gone {
		if err := t.store.Retire(ctx, kept); err != nil {
			return err
		}
	}
	return nil
}

func (t *heartbeat) save(ctx context.Context) error {
	var partitions []core.PartitionState
	for _, u := range t.now.Partitions {
		if t.changed[u.Partition] {
			partitions = append(partitions, u)
		}
	}
	if len(partitions) == 0 {
		return nil
	}
	return t.store.Save(ctx, partitions)
}

// SameLife reports whether a call that names an epoch may store how far its caller has read: the database has not gone
// back since. A caller that knows no epoch, and a store that has none, say nothing about that.
func SameLife(called, now string) bool { return called == "" || now == "" || called == now }
