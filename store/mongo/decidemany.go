package mongo

import (
	"context"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

var _ admin.Terminator = (*Store)(nil)

// DecideRecords ends records, or tells their owners to; see [admin.Terminator]. Mostly it is one transaction. If
// another transaction has locked some of the records, it is several.
func (s *Store) DecideRecords(ctx context.Context, req admin.DecideRequest) ([]admin.Decision, error) {
	out, err := admin.CheckDecideRecords(req)
	if err != nil || len(out) == 0 {
		return nil, err
	}
	p := pieces{
		s: s, op: "decide records",
		do: func(ctx context.Context, w *work, from, to int) (func(), error) {
			d := decider{work: w, reason: req.Reason, list: append([]admin.Decision(nil), out[from:to]...)}
			err := d.run(ctx)
			return func() { copy(out[from:to], d.list) }, err
		},
		busy: func(i int) { out[i].Result = admin.DecisionLocked },
	}
	if err := p.run(ctx, 0, len(out)); err != nil {
		return nil, err
	}
	s.Wake()
	return out, nil
}

// decider is a part of one DecideRecords, in its transaction.
type decider struct {
	*work
	reason waybill.Reason
	list   []admin.Decision

	routes map[string]*routeDoc
	free   map[string]bool // routes on which partitions without an owner must stay so
	ended  []*record
	models []driver.WriteModel
	told   []core.Notice
	asked  []int // whose notices the first of told are
}

func (d *decider) run(ctx context.Context) error {
	if err := d.clock(ctx); err != nil {
		return err
	}
	refs, numbers, names := make([]core.Ref, len(d.list)), bson.A{}, map[string]bool{}
	for i := range d.list {
		to := &d.list[i]
		refs[i], names[to.Route] = core.Ref{Route: to.Route, Seq: to.Seq, ID: to.ID}, true
		if to.Number != 0 {
			numbers = append(numbers, to.Number)
		}
	}
	pending, err := d.pendingOf(ctx, numbers)
	if err != nil {
		return err
	}
	now, err := d.byID(ctx, refs, withoutBody)
	if err != nil {
		return err
	}
	var routes []string
	for name := range names {
		routes = append(routes, name)
	}
	if d.routes, err = d.routeDocs(ctx, routes); err != nil {
		return err
	}
	d.free = map[string]bool{}
	var keys []core.Notice
	for i := range d.list {
		to := &d.list[i]
		r := now[recordID{to.Route, to.ID}]
		if r != nil && r.Seq != to.Seq {
			r = nil
		}
		var u rules.Partition
		if r != nil {
			u = d.routes[r.Route].partitionOf(r)
		}
		var tells bool
		to.Result, tells = rules.Decided(r.facts(), u, to, pending[to.Number], d.reason)
		switch {
		case to.Result == admin.DecisionPending && to.Number == 0:
			c := noticeOf(core.NoticeDecide, r)
			c.Reason = d.reason
			d.told, d.asked = append(d.told, c), append(d.asked, i)
		case to.Result == admin.DecisionCarriedOut && r.live():
			if tells {
				keys = append(keys, noticeOf(core.NoticeKey, r))
			}
			d.end(r)
		}
	}
	d.told = append(d.told, keys...)
	return d.store(ctx)
}

// pendingOf returns which notices are there.
func (d *decider) pendingOf(ctx context.Context, numbers bson.A) (map[int64]bool, error) {
	there := map[int64]bool{}
	if len(numbers) == 0 {
		return there, nil
	}
	opts := options.Find().SetProjection(bson.M{"_id": 1}).SetBatchSize(int32(len(numbers) + 1))
	cursor, err := d.s.notice.Find(ctx, bson.M{"_id": bson.M{"$in": numbers}}, opts)
	if err != nil {
		return nil, err
	}
	var docs []struct {
		Number int64 `bson:"_id"`
	}
	if err := cursor.All(ctx, &docs); err != nil {
		return nil, err
	}
	for _, c := range docs {
		there[c.Number] = true
	}
	return there, nil
}

// end ends r, which no process can have out.
func (d *decider) end(r *record) {
	if !r.waits() && !r.Cancellable {
		d.free[r.Route] = true
	}
	d.ended, d.models = append(d.ended, r), append(d.models, change(r.ID, r.abandon(d.routes[r.Route], d.reason, d.now)))
}

// store writes what was decided.
func (d *decider) store(ctx context.Context) error {
	for route := range d.free {
		if err := d.keepUnowned(ctx, route); err != nil {
			return err
		}
	}
	if len(d.models) > 0 {
		if err := d.write(ctx, d.models); err != nil {
			return locked(raced(err))
		}
		if err := d.undecide(ctx, d.ended); err != nil {
			return err
		}
	}
	err := d.tell(ctx, d.told)
	for i, at := range d.asked {
		d.list[at].Number = d.told[i].Number
	}
	return err
}

// undecide deletes the decisions about records that their owners have not carried out.
func (w *work) undecide(ctx context.Context, records []*record) error {
	var routes, seqs bson.A
	for _, r := range records {
		seqs = append(seqs, r.Seq)
		if route := r.ID.Route; !slices.Contains(routes, any(route)) {
			routes = append(routes, route)
		}
	}
	_, err := w.s.notice.DeleteMany(ctx, bson.M{"kind": int32(core.NoticeDecide), "route": bson.M{"$in": routes}, "seq": bson.M{"$in": seqs}})
	return raced(err)
}
