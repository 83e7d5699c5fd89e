package postgres

import (
	"context"
	"errors"
	"strconv"

	"github.com/waybill-go/waybill/core"
)

// Messages with a dedupe key are staged by a statement of their own; those without never pay for it. It is one statement
// as well, and does in this order:
//
//	r  what is to be staged, and whether its (route, id) is there already
//	h  the live messages with these dedupe keys
//	t  those of them that are to be replaced, locked in the order of sequences
//	x  the withdrawal of those that no relay holds
//	f  the leased ones give their key up instead: they will be, or were, sent
//	i  the new rows. That they come after x and f is forced by asking for the number of those
//
// A producer that replaces nothing needs no right to update or delete.
func keyedSQL(notify, replace, keep bool) string { //nolint:revive // variants of one statement
	s := `
WITH r AS MATERIALIZED (
    SELECT r.*, o.known IS NOT NULL AS known
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
                $10::timestamptz[], $11::bigint[], $12::timestamptz[], $13::text[], $14::bytea[], $15::timestamptz[], $16::bigint[],
                $17::text[], $18::boolean[]) WITH ORDINALITY
         AS r(route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body, at, delay,
              dedupe_key, replace, n)
    LEFT JOIN LATERAL (SELECT true AS known FROM {outbox} o WHERE o.route = r.route AND o.id = r.id LIMIT 1) o ON true -- an index lookup each: no EXISTS
), h AS MATERIALIZED (
    SELECT r.n, r.replace AND NOT r.known AS replace, o.seq, o.id
    FROM r CROSS JOIN LATERAL (
        SELECT o.seq, o.id FROM {outbox} o
        WHERE o.route = r.route AND o.topic = r.topic AND o.dedupe_key = r.dedupe_key AND o.dedupe_key <> '' AND o.settled_at IS NULL LIMIT 1
    ) o WHERE r.dedupe_key <> ''
), `
	status, join, after, holds, wake := "0", "", "", "", ""
	if notify {
		holds, wake = ", holds", ", "+wakeSQL("r.route", "d.at")
	}
	if replace {
		s += `t AS MATERIALIZED (
    SELECT o.seq, o.lease_until IS NOT NULL AS leased, CASE WHEN o.lease_until IS NOT NULL THEN 3 WHEN o.maybe_sent OR o.crashes > 0 THEN 2 ELSE 1 END AS status
    FROM {outbox} o WHERE o.seq = ANY (ARRAY(SELECT h.seq FROM h WHERE h.replace)) AND o.settled_at IS NULL AND length(o.dedupe_key) > 0 -- not <>: that would offer a walk over the keys
    ORDER BY o.seq FOR UPDATE
), x AS (` + withdrawSQL(core.ReasonReplaced, keep) + `
    WHERE o.seq = ANY (ARRAY(SELECT t.seq FROM t WHERE NOT t.leased)) RETURNING 1
), f AS (
    UPDATE {outbox} o SET dedupe_key = '' WHERE o.seq = ANY (ARRAY(SELECT t.seq FROM t WHERE t.leased)) RETURNING 1
), `
		status, join = "coalesce(t.status, 0)", " LEFT JOIN t ON t.seq = h.seq AND h.replace"
		after = " AND (SELECT count(*) FROM x) + (SELECT count(*) FROM f) >= 0"
	}
	return s + `i AS (
    INSERT INTO {outbox} (` + insertedSQL + `, due_at, ready_since, dedupe_key` + holds + `)
    SELECT r.route, r.id, r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent, r.occurred_at, r.hlc, r.expires_at,
           nullif(r.attrs, '')::json, r.body, ` + dueSQL("d.at") + `, r.dedupe_key` + wake + `
    FROM r CROSS JOIN LATERAL (SELECT coalesce(r.at, clock_timestamp() + nullif(r.delay, 0) * interval '1 microsecond') AS at) d
    WHERE NOT r.known` + after + `
    ON CONFLICT DO NOTHING
    RETURNING route, id
)
SELECT 0, 0::bigint, i.route, i.id, 0 FROM i
UNION ALL SELECT 1, r.n, '', '', 0 FROM r WHERE r.known
UNION ALL SELECT 2, h.n, '', h.id, ` + status + ` FROM h` + join
}

