package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// countLimit is how many rows of a kind are counted one by one.
const countLimit = 10_000

// Counts returns the numbers of records per route and state: exact up to 10,000 claimable, 10,000 waiting and 10,000
// abandoned ones a route. Beyond that they are marked as estimates: the claimable ones are the span of their sequences,
// the others at least that many. Published ones that Options.Retention keeps are not counted.
func (s *Store) Counts(ctx context.Context) ([]core.Count, error) {
	out, err := s.counts(ctx)
	if err != nil {
		return nil, s.classify("counts", err)
	}
	slices.SortFunc(out, func(a, b core.Count) int {
		return cmp.Or(cmp.Compare(a.Route, b.Route), cmp.Compare(a.State, b.State))
	})
	return out, nil
}

func (s *Store) counts(ctx context.Context) ([]core.Count, error) {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true}) // one snapshot; read-only transactions begin deferred
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }()
	routes, err := s.routes(ctx, tx)
	if err != nil {
		return nil, err
	}
	var out []core.Count
	now := s.now()
	for _, route := range routes {
		t := tally{route: route, now: now, counts: map[core.State]*core.Count{}}
		for _, text := range []string{s.text.countReady, s.text.countWaiting, s.text.countAbandoned} {
			if err := t.add(ctx, tx, text); err != nil {
				return nil, err
			}
		}
		if p := t.counts[core.StatePending]; t.manyReady && p != nil {
			var span int64
			if err := tx.QueryRowContext(ctx, s.text.span, route).Scan(&span); err != nil {
				return nil, err
			}
			p.N = max(p.N, span)
		}
		for _, c := range t.counts {
			out = append(out, *c)
		}
	}
	return out, nil
}

// routes returns the routes that have records.
func (s *Store) routes(ctx context.Context, tx *sql.Tx) (routes []string, err error) {
	rows, err := tx.QueryContext(ctx, s.text.routes)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var r string
		if err := rows.Scan(&r); err != nil {
			return nil, err
		}
		routes = append(routes, r)
	}
	return routes, rows.Err()
}

// tally adds up the counts of one route.
type tally struct {
	route     string
	now       int64
	counts    map[core.State]*core.Count
	manyReady bool
}

// add counts up to countLimit rows with query.
func (t *tally) add(ctx context.Context, tx *sql.Tx, query string) error {
	rows, err := tx.QueryContext(ctx, query, t.route, countLimit+1)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	total := int64(0)
	var touched []*core.Count
	for rows.Next() {
		var state uint8
		var n, due int64
		var waiting bool
		if err := rows.Scan(&state, &n, &due, &waiting); err != nil {
			return err
		}
		c := t.counts[core.State(state)]
		if c == nil {
			c = &core.Count{Route: t.route, State: core.State(state)}
			t.counts[c.State] = c
		}
		c.N += n
		c.Oldest = max(c.Oldest, time.Duration(max(t.now-due, 0))*time.Microsecond)
		touched = append(touched, c)
		total += n
		t.manyReady = t.manyReady || !waiting && total > countLimit
	}
	if total > countLimit {
		for _, c := range touched {
			c.Estimated = true
		}
	}
	return rows.Err()
}
