package memory

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// Hold writes holds, as core.OutboxStore says. A record that self neither holds nor owns by its partition is HoldGone.
// A record that self holds already is HoldGranted, even if a transaction has locked it: nothing needs to be written.
func (s *Store) Hold(ctx context.Context, self core.Session, want core.HoldRequest) ([]core.HoldResult, error) {
	if err := ctx.Err(); err != nil {
		return nil, outage("hold", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.members[self]
	if m == nil {
		return nil, core.NewFencedError("waybill/memory: hold", self)
	}
	out := make([]core.HoldResult, 0, len(want.Refs)+max(want.KeylessLimit, 0))
	for _, ref := range want.Refs {
		out = append(out, s.take(self, ref, want.CountDelivery))
	}
	return append(out, s.holdNext(m, &want)...), nil
}

func (s *Store) take(self core.Session, ref core.Ref, deliver bool) core.HoldResult {
	out := core.HoldResult{Ref: ref, Status: core.HoldGone}
	r := s.find(ref)
	if r == nil {
		return out
	}
	f := r.facts()
	var writes bool
	if out.Status, writes = rules.Hold(&f, ref, self, r.owned(self), r.lock != nil); writes {
		s.holdStatus(r, self, deliver)
	}
	if out.Status == core.HoldGranted {
		out.Deliveries = r.deliveries
	}
	return out
}

func (s *Store) holdStatus(r *record, self core.Session, deliver bool) {
	f := r.facts()
	r.deliveries = rules.Held(&f, self, deliver).Deliveries
	s.hold(r, self)
}

// holdNext takes the next N without a key: first records that self holds and does not know, after a lost answer. Then
// those that an earlier Hold has passed, then new ones. It also returns the records that it passed, if want asks for
// them: the caller asks for them by name next time, and so can begin behind them.
func (s *Store) holdNext(m *member, want *core.HoldRequest) (out []core.HoldResult) {
	rt := s.routes[want.KeylessSlots.Route]
	if rt == nil || want.KeylessLimit <= 0 {
		return nil
	}
	scope := *want
	if want.UpToSeq == 0 {
		scope.AfterSeq, scope.UpToSeq, scope.ExtraSeqs, scope.SkippedLimit = math.MinInt64, math.MaxInt64, nil, 0
	}
	known := map[int64]string{}
	for _, ref := range want.ExcludeRefs {
		if ref.Route == rt.name {
			known[ref.Seq] = ref.ID
		}
	}
	isWanted := func(r *record) bool {
		id, out := known[r.seq]
		return r.route == rt && want.KeylessSlots.Slots.Has(r.slot) && r.ready() && r.env.Key == "" && (!out || id != r.env.ID)
	}
	passed := map[int64]bool{}
	var asked, mine, found []*record
	for _, seq := range scope.ExtraSeqs {
		if r := rt.bySeq[seq]; r != nil && isWanted(r) && !passed[seq] {
			passed[seq], asked = true, append(asked, r)
		}
	}
	slices.SortFunc(asked, bySeq)
	mine = m.holds(func(r *record) bool {
		return isWanted(r) && (passed[r.seq] || r.seq > scope.AfterSeq && r.seq <= scope.UpToSeq)
	})
	slices.SortFunc(mine, bySeq)
	picked, bytes := map[*record]bool{}, int64(0)
	fits := func(r *record) bool {
		bytes += int64(len(r.env.Body))
		if len(found) == want.KeylessLimit || len(found) > 0 && want.Bytes > 0 && bytes > want.Bytes {
			return false
		}
		picked[r], found = true, append(found, r)
		return true
	}
	full := slices.ContainsFunc(mine, func(r *record) bool { return !fits(r) })
	for _, r := range asked {
		if !full && r.holder == 0 && r.lock == nil {
			full = !fits(r)
		}
	}
	for r := range rt.free.after(0, scope.AfterSeq) {
		if full || len(found) == want.KeylessLimit || r.seq > scope.UpToSeq {
			break
		}
		if isWanted(r) && r.lock == nil && !passed[r.seq] {
			full = !fits(r)
		}
	}
	for _, r := range asked {
		if !picked[r] {
			out = append(out, core.HoldResult{Ref: r.ref(), Status: core.HoldSkipped})
		}
	}
	if len(found) == want.KeylessLimit {
		scope.UpToSeq = min(scope.UpToSeq, slices.MaxFunc(found, bySeq).seq)
	}
	for r := range rt.ready.after(0, scope.AfterSeq) {
		if scope.SkippedLimit--; scope.SkippedLimit < 0 || r.seq > scope.UpToSeq {
			break
		}
		if isWanted(r) && !passed[r.seq] && !picked[r] {
			out = append(out, core.HoldResult{Ref: r.ref(), Status: core.HoldSkipped})
		} else {
			scope.SkippedLimit++
		}
	}
	now := s.now()
	for _, r := range found {
		if r.holder != m.Session {
			s.holdStatus(r, m.Session, want.CountDelivery)
		}
		rec := r.record(now)
		out = append(out, core.HoldResult{Ref: rec.Ref, Status: core.HoldGranted, Record: &rec, Deliveries: r.deliveries})
	}
	return out
}

// holds returns the wanted ones of the records that the member holds, in no order.
func (m *member) holds(wanted func(*record) bool) (out []*record) {
	for r := range m.held {
		if wanted(r) {
			out = append(out, r)
		}
	}
	return out
}

func bySeq(a, b *record) int { return cmp.Compare(a.seq, b.seq) }

// ReleasePartition frees a partition, as core.OutboxStore says. It also returns false if self would have to end its
// hold on a locked record.
func (s *Store) ReleasePartition(ctx context.Context, self core.Session, what core.PartitionState, out []core.Ref) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, outage("release a partition", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.members[self]
	if m == nil {
		return false, core.NewFencedError("waybill/memory: release a partition", self)
	}
	name := what.Partition
	u := s.partition(name)
	now := s.route(name.Route).kept
	if u != nil {
		now = u.PartitionState
	}
	if before, err := rules.GivenUp(now.Owner, now.Term, self, what.Term); before || err != nil {
		if err != nil {
			err = core.NewFencedError("waybill/memory: release a partition", self)
		}
		return before, err
	}
	slots := name.Slots()
	keep := map[*record]bool{}
	for _, ref := range out {
		r := s.find(ref)
		if r == nil {
			continue
		}
		if f := r.facts(); !rules.Kept(&f, ref, self, ref.Route == name.Route && slots.Has(r.slot)) {
			continue
		}
		if r.lock != nil {
			return false, nil
		}
		keep[r] = true
	}
	drop := m.holds(func(r *record) bool { return r.route.name == name.Route && slots.Has(r.slot) && !keep[r] })
	if slices.ContainsFunc(drop, func(r *record) bool { return r.lock != nil }) {
		return false, nil
	}
	for _, r := range drop {
		s.hold(r, 0)
	}
	for r := range keep {
		s.hold(r, self)
	}
	if rules.SameLife(what.StoreEpoch, s.epoch()) {
		u.ReadAfter = what.ReadAfter
	}
	u.Owner = 0
	u.Term++
	return true, nil
}
