package outboxtest_test

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// holdless takes the next without looking for holds, and without any.
var holdless = fault{hold: func(ctx context.Context, b *broken, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
	if w.KeylessLimit == 0 {
		return b.store.Hold(ctx, self, w)
	}
	p, err := b.store.Read(ctx, self, core.ReadRequest{Ranges: []core.Range{{RouteSlots: w.KeylessSlots, UpToSeq: 1 << 60, Limit: 1000}}, BlockingLimit: 1, Bytes: 1 << 30})
	var out []core.HoldResult
	if len(p.Ranges) == 0 {
		return nil, err
	}
	for _, r := range p.Ranges[0].Records {
		if r.Envelope.Key == "" && !slices.Contains(w.ExcludeRefs, r.Ref) && len(out) < w.KeylessLimit {
			out = append(out, core.HoldResult{Ref: r.Ref, Status: core.HoldGranted, Record: &r})
		}
	}
	return out, err
}}

// oneAtATime refuses a release that runs beside another.
func oneAtATime() fault {
	met := make(chan struct{})
	return fault{release: func(ctx context.Context, r *releaseCall) (bool, error) {
		select {
		case met <- struct{}{}:
			return false, errors.New("another partition is released")
		case <-met:
		case <-time.After(100 * time.Millisecond):
		}
		return r.pass(ctx)
	}}
}

