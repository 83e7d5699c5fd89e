package postgres

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Messages with dedupe keys are staged in one statement in the caller's transaction, whose unique index makes two
// transactions meet: the second one waits for the first. The statement sees what was committed when it began. A second
// look (resolve) finds a message that was committed during the wait.

// maxRewinds bounds how often a call begins anew at a message whose key another transaction took in between.
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
// replaces one of the same call, or names its id again. Only if another transaction gets in between it asks once
// more. A producer that replaces nothing needs no right to update or delete.
func (s *stager) stageKeyed(ctx context.Context, rows []core.StagedRow, query queryFunc) ([]waybill.Staged, error) {
	staged := make([]waybill.Staged, len(rows))
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
			return nil, &waybill.Error{Op: "waybill/postgres: stage", Class: waybill.ClassOutage, Err: errors.New(
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
	staged []waybill.Staged
	query  queryFunc

	inserted, known []bool   // known: a message with its route and id was there
	holder          []string // the id of the live message with the row's key
	foreign         []bool   // that message is another source's
	status          []waybill.CancelStatus
}

// stage returns how many of the rows are done with: all, or those before the first whose key another transaction took.
// Each row ends in the first of these ways that is for it:
//
//	the statement said               | the row
//	---------------------------------|----------------------------------------------------------------
//	inserted                         | is new, and has its key for the rows behind it
//	left out, without a dedupe key   | is a duplicate by its id
//	known, and it replaced nothing   | is a duplicate by its id
//	its key is another source's      | fails
//	known, or it replaced a message  | fails: another transaction staged the id at the same moment
//	it replaces, and was left out    | is staged anew with all behind it: its key was taken in between
//	its key is of an earlier row     | is a duplicate of that row
//	a live message has its key       | is a duplicate of that message
//	nothing                          | is a duplicate of a message that was committed since
func (c *chunk) stage(ctx context.Context) (int, error) {
	if err := c.run(ctx); err != nil {
		return 0, err
	}
	live := map[liveKey]*core.StagedRow{}
	// Duplicates, with and without a dedupe key, of messages that were committed after the statement had begun.
	var raced, others []int
	resolve := func() error {
		late := func(i int) bool { return slices.Contains(raced, i) || slices.Contains(others, i) }
		if err := c.refuseTaken(ctx, c.rows, late, c.query); err != nil {
			return err
		}
		return c.resolve(ctx, raced)
	}
	for i := range c.rows {
		row, out, key := &c.rows[i], &c.staged[i], liveKeyOf(&c.rows[i])
		*out = waybill.Staged{ID: row.Envelope.ID, Route: row.Route, Duplicate: !c.inserted[i], Replaced: max(out.Replaced, c.status[i])}
		switch {
		case c.inserted[i]:
			live[key] = row
		case row.DedupeKey == "":
			if !c.known[i] {
				others = append(others, i)
			}
		case c.known[i] && out.Replaced == waybill.CancelNotFound:
		case c.foreign[i], live[key] != nil && live[key].Envelope.Source != row.Envelope.Source:
			return 0, row.DedupeKeyTakenError("waybill/postgres: stage")
		case c.known[i], row.Replace && c.status[i] != waybill.CancelNotFound: // what it replaced would be lost
			return 0, &waybill.Error{Class: waybill.ClassOutage, Err: errors.New(
				"another transaction staged the same id at the same time: roll back and try again")}
		case row.Replace:
			if err := resolve(); err != nil {
				return 0, err
			}
			return i, c.unstage(ctx, i+1)
		case live[key] != nil:
			out.ID = live[key].Envelope.ID
		case c.holder[i] != "":
			out.ID = c.holder[i]
		default:
			raced = append(raced, i)
		}
	}
	return len(c.rows), resolve()
}

// run runs the statement and reads what became of the rows.
func (c *chunk) run(ctx context.Context) error {
	n := len(c.rows)
	c.inserted, c.known = make([]bool, n), make([]bool, n)
	c.holder, c.foreign, c.status = make([]string, n), make([]bool, n), make([]waybill.CancelStatus, n)
	args, _, err := columns(c.rows)
	if err != nil {
		return err
	}
	keys, replace := make([]string, n), make([]bool, n)
	replacing, own := false, false // what may have to be taken back must be found by its id
	place := make(map[[2]string]int, n)
	for i := range c.rows {
		r := &c.rows[i]
		keys[i], replace[i] = r.DedupeKey, r.Replace
		replacing, own = replacing || r.Replace, own || r.Replace || !r.GeneratedID
		place[[2]string{r.Route, r.Envelope.ID}] = i
	}
	sql := c.sql.keyed
	if replacing {
		sql = c.sql.replacing
	}
	at, delay := times(c.rows)
	args = append(append([]any{replan{}}, args...), at, delay, keys, replace, own)
	return c.query(ctx, sql, args, func(scan func(...any) error) error {
		var kind, status int
		var at int64
		var route, id string
		if err := scan(&kind, &at, &route, &id, &status); err != nil {
			return err
		}
		// 0: a row is inserted. 1: its id is there; the status says whether from another source. 2 and 3: a
		// live message has its key, of the same source or of another one; the status says how far that was
		// replaced.
		switch kind {
		case 1:
			if c.known[at-1] = true; status != 0 {
				return c.rows[at-1].IDTakenError("waybill/postgres: stage")
			}
		case 2, 3:
			c.holder[at-1], c.foreign[at-1], c.status[at-1] = id, kind == 3, waybill.CancelStatus(status)
		default:
			i, ok := place[[2]string{route, id}]
			if !ok {
				return errors.New("the database returned a row that was not staged")
			}
			c.inserted[i] = true
		}
		return nil
	})
}

// resolve finds the live messages of duplicates, and refuses the keys of other sources. If one was settled meanwhile
// its duplicate keeps its own id.
func (c *chunk) resolve(ctx context.Context, at []int) error {
	if len(at) == 0 {
		return nil
	}
	var routes, topics, keys, sources []string
	for _, i := range at {
		r := &c.rows[i]
		routes, topics = append(routes, r.Route), append(topics, r.Envelope.Topic)
		keys, sources = append(keys, r.DedupeKey), append(sources, r.Envelope.Source)
	}
	return c.query(ctx, c.sql.holders, []any{replan{}, routes, topics, keys, sources}, func(scan func(...any) error) error {
		var n int64
		var id string
		var foreign bool
		if err := scan(&n, &id, &foreign); err != nil {
			return err
		}
		if foreign {
			return c.rows[at[n-1]].DedupeKeyTakenError("waybill/postgres: stage")
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
	err := c.query(ctx, c.sql.unstage, []any{replan{}, routes, ids}, func(scan func(...any) error) error {
		left--
		return scan(nil)
	})
	if err == nil && left != 0 {
		err = errors.New(strconv.Itoa(left) + " rows that were just staged are not there")
	}
	return err
}
