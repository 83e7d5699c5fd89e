package mongo

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

var _ admin.Counter = (*Store)(nil)

// countLimit is how many records of a kind are counted one by one.
const countLimit int64 = 10_000

// Counts returns the numbers of records per route and state, and of abandoned ones per reason. They are exact up to
// 10,000 ready, 10,000 scheduled, 10,000 failed and 10,000 abandoned ones a route. A greater number is estimated from
// 10,000 other sequences, or a least number if they tell too little; see [rules.Sample]. Held records are processing.
// Published records that Options.Retention keeps are not counted.
func (s *Store) Counts(ctx context.Context) ([]admin.Count, error) {
	var out []admin.Count
	err := s.transact(ctx, "counts", func(ctx context.Context, w *work) error {
		out = nil
		if err := w.clock(ctx); err != nil {
			return err
		}
		routes, err := s.routeNames(outside(ctx))
		if err != nil {
			return err
		}
		for _, route := range routes {
			t := tally{work: w, route: route, counts: map[countKind]*admin.Count{}}
			for _, p := range []phase{phaseReady, phaseTimer, phaseRetry, phaseAbandoned} {
				if err := t.add(ctx, p); err != nil {
					return err
				}
			}
			for _, c := range t.counts {
				out = append(out, *c)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b admin.Count) int {
		return cmp.Or(cmp.Compare(a.Route, b.Route), cmp.Compare(a.State, b.State), cmp.Compare(a.Reason, b.Reason))
	})
	return out, nil
}

// tally adds up the counts of one route.
type tally struct {
	*work
	route  string
	counts map[countKind]*admin.Count
}

type countKind struct {
	state  core.State
	reason waybill.Reason // of abandoned records
}

// add counts up to countLimit records of a phase.
func (t *tally) add(ctx context.Context, p phase) error {
	var later any = int64(0) // what is not due
	if p == phaseTimer || p == phaseRetry {
		later = bson.M{"$cond": bson.A{bson.M{"$gt": bson.A{"$due", t.now}}, int64(1), int64(0)}}
	}
	cur, err := t.s.outbox.Aggregate(ctx, bson.A{
		bson.M{"$match": bson.M{"route": t.route, "phase": p}},
		bson.M{"$limit": t.s.countLimit + 1},
		bson.M{"$group": bson.M{
			"_id": bson.M{"held": bson.M{"$gt": bson.A{"$hold", int64(0)}}, "reason": bson.M{"$ifNull": bson.A{"$reason", ""}}},
			"n":   bson.M{"$sum": int64(1)}, "since": bson.M{"$min": "$since"}, "later": bson.M{"$sum": later},
		}},
	})
	if err != nil {
		return err
	}
	var groups []struct {
		ID struct {
			Held   bool   `bson:"held"`
			Reason string `bson:"reason"`
		} `bson:"_id"`
		N     int64     `bson:"n"`
		Since time.Time `bson:"since"`
		Later int64     `bson:"later"`
	}
	if err := cur.All(ctx, &groups); err != nil {
		return err
	}
	seen := int64(0)
	var counts []touched
	for _, g := range groups {
		k := countKind{state: p.state()}
		switch {
		case g.ID.Held:
			k.state = core.StateProcessing
		case p == phaseAbandoned:
			k.reason = waybill.Reason(g.ID.Reason)
		}
		c := t.counts[k]
		if c == nil {
			c = &admin.Count{Route: t.route, State: k.state, Reason: k.reason}
			t.counts[k] = c
		}
		due := int64(0)
		if k.state == core.StatePending || k.state == core.StateFailed {
			due = g.N - g.Later
		}
		c.N, c.Due, c.Oldest = c.N+g.N, c.Due+due, max(c.Oldest, t.now.Sub(g.Since))
		counts, seen = append(counts, touched{c, g.N, due}), seen+g.N
	}
	if seen <= t.s.countLimit {
		return nil
	}
	return t.estimate(ctx, p, counts, seen)
}

// touched is a count, and what one phase added to it.
type touched struct {
	*admin.Count
	n, due int64
}

// estimate replaces the seen records of some counts by what a sample says of their phase.
func (t *tally) estimate(ctx context.Context, p phase, counts []touched, seen int64) error {
	low, err := t.bound(ctx, p, 1)
	if err != nil {
		return err
	}
	high, err := t.bound(ctx, p, -1)
	if err != nil {
		return err
	}
	sample := rules.NewSample(low-1, high)
	var seqs []int64
	for _, before := range sample.Windows() {
		for n := range int64(rules.SampleWindow) {
			seqs = append(seqs, before+1+n)
		}
	}
	hits, err := t.s.outbox.CountDocuments(ctx, bson.M{"route": t.route, "phase": p, "seq": bson.M{"$in": seqs}})
	if err != nil {
		return err
	}
	total, vague := sample.Total(0, hits)
	if total = max(total, seen); vague {
		total-- // it says "more than"
	}
	for _, c := range counts {
		c.N += c.n*total/seen - c.n
		c.Estimated, c.AtLeast = true, c.AtLeast || vague
		if c.due == c.n {
			c.Due += c.due*total/seen - c.due
		}
	}
	return nil
}

// bound returns the first sequence of the records of a phase, or with order -1 the last one.
func (t *tally) bound(ctx context.Context, p phase, order int) (int64, error) {
	found, err := t.all(ctx, bson.M{"route": t.route, "phase": p},
		options.Find().SetProjection(headOnly).SetSort(bson.M{"seq": order}).SetLimit(1))
	if err != nil || len(found) == 0 {
		return 0, err
	}
	return found[0].Seq, nil
}
