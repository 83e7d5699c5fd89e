package waybillmysql

import (
	"context"
	"database/sql"
	"slices"
	"time"
)

// A transaction draws its numbers before it commits, so a page can miss a number that it has passed. Each transaction
// that stages or writes a notice locks one of 256 rows for share before its first number: the row of the moment. The
// choice of the row decides only about speed. A scan looks for rows without a lock: all transactions that had locked
// them have ended.
//
// The scans are numbered. The id of a transaction is its row, and the number of the last scan that found the row free
// before the transaction locked it. So while a row is not free, its lock can belong to the id that free says. Two
// transactions that lock one row have one id until both have ended: those that begin in the same 50 ms, or 12.8 s
// apart.
const (
	numMarks  = 256
	scanEvery = 20 * time.Millisecond
	// markSQL is the row of the moment: another one every 50 ms, each again after 12.8 s.
	markSQL = `(` + nowSQL + ` DIV 50000)`
)

// horizon is what this process knows of transactions that stage.
type horizon struct {
	gate chan struct{} // holds one token while somebody uses the rest
	at   time.Time     // of the last scan
	scan int64
	free [numMarks]int64
	open [2]int // the rows of the moment that the last scan left out
	next int64  // the last SnapshotXmax
	// upper is the last LastSeqXmax, and least the least scan that an id of a transaction under way can have.
	upper, least int64
}

func newHorizon() horizon {
	h := horizon{gate: make(chan struct{}, 1), scan: 1}
	for i := range h.free {
		h.free[i] = 1
	}
	return h
}

// enter takes the token of the gate.
func (h *horizon) enter(ctx context.Context) error {
	select {
	case h.gate <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *horizon) leave() { <-h.gate }

// draw locks the row of the moment, before the transaction draws a number, and learns the time.
func (w *work) draw(ctx context.Context) error {
	found := false
	err := w.ask(ctx, w.drawQuery(&found))
	if err == nil && !found {
		err = errNoMarks
	}
	return err
}

// drawQuery is draw; found is false if the row is missing.
func (w *work) drawQuery(found *bool) query {
	return query{`SELECT ` + nowSQL + ` FROM waybill_outbox_marks WHERE g = ` + markSQL + ` % 256 LOCK IN SHARE MODE`, nil, func(rows *sql.Rows) error {
		*found = true
		return rows.Scan(&w.now)
	}}
}

var errNoMarks = misconfigured("table waybill_outbox_marks has not its 256 rows: run Migrate")

// idOf returns the least id of a transaction that locked a row after a scan; the row is 0 for a bound of ids.
func idOf(scan int64, row int) int64 { return scan*numMarks + int64(row) }

// sight returns SnapshotXmax and RunningTxs of a page whose snapshot is taken after the call. A scan leaves out the
// rows of the moment, so that no stager waits for it. Their transactions are not called running, since mostly there are
// none: SnapshotXmax does not go beyond their ids. Without a transaction under way there is no scan, if all numbers are
// visible that a page told of.
func (s *Store) sight(ctx context.Context) (next int64, running []int64, err error) {
	h := &s.horizon
	if err := h.enter(ctx); err != nil {
		return 0, nil, err
	}
	defer h.leave()
	if now := time.Now(); h.least < max(h.next, h.upper) && now.Sub(h.at) >= scanEvery {
		h.scan++
		free, err := collect(ctx, s.own, func(rows *sql.Rows) (g int, err error) {
			return g, rows.Scan(&g, &h.open[0], &h.open[1])
		}, `SELECT g, `+markSQL+` % 256, (`+markSQL+` + 1) % 256 FROM waybill_outbox_marks WHERE g NOT IN (`+
			markSQL+` % 256, (`+markSQL+` + 1) % 256) FOR UPDATE SKIP LOCKED`)
		if err != nil {
			return 0, nil, err
		}
		for _, g := range free {
			h.free[g%numMarks] = h.scan
		}
		h.at = now
	}
	next = h.scan
	for _, g := range h.open {
		if id := h.free[g%numMarks]; id >= h.next { // it never goes back
			next = min(next, id)
		}
	}
	h.next, h.least = next, next
	for g, scan := range h.free {
		if scan < next {
			running, h.least = append(running, idOf(scan, g)), min(h.least, scan)
		}
	}
	return idOf(next, 0), running, nil
}

// maybeEnded returns which of the running transactions may have ended since sight, and so before the snapshot of the
// page. Their rows are free, or are those of the moment again, 12.8 s later, and cannot be looked at. While another
// transaction that runs for long has locked the row as well, the end of the first one is not seen.
func (s *Store) maybeEnded(ctx context.Context, running []int64) (ended []int64, err error) {
	h := &s.horizon
	if err := h.enter(ctx); err != nil {
		return nil, err
	}
	defer h.leave()
	var rows []int64
	for _, id := range running {
		if g := int(id % numMarks); slices.Contains(h.open[:], g) || idOf(h.free[g], g) != id {
			ended = append(ended, id) // the latter was found free for another page
		} else {
			rows = append(rows, int64(g))
		}
	}
	free, err := collect(ctx, s.own, value[int], `SELECT g FROM waybill_outbox_marks WHERE g IN `+list(rows)+` AND g NOT IN (`+
		markSQL+` % 256, (`+markSQL+` + 1) % 256) FOR UPDATE SKIP LOCKED`)
	if err != nil {
		return nil, err
	}
	for _, g := range free {
		ended = append(ended, idOf(h.free[g], g))
	}
	return ended, nil
}

// upper returns LastSeqXmax of a page whose LastSeq was read before the call.
func (s *Store) upper(ctx context.Context) (int64, error) {
	h := &s.horizon
	if err := h.enter(ctx); err != nil {
		return 0, err
	}
	defer h.leave()
	h.upper = h.scan + 1
	return idOf(h.upper, 0), nil
}
