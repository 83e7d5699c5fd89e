package outboxtest_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

func holdRequests(fn func(b *broken, w *core.HoldRequest)) fault {
	return fault{hold: func(ctx context.Context, b *broken, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
		fn(b, &w)
		return b.holdStatus(ctx, self, w)
	}}
}

func holdResults(fn func(b *broken, self core.Session, ts []core.HoldResult)) fault {
	return fault{hold: func(ctx context.Context, b *broken, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
		ts, err := b.holdStatus(ctx, self, w)
		b.mu.Lock()
		defer b.mu.Unlock()
		fn(b, self, ts)
		return ts, err
	}}
}

func holdStatuses(from, to core.HoldStatus) fault {
	return holdResults(func(_ *broken, _ core.Session, ts []core.HoldResult) {
		for i := range ts {
			if ts[i].Status == from {
				ts[i].Status = to
			}
		}
	})
}

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

func releaseFault(fn func(ctx context.Context, b *broken, self core.Session, u core.PartitionState, out []core.Ref) (bool, error)) fault {
	return fault{release: fn}
}

// oneAtATime refuses a release that runs beside another.
func oneAtATime() func(ctx context.Context, b *broken, self core.Session, u core.PartitionState, out []core.Ref) (bool, error) {
	met := make(chan struct{})
	return func(ctx context.Context, b *broken, self core.Session, u core.PartitionState, out []core.Ref) (bool, error) {
		select {
		case met <- struct{}{}:
			return false, errors.New("another partition is released")
		case <-met:
		case <-time.After(100 * time.Millisecond):
		}
		return b.store.ReleasePartition(ctx, self, u, out)
	}
}

