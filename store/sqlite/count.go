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
	countReadyText = `SELECT state, '', count(*), min(since), CASE WHEN state = {processing} THEN 0 ELSE count(*) END, max(seq)
		FROM (SELECT CASE WHEN hold <> 0 THEN {processing} ELSE state END AS state, ready_since AS since, seq
			FROM waybill_outbox INDEXED BY waybill_outbox_ready
			WHERE route = ?1 AND due_at IS NULL AND settled_at IS NULL
			LIMIT ?2)
		GROUP BY state`
	countTimersText = `SELECT 1, '', count(*), min(since), count(*) FILTER (WHERE due <= ?3), 0 FROM (SELECT ready_since AS since, due_at AS due
		FROM waybill_outbox INDEXED BY waybill_outbox_timer WHERE route = ?1 AND due_at IS NOT NULL AND state = {pending} LIMIT ?2)`
	countRetriesText = `SELECT state, '', count(*), min(since), count(*) FILTER (WHERE due <= ?3 AND state <> {processing}), 0
		FROM (SELECT CASE WHEN hold <> 0 THEN {processing} ELSE state END AS state, ready_since AS since, due_at AS due
		FROM waybill_outbox INDEXED BY waybill_outbox_retry WHERE route = ?1 AND state = {failed} LIMIT ?2) GROUP BY state`
	countAbandonedText = `SELECT 5, reason, count(*), min(since), 0, max(seq) FROM (SELECT coalesce(reason, '') AS reason, ready_since AS since, seq
		FROM waybill_outbox INDEXED BY waybill_outbox_abandoned WHERE route = ?1 AND state = {abandoned} LIMIT ?2) GROUP BY reason`
	spanText = `SELECT coalesce((SELECT min(seq) FROM waybill_outbox), 1) - 1, coalesce((SELECT max(seq) FROM waybill_outbox), 0)`
	// hitsText counts the rows of a part among the sequences of a sample, which are a list.
	hitsText = `SELECT CASE WHEN o.hold <> 0 AND (o.due_at IS NULL OR o.state = {failed}) THEN {processing} ELSE o.state END, CASE WHEN o.state = {abandoned} THEN coalesce(o.reason, '') ELSE '' END, count(*)
		FROM json_each(?2) w CROSS JOIN waybill_outbox o NOT INDEXED WHERE o.seq = w.value AND o.route = ?1 AND `
	endHitsText = ` GROUP BY 1, 2`
	// countHeldText counts the held rows of all routes.
	countHeldText = `SELECT route, retry, count(*), min(since) FROM (SELECT route, state = {failed} AS retry, ready_since AS since
		FROM waybill_outbox INDEXED BY waybill_outbox_hold WHERE hold <> 0 LIMIT ?1) GROUP BY 1, 2`
)

// part is a kind of rows that are counted, with the statement for the first ones and the condition of all. Those of a
// part that is ordered come by their sequences.
type part struct {
	text, where string
	ordered     bool
}

var parts = [...]part{
	partReady:     {countReadyText, "o.due_at IS NULL AND o.settled_at IS NULL", true},
	partTimers:    {countTimersText, "o.due_at IS NOT NULL AND o.state = {pending}", false},
	partRetries:   {countRetriesText, "o.state = {failed}", false},
	partAbandoned: {countAbandonedText, "o.state = {abandoned}", true},
}

const (
	partReady = iota
	partTimers
	partRetries
	partAbandoned
)

