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
// 10,000 sequences, or a least number if they tell too little; see [rules.Sample]. A reason that is neither among these
// sequences nor among the first 10,000 abandoned records is missing. Held records are processing; they are exact up to
// 10,000 of all routes. Published records that Options.Retention keeps are not counted.
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
		var held *heldRecords
		for _, route := range routes {
			t := tally{work: w, route: route, counts: map[countKind]*admin.Count{}, held: held}
			for _, p := range []phase{phaseReady, phaseTimer, phaseRetry, phaseAbandoned} {
				if err := t.look(ctx, p); err != nil {
					return err
				}
			}
			held = t.held
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
	held   *heldRecords // nil = not asked for yet
}

type countKind struct {
	state  core.State
	reason waybill.Reason // of abandoned records
}

// found is what was seen of a kind.
type found struct {
	n, due int64
	since  time.Time
}

// heldRecords are the records that are out, of all routes.
type heldRecords struct {
	of   map[heldKind]found
	more bool // than were looked at
}

type heldKind struct {
	Route string `bson:"route"`
	Phase phase  `bson:"phase"`
}

// kindOf is the kind of a record, for a group.
var kindOf = bson.M{"held": bson.M{"$gt": bson.A{"$hold", int64(0)}}, "reason": bson.M{"$ifNull": bson.A{"$reason", ""}}}

// groupOf is a group by kindOf.
type groupOf struct {
	ID struct {
		Held   bool   `bson:"held"`
		Reason string `bson:"reason"`
	} `bson:"_id"`
	N     int64     `bson:"n"`
	Since time.Time `bson:"since"`
	Later int64     `bson:"later"`
}

func (g *groupOf) kind(p phase) countKind {
	switch {
	case g.ID.Held:
		return countKind{state: core.StateProcessing}
	case p == phaseAbandoned:
		return countKind{p.state(), waybill.Reason(g.ID.Reason)}
	}
	return countKind{state: p.state()}
}

// look counts up to countLimit + 1 records of a phase.
func (t *tally) look(ctx context.Context, p phase) error {
	var later any = int64(0) // what is not due
	if p == phaseTimer || p == phaseRetry {
		later = bson.M{"$cond": bson.A{bson.M{"$gt": bson.A{"$due", t.now}}, int64(1), int64(0)}}
	}
	var groups []groupOf
	if err := t.aggregate(ctx, &groups, bson.A{
		bson.M{"$match": bson.M{"route": t.route, "phase": p}},
		bson.M{"$limit": t.s.countLimit + 1},
		bson.M{"$group": bson.M{"_id": kindOf, "n": bson.M{"$sum": int64(1)}, "since": bson.M{"$min": "$since"}, "later": bson.M{"$sum": later}}},
	}); err != nil {
		return err
	}
	seen, all := int64(0), map[countKind]found{}
	for i := range groups {
		g := &groups[i]
		k, f := g.kind(p), all[g.kind(p)]
		f.n += g.N
		if k.state == core.StatePending || k.state == core.StateFailed {
			f.due += g.N - g.Later
		}
		if f.since.IsZero() || g.Since.Before(f.since) {
			f.since = g.Since
		}
		all[k], seen = f, seen+g.N
	}
	if seen > t.s.countLimit {
		return t.estimate(ctx, p, all)
	}
	for k, f := range all {
		t.add(k, f)
	}
	return nil
}

func (t *tally) aggregate(ctx context.Context, into any, pipeline bson.A) error {
	cur, err := t.s.outbox.Aggregate(ctx, pipeline)
	if err != nil {
		return err
	}
	return cur.All(ctx, into)
}

// add adds f to the count of a kind, and returns that.
func (t *tally) add(k countKind, f found) *admin.Count {
	c := t.counts[k]
	if c == nil {
		c = &admin.Count{Route: t.route, State: k.state, Reason: k.reason}
		t.counts[k] = c
	}
	c.N, c.Due = c.N+f.n, c.Due+f.due
	if !f.since.IsZero() {
		c.Oldest = max(c.Oldest, t.now.Sub(f.since))
	}
	return c
}

// estimate adds what a sample says of each kind of a phase, and counts the held records, which are few as a rule.
func (t *tally) estimate(ctx context.Context, p phase, all map[countKind]found) error {
	if err := t.findHeld(ctx); err != nil {
		return err
	}
	if f := t.held.of[heldKind{t.route, p}]; f.n > 0 && !t.held.more {
		t.add(countKind{state: core.StateProcessing}, f)
	}
	low, err := t.bound(ctx, p, 1)
	if err != nil {
		return err
	}
	high, err := t.bound(ctx, p, -1)
	if err != nil {
		return err
	}
	sample := rules.NewSample(low-1, high)
	var groups []groupOf
	if err := t.aggregate(ctx, &groups, bson.A{
		bson.M{"$match": bson.M{"route": t.route, "phase": p, "seq": bson.M{"$in": sample.Seqs()}}},
		bson.M{"$group": bson.M{"_id": kindOf, "n": bson.M{"$sum": int64(1)}}},
	}); err != nil {
		return err
	}
	hits := map[countKind]int64{}
	for i := range groups {
		k := groups[i].kind(p)
		hits[k] += groups[i].N
		if _, seen := all[k]; !seen {
			all[k] = found{}
		}
	}
	for k, f := range all {
		if k.state == core.StateProcessing && !t.held.more {
			continue
		}
		n, vague := sample.Count(f.n, hits[k], 0, false)
		if f.due == f.n && (k.state == core.StatePending || k.state == core.StateFailed) {
			f.due = n // all that were seen are due
		}
		f.n = n
		c := t.add(k, f)
		c.Estimated, c.AtLeast = true, c.AtLeast || vague
	}
	return nil
}

// findHeld counts the held records, once for all routes.
func (t *tally) findHeld(ctx context.Context) error {
	if t.held != nil {
		return nil
	}
	var groups []struct {
		ID    heldKind  `bson:"_id"`
		N     int64     `bson:"n"`
		Since time.Time `bson:"since"`
	}
	if err := t.aggregate(ctx, &groups, bson.A{
		bson.M{"$match": bson.M{"hold": bson.M{"$gt": int64(0)}}},
		bson.M{"$limit": t.s.countLimit + 1},
		bson.M{"$group": bson.M{"_id": bson.M{"route": "$route", "phase": "$phase"}, "n": bson.M{"$sum": int64(1)}, "since": bson.M{"$min": "$since"}}},
	}); err != nil {
		return err
	}
	held, all := &heldRecords{of: map[heldKind]found{}}, int64(0)
	for _, g := range groups {
		held.of[g.ID] = found{n: g.N, since: g.Since}
		all += g.N
	}
	held.more = all > t.s.countLimit
	t.held = held
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