var holdFaults = []faulty{
	{"ignores holds", "holders-never-share", holdless},
	{"forgets records", "holders-never-share", fault{hold: func(ctx context.Context, b *broken, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
		ts, err := b.store.Hold(ctx, self, w)
		return slices.DeleteFunc(ts, func(t core.HoldResult) bool { return t.Ref.Seq%50 == 0 }), err
	}}},
	{"takes backwards", "next-is-in-order-without-keys", holdResults(func(_ *broken, _ core.Session, ts []core.HoldResult) { slices.Reverse(ts) })},
	// as if no record had a key
	{"takes what has a key", "next-is-in-order-without-keys", eachRow(func(r *core.StagedRow) { r.Envelope.Key = "" })},
	{"leaves out own holds", "next-begins-with-own-holds", fault{hold: func(ctx context.Context, b *broken, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
		for ref, s := range b.holds {
			if s == self {
				w.ExcludeRefs = append(w.ExcludeRefs, ref)
			}
		}
		return b.holdStatus(ctx, self, w)
	}}},
	{"ignores Out", "next-begins-with-own-holds", holdRequests(func(_ *broken, w *core.HoldRequest) { w.ExcludeRefs = nil })},
	{"ignores holds", "next-leaves-out-what-is-held", holdless},
	{"ignores slots", "next-leaves-out-what-is-held", holdRequests(func(_ *broken, w *core.HoldRequest) { w.KeylessSlots.Slots = core.AllSlots })},
	{"takes behind locks", "next-leaves-out-what-is-held", fault{waits: "hold"}},
	{"ignores Bytes", "next-keeps-to-its-bytes", holdRequests(func(_ *broken, w *core.HoldRequest) { w.Bytes = 1 << 40 })},
	{"takes nothing that is larger than Bytes", "next-keeps-to-its-bytes", holdRequests(func(_ *broken, w *core.HoldRequest) {
		if w.Bytes < 1000 {
			w.KeylessLimit = 0
		}
	})},
	{"passes in silence what is locked", "next-says-what-it-passed", fault{hold: func(ctx context.Context, b *broken, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
		ts, err := b.store.Hold(ctx, self, w)
		if w.UpToSeq == 0 || w.UpToSeq == math.MaxInt64 {
			return ts, err
		}
		return slices.DeleteFunc(ts, func(t core.HoldResult) bool { return t.Record == nil && t.Ref.Seq > w.AfterSeq }), err
	}}},
	{"forgets what was passed", "next-says-what-it-passed", holdRequests(func(_ *broken, w *core.HoldRequest) { w.ExtraSeqs = nil })},
	{"counts each answer as a delivery", "deliveries-count-once", holdResults(func(b *broken, _ core.Session, ts []core.HoldResult) {
		for i := range ts {
			ts[i].Deliveries += b.count
		}
		b.count++
	})},
	{"counts no deliveries", "deliveries-count-once", holdRequests(func(_ *broken, w *core.HoldRequest) { w.CountDelivery = false })},
	{"counts each take as a delivery", "deliveries-count-once", holdRequests(func(_ *broken, w *core.HoldRequest) { w.CountDelivery = true })},
	{"answers own holds as locked", "hold-repeats", fault{hold: func(ctx context.Context, b *broken, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
		ts, err := b.store.Hold(ctx, self, w)
		for i := range ts {
			if b.holds[ts[i].Ref] == self {
				ts[i].Status = core.HoldSkipped
			}
			b.holds[ts[i].Ref] = self
		}
		return ts, err
	}}},
	{"takes behind locks", "hold-answers-what-is-locked", fault{waits: "hold"}},
	{"says that what is locked is gone", "hold-answers-what-is-locked", holdStatuses(core.HoldSkipped, core.HoldGone)},
	{"says that what is locked is held", "hold-answers-what-is-locked", holdStatuses(core.HoldSkipped, core.HoldGranted)},
	{"says that what another holds is gone", "hold-answers-what-is-held", holdStatuses(core.HoldSkipped, core.HoldGone)},
	{"takes what another holds", "hold-answers-what-is-held", holdStatuses(core.HoldSkipped, core.HoldGranted)},
	{"takes any version", "hold-answers-what-is-gone", holdRequests(func(b *broken, w *core.HoldRequest) {
		w.Refs = b.renamed(w.Refs, func(r *core.Record, ref core.Ref) bool { return r.ID == ref.ID })
	})},
	{"takes any id", "hold-answers-what-is-gone", holdRequests(func(b *broken, w *core.HoldRequest) {
		w.Refs = b.renamed(w.Refs, func(r *core.Record, ref core.Ref) bool { return r.Version == ref.Version })
	})},
	{"takes from any partition", "hold-keeps-to-own-partitions", fault{hold: func(ctx context.Context, b *broken, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
		var ts []core.HoldResult
		for i := range w.Refs {
			if r := b.at(w.Refs[i]); r != nil {
				one, _ := b.store.Hold(ctx, b.owner(r.Route, r.Slot), core.HoldRequest{Refs: w.Refs[i : i+1]})
				ts = append(ts, one...)
			}
		}
		return ts, nil
	}}},
	{"ignores holds", "one-of-two-holders-wins", holdless},

	{"holds nothing", "release-holds-what-is-out", releases(func(r *releaseCall) { r.out = nil })},
	{"leaves other holds", "release-holds-what-is-out", releases(func(r *releaseCall) {
		for ref, s := range r.holds {
			if s == r.self {
				r.out = append(r.out, ref)
			}
		}
	})},
	{"stores no ReadAfter", "release-holds-what-is-out", releases(func(r *releaseCall) { r.partition.ReadAfter = 0 })},
	{"refuses a repetition", "release-repeats", fault{release: func(ctx context.Context, r *releaseCall) (bool, error) {
		if r.given[r.partition.Partition] {
			return false, core.ErrFenced
		}
		r.given[r.partition.Partition] = true
		return r.pass(ctx)
	}}},
	{"releases nothing if something changed", "release-leaves-out-what-changed", fault{release: func(ctx context.Context, r *releaseCall) (bool, error) {
		for _, ref := range r.out {
			if stored := r.at(ref); stored == nil || stored.Ref != ref {
				return false, nil
			}
		}
		return r.pass(ctx)
	}}},
	{"leaves holds of other versions", "release-ends-holds-of-other-versions", releases(func(r *releaseCall) {
		r.out = r.renamed(r.out, func(stored *core.Record, _ core.Ref) bool { return stored.HeldBy == r.self })
	})},
	{"keeps a partition with a locked record", "release-passes-over-what-changed-and-is-locked", fault{release: func(ctx context.Context, r *releaseCall) (bool, error) {
		if r.locks > 0 {
			return false, nil
		}
		return r.pass(ctx)
	}}},
	{"holds any version", "release-leaves-out-what-changed", releases(func(r *releaseCall) {
		r.out = r.renamed(r.out, func(*core.Record, core.Ref) bool { return true })
	})},
	{"frees a partition with a locked record", "release-of-locked-changes-nothing", fault{release: func(ctx context.Context, r *releaseCall) (bool, error) {
		ok, err := r.pass(ctx)
		if !ok && err == nil {
			_, err = r.store.ReleasePartition(ctx, r.self, r.partition, nil)
		}
		return ok, err
	}}},
	{"holds what it can", "release-of-locked-changes-nothing", fault{release: func(ctx context.Context, r *releaseCall) (bool, error) {
		ok, err := r.pass(ctx)
		if !ok && err == nil {
			_, err = r.store.Hold(ctx, r.self, core.HoldRequest{Refs: r.out})
		}
		return ok, err
	}}},
	{"releases behind locks", "release-of-locked-changes-nothing", fault{waits: "release partition"}},
	{"releases for others", "release-needs-the-owner", releases(func(r *releaseCall) {
		r.self = cmp.Or(r.owner(r.partition.Partition.Route, r.partition.Partition.From), r.self)
	})},
	{"frees the partition of a successor", "release-needs-the-owner", fault{release: func(ctx context.Context, r *releaseCall) (bool, error) {
		if owner := r.owner(r.partition.Partition.Route, r.partition.Partition.From); r.given[r.partition.Partition] {
			r.self, r.partition.Term = owner, r.term(r.partition.Partition)
		}
		ok, err := r.pass(ctx)
		r.given[r.partition.Partition] = r.given[r.partition.Partition] || ok
		return ok, err
	}}},
	{"ends holds with the partition", "released-holds-settle", releases(func(r *releaseCall) { r.out = nil })},
	{"settles for owners only", "released-holds-settle", ownersOnly},
	{"releases one partition at a time", "releases-run-at-once", oneAtATime()},

	{"has one term", "term-grows-with-each-owner", eachPartition(func(u *core.PartitionState) { u.Term = 1 })},
	{"has no term at first", "term-grows-with-each-owner", eachPartition(func(u *core.PartitionState) { u.Term-- })},
	{"has a new term with each heartbeat", "term-grows-with-each-owner", fault{membership: func(b *broken, _ *core.HeartbeatRequest, r *core.Membership) {
		b.count++
		each(r.Partitions, func(u *core.PartitionState) { u.Term += int64(b.count) })
	}}},
	{"ignores terms", "earlier-release-changes-nothing", releases(func(r *releaseCall) { r.partition.Term = r.term(r.partition.Partition) })},
	{"refuses an earlier term", "earlier-release-changes-nothing", fault{release: func(ctx context.Context, r *releaseCall) (bool, error) {
		if r.partition.Term < r.term(r.partition.Partition) {
			return false, core.ErrFenced
		}
		return r.pass(ctx)
	}}},
	{"stores how far a member read in another life, as it releases", "hints-are-of-this-life", releases(func(r *releaseCall) { r.partition.StoreEpoch = "" })},
	{"releases in a term that has not begun", "release-needs-its-term", releases(func(r *releaseCall) { r.partition.Term = min(r.partition.Term, r.term(r.partition.Partition)) })},
}