// Counts returns the numbers of records per route and state, and of abandoned ones per reason. They are exact up to
// 10,000 ready, 10,000 scheduled, 10,000 failed and 10,000 abandoned ones a route. A greater number is estimated from
// 10,000 sequences all over the table, or a least number if they tell too little; see [rules.Sample]. A reason that is
// neither among these sequences nor among the first 10,000 abandoned ones is missing. Held records are processing; they
// are exact up to 10,000 of all routes. Published records that Options.Retention keeps are not counted.
func (s *Store) Counts(ctx context.Context) ([]admin.Count, error) {
	var out []admin.Count
	err := s.read(ctx, "counts", func(w *work) error {
		routes, err := w.routes(ctx)
		if err != nil {
			return err
		}
		var held *heldRows
		for _, route := range routes {
			t := tally{work: w, route: route, counts: map[countKind]*admin.Count{}, held: held}
			if err := t.run(ctx); err != nil {
				return err
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
	held   *heldRows // nil = not asked for yet
}

type countKind struct {
	state  core.State
	reason waybill.Reason // of abandoned records
}

// found is what was seen of a kind.
type found struct{ n, due, since, last int64 }

// heldRows are the records that are out, of all routes.
type heldRows struct {
	of   map[heldKind]found
	more bool // than were looked at
}

type heldKind struct {
	route string
	retry bool
}

func (t *tally) run(ctx context.Context) error {
	for i := range parts {
		all, seen, err := t.look(ctx, parts[i].text)
		if err != nil {
			return err
		}
		if seen > countLimit {
			if err := t.estimate(ctx, i, all); err != nil {
				return err
			}
			continue
		}
		for k, f := range all {
			t.add(k, f)
		}
	}
	return nil
}

// look counts up to countLimit + 1 rows of a part.
func (t *tally) look(ctx context.Context, query string) (all map[countKind]found, seen int64, err error) {
	all = map[countKind]found{}
	return all, seen, t.each(ctx, func(rows *sql.Rows) (bool, error) {
		var k countKind
		var f found
		var since, last sql.NullInt64
		err := rows.Scan(&k.state, &k.reason, &f.n, &since, &f.due, &last)
		if f.since, f.last = since.Int64, last.Int64; f.n > 0 {
			all[k], seen = f, seen+f.n
		}
		return true, err
	}, query, t.route, countLimit+1, t.now)
}

// add adds f to the count of a kind, and returns that.
func (t *tally) add(k countKind, f found) *admin.Count {
	c := t.counts[k]
	if c == nil {
		c = &admin.Count{Route: t.route, State: k.state, Reason: k.reason}
		t.counts[k] = c
	}
	c.N += f.n
	c.Due += f.due
	if f.since > 0 {
		c.Oldest = max(c.Oldest, duration(max(t.now-f.since, 0)))
	}
	return c
}

// estimate adds what a sample says of each kind of a part, and counts the held rows, which are few as a rule.
func (t *tally) estimate(ctx context.Context, number int, all map[countKind]found) error {
	p := &parts[number]
	var low, high int64
	if _, err := t.one(ctx, []any{&low, &high}, spanText); err != nil {
		return err
	}
	if p.ordered {
		low = 0
		for _, f := range all {
			low = max(low, f.last)
		}
	}
	if err := t.findHeld(ctx); err != nil {
		return err
	}
	if f := t.held.of[heldKind{t.route, number == partRetries}]; f.n > 0 && !t.held.more && (number == partReady || number == partRetries) {
		t.add(countKind{state: core.StateProcessing}, f)
	}
	sample := rules.NewSample(low, high)
	seqs, err := json.Marshal(sample.Seqs())
	if err != nil {
		return err
	}
	hits := map[countKind]int64{}
	if err := t.each(ctx, func(rows *sql.Rows) (bool, error) {
		var k countKind
		var n int64
		err := rows.Scan(&k.state, &k.reason, &n)
		hits[k] = n
		if _, ok := all[k]; !ok {
			all[k] = found{}
		}
		return true, err
	}, hitsText+p.where+endHitsText, t.route, string(seqs)); err != nil {
		return err
	}
	for k, f := range all {
		if k.state == core.StateProcessing && !t.held.more {
			continue
		}
		seen := f.n
		n, vague := sample.Count(seen, hits[k], 0, p.ordered)
		f.n = n
		switch { // if all that were seen are due, all are
		case k.state == core.StateAbandoned || k.state == core.StateProcessing:
		case f.due == seen:
			f.due = n
		}
		c := t.add(k, f)
		c.Estimated, c.AtLeast = true, c.AtLeast || vague
	}
	return nil
}

// findHeld counts the held rows, once for all routes.
func (t *tally) findHeld(ctx context.Context) error {
	if t.held != nil {
		return nil
	}
	held, all := &heldRows{of: map[heldKind]found{}}, int64(0)
	err := t.each(ctx, func(rows *sql.Rows) (bool, error) {
		var k heldKind
		var f found
		err := rows.Scan(&k.route, &k.retry, &f.n, &f.since)
		held.of[k] = f
		all += f.n
		return true, err
	}, countHeldText, countLimit+1)
	held.more = all > countLimit
	t.held = held
	return err
}
