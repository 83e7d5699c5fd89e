package waybillmysql

import (
	"cmp"
	"context"
	"database/sql"
	"slices"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// countLimits are the most rows of a route that one question reads: whole rows, and entries of an index.
type countLimits struct{ rows, entries int64 }

var defaultCountLimits = countLimits{10_000, 100_000}

const (
	nextRouteSQL = `SELECT route FROM waybill_outbox FORCE INDEX (waybill_outbox_key) WHERE route > ? ORDER BY route LIMIT 1`
	lookedSQL    = `SELECT COUNT(*) FROM (SELECT seq FROM waybill_outbox FORCE INDEX (waybill_outbox_key) WHERE route = ? LIMIT ?) first`

	// detailSQL … endDetailSQL counts the whole rows of some sequences.
	detailSQL = `SELECT IF(hold <> 0, 2, IF(state = 6, 5, state)) AS shown, IF(state IN (5, 6), reason, '') AS why, COUNT(*),
		SUM(hold = 0 AND state IN (1, 4) AND due_at <= ?), MIN(ready_since) FROM (`
	endDetailSQL = `) first STRAIGHT_JOIN waybill_outbox FORCE INDEX (PRIMARY) ON seq = s WHERE state <> 3 GROUP BY shown, why`
	allRowsSQL   = `SELECT seq AS s FROM waybill_outbox FORCE INDEX (waybill_outbox_key) WHERE route = ? LIMIT ?`
	abandonedSQL = `SELECT seq AS s FROM waybill_outbox_aside FORCE INDEX (waybill_outbox_line) WHERE route = ? AND state IN (5, 6) LIMIT ?`

	// kindsSQL … endKindsSQL counts entries of an index.
	kindsSQL        = `SELECT state, due_at > 0 AS waits, COUNT(*), SUM(due_at <= ?), MIN(seq), MIN(due_at) FROM (SELECT seq, state, due_at FROM `
	endKindsSQL     = `) first WHERE state IN (1, 4) GROUP BY state, waits`
	countReadySQL   = kindsSQL + `waybill_outbox FORCE INDEX (waybill_outbox_key) WHERE route = ? LIMIT ?` + endKindsSQL
	countWaitingSQL = kindsSQL + `waybill_outbox_aside FORCE INDEX (waybill_outbox_line) WHERE route = ? AND state = ? AND due_at > 0 AND seq > 0 ORDER BY due_at LIMIT ?` + endKindsSQL
	countHeldSQL    = kindsSQL + `(SELECT seq, route, state, due_at FROM waybill_outbox_aside FORCE INDEX (waybill_outbox_hold) WHERE hold <> 0 LIMIT ?) h WHERE route = ?` + endKindsSQL

	sampleSQL = `SELECT IF(state = 6, 5, state) AS shown, due_at > 0 AS waits, IF(state IN (5, 6), reason, '') AS why, COUNT(*)
		FROM waybill_outbox FORCE INDEX (PRIMARY) WHERE `
	endSampleSQL = ` AND route = ? AND state <> 3 GROUP BY shown, waits, why`
)

// Counts returns the numbers of records per route and state, and of abandoned ones per reason. They are exact for a
// route with up to 100,000 rows, published ones that Options.Retention keeps among them, but for abandoned ones above
// 10,000. Of a larger route, up to 100,000 scheduled and 100,000 failed records are counted. The rest is estimated
// from 10,000 sequences all over the table, or a least number if they tell too little; see [rules.Sample]. A least
// number of ready records can be 0 beside more than 100,000 others. A reason that is neither among these sequences nor
// among the first 10,000 abandoned rows is missing. Held records are processing, up to 100,000 of all routes; further
// ones count as pending or failed. Kept published records are not counted. Of more than 10,000 rows, Oldest is the age
// of the first one by sequence, and of the first timer.
func (s *Store) Counts(ctx context.Context) ([]admin.Count, error) {
	var out []admin.Count
	err := s.read(ctx, "counts", func(w *work) (err error) {
		out, err = w.counts(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (w *work) counts(ctx context.Context) (out []admin.Count, err error) {
	if _, err := w.one(ctx, []any{&w.now}, `SELECT `+nowSQL); err != nil {
		return nil, err
	}
	for route := ""; ; {
		if found, err := w.one(ctx, []any{&route}, nextRouteSQL, route); err != nil || !found {
			return out, err
		}
		t := tally{work: w, route: route, counts: map[countKind]*admin.Count{}}
		if err := t.run(ctx); err != nil {
			return nil, err
		}
		var counts []admin.Count
		for _, c := range t.counts {
			counts = append(counts, *c)
		}
		slices.SortFunc(counts, func(a, b admin.Count) int {
			return cmp.Or(cmp.Compare(a.State, b.State), cmp.Compare(a.Reason, b.Reason))
		})
		out = append(out, counts...)
	}
}

// tally adds up the counts of one route.
type tally struct {
	*work
	route  string
	counts map[countKind]*admin.Count
	sample *rules.Sample
	hits   map[countKind]int64
}

// countKind is what is counted apart.
type countKind struct {
	state  core.State
	reason waybill.Reason // of abandoned records
	waits  bool           // for a time
}

// seen is what a question found of a kind.
type seen struct {
	countKind
	n, due, first, since int64
}

func (t *tally) run(ctx context.Context) error {
	var rows int64
	if _, err := t.one(ctx, []any{&rows}, lookedSQL, t.route, t.s.countLimits.rows+1); err != nil {
		return err
	}
	if rows <= t.s.countLimits.rows {
		return t.detail(ctx, allRowsSQL)
	}
	if _, err := t.one(ctx, []any{&rows}, lookedSQL, t.route, t.s.countLimits.entries+1); err != nil {
		return err
	}
	if err := t.detail(ctx, abandonedSQL); err != nil {
		return err
	}
	held, err := t.kinds(ctx, countHeldSQL, t.now, t.s.countLimits.entries, t.route)
	if err != nil {
		return err
	}
	found, err := t.kinds(ctx, countReadySQL, t.now, t.route, t.s.countLimits.entries)
	if err != nil {
		return err
	}
	if rows <= t.s.countLimits.entries {
		return t.add(ctx, found, held, false)
	}
	ready := slices.DeleteFunc(found, func(f seen) bool { return f.waits })
	if pending := (countKind{state: core.StatePending}); !slices.ContainsFunc(ready, func(f seen) bool { return f.countKind == pending }) {
		ready = append(ready, seen{countKind: pending})
	}
	for _, state := range []core.State{core.StatePending, core.StateFailed} {
		found, err := t.kinds(ctx, countWaitingSQL, t.now, t.route, state, t.s.countLimits.entries+1)
		if err == nil {
			err = t.add(ctx, found, held, len(found) > 0 && found[0].n > t.s.countLimits.entries)
		}
		if err != nil {
			return err
		}
	}
	return t.add(ctx, ready, held, true)
}

// detail counts up to 10,000 whole rows, and estimates the abandoned ones if there are more.
func (t *tally) detail(ctx context.Context, text string) error {
	all := int64(0)
	found, err := collect(ctx, t.q, func(rows *sql.Rows) (f seen, err error) {
		return f, rows.Scan(&f.state, &f.reason, &f.n, &f.due, &f.since)
	}, detailSQL+text+endDetailSQL, t.now, t.route, t.s.countLimits.rows+1)
	for _, f := range found {
		all += f.n
	}
	for _, f := range found {
		c := t.count(f)
		c.N, c.Due = f.n, f.due
		if all > t.s.countLimits.rows && err == nil {
			err = t.estimate(ctx, f, c, 0)
		}
	}
	if err != nil || all <= t.s.countLimits.rows {
		return err
	}
	for k := range t.hits { // reasons that only later rows have
		if k.state == core.StateAbandoned && t.counts[k] == nil {
			f := seen{countKind: k}
			if err := t.estimate(ctx, f, t.count(f), 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// count returns the count of a kind, which knows of the oldest now.
func (t *tally) count(f seen) *admin.Count {
	k := countKind{state: f.state, reason: f.reason}
	c := t.counts[k]
	if c == nil {
		c = &admin.Count{Route: t.route, State: f.state, Reason: f.reason}
		t.counts[k] = c
	}
	if f.since > 0 {
		c.Oldest = max(c.Oldest, duration(max(t.now-f.since, 0)))
	}
	return c
}

// kinds counts entries of an index. The oldest of a kind is the first one that waits for a time, or by sequence.
func (t *tally) kinds(ctx context.Context, text string, args ...any) ([]seen, error) {
	found, err := collect(ctx, t.q, func(rows *sql.Rows) (f seen, err error) {
		return f, rows.Scan(&f.state, &f.waits, &f.n, &f.due, &f.first, &f.since)
	}, text, args...)
	for i := range found {
		if f := &found[i]; err == nil && (!f.waits || f.state != core.StatePending) {
			_, err = t.one(ctx, []any{&f.since}, `SELECT ready_since FROM waybill_outbox WHERE seq = ?`, f.first)
		}
	}
	return found, err
}

// add adds what was found of some kinds, and what of it is held. If there is more, it estimates.
func (t *tally) add(ctx context.Context, found, held []seen, more bool) error {
	for _, f := range found {
		all := admin.Count{N: f.n, Due: f.due}
		if more {
			beside := int64(0)
			if c := t.counts[countKind{state: f.state}]; c != nil {
				beside = c.N
			}
			if err := t.estimate(ctx, f, &all, beside); err != nil {
				return err
			}
		}
		for _, h := range held {
			if h.countKind == f.countKind {
				p := t.count(seen{countKind: countKind{state: core.StateProcessing}, since: h.since})
				p.N += h.n
				all.N, all.Due = max(all.N-h.n, 0), max(all.Due-h.due, 0)
			}
		}
		if all.N == 0 && !all.AtLeast {
			continue
		}
		c := t.count(f)
		c.N, c.Due, c.Estimated, c.AtLeast = c.N+all.N, c.Due+all.Due, c.Estimated || all.Estimated, c.AtLeast || all.AtLeast
	}
	return nil
}

// estimate replaces the number of a kind by the estimate of a sample. beside are records that are counted with them. If
// all records that were seen are due, all are.
func (t *tally) estimate(ctx context.Context, f seen, c *admin.Count, beside int64) error {
	if t.sample == nil {
		if err := t.look(ctx); err != nil {
			return err
		}
	}
	c.N, c.AtLeast = t.sample.Count(f.n, t.hits[f.countKind], beside, false)
	c.Estimated = true
	if !f.waits && (f.state == core.StatePending || f.state == core.StateFailed) || f.due == f.n && f.n > 0 {
		c.Due = c.N
	}
	return nil
}

// look takes a sample of the table.
func (t *tally) look(ctx context.Context) error {
	var low, high int64
	if _, err := t.one(ctx, []any{&low, &high}, `SELECT MIN(seq), MAX(seq) FROM waybill_outbox`); err != nil {
		return err
	}
	sample := rules.NewSample(low-1, high)
	t.sample, t.hits = &sample, map[countKind]int64{}
	_, err := collect(ctx, t.q, func(rows *sql.Rows) (_ bool, err error) {
		var k countKind
		var n int64
		err = rows.Scan(&k.state, &k.waits, &k.reason, &n)
		t.hits[k] += n
		return true, err
	}, sampleSQL+at(sample.Seqs())+endSampleSQL, t.route)
	return err
}
