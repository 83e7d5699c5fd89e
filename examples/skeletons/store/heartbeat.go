package store

import (
	"context"
	"slices"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// Heartbeat joins, renews or looks, as rules.Heartbeat says.
func (s *Store) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	end, err := s.begin(ctx, "heartbeat")
	if err != nil {
		return core.Membership{}, err
	}
	defer end()
	s.membership.StoreEpoch = epoch
	if err := rules.Heartbeat(ctx, membership{s}, &s.membership, &m); err != nil {
		return core.Membership{}, err
	}
	out := s.membership
	out.Members, out.Partitions = slices.Clone(out.Members), slices.Clone(out.Partitions)
	for i := range out.Members {
		out.Members[i].Routes = slices.Clone(out.Members[i].Routes)
	}
	return out, nil
}

// membership is what rules.Heartbeat asks a store for. The membership of this one is in memory: rules.Heartbeat has
// changed it.
type membership struct{ *Store }

func (membership) Renew(context.Context, *core.Member, bool) error   { return nil }
func (membership) Suspect(context.Context, core.Session) error       { return nil }
func (membership) Save(context.Context, []core.PartitionState) error { return nil }

// Move reports that a partition can pass to another member. LOCK: not while a call of its owner runs.
func (membership) Transfer(context.Context, core.Session, core.Session) (bool, error) {
	return true, nil
}

func (s membership) Kept(_ context.Context, route string) (core.PartitionState, error) {
	return s.kept[route], nil
}

func (s membership) Retire(_ context.Context, kept core.PartitionState) error {
	s.kept[kept.Partition.Route] = kept
	return nil
}

// End ends the holds of a member. LOCK: the answer is false if a transaction has locked the member or a row that it
// holds.
func (s membership) End(_ context.Context, session core.Session, died bool) (last int64, ok bool, err error) {
	for _, r := range s.rows { // INDEX: rows by holder
		if r.Holder != session {
			continue
		}
		if r.Holder, r.MaybeSent = 0, true; died {
			r.Crashes++
			r.Version++
		}
	}
	return s.seq, true, nil
}

// partition returns a partition, or nil if there is none with exactly these slots.
func (s *Store) partition(name core.Partition) *core.PartitionState {
	for i := range s.membership.Partitions {
		if s.membership.Partitions[i].Partition == name {
			return &s.membership.Partitions[i]
		}
	}
	return nil
}
