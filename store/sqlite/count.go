package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"slices"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
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
	// spanText selects the bounds of all sequences, and of the first ready ones of a route the last one.
	spanText = `SELECT coalesce((SELECT min(seq) FROM waybill_outbox), 1) - 1, coalesce((SELECT max(seq) FROM waybill_outbox), 0),
		coalesce((SELECT seq FROM waybill_outbox INDEXED BY waybill_outbox_ready
			WHERE route = ?1 AND due_at IS NULL AND settled_at IS NULL ORDER BY seq LIMIT 1 OFFSET ?2), 0)`
	// hitsText counts the rows of a part in the windows of a sample: those behind each number of a list.
	hitsText = `SELECT count(*) FROM json_each(?2) w CROSS JOIN waybill_outbox o NOT INDEXED
		WHERE o.seq > w.value AND o.seq <= w.value + ?3 AND o.route = ?1 AND `
)

// parts are the kinds of rows that are counted, with the statement for the first ones and the condition of all.
var parts = [...]struct{ text, where string }{
	{countReadyText, "o.due_at IS NULL AND o.settled_at IS NULL"},
	{countTimersText, "o.due_at IS NOT NULL AND o.state = {pending}"},
	{countRetriesText, "o.state = {failed}"},
	{countAbandonedText, "o.state = {abandoned}"},
}

// Counts returns the numbers of records per route and state, and of abandoned ones per reason. They are exact up to
// 10,000 ready, 10,000 scheduled, 10,000 failed and 10,000 abandoned ones a route. A greater number is estimated from
// 10,000 other rows, all over the table, or a least number if they tell too little; see [rules.Sample]. Held records
// are processing. Published records that Options.Retention keeps are not counted.
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
	for i, p := range parts {
		touched, seen, err := t.add(ctx, p.text)
		if err != nil {
			return err
		}
		if seen > countLimit {
			if err := t.estimate(ctx, i == 0, hitsText+p.where, touched, seen); err != nil {
				return err
			}
		}
	}
	return nil
}

// touched is a count, and what one statement added to it.
type touched struct {
	*admin.Count
	n, due int64
}

// add counts up to countLimit + 1 rows with query, and returns what it added.
func (t *tally) add(ctx context.Context, query string) (out []touched, seen int64, err error) {
	return out, seen, t.each(ctx, func(rows *sql.Rows) (bool, error) {
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
		out, seen = append(out, touched{c, n, due}), seen+n
		return true, nil
	}, query, t.route, countLimit+1, t.now)
}

// estimate replaces the seen rows of some counts by what a sample says. The first ready ones lie before the others.
func (t *tally) estimate(ctx context.Context, ready bool, text string, counts []touched, seen int64) error {
	var low, high, last, hits int64
	if _, err := t.one(ctx, []any{&low, &high, &last}, spanText, t.route, countLimit); err != nil {
		return err
	}
	before := int64(0)
	if ready {
		low, before = last, seen
	}
	sample := rules.NewSample(low, high)
	windows, err := json.Marshal(append([]int64{}, sample.Windows()...))
	if err != nil {
		return err
	}
	if _, err := t.one(ctx, []any{&hits}, text, t.route, string(windows), rules.SampleWindow); err != nil {
		return err
	}
	total, vague := sample.Total(before, hits)
	if total = max(total, seen); vague {
		total-- // it says "more than"
	}
	for _, c := range counts {
		c.N += c.n*total/seen - c.n
		c.Estimated, c.AtLeast = true, c.AtLeast || vague
		if ready || c.due == c.n {
			c.Due += c.due*total/seen - c.due
		}
	}
	return nil
}
