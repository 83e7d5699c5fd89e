package mongo

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill/core"
)

// Most calls of Due find nothing. So a first transaction only looks, and conflicts with none. Only if records are due a
// second one takes them, in halves after a conflict. A locked record counts as more that is due, so that the caller
// comes back.

// Due looks for records that have come due, as core.OutboxStore says. It writes nothing if there are none.
func (s *Store) Due(ctx context.Context, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
	var d due
	err := s.transact(ctx, "due", func(ctx context.Context, w *work) error {
		if known, _, err := w.member(ctx, self); err != nil || !known {
			return cmp.Or(err, core.NewFencedError("waybill/mongo: due", self))
		}
		if err := w.clock(ctx); err != nil {
			return err
		}
		d = due{work: w, self: self, limit: max(limit, 0), result: core.DueResult{NextIn: -1}}
		return d.look(ctx, parts)
	})
	if err != nil {
		return core.DueResult{}, err
	}
	result := d.result
	retries, timers := d.retries, d.timers
	take := pieces{
		s: s, op: "due", member: true, self: self,
		do: func(ctx context.Context, w *work, from, to int) (func(), error) {
			rs, err := w.holdRetries(ctx, self, retries[from:to])
			return func() { result.Retries = append(result.Retries, rs...) }, err
		},
		busy: func(int) {},
	}
	if err := take.run(ctx, 0, len(retries)); err != nil {
		return core.DueResult{}, err
	}
	if len(result.Retries) < len(retries) { // locked, or changed meanwhile
		result.NextIn = 0
	}
	take.do = func(ctx context.Context, w *work, from, to int) (func(), error) {
		n, err := w.inLine(ctx, self, timers[from:to])
		return func() { result.TimersReady += n }, err
	}
	return result, take.run(ctx, 0, len(timers))
}

// due is one call of Due in its first transaction, which only looks.
type due struct {
	*work
	self            core.Session
	limit           int
	retries, timers []*record // up to the limit
	result          core.DueResult
}

// look finds the due records, and when the next one is due.
func (d *due) look(ctx context.Context, parts []core.RouteSlots) error {
	own, err := d.owned(ctx, d.self, routesOf(parts))
	if err != nil {
		return err
	}
	for _, part := range merge(parts) {
		if part.Slots &= own[part.Route]; part.Slots == 0 {
			continue
		}
		if !part.DueExcludeHeld {
			held := bson.M{"hold": int64(d.self), "route": part.Route, "phase": phaseRetry, "due": bson.M{"$lte": d.now}}
			mine, err := d.all(ctx, slotFilter(held, part.Slots), options.Find().SetProjection(headOnly))
			if err != nil {
				return err
			}
			d.retries = append(d.retries, mine...)
		}
		free := func() bson.M { return bson.M{"route": part.Route, "phase": phaseRetry, "hold": int64(0)} }
		if d.retries, err = d.scan(ctx, d.retries, free, part.Slots); err != nil {
			return err
		}
		timer := func() bson.M { return bson.M{"route": part.Route, "phase": phaseTimer} }
		if d.timers, err = d.scan(ctx, d.timers, timer, part.Slots); err != nil {
			return err
		}
	}
	slices.SortFunc(d.retries, func(a, b *record) int {
		return cmp.Or(cmp.Compare(b.Hold, a.Hold), byDue(a, b)) // first those that self holds
	})
	slices.SortFunc(d.timers, byDue)
	d.retries, d.timers = d.cut(d.retries), d.cut(d.timers)
	return nil
}

// scan adds the due records that filter selects, up to one more than the limit, and finds out how long the next waits.
func (d *due) scan(ctx context.Context, list []*record, filter func() bson.M, slots core.Slots) ([]*record, error) {
	inOrder := func(n int) *options.FindOptionsBuilder {
		return d.by("due").SetProjection(headOnly).SetSort(bson.M{"due": 1}).SetLimit(int64(n))
	}
	now, next := slotFilter(filter(), slots), slotFilter(filter(), slots)
	now["due"], next["due"] = bson.M{"$lte": d.now}, bson.M{"$gt": d.now}
	found, err := d.all(ctx, now, inOrder(d.limit+1))
	if err != nil {
		return nil, err
	}
	coming, err := d.all(ctx, next, inOrder(1))
	for _, r := range coming {
		if in := max(r.Due.Sub(d.now), time.Millisecond); d.result.NextIn < 0 || in < d.result.NextIn {
			d.result.NextIn = in
		}
	}
	return append(list, found...), err
}

func (d *due) cut(list []*record) []*record {
	if len(list) <= d.limit {
		return list
	}
	d.result.NextIn = 0
	return list[:d.limit]
}

// still returns those of list that are as they were, and that self owns, with their messages.
func (w *work) still(ctx context.Context, self core.Session, list []*record, projection bson.M) (out []*record, err error) {
	refs := make([]core.Ref, len(list))
	for i, r := range list {
		refs[i] = r.ref()
	}
	own, err := w.owned(ctx, self, routesOfRefs(refs))
	if err != nil {
		return nil, err
	}
	found, err := w.byID(ctx, refs, projection)
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		now := found[r.ID]
		if now != nil && now.Seq == r.Seq && now.Version == r.Version && now.Phase == r.Phase &&
			(now.Hold == 0 || now.holder() == self) && own[r.Route].Has(now.slot()) {
			out = append(out, now)
		}
	}
	return out, nil
}

// holdRetries holds due retries and returns them.
func (w *work) holdRetries(ctx context.Context, self core.Session, list []*record) ([]core.Record, error) {
	list, err := w.still(ctx, self, list, nil)
	if err != nil {
		return nil, err
	}
	var holdStatus []*record
	out := make([]core.Record, len(list))
	for i, r := range list {
		if r.Hold == 0 {
			holdStatus = append(holdStatus, r)
			r.holdStatus(self, false)
		}
		out[i] = w.record(r)
	}
	return out, w.hold(ctx, self, holdStatus, false)
}

// inLine makes due timers ready, each with a new number, and returns how many.
func (w *work) inLine(ctx context.Context, self core.Session, list []*record) (int, error) {
	list, err := w.still(ctx, self, list, headOnly)
	if err != nil || len(list) == 0 {
		return 0, err
	}
	seq, _, err := w.s.draw(ctx, len(list))
	if err != nil {
		return 0, err
	}
	models := make([]driver.WriteModel, len(list))
	for i, r := range list {
		models[i] = change(r.ID, bson.M{
			"$set": bson.M{"seq": seq + int64(i), "phase": phaseReady}, "$unset": bson.M{"due": ""}, "$inc": bson.M{"version": int64(1)},
		})
	}
	return len(list), locked(w.write(ctx, models))
}

func byDue(a, b *record) int { return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.Seq, b.Seq)) }