// withdrawSQL is the beginning of the statement that takes rows, called o, away.
func withdrawSQL(reason core.Reason, keep bool) string { //nolint:revive // a variant of one statement
	if keep {
		return "UPDATE {outbox} o SET state = 5, reason = '" + string(reason) + "', due_at = NULL, settled_at = clock_timestamp()"
	}
	return "DELETE FROM {outbox} o"
}

// holdersSQL finds the live messages with dedupe keys.
const holdersSQL = `
SELECT r.n, o.id
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS r(route, topic, dedupe_key, n) CROSS JOIN LATERAL (
    SELECT o.id FROM {outbox} o
    WHERE o.route = r.route AND o.topic = r.topic AND o.dedupe_key = r.dedupe_key AND o.dedupe_key <> '' AND o.settled_at IS NULL LIMIT 1
) o`

// unstageSQL takes back what this transaction has just staged.
const unstageSQL = `
DELETE FROM {outbox} o USING unnest($1::text[], $2::text[]) AS r(route, id) WHERE o.route = r.route AND o.id = r.id RETURNING 1`

// maxRewinds bounds how often a call begins anew at a message whose key somebody else took in between.
const maxRewinds = 20

type liveKey struct{ route, topic, dedupe string }

func liveKeyOf(r *core.StagedRow) liveKey { return liveKey{r.Route, r.Envelope.Topic, r.DedupeKey} }

func anyKeyed(rows []core.StagedRow) bool {
	for i := range rows {
		if rows[i].DedupeKey != "" {
			return true
		}
	}
	return false
}

// stageKeyed stages rows some of which have a dedupe key, as if one after the other: in one statement, unless a message
// replaces one of the same call, or names its id again. Only if another transaction gets in between it asks once more.
func (s *stager) stageKeyed(ctx context.Context, rows []core.StagedRow, query queryFunc) ([]core.Staged, error) {
	staged := make([]core.Staged, len(rows))
	for from, rewinds := 0, 0; from < len(rows); {
		to := chunkEnd(rows, from)
		c := chunk{stager: s, rows: rows[from:to], staged: staged[from:to], query: query}
		done, err := c.stage(ctx)
		if err != nil {
			return nil, s.failure("stage", err)
		}
		from += done
		if from == to {
			continue
		}
		if rewinds++; rewinds > maxRewinds {
			return nil, &core.Error{Op: "waybill/postgres: stage", Class: core.ClassOutage, Err: errors.New(
				"other transactions keep taking a dedupe key that this one replaces: roll back and try again")}
		}
	}
	return staged, nil
}

// chunkEnd returns where the next statement begins: before a message that depends on what became of an earlier one.
func chunkEnd(rows []core.StagedRow, from int) int {
	ids, keys := map[[2]string]bool{}, map[liveKey]bool{}
	for i := from; i < len(rows); i++ {
		id, key := [2]string{rows[i].Route, rows[i].Envelope.ID}, liveKeyOf(&rows[i])
		if ids[id] || rows[i].Replace && keys[key] {
			return i
		}
		ids[id] = true
		if rows[i].DedupeKey != "" {
			keys[key] = true
		}
	}
	return len(rows)
}

// chunk is what one statement stages.
type chunk struct {
	*stager
	rows   []core.StagedRow
	staged []core.Staged
	query  queryFunc

	inserted, known []bool
	holder          []string // the id of the live message with the row's key
	status          []core.CancelStatus
}

