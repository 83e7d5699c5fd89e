package memory

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// Heartbeat joins, renews or reads, as [rules.Heartbeat] says.
func (s *Store) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	if err := ctx.Err(); err != nil {
		return core.Membership{}, outage("heartbeat", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := core.Membership{StoreEpoch: s.epoch(), Members: make([]core.Member, 0, len(s.members)), Partitions: []core.PartitionState{}}
	for _, m := range s.members {
		member := m.Member
		member.Routes = slices.Clone(m.Routes)
		out.Members = append(out.Members, member)
	}
	slices.SortFunc(out.Members, func(a, b core.Member) int { return cmp.Compare(a.Session, b.Session) })
	for _, name := range s.names() {
		for _, u := range s.routes[name].partitions {
			out.Partitions = append(out.Partitions, u.PartitionState)
		}
	}
	if err := rules.Heartbeat(ctx, (*membership)(s), &out, &m); err != nil {
		return core.Membership{}, err
	}
	out.HasNotices = slices.ContainsFunc(s.notice, func(c *command) bool {
		return c.Number > m.AfterNotice && slices.ContainsFunc(m.Self.Routes, func(sv core.ServedRoute) bool { return sv.Route == c.Route })
	})
	return out, nil
}

// membership is a Store for [rules.Heartbeat], while it is locked.
type membership Store

func (s *membership) Renew(_ context.Context, m *core.Member, joins bool) error {
	if joins {
		s.members[m.Session] = newMember(*m)
	}
	self := s.members[m.Session]
	self.Member, self.renewed = *m, s.now()
	self.Routes = slices.Clone(m.Routes)
	return nil
}

func (s *membership) Suspect(_ context.Context, session core.Session) error {
	s.members[session].Suspected = true
	return nil
}

func (s *membership) Kept(_ context.Context, route string) (core.PartitionState, error) {
	return (*Store)(s).route(route).kept, nil
}

func (s *membership) End(_ context.Context, session core.Session, died bool) (last int64, ok bool, err error) {
	for r := range maps.Clone(s.members[session].held) {
		(*Store)(s).hold(r, 0)
		r.maybe = true
		if died {
			r.crashes++
			r.version++
		}
	}
	delete(s.members, session)
	return s.seq, true, nil
}

func (*membership) Transfer(context.Context, core.Session, core.Session) (bool, error) {
	return true, nil
}

func (s *membership) Save(_ context.Context, partitions []core.PartitionState) error {
	for _, u := range partitions {
		rt := s.routes[u.Partition.Route]
		if old := rt.bySlot[u.Partition.From]; old != nil {
			old.PartitionState = u
		} else {
			rt.addPartition(&partition{u})
		}
	}
	return nil
}

func (s *membership) Retire(_ context.Context, kept core.PartitionState) error {
	rt := (*Store)(s).route(kept.Partition.Route)
	rt.kept, rt.partitions, rt.bySlot = kept, nil, [core.NumSlots]*partition{}
	return nil
}

func (rt *route) addPartition(u *partition) {
	rt.partitions = append(rt.partitions, u)
	for slot := u.Partition.From; slot < u.Partition.To; slot++ {
		rt.bySlot[slot] = u
	}
}

// partition returns the partition, or nil if there is none with exactly these slots.
func (s *Store) partition(u core.Partition) *partition {
	rt := s.routes[u.Route]
	if rt == nil || u.From >= core.NumSlots {
		return nil
	}
	if found := rt.bySlot[u.From]; found != nil && found.Partition == u {
		return found
	}
	return nil
}
