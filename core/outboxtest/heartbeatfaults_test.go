package outboxtest_test

import (
	"context"
	"errors"
	"slices"

	"github.com/waybill-go/waybill/core"
)

func heartbeats(fn func(m *core.HeartbeatRequest)) fault {
	return fault{heartbeat: func(ctx context.Context, b *broken, m core.HeartbeatRequest) (core.Membership, error) {
		m.Transfers, m.Evict, m.Self.Routes = slices.Clone(m.Transfers), slices.Clone(m.Evict), slices.Clone(m.Self.Routes)
		fn(&m)
		return b.store.Heartbeat(ctx, m)
	}}
}

func memberships(fn func(r *core.Membership)) fault {
	return fault{membership: func(_ *broken, _ *core.HeartbeatRequest, r *core.Membership) { fn(r) }}
}

// wishes answers partitions as each member wishes them.
var wishes = fault{membership: func(_ *broken, m *core.HeartbeatRequest, r *core.Membership) {
	if len(m.Self.Routes) == 0 {
		return
	}
	var partitions []core.PartitionState
	for _, u := range core.SplitPartitions(m.Self.Routes[0].Route, m.Self.Routes[0].InitialPartitions) {
		at := slices.IndexFunc(r.Partitions, func(o core.PartitionState) bool {
			return o.Partition.Route == u.Route && o.Partition.Slots().Has(u.From)
		})
		partitions = append(partitions, core.PartitionState{Partition: u, Owner: r.Partitions[at].Owner})
	}
	r.Partitions = partitions
}}

// unfenced says that all went well for a removed session.
var unfenced = fault{
	hold: func(ctx context.Context, b *broken, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
		ts, err := b.store.Hold(ctx, self, w)
		if errors.Is(err, core.ErrFenced) {
			err = nil
		}
		return ts, err
	},
	release: func(ctx context.Context, b *broken, self core.Session, u core.PartitionState, out []core.Ref) (bool, error) {
		ok, err := b.store.ReleasePartition(ctx, self, u, out)
		if errors.Is(err, core.ErrFenced) {
			return true, nil
		}
		return ok, err
	},
	due: func(ctx context.Context, b *broken, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
		p, err := b.store.Due(ctx, self, parts, limit)
		if errors.Is(err, core.ErrFenced) {
			err = nil
		}
		return p, err
	},
	settle: func(ctx context.Context, b *broken, self core.Session, os []core.Outcome) core.Results {
		res := b.store.Settle(ctx, self, os)
		for i, err := range res {
			if errors.Is(err, core.ErrFenced) {
				res[i] = nil
			}
		}
		return res
	},
	page: func(_ *broken, _ *core.ReadRequest, p *core.ReadResult) { p.IsMember = true },
}

// byOwner does for a session what the owner of the slots may, or any member.
func (b *broken) owner(route string, slot uint8) core.Session {
	r, _ := b.store.Heartbeat(context.Background(), core.HeartbeatRequest{})
	for _, u := range r.Partitions {
		if u.Partition.Route == route && u.Partition.Slots().Has(slot) && u.Owner != 0 {
			return u.Owner
		}
	}
	return 0
}

