package mongo

import (
	"context"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
	"github.com/waybill-go/waybill/internal/sleep"
)

// Two members can take records at the same time, and MongoDB has no SKIP LOCKED. A conflict makes the slower one try
// again, a few times. After that it holds the records one by one, and leaves out those that are busy.

// Hold writes holds, as core.OutboxStore says. A record that self neither holds nor owns by its partition is
// core.HoldGone. A record that a transaction has written, or that another call is just taking, is core.HoldSkipped.
func (s *Store) Hold(ctx context.Context, self core.Session, want core.HoldRequest) ([]core.HoldResult, error) {
	out := make([]core.HoldResult, len(want.Refs))
	named := pieces{
		s: s, op: "hold", member: true, self: self,
		do: func(ctx context.Context, w *work, from, to int) (func(), error) {
			taken, err := w.named(ctx, self, want.Refs[from:to], want.CountDelivery)
			return func() { copy(out[from:to], taken) }, err
		},
		busy: func(i int) { out[i] = core.HoldResult{Ref: want.Refs[i], Status: core.HoldSkipped} },
	}
	if err := named.run(ctx, 0, len(want.Refs)); err != nil {
		return nil, err
	}
	if want.KeylessLimit > 0 {
		next, err := s.next(ctx, self, &want)
		return slices.Concat(out, next), err
	}
	if len(want.Refs) == 0 { // a removed session is told so all the same
		return nil, s.fenced(ctx, "hold", self, stamps{}, func(context.Context, *work) error { return nil })
	}
	return out, nil
}

// named takes refs.
func (w *work) named(ctx context.Context, self core.Session, refs []core.Ref, deliver bool) ([]core.HoldResult, error) {
	found, err := w.byID(ctx, refs, headOnly)
	if err != nil {
		return nil, err
	}
	own, err := w.owned(ctx, self, routesOfRefs(refs))
	if err != nil {
		return nil, err
	}
	out := make([]core.HoldResult, len(refs))
	var holdStatus []*record
	for i, ref := range refs {
		out[i].Ref = ref
		r := found[recordID{ref.Route, ref.ID}]
		var writes bool
		if out[i].Status, writes = rules.Hold(r.facts(), ref, self, r != nil && own[ref.Route].Has(r.slot()), false); writes {
			holdStatus = append(holdStatus, r)
			r.holdStatus(self, deliver)
		}
		if out[i].Status == core.HoldGranted {
			out[i].Deliveries = r.Deliveries
		}
	}
	return out, w.hold(ctx, self, holdStatus, deliver)
}

func routesOfRefs(refs []core.Ref) (routes []string) {
	seen := map[string]bool{}
	for _, ref := range refs {
		if !seen[ref.Route] {
			seen[ref.Route] = true
			routes = append(routes, ref.Route)
		}
	}
	return routes
}

// holdStatus notes that self holds r.
func (r *record) holdStatus(self core.Session, deliver bool) {
	f := rules.Held(r.facts(), self, deliver)
	r.Hold, r.Deliveries = int64(f.Holder), f.Deliveries
}

// hold stores that self holds list, which it did not hold before.
func (w *work) hold(ctx context.Context, self core.Session, list []*record, deliver bool) error {
	if len(list) == 0 {
		return nil
	}
	ids := make(bson.A, len(list))
	for i, r := range list {
		ids[i] = r.ID
	}
	add := 0
	if deliver {
		add = 1
	}
	_, err := w.s.outbox.UpdateMany(ctx, bson.M{"_id": bson.M{"$in": ids}}, bson.M{
		"$set": bson.M{"hold": int64(self), "held": w.now}, "$inc": bson.M{"deliveries": add},
	})
	return locked(err)
}

// nextTries is how often the next records are looked for anew when another call takes them at the same time.
const nextTries = 6

// next takes the next N records without a key: first those that self holds and does not know. Records that others are
// just taking are left out after some tries.
func (s *Store) next(ctx context.Context, self core.Session, want *core.HoldRequest) (out []core.HoldResult, err error) {
	busy := map[recordID]bool{}
	for try := 0; ; try++ {
		var list []*record
		err := s.fenced(ctx, "hold", self, stamps{}, func(ctx context.Context, w *work) (err error) {
			out, list, err = w.next(ctx, self, want, busy)
			return err
		})
		if _, ok := errors.AsType[*lockedError](err); !ok {
			return out, err
		}
		if try < nextTries {
			if err := sleep.For(ctx, backOff(try)); err != nil {
				return nil, classify("hold", err)
			}
			continue
		}
		if err := s.grab(ctx, self, list, want.CountDelivery, busy); err != nil {
			return nil, err
		}
	}
}

// grab holds those of list that are still free and not locked, each alone if need be. The others are busy.
func (s *Store) grab(ctx context.Context, self core.Session, list []*record, deliver bool, busy map[recordID]bool) error {
	p := pieces{
		s: s, op: "hold", member: true, self: self,
		do: func(ctx context.Context, w *work, from, to int) (func(), error) {
			refs := make([]core.Ref, 0, to-from)
			for _, r := range list[from:to] {
				refs = append(refs, r.ref())
			}
			found, err := w.byID(ctx, refs, headOnly)
			if err != nil {
				return nil, err
			}
			var free []*record
			for _, r := range found {
				if r.Phase == phaseReady && r.Hold == 0 {
					free = append(free, r)
				}
			}
			return nil, w.hold(ctx, self, free, deliver)
		},
		busy: func(i int) { busy[list[i].ID] = true },
	}
	return p.run(ctx, 0, len(list))
}

