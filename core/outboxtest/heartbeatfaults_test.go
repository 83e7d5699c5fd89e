package outboxtest_test

import (
	"context"
	"errors"
	"slices"

	"github.com/waybill-go/waybill/core"
)

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

// present answers members with another PresenceLost.
func present(fn func(m *core.Member) bool) fault {
	return eachMember(func(m *core.Member) { m.PresenceLost = fn(m) })
}

// unfenced says that all went well for a removed session.
var unfenced = fault{
	hold: func(ctx context.Context, b *broken, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
		ts, err := b.store.Hold(ctx, self, w)
		if errors.Is(err, core.ErrFenced) {
			err = nil
		}
		return ts, err
	},
	release: func(ctx context.Context, r *releaseCall) (bool, error) {
		ok, err := r.pass(ctx)
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
	settle: forgives(core.ErrFenced).settle,
	page:   func(_ *broken, _ *core.ReadRequest, p *core.ReadResult) { p.IsMember = true },
}

var heartbeatFaults = []faulty{
	{"forgets how many handlers are free", "join-makes-member-known", eachMember(func(m *core.Member) { m.FreeCapacity = 1 })},
	{"forgets who is not able", "join-makes-member-known", eachMember(func(m *core.Member) {
		m.Routes = slices.Clone(m.Routes)
		each(m.Routes, func(served *core.ServedRoute) { served.Unavailable = false })
	})},
	{"joins who only renews", "renewal-needs-a-member", heartbeats(func(_ *broken, m *core.HeartbeatRequest) { m.Join = true })},
	{"moves for who only looks", "zero-session-only-looks", fault{heartbeat: func(ctx context.Context, b *broken, m core.HeartbeatRequest) (core.Membership, error) {
		looks := m.Self.Session == 0
		if looks && len(m.Transfers) > 0 {
			m.Self.Session, m.Evict, m.Self.Routes = m.Transfers[0].From, nil, nil
		}
		r, err := b.store.Heartbeat(ctx, m)
		r.IsMember = r.IsMember && !looks
		return r, err
	}}},
	{"lets join who only looks", "zero-session-only-looks", fault{membership: func(_ *broken, m *core.HeartbeatRequest, r *core.Membership) { r.IsMember = r.IsMember || m.Join }}},
	{"ignores renewals", "heartbeat-is-renewed", heartbeats(func(_ *broken, m *core.HeartbeatRequest) { m.Self.Heartbeats = 1 })},
	{"takes late renewals", "late-renewal-changes-nothing", fault{membership: func(b *broken, m *core.HeartbeatRequest, r *core.Membership) {
		b.heartbeats[m.Self.Session] = m.Self.Heartbeats
		for i := range r.Members {
			r.Members[i].Heartbeats = b.heartbeats[r.Members[i].Session]
		}
	}}},
	{"moves whoever owns", "one-of-two-moves-wins", heartbeats(func(b *broken, m *core.HeartbeatRequest) {
		each(m.Transfers, func(t *core.Transfer) { t.From = b.owner(t.Partition.Route, t.Partition.From) })
	})},
	{"tells both that they won", "one-of-two-moves-wins", fault{membership: func(_ *broken, m *core.HeartbeatRequest, r *core.Membership) {
		for i := range r.Partitions {
			if len(m.Transfers) > 0 && m.Transfers[0].To != 0 {
				r.Partitions[i].Owner = m.Transfers[0].To
			}
		}
	}}},
	{"counts renewals itself", "heartbeat-repeats", heartbeats(func(b *broken, m *core.HeartbeatRequest) {
		b.count++
		m.Self.Heartbeats += int64(b.count)
	})},
	{"makes partitions for each member", "partitions-are-made-once", wishes},
	{"makes overlapping partitions", "partitions-are-made-once", memberships(func(r *core.Membership) {
		for _, u := range r.Partitions[:min(1, len(r.Partitions))] {
			u.Partition.To = 1
			r.Partitions = append(r.Partitions, u)
		}
	})},
	{"follows the last wish", "number-of-partitions-is-kept", wishes},
	{"stores ReadAfter with each move", "moves-store-low-for-owner-only", fault{heartbeat: func(ctx context.Context, b *broken, m core.HeartbeatRequest) (core.Membership, error) {
		r, err := b.store.Heartbeat(ctx, m)
		for _, mv := range m.Transfers {
			if owner := b.owner(mv.Partition.Route, mv.Partition.From); owner != 0 {
				mv.From, mv.To = owner, owner
				m.Transfers = []core.Transfer{mv}
				return b.store.Heartbeat(ctx, m)
			}
		}
		return r, err
	}}},
	{"stores ReadAfter never", "moves-store-low-for-owner-only", heartbeats(func(_ *broken, m *core.HeartbeatRequest) {
		each(m.Transfers, func(t *core.Transfer) { t.ReadAfter = 0 })
	})},
	{"stores what comes late", "late-move-stores-nothing", heartbeats(func(b *broken, m *core.HeartbeatRequest) {
		b.count++
		m.Self.Heartbeats += int64(10 * b.count)
	})},
	{"counts a clean stop as a crash", "leave-frees-partitions", heartbeats(func(_ *broken, m *core.HeartbeatRequest) {
		if m.Leave {
			m.Leave, m.Evict = false, []core.Eviction{{Session: m.Self.Session, Heartbeats: m.Self.Heartbeats}}
		}
	})},
	{"forgets what who leaves has said of its partitions", "leave-frees-partitions", heartbeats(func(_ *broken, m *core.HeartbeatRequest) {
		if m.Leave {
			m.Transfers = nil
		}
	})},
	{"keeps who leaves", "leave-frees-partitions", heartbeats(func(_ *broken, m *core.HeartbeatRequest) { m.Leave = false })},
	{"forgets a route that nobody serves", "served-again-keeps-low", fault{membership: func(b *broken, m *core.HeartbeatRequest, r *core.Membership) {
		if m.Leave {
			b.count++
		}
		for i := range r.Partitions {
			r.Partitions[i].ReadAfter += int64(1000 * b.count)
		}
	}}},
	{"sets no flags", "suspicion-is-set-and-cleared", heartbeats(func(_ *broken, m *core.HeartbeatRequest) { m.Suspect = nil })},
	{"clears flags with each renewal", "suspicion-is-set-and-cleared", heartbeats(func(b *broken, m *core.HeartbeatRequest) {
		b.count++
		m.Self.Presence = int64(b.count)
		m.Self.Heartbeats += int64(b.count)
	})},
	{"keeps the flag of who has no token any more", "suspicion-is-set-and-cleared", fault{membership: func(b *broken, _ *core.HeartbeatRequest, r *core.Membership) {
		each(r.Members, func(m *core.Member) {
			if m.Suspected {
				b.heartbeats[m.Session] = 1
			}
			m.Suspected = m.Suspected || m.Presence == 0 && b.heartbeats[m.Session] == 1
		})
	}}},
	{"keeps flags for ever", "suspicion-is-set-and-cleared", heartbeats(func(_ *broken, m *core.HeartbeatRequest) { m.Self.Presence = 1 })},
	{"tells of no notices", "membership-tells-of-notices", memberships(func(r *core.Membership) { r.HasNotices = false })},
	{"tells of notices that are not there", "membership-tells-of-notices", memberships(func(r *core.Membership) { r.HasNotices = true })},
	{"lets no member leave", "left-routes-lose-their-partitions", heartbeats(func(_ *broken, m *core.HeartbeatRequest) { m.Leave = false })},
	{"keeps partitions that nobody serves", "dropped-routes-lose-their-partitions", heartbeats(func(b *broken, m *core.HeartbeatRequest) {
		for _, sv := range m.Self.Routes { // as if each member served for ever what it once served
			if !slices.Contains(b.served, sv) {
				b.served = append(b.served, sv)
			}
		}
		if m.Self.Session != 0 {
			m.Self.Routes = b.served
		}
	})},
	{"leaves first", "leave-comes-last", heartbeats(func(_ *broken, m *core.HeartbeatRequest) {
		if m.Leave {
			m.Evict = nil
		}
	})},
	{"stores what nobody says", "moves-of-nobody-store-nothing", fault{membership: func(b *broken, m *core.HeartbeatRequest, r *core.Membership) {
		for _, mv := range m.Transfers {
			for i := range r.Partitions {
				if r.Partitions[i].Partition == mv.Partition && mv.From == mv.To {
					r.Partitions[i].ReadAfter, r.Partitions[i].MaybeOutUpTo = mv.ReadAfter, mv.MaybeOutUpTo
				}
			}
		}
	}}},
	{"removes whatever the heartbeats", "eviction-compares-heartbeats", heartbeats(func(b *broken, m *core.HeartbeatRequest) {
		each(m.Evict, func(e *core.Eviction) { e.Heartbeats = b.member(e.Session).Heartbeats })
	})},
	{"stores how far a member read in another life", "hints-are-of-this-life", heartbeats(func(_ *broken, m *core.HeartbeatRequest) { m.StoreEpoch = "" })},
	{"counts no crashes", "eviction-counts-crashes-of-holds", heartbeats(func(b *broken, m *core.HeartbeatRequest) {
		for _, r := range m.Evict {
			_, _ = b.store.Heartbeat(context.Background(), core.HeartbeatRequest{Self: core.Member{Session: r.Session}, Leave: true})
		}
	})},
	{"counts crashes for all of the partition", "eviction-counts-crashes-of-holds", heartbeats(func(b *broken, m *core.HeartbeatRequest) {
		for _, r := range m.Evict {
			for _, st := range b.store.States() {
				ref := core.Ref{Route: st.Route, Seq: st.Seq, ID: st.ID, Version: st.Version}
				_, _ = b.store.Hold(context.Background(), r.Session, core.HoldRequest{Refs: []core.Ref{ref}})
			}
		}
	})},
	{"keeps crashes for ever", "failed-attempt-ends-crashes", eachRetry(func(r *core.Record) { r.Crashes += r.Attempts })},
	{"forgets MaybeOutUpTo", "eviction-makes-partitions-uncertain", eachPartition(func(u *core.PartitionState) { u.MaybeOutUpTo = 0 })},
	{"does not let members remove themselves", "member-removes-itself", heartbeats(func(_ *broken, m *core.HeartbeatRequest) {
		m.Evict = slices.DeleteFunc(m.Evict, func(r core.Eviction) bool { return r.Session == m.Self.Session })
	})},
	{"lets members leave that remove themselves", "member-removes-itself", heartbeats(func(_ *broken, m *core.HeartbeatRequest) {
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
	{"settles for removed sessions", "evicted-session-settles-nothing", settlesFenced(func(b *broken, o *core.Outcome) core.Session {
		if r := b.at(o.Ref()); r != nil {
			return r.HeldBy
		}
		return 0
	})},

	{"flags whatever the token", "suspicion-needs-the-token", heartbeats(func(b *broken, m *core.HeartbeatRequest) {
		each(m.Suspect, func(s *core.Suspicion) { s.Presence = b.member(s.Session).Presence })
	})},
	{"flags who has no token", "suspicion-needs-the-token", fault{membership: func(b *broken, m *core.HeartbeatRequest, r *core.Membership) {
		for _, f := range m.Suspect {
			b.heartbeats[f.Session] = f.Presence + 1
		}
		each(r.Members, func(m *core.Member) { m.Suspected = m.Suspected || b.heartbeats[m.Session] == 1 })
	}}},
	{"misses who has no token", "missing-needs-a-token", present(func(m *core.Member) bool { return m.Presence == 0 || m.PresenceLost })},
	{"misses who is there", "acquired-token-is-present", present(func(m *core.Member) bool { return m.Presence != 0 })},
	{"loses tokens at once", "acquired-token-is-present", fault{acquire: func(ctx context.Context, b *broken) (int64, <-chan struct{}, error) {
		token, _, err := b.store.Acquire(ctx)
		lost := make(chan struct{})
		close(lost)
		return token, lost, err
	}}},
	{"misses nobody", "token-is-missing-after-its-end", present(func(*core.Member) bool { return false })},
	{"does not say that a token is lost", "token-is-missing-after-its-end", fault{acquire: func(ctx context.Context, b *broken) (int64, <-chan struct{}, error) {
		token, _, err := b.store.Acquire(ctx)
		return token, make(chan struct{}), err
	}}},
	{"has one token", "acquire-has-new-tokens", fault{acquire: func(ctx context.Context, b *broken) (int64, <-chan struct{}, error) {
		_, lost, err := b.store.Acquire(ctx)
		return 1, lost, err
	}}},
}
