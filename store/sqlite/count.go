package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"slices"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

var _ admin.Counter = (*Store)(nil)

// countLimit is how many rows of a kind are counted one by one.
const countLimit = 10_000

const (
	countReadyText = `SELECT state, '', count(*), min(since), CASE WHEN state = {processing} THEN 0 ELSE count(*) END
		FROM (SELECT CASE WHEN hold <> 0 THEN {processing} ELSE state END AS state, ready_since AS since
			FROM waybill_outbox INDEXED BY waybill_outbox_ready
			WHERE route = ?1 AND due_at IS NULL AND settled_at IS NULL
			LIMIT ?2)
		GROUP BY state`
	countTimersText = `SELECT 1, '', count(*), min(since), count(*) FILTER (WHERE due <= ?3) FROM (SELECT ready_since AS since, due_at AS due
		FROM waybill_outbox INDEXED BY waybill_outbox_timer WHERE route = ?1 AND due_at IS NOT NULL AND state = {pending} LIMIT ?2)`
	countRetriesText = `SELECT state, '', count(*), min(since), count(*) FILTER (WHERE due <= ?3 AND state <> {processing})
		FROM (SELECT CASE WHEN hold <> 0 THEN {processing} ELSE state END AS state, ready_since AS since, due_at AS due
		FROM waybill_outbox INDEXED BY waybill_outbox_retry WHERE route = ?1 AND state = {failed} LIMIT ?2) GROUP BY state`
	countAbandonedText = `SELECT 5, reason, count(*), min(since), 0 FROM (SELECT coalesce(reason, '') AS reason, ready_since AS since
		FROM waybill_outbox INDEXED BY waybill_outbox_abandoned WHERE route = ?1 AND state = {abandoned} LIMIT ?2) GROUP BY reason`
	spanText = `SELECT (SELECT seq
			FROM waybill_outbox INDEXED BY waybill_outbox_ready
			WHERE route = ?1 AND due_at IS NULL AND settled_at IS NULL
			ORDER BY seq DESC LIMIT 1)
		- (SELECT seq
			FROM waybill_outbox INDEXED BY waybill_outbox_ready
			WHERE route = ?1 AND due_at IS NULL AND settled_at IS NULL
			ORDER BY seq LIMIT 1) + 1`
)

// Counts returns the numbers of records per route and state, and of abandoned ones per reason. They are exact up to
// 10,000 ready, 10,000 scheduled, 10,000 failed and 10,000 abandoned ones a route. Greater numbers are marked as
// estimates: for ready records the span of their sequences, for others the least number. Held records are processing.
// Published records that Options.Retention keeps are not counted.
func (s *Store) Counts(ctx context.Context) ([]admin.Count, error) {
	var out []admin.Count
	err := s.read(ctx, "counts", func(w *work) error {
		routes, err := w.routes(ctx)
		if err != nil {
			return err
		}
		for _, route := range routes {
			t := tally{work: w, route: route, counts: map[countKind]*admin.Count{}}
			if err := t.run(ctx); err != nil {
				return err
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

func (t *tally) run(ctx context.Context) error {
	many, err := t.add(ctx, countReadyText)
	if err != nil {
		return err
	}
	if p := t.counts[countKind{state: core.StatePending}]; many && p != nil {
		var span int64
		if _, err := t.one(ctx, []any{&span}, spanText, t.route); err != nil {
			return err
		}
		p.N, p.AtLeast = max(p.N, span), false
		p.Due = p.N
	}
	for _, text := range []string{countTimersText, countRetriesText, countAbandonedText} {
		if _, err := t.add(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

// add counts up to countLimit rows with query, and reports whether there are more.
func (t *tally) add(ctx context.Context, query string) (many bool, err error) {
	total := int64(0)
	var touched []*admin.Count
	err = t.each(ctx, func(rows *sql.Rows) (bool, error) {
		var k countKind
		var n, due int64
		var since sql.NullInt64
		if err := rows.Scan(&k.state, &k.reason, &n, &since, &due); err != nil || n == 0 {
			return true, err
		}
		c := t.counts[k]
		if c == nil {
			c = &admin.Count{Route: t.route, State: k.state, Reason: k.reason}
			t.counts[k] = c
		}
		c.N += n
		c.Due += due
		c.Oldest = max(c.Oldest, duration(max(t.now-since.Int64, 0)))
		touched = append(touched, c)
		total += n
		return true, nil
	}, query, t.route, countLimit+1, t.now)
	if many = total > countLimit; many {
		for _, c := range touched {
			c.Estimated, c.AtLeast = true, true
		}
	}
	return many, err
}