// next takes records in one transaction. list are those that it has tried to hold.
func (w *work) next(ctx context.Context, self core.Session, want *core.HoldRequest, busy map[recordID]bool) (out []core.HoldResult, list []*record, err error) {
	known := map[core.Ref]bool{}
	for _, ref := range want.ExcludeRefs {
		known[core.Ref{Route: ref.Route, Seq: ref.Seq, ID: ref.ID}] = true
	}
	var bytes int64
	// take reports whether more can follow r.
	take := func(r *record) bool {
		bytes += int64(len(r.Body))
		if len(out) > 0 && want.Bytes > 0 && bytes > want.Bytes {
			return false
		}
		if r.Hold == 0 {
			list = append(list, r)
			r.holdStatus(self, want.CountDelivery)
		}
		rec := w.record(r)
		out = append(out, core.HoldResult{Ref: rec.Ref, Status: core.HoldGranted, Record: &rec, Deliveries: r.Deliveries})
		return len(out) < want.KeylessLimit
	}
	more := true
	part := want.KeylessSlots
	mine := bson.M{"hold": int64(self), "route": part.Route, "key": "", "phase": phaseReady}
	err = w.each(ctx, slotFilter(mine, part.Slots), w.bySequence("hold", 0), func(r *record) bool {
		if !known[core.Ref{Route: r.Route, Seq: r.Seq, ID: r.ID.ID}] {
			more = take(r)
		}
		return more
	})
	if err != nil || !more {
		return out, list, err
	}
	free := bson.M{"route": part.Route, "phase": phaseReady, "hold": int64(0), "key": ""}
	err = w.each(ctx, slotFilter(free, part.Slots), w.bySequence("free", want.KeylessLimit+len(busy)), func(r *record) bool {
		return busy[r.ID] || take(r)
	})
	if err != nil {
		return out, list, err
	}
	return out, list, w.hold(ctx, self, list, want.CountDelivery)
}

// ReleasePartition frees a partition, as core.OutboxStore says. It returns false if a transaction has locked a record
// of out, or one that self holds in the partition.
func (s *Store) ReleasePartition(ctx context.Context, self core.Session, partition core.PartitionState, out []core.Ref) (bool, error) {
	const op = "release a partition"
	err := s.fenced(ctx, op, self, stamps{}, func(ctx context.Context, w *work) error {
		docs, err := w.routeDocs(ctx, []string{partition.Partition.Route})
		if err != nil {
			return err
		}
		d := docs[partition.Partition.Route]
		if d == nil {
			return core.NewFencedError("waybill/mongo: "+op, self)
		}
		u := d.partition(partition.Partition)
		owner, term := int64(0), d.Term
		if u != nil {
			owner, term = u.Owner, u.Term
		}
		if before, err := rules.GivenUp(core.Session(owner), term, self, partition.Term); err != nil {
			return core.NewFencedError("waybill/mongo: "+op, self)
		} else if before {
			return nil
		}
		if err := w.releasePartition(ctx, self, partition.Partition, out); err != nil {
			return err
		}
		epoch, err := w.metas(ctx, "epoch")
		if err != nil {
			return err
		}
		if rules.SameLife(partition.StoreEpoch, epoch["epoch"].text()) {
			u.ReadAfter = partition.ReadAfter
		}
		u.Owner, u.Term = 0, u.Term+1
		_, err = s.routes.ReplaceOne(ctx, bson.M{"_id": d.Route}, d)
		return err
	})
	if _, ok := errors.AsType[*lockedError](err); ok {
		return false, nil
	}
	return err == nil, err
}

// releasePartition makes self hold exactly the records of out in the partition.
func (w *work) releasePartition(ctx context.Context, self core.Session, partition core.Partition, out []core.Ref) error {
	found, err := w.byID(ctx, out, headOnly)
	if err != nil {
		return err
	}
	slots := partition.Slots()
	keep := bson.A{}
	var holdStatus []*record
	for _, ref := range out {
		r := found[recordID{ref.Route, ref.ID}]
		if !rules.Kept(r.facts(), ref, self, r != nil && ref.Route == partition.Route && slots.Has(r.slot())) {
			continue
		}
		keep = append(keep, r.ID)
		if r.Hold == 0 {
			holdStatus = append(holdStatus, r)
		}
	}
	if err := w.hold(ctx, self, holdStatus, false); err != nil {
		return err
	}
	others := bson.M{"hold": int64(self), "route": partition.Route, "_id": bson.M{"$nin": keep}}
	_, err = w.s.outbox.UpdateMany(ctx, slotFilter(others, slots), bson.M{"$set": bson.M{"hold": int64(0)}, "$unset": bson.M{"held": ""}})
	return locked(err)
}
