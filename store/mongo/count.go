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
)

var _ admin.Counter = (*Store)(nil)

// countLimit is how many records of a kind are counted one by one.
const countLimit int64 = 10_000

// Counts returns the numbers of records per route and state, and of abandoned ones per reason. They are exact up to
// 10,000 ready, 10,000 scheduled, 10,000 failed and 10,000 abandoned ones a route. Greater numbers are marked as
// estimates: for ready records the span of their sequences, for others the least number. Held records are processing.
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
			"n":   bson.M{"$sum": int64(1)}, "since": bson.M{"$min": "$since"}, "later": bson.M{"$sum": later}, "first": bson.M{"$min": "$seq"},
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
		First int64     `bson:"first"`
	}
	if err := cur.All(ctx, &groups); err != nil {
		return err
	}
	total, first := int64(0), int64(0)
	var touched []*admin.Count
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
		c.N += g.N
		if k.state == core.StatePending || k.state == core.StateFailed {
			c.Due += g.N - g.Later
		}
		c.Oldest = max(c.Oldest, t.now.Sub(g.Since))
		touched = append(touched, c)
		if total += g.N; first == 0 || g.First < first {
			first = g.First
		}
	}
	if total <= t.s.countLimit {
		return nil
	}
	for _, c := range touched {
		c.Estimated, c.AtLeast = true, true
	}
	if pending := t.counts[countKind{state: core.StatePending}]; p == phaseReady && pending != nil {
		last, err := t.last(ctx)
		pending.N, pending.AtLeast = max(pending.N, last-first+1), false
		pending.Due = pending.N
		return err
	}
	return nil
}

// last returns the sequence of the last ready record.
func (t *tally) last(ctx context.Context) (int64, error) {
	found, err := t.all(ctx, bson.M{"route": t.route, "phase": phaseReady},
		options.Find().SetProjection(headOnly).SetSort(bson.M{"seq": -1}).SetLimit(1))
	if err != nil || len(found) == 0 {
		return 0, err
	}
	return found[0].Seq, nil
}