var takeFaults = []faulty{
	{"ignores holds", "holders-never-share", holdless},
	{"forgets records", "holders-never-share", fault{hold: func(ctx context.Context, b *broken, self core.Session,
		w core.HoldRequest,
	) ([]core.HoldResult, error) {
		ts, err := b.store.Hold(ctx, self, w)
		return slices.DeleteFunc(ts, func(t core.HoldResult) bool { return t.Ref.Seq%50 == 0 }), err
	}}},
	{"takes backwards", "next-is-in-order-without-keys", holdResults(func(_ *broken, _ core.Session, ts []core.HoldResult) { slices.Reverse(ts) })},
	// as if no record had a key
	{"takes what has a key", "next-is-in-order-without-keys", fault{rowsIn: func(rows []core.StagedRow) {
		for i := range rows {
			rows[i].Envelope.Key = ""
		}
	}}},
	{
		"leaves out own holds", "next-begins-with-own-holds",
		fault{hold: func(ctx context.Context, b *broken, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
			for ref, s := range b.holds {
				if s == self {
					w.ExcludeRefs = append(w.ExcludeRefs, ref)
				}
			}
			return b.holdStatus(ctx, self, w)
		}},
	},
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
	{"passes in silence what is locked", "next-says-what-it-passed", fault{hold: func(ctx context.Context, b *broken, self core.Session,
		w core.HoldRequest,
	) ([]core.HoldResult, error) {
		ts, err := b.store.Hold(ctx, self, w)
		if w.UpToSeq == 0 || w.UpToSeq == math.MaxInt64 {
			return ts, err
		}
		return slices.DeleteFunc(ts, func(t core.HoldResult) bool { return t.Record == nil && t.Ref.Seq > w.AfterSeq }), err
	}}},
	{"forgets what was passed", "next-says-what-it-passed", holdRequests(func(_ *broken, w *core.HoldRequest) {
		w.ExtraSeqs = nil
	})},
	{"counts each answer as a delivery", "deliveries-count-once", holdResults(func(b *broken, _ core.Session, ts []core.HoldResult) {
		for i := range ts {
			ts[i].Deliveries += b.count
		}
		b.count++
	})},
	{"counts no deliveries", "deliveries-count-once", holdRequests(func(_ *broken, w *core.HoldRequest) { w.CountDelivery = false })},
	{"counts each take as a delivery", "deliveries-count-once", holdRequests(func(_ *broken, w *core.HoldRequest) { w.CountDelivery = true })},
	{
		"answers own holds as locked", "hold-repeats",
		fault{hold: func(ctx context.Context, b *broken, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
			ts, err := b.store.Hold(ctx, self, w)
			for i := range ts {
				if b.holds[ts[i].Ref] == self {
					ts[i].Status = core.HoldSkipped
				}
				b.holds[ts[i].Ref] = self
			}
			return ts, err
		}},
	},
	{"takes behind locks", "hold-answers-what-is-locked", fault{waits: "hold"}},
	{"says that what is locked is gone", "hold-answers-what-is-locked", holdStatuses(core.HoldSkipped, core.HoldGone)},
	{"says that what is locked is held", "hold-answers-what-is-locked", holdStatuses(core.HoldSkipped, core.HoldGranted)},
	{"says that what another holds is gone", "hold-answers-what-is-held", holdStatuses(core.HoldSkipped, core.HoldGone)},
	{"takes what another holds", "hold-answers-what-is-held", holdStatuses(core.HoldSkipped, core.HoldGranted)},
	{"takes any version", "hold-answers-what-is-gone", holdRequests(func(b *broken, w *core.HoldRequest) {
		w.Refs = slices.Clone(w.Refs)
		for i := range w.Refs {
			if r := b.at(w.Refs[i]); r != nil && r.ID == w.Refs[i].ID {
				w.Refs[i].Version = r.Version
			}
		}
	})},
	{"takes any id", "hold-answers-what-is-gone", holdRequests(func(b *broken, w *core.HoldRequest) {
		w.Refs = slices.Clone(w.Refs)
		for i := range w.Refs {
			if r := b.at(w.Refs[i]); r != nil && r.Version == w.Refs[i].Version {
				w.Refs[i].ID = r.ID
			}
		}
	})},
	{
		"takes from any partition", "hold-keeps-to-own-partitions",
		fault{hold: func(ctx context.Context, b *broken, self core.Session, w core.HoldRequest) ([]core.HoldResult, error) {
			var ts []core.HoldResult
			for i := range w.Refs {
				if r := b.at(w.Refs[i]); r != nil {
					one, _ := b.store.Hold(ctx, b.owner(r.Route, r.Slot), core.HoldRequest{Refs: w.Refs[i : i+1]})
					ts = append(ts, one...)
				}
			}
			return ts, nil
		}},
	},
	{"ignores holds", "one-of-two-holders-wins", holdless},

	{
		"holds nothing", "release-holds-what-is-out",
		releaseFault(func(ctx context.Context, b *broken, self core.Session, u core.PartitionState, _ []core.Ref) (bool, error) {
			return b.store.ReleasePartition(ctx, self, u, nil)
		}),
	},
	{
		"leaves other holds", "release-holds-what-is-out",
		releaseFault(func(ctx context.Context, b *broken, self core.Session, u core.PartitionState, out []core.Ref) (bool, error) {
			for ref, s := range b.holds {
				if s == self {
					out = append(out, ref)
				}
			}
			return b.store.ReleasePartition(ctx, self, u, out)
		}),
	},
	{
		"stores no ReadAfter", "release-holds-what-is-out",
		releaseFault(func(ctx context.Context, b *broken, self core.Session, u core.PartitionState, out []core.Ref) (bool, error) {
			u.ReadAfter = 0
			return b.store.ReleasePartition(ctx, self, u, out)
		}),
	},
	{"refuses a repetition", "release-repeats", releaseFault(func(ctx context.Context, b *broken, self core.Session,
		u core.PartitionState, out []core.Ref,
	) (bool, error) {
		if b.given[u.Partition] {
			return false, core.ErrFenced
		}
		b.given[u.Partition] = true
		return b.store.ReleasePartition(ctx, self, u, out)
	})},
	{
		"releases nothing if something changed", "release-leaves-out-what-changed",
		releaseFault(func(ctx context.Context, b *broken, self core.Session, u core.PartitionState, out []core.Ref) (bool, error) {
			for _, ref := range out {
				if r := b.at(ref); r == nil || r.Ref != ref {
					return false, nil
				}
			}
			return b.store.ReleasePartition(ctx, self, u, out)
		}),
	},
	{
		"leaves holds of other versions", "release-ends-holds-of-other-versions",
		releaseFault(func(ctx context.Context, b *broken, self core.Session, u core.PartitionState, out []core.Ref) (bool, error) {
			out = slices.Clone(out)
			for i := range out {
				if r := b.at(out[i]); r != nil && r.HeldBy == self {
					out[i] = r.Ref
				}
			}
			return b.store.ReleasePartition(ctx, self, u, out)
		}),
	},
	{
		"keeps a partition with a locked record", "release-passes-over-what-changed-and-is-locked",
		releaseFault(func(ctx context.Context, b *broken, self core.Session, u core.PartitionState, out []core.Ref) (bool, error) {
			if b.locks > 0 {
				return false, nil
			}
			return b.store.ReleasePartition(ctx, self, u, out)
		}),
	},
	{
		"holds any version", "release-leaves-out-what-changed",
		releaseFault(func(ctx context.Context, b *broken, self core.Session, u core.PartitionState, out []core.Ref) (bool, error) {
			out = slices.Clone(out)
			for i := range out {
				if r := b.at(out[i]); r != nil {
					out[i] = r.Ref
				}
			}
			return b.store.ReleasePartition(ctx, self, u, out)
		}),
	},
	{
		"frees a partition with a locked record", "release-of-locked-changes-nothing",
		releaseFault(func(ctx context.Context, b *broken, self core.Session, u core.PartitionState, out []core.Ref) (bool, error) {
			ok, err := b.store.ReleasePartition(ctx, self, u, out)
			if !ok && err == nil {
				_, err = b.store.ReleasePartition(ctx, self, u, nil)
			}
			return ok, err
		}),
	},
	{
		"holds what it can", "release-of-locked-changes-nothing",
		releaseFault(func(ctx context.Context, b *broken, self core.Session, u core.PartitionState, out []core.Ref) (bool, error) {
			ok, err := b.store.ReleasePartition(ctx, self, u, out)
			if !ok && err == nil {
				_, err = b.store.Hold(ctx, self, core.HoldRequest{Refs: out})
			}
			return ok, err
		}),
	},
	{"releases behind locks", "release-of-locked-changes-nothing", fault{waits: "release partition"}},
	{
		"releases for others", "release-needs-the-owner",
		releaseFault(func(ctx context.Context, b *broken, self core.Session, u core.PartitionState, out []core.Ref) (bool, error) {
			if owner := b.owner(u.Partition.Route, u.Partition.From); owner != 0 {
				self = owner
			}
			return b.store.ReleasePartition(ctx, self, u, out)
		}),
	},
	{
		"frees the partition of a successor", "release-needs-the-owner",
		releaseFault(func(ctx context.Context, b *broken, self core.Session, u core.PartitionState, out []core.Ref) (bool, error) {
			if owner := b.owner(u.Partition.Route, u.Partition.From); b.given[u.Partition] {
				self, u.Term = owner, b.term(u.Partition)
			}
			ok, err := b.store.ReleasePartition(ctx, self, u, out)
			b.given[u.Partition] = b.given[u.Partition] || ok
			return ok, err
		}),
	},
	{
		"ends holds with the partition", "released-holds-settle",
		releaseFault(func(ctx context.Context, b *broken, self core.Session, u core.PartitionState, _ []core.Ref) (bool, error) {
			return b.store.ReleasePartition(ctx, self, u, nil)
		}),
	},
	{"settles for owners only", "released-holds-settle", ownersOnly},
	{"releases one partition at a time", "releases-run-at-once", releaseFault(oneAtATime())},
}