var heartbeatFaults = []faulty{
	{"forgets how many handlers are free", "join-makes-member-known", memberships(func(r *core.Membership) {
		for i := range r.Members {
			r.Members[i].FreeCapacity = 1
		}
	})},
	{"forgets who is not able", "join-makes-member-known", memberships(func(r *core.Membership) {
		for i := range r.Members {
			r.Members[i].Routes = slices.Clone(r.Members[i].Routes)
			for j := range r.Members[i].Routes {
				r.Members[i].Routes[j].Unavailable = false
			}
		}
	})},
	{"joins who only renews", "renewal-needs-a-member", heartbeats(func(m *core.HeartbeatRequest) { m.Join = true })},
	{
		"moves for who only looks", "zero-session-only-looks",
		fault{heartbeat: func(ctx context.Context, b *broken, m core.HeartbeatRequest) (core.Membership, error) {
			looks := m.Self.Session == 0
			if looks && len(m.Transfers) > 0 {
				m.Self.Session, m.Evict, m.Self.Routes = m.Transfers[0].From, nil, nil
			}
			r, err := b.store.Heartbeat(ctx, m)
			r.IsMember = r.IsMember && !looks
			return r, err
		}},
	},
	{
		"lets join who only looks", "zero-session-only-looks",
		fault{membership: func(_ *broken, m *core.HeartbeatRequest, r *core.Membership) { r.IsMember = r.IsMember || m.Join }},
	},
	{"ignores renewals", "heartbeat-is-renewed", heartbeats(func(m *core.HeartbeatRequest) { m.Self.Heartbeats = 1 })},
	{"takes late renewals", "late-renewal-changes-nothing", fault{membership: func(b *broken, m *core.HeartbeatRequest, r *core.Membership) {
		b.heartbeats[m.Self.Session] = m.Self.Heartbeats
		for i := range r.Members {
			r.Members[i].Heartbeats = b.heartbeats[r.Members[i].Session]
		}
	}}},
	{"moves whoever owns", "one-of-two-moves-wins", fault{heartbeat: func(ctx context.Context, b *broken, m core.HeartbeatRequest) (core.Membership, error) {
		for i := range m.Transfers {
			m.Transfers[i].From = b.owner(m.Transfers[i].Partition.Route, m.Transfers[i].Partition.From)
		}
		return b.store.Heartbeat(ctx, m)
	}}},
	{"tells both that they won", "one-of-two-moves-wins", fault{membership: func(_ *broken, m *core.HeartbeatRequest, r *core.Membership) {
		for i := range r.Partitions {
			if len(m.Transfers) > 0 && m.Transfers[0].To != 0 {
				r.Partitions[i].Owner = m.Transfers[0].To
			}
		}
	}}},
	{"counts renewals itself", "heartbeat-repeats", fault{heartbeat: func(ctx context.Context, b *broken, m core.HeartbeatRequest) (core.Membership, error) {
		b.count++
		m.Self.Heartbeats += int64(b.count)
		return b.store.Heartbeat(ctx, m)
	}}},
	{"makes partitions for each member", "partitions-are-made-once", wishes},
	{"makes overlapping partitions", "partitions-are-made-once", memberships(func(r *core.Membership) {
		for _, u := range r.Partitions[:min(1, len(r.Partitions))] {
			u.Partition.To = 1
			r.Partitions = append(r.Partitions, u)
		}
	})},
	{"follows the last wish", "number-of-partitions-is-kept", wishes},
	{
		"stores ReadAfter with each move", "moves-store-low-for-owner-only",
		fault{heartbeat: func(ctx context.Context, b *broken, m core.HeartbeatRequest) (core.Membership, error) {
			r, err := b.store.Heartbeat(ctx, m)
			for _, mv := range m.Transfers {
				if owner := b.owner(mv.Partition.Route, mv.Partition.From); owner != 0 {
					mv.From, mv.To = owner, owner
					m.Transfers = []core.Transfer{mv}
					return b.store.Heartbeat(ctx, m)
				}
			}
			return r, err
		}},
	},
	{"stores ReadAfter never", "moves-store-low-for-owner-only", heartbeats(func(m *core.HeartbeatRequest) {
		for i := range m.Transfers {
			m.Transfers[i].ReadAfter = 0
		}
	})},
	{
		"stores what comes late", "late-move-stores-nothing",
		fault{heartbeat: func(ctx context.Context, b *broken, m core.HeartbeatRequest) (core.Membership, error) {
			b.count++
			m.Self.Heartbeats += int64(10 * b.count)
			return b.store.Heartbeat(ctx, m)
		}},
	},
	{"counts a clean stop as a crash", "leave-frees-partitions", heartbeats(func(m *core.HeartbeatRequest) {
		if m.Leave {
			m.Leave, m.Evict = false, []core.Eviction{{Session: m.Self.Session, Heartbeats: m.Self.Heartbeats}}
		}
	})},
	{"forgets what who leaves has said of its partitions", "leave-frees-partitions", heartbeats(func(m *core.HeartbeatRequest) {
		if m.Leave {
			m.Transfers = nil
		}
	})},
	{"keeps who leaves", "leave-frees-partitions", heartbeats(func(m *core.HeartbeatRequest) { m.Leave = false })},
	{"forgets a route that nobody serves", "served-again-keeps-low", fault{membership: func(b *broken, m *core.HeartbeatRequest, r *core.Membership) {
		if m.Leave {
			b.count++
		}
		for i := range r.Partitions {
			r.Partitions[i].ReadAfter += int64(1000 * b.count)
		}
	}}},
	{"sets no flags", "suspicion-is-set-and-cleared", heartbeats(func(m *core.HeartbeatRequest) { m.Suspect = nil })},
	{
		"clears flags with each renewal", "suspicion-is-set-and-cleared",
		fault{heartbeat: func(ctx context.Context, b *broken, m core.HeartbeatRequest) (core.Membership, error) {
			b.count++
			m.Self.Presence = int64(b.count)
			m.Self.Heartbeats += int64(b.count)
			return b.store.Heartbeat(ctx, m)
		}},
	},
	{
		"keeps the flag of who has no token any more", "suspicion-is-set-and-cleared",
		fault{membership: func(b *broken, _ *core.HeartbeatRequest, r *core.Membership) {
			for i := range r.Members {
				m := &r.Members[i]
				if m.Suspected {
					b.heartbeats[m.Session] = 1
				}
				m.Suspected = m.Suspected || m.Presence == 0 && b.heartbeats[m.Session] == 1
			}
		}},
	},
	{"keeps flags for ever", "suspicion-is-set-and-cleared", heartbeats(func(m *core.HeartbeatRequest) { m.Self.Presence = 1 })},
	{"tells of no notices", "membership-tells-of-notices", memberships(func(r *core.Membership) { r.HasNotices = false })},
	{"tells of notices that are not there", "membership-tells-of-notices", memberships(func(r *core.Membership) { r.HasNotices = true })},
	{"lets no member leave", "left-routes-lose-their-partitions", heartbeats(func(m *core.HeartbeatRequest) { m.Leave = false })},
	{"keeps partitions that nobody serves", "dropped-routes-lose-their-partitions", fault{heartbeat: func(ctx context.Context, b *broken, m core.HeartbeatRequest) (core.Membership, error) {
		for _, sv := range m.Self.Routes { // as if each member served for ever what it once served
			if !slices.Contains(b.served, sv) {
				b.served = append(b.served, sv)
			}
		}
		if m.Self.Session != 0 {
			m.Self.Routes = b.served
		}
		return b.store.Heartbeat(ctx, m)
	}}},
	{"leaves first", "leave-comes-last", fault{heartbeat: func(ctx context.Context, b *broken, m core.HeartbeatRequest) (core.Membership, error) {
		if m.Leave {
			m.Evict = nil
		}
		return b.store.Heartbeat(ctx, m)
	}}},
	{"stores what nobody says", "moves-of-nobody-store-nothing", fault{membership: func(b *broken, m *core.HeartbeatRequest, r *core.Membership) {
		for _, mv := range m.Transfers {
			for i := range r.Partitions {
				if r.Partitions[i].Partition == mv.Partition && mv.From == mv.To {
					r.Partitions[i].ReadAfter, r.Partitions[i].MaybeOutUpTo = mv.ReadAfter, mv.MaybeOutUpTo
				}
			}
		}
	}}},
	{
		"removes whatever the heartbeats", "eviction-compares-heartbeats",
		fault{heartbeat: func(ctx context.Context, b *broken, m core.HeartbeatRequest) (core.Membership, error) {
			r, _ := b.store.Heartbeat(ctx, core.HeartbeatRequest{})
			for i := range m.Evict {
				for _, x := range r.Members {
					if x.Session == m.Evict[i].Session {
						m.Evict[i].Heartbeats = x.Heartbeats
					}
				}
			}
			return b.store.Heartbeat(ctx, m)
		}},
	},
	{
		"counts no crashes", "eviction-counts-crashes-of-holds",
		fault{heartbeat: func(ctx context.Context, b *broken, m core.HeartbeatRequest) (core.Membership, error) {
			for _, r := range m.Evict {
				_, _ = b.store.Heartbeat(ctx, core.HeartbeatRequest{Self: core.Member{Session: r.Session}, Leave: true})
			}
			return b.store.Heartbeat(ctx, m)
		}},
	},
	{
		"counts crashes for all of the partition", "eviction-counts-crashes-of-holds",
		fault{heartbeat: func(ctx context.Context, b *broken, m core.HeartbeatRequest) (core.Membership, error) {
			for _, r := range m.Evict {
				for _, st := range b.store.States() {
					ref := core.Ref{Route: st.Route, Seq: st.Seq, ID: st.ID, Version: st.Version}
					_, _ = b.store.Hold(ctx, r.Session, core.HoldRequest{Refs: []core.Ref{ref}})
				}
			}
			return b.store.Heartbeat(ctx, m)
		}},
	},
	{"keeps crashes for ever", "failed-attempt-ends-crashes", dues(func(_ *broken, _ core.Session, p *core.DueResult) {
		for i := range p.Retries {
			p.Retries[i].Crashes += p.Retries[i].Attempts
		}
	})},
	{"forgets MaybeOutUpTo", "eviction-makes-partitions-uncertain", memberships(func(r *core.Membership) {
		for i := range r.Partitions {
			r.Partitions[i].MaybeOutUpTo = 0
		}
	})},
	{"does not let members remove themselves", "member-removes-itself", heartbeats(func(m *core.HeartbeatRequest) {
		m.Evict = slices.DeleteFunc(m.Evict, func(r core.Eviction) bool { return r.Session == m.Self.Session })
	})},
	{"lets members leave that remove themselves", "member-removes-itself", heartbeats(func(m *core.HeartbeatRequest) {
		n := len(m.Evict)
		m.Evict = slices.DeleteFunc(m.Evict, func(r core.Eviction) bool { return r.Session == m.Self.Session && r.Heartbeats == m.Self.Heartbeats })
		m.Leave = m.Leave || len(m.Evict) < n
	})},
	{"removes behind locks", "eviction-waits-for-no-lock", fault{waits: "heartbeat"}},
	{"says that removed sessions have settled", "eviction-and-settle-exclude-each-other", unfenced},
	{"knows removed sessions", "evicted-session-is-not-known", unfenced},
	{"lets removed sessions take", "evicted-session-holds-nothing", unfenced},
	{"lets removed sessions ask for what is due", "evicted-session-brings-nothing-due", unfenced},
	{"lets removed sessions release partitions", "evicted-session-releases-nothing", unfenced},
	{"lets removed sessions settle", "evicted-session-settles-nothing", unfenced},
	{
		"settles for removed sessions", "evicted-session-settles-nothing",
		fault{settle: func(ctx context.Context, b *broken, self core.Session, os []core.Outcome) core.Results {
			res := b.store.Settle(ctx, self, os)
			for i, err := range res {
				if errors.Is(err, core.ErrFenced) {
					ref := os[i].Ref()
					if r := b.at(ref); r != nil && r.HeldBy != 0 {
						b.store.Settle(ctx, r.HeldBy, os[i:i+1])
					}
				}
			}
			return res
		}},
	},
}