// stage returns how many of the rows are done with: all, or those before the first whose key another transaction took.
func (c *chunk) stage(ctx context.Context) (int, error) {
	if err := c.run(ctx); err != nil {
		return 0, err
	}
	live := map[liveKey]string{}
	var raced []int // duplicates of what was committed after the statement had begun
	for i := range c.rows {
		row, out, key := &c.rows[i], &c.staged[i], liveKeyOf(&c.rows[i])
		*out = core.Staged{ID: row.Envelope.ID, Route: row.Route, Duplicate: !c.inserted[i], Replaced: max(out.Replaced, c.status[i])}
		switch {
		case c.inserted[i]:
			live[key] = out.ID
		case row.DedupeKey == "", c.known[i] && out.Replaced == core.CancelNotFound:
		case c.known[i], row.Replace && c.status[i] != core.CancelNotFound: // what it replaced would be lost
			return 0, &core.Error{Class: core.ClassOutage, Err: errors.New("another transaction staged the same id at the same time: roll back and try again")}
		case row.Replace:
			if err := c.resolve(ctx, raced); err != nil {
				return 0, err
			}
			return i, c.unstage(ctx, i+1)
		case live[key] != "":
			out.ID = live[key]
		case c.holder[i] != "":
			out.ID = c.holder[i]
		default:
			raced = append(raced, i)
		}
	}
	return len(c.rows), c.resolve(ctx, raced)
}

// run runs the statement and reads what became of the rows.
func (c *chunk) run(ctx context.Context) error {
	n := len(c.rows)
	c.inserted, c.known, c.holder, c.status = make([]bool, n), make([]bool, n), make([]string, n), make([]core.CancelStatus, n)
	args, _, err := columns(c.rows)
	if err != nil {
		return err
	}
	keys, replace := make([]string, n), make([]bool, n)
	text := c.keyed
	for i := range c.rows {
		keys[i], replace[i] = c.rows[i].DedupeKey, c.rows[i].Replace
		if replace[i] {
			text = c.replacing
		}
	}
	at, delay := times(c.rows)
	next := 0
	return c.query(ctx, text, append(append([]any{replan{}}, args...), at, delay, keys, replace), func(scan func(...any) error) error {
		var kind, status int
		var at int64
		var route, id string
		if err := scan(&kind, &at, &route, &id, &status); err != nil {
			return err
		}
		switch kind {
		case 1:
			c.known[at-1] = true
			return nil
		case 2:
			c.holder[at-1], c.status[at-1] = id, core.CancelStatus(status)
			return nil
		}
		for ; next < n; next++ { // new rows come back in input order
			if c.rows[next].Envelope.ID == id && c.rows[next].Route == route {
				c.inserted[next] = true
				next++
				return nil
			}
		}
		return errors.New("the database returned a row that was not staged")
	})
}

// resolve finds the live messages of duplicates. If one was settled meanwhile its duplicate keeps its own id.
func (c *chunk) resolve(ctx context.Context, at []int) error {
	if len(at) == 0 {
		return nil
	}
	routes, topics, keys := make([]string, len(at)), make([]string, len(at)), make([]string, len(at))
	for i, j := range at {
		routes[i], topics[i], keys[i] = c.rows[j].Route, c.rows[j].Envelope.Topic, c.rows[j].DedupeKey
	}
	return c.query(ctx, c.holders, []any{replan{}, routes, topics, keys}, func(scan func(...any) error) error {
		var n int64
		var id string
		if err := scan(&n, &id); err != nil {
			return err
		}
		c.staged[at[n-1]].ID = id
		return nil
	})
}

// unstage takes back what the statement staged from row i on, so that it is staged after what comes before it.
func (c *chunk) unstage(ctx context.Context, from int) error {
	var routes, ids []string
	for i := from; i < len(c.rows); i++ {
		c.staged[i].Replaced = max(c.staged[i].Replaced, c.status[i])
		if c.inserted[i] {
			routes, ids = append(routes, c.rows[i].Route), append(ids, c.rows[i].Envelope.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	left := len(ids)
	err := c.query(ctx, c.unstageText, []any{replan{}, routes, ids}, func(scan func(...any) error) error {
		left--
		return scan(nil)
	})
	if err == nil && left != 0 {
		err = errors.New(strconv.Itoa(left) + " rows that were just staged are not there")
	}
	return err
}
