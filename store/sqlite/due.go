package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"slices"

	"github.com/waybill-go/waybill/core"
)

const (
	// ownRetriesText selects the due retries that self holds already, retriesText those that no session holds, and
	// timersText the timers that are due.
	ownRetriesText = `SELECT ` + rowSQL + ` FROM waybill_outbox r INDEXED BY waybill_outbox_hold
		WHERE r.hold = ?1 AND r.hold <> 0 AND r.state = {failed} AND r.due_at <= ?2`
	retriesText = `SELECT ` + rowSQL + ` FROM waybill_outbox r INDEXED BY waybill_outbox_retry
		WHERE r.route = ?1 AND r.state = {failed} AND r.due_at <= ?3 AND r.hold = 0 AND ` + slotSQL + ` ORDER BY r.due_at, r.seq`
	timersText = `SELECT ` + rowSQL + ` FROM waybill_outbox r INDEXED BY waybill_outbox_timer
		WHERE r.route = ?1 AND r.due_at IS NOT NULL AND r.state = {pending} AND r.due_at <= ?3 AND ` + slotSQL + ` ORDER BY r.due_at, r.seq`
	// nextRetryText and nextTimerText return when the next one is due.
	nextRetryText = `SELECT ` + rowSQL + ` FROM waybill_outbox r INDEXED BY waybill_outbox_retry
		WHERE r.route = ?1 AND r.state = {failed} AND r.due_at > ?3 AND r.hold = 0 AND ` + slotSQL + ` ORDER BY r.due_at`
	nextTimerText = `SELECT ` + rowSQL + ` FROM waybill_outbox r INDEXED BY waybill_outbox_timer
		WHERE r.route = ?1 AND r.due_at IS NOT NULL AND r.state = {pending} AND r.due_at > ?3 AND ` + slotSQL + ` ORDER BY r.due_at`

	inLineText = `UPDATE waybill_outbox SET seq = ?2, due_at = NULL, version = version + 1 WHERE seq = ?1`
	drawText   = `UPDATE sqlite_sequence SET seq = ?1 WHERE name = 'waybill_outbox'`
)

// Due looks for records that have come due, as core.OutboxStore says. It takes SQLite's write lock only if there are
// any.
func (s *Store) Due(ctx context.Context, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
	var d due
	look := func(w *work) (bool, error) {
		d = due{work: w, self: self, limit: max(limit, 0), result: core.DueResult{NextIn: -1}}
		known, _, err := w.member(ctx, self)
		switch {
		case err != nil:
			return false, err
		case !known:
			return false, core.NewFencedError("waybill/sqlite: due", self)
		}
		return true, d.look(ctx, parts)
	}
	err := s.read(ctx, "due", func(w *work) error {
		_, err := look(w)
		return err
	})
	if err == nil && len(d.retries)+len(d.timers) > 0 {
		err = s.write(ctx, "due", func(w *work) (bool, error) {
			if ok, err := look(w); err != nil || !ok {
				return false, err
			}
			return true, d.take(ctx)
		})
	}
	if err != nil {
		return core.DueResult{}, err
	}
	return d.result, nil
}

// due is one call of Due in its transaction.
type due struct {
	*work
	self            core.Session
	limit           int
	retries, timers []row // up to the limit
	result          core.DueResult
}

// look finds the due records, and when the next one is due.
func (d *due) look(ctx context.Context, parts []core.RouteSlots) error {
	var mine []row
	if slices.ContainsFunc(parts, func(p core.RouteSlots) bool { return !p.DueExcludeHeld }) {
		var err error
		if mine, err = d.mine(ctx); err != nil {
			return err
		}
	}
	var held, retries, timers []row
	for _, part := range merge(parts) {
		own, err := d.owns(ctx, d.self, part.Route)
		if err != nil {
			return err
		}
		if part.Slots &= own; part.Slots == 0 {
			continue
		}
		for _, r := range mine {
			if !part.DueExcludeHeld && r.Route == part.Route && part.Slots.Has(r.Slot) {
				held = append(held, r)
			}
		}
		if retries, err = d.scan(ctx, retries, &part, retriesText, nextRetryText); err != nil {
			return err
		}
		if timers, err = d.scan(ctx, timers, &part, timersText, nextTimerText); err != nil {
			return err
		}
	}
	slices.SortFunc(held, byDue)
	slices.SortFunc(retries, byDue)
	slices.SortFunc(timers, byDue)
	d.retries, d.timers = d.cut(append(held, retries...)), d.cut(timers)
	return nil
}

func (d *due) mine(ctx context.Context) (out []row, err error) {
	err = d.each(ctx, func(rows *sql.Rows) (bool, error) {
		var r row
		err := r.scan(rows)
		out = append(out, r)
		return true, err
	}, ownRetriesText, int64(d.self), d.now)
	return out, err
}

// scan adds the due records of a part, up to one more than the limit, and finds out how long the next one waits.
func (d *due) scan(ctx context.Context, list []row, part *core.RouteSlots, due, next string) ([]row, error) {
	n := 0
	err := d.each(ctx, func(rows *sql.Rows) (bool, error) {
		var r row
		if err := r.scan(rows); err != nil {
			return false, err
		}
		if part.Slots.Has(r.Slot) {
			list = append(list, r)
			n++
		}
		return n <= d.limit, nil
	}, due, part.Route, bits(part.Slots), d.now)
	if err != nil {
		return nil, err
	}
	err = d.each(ctx, func(rows *sql.Rows) (bool, error) {
		var r row
		if err := r.scan(rows); err != nil || !part.Slots.Has(r.Slot) {
			return true, err
		}
		if in := duration(r.due - d.now); d.result.NextIn < 0 || in < d.result.NextIn {
			d.result.NextIn = in
		}
		return false, nil
	}, next, part.Route, bits(part.Slots), d.now)
	return list, err
}

func (d *due) cut(list []row) []row {
	if len(list) <= d.limit {
		return list
	}
	d.result.NextIn = 0
	return list[:d.limit]
}

// take holds the retries and makes the timers ready.
func (d *due) take(ctx context.Context) error {
	var fresh, retries []int64
	for _, r := range d.retries {
		if retries = append(retries, r.Seq); r.Holder != d.self {
			fresh = append(fresh, r.Seq)
		}
	}
	if err := d.hold(ctx, d.self, fresh, false); err != nil {
		return err
	}
	err := d.load(ctx, retries, func(rec *core.Record) bool {
		d.result.Retries = append(d.result.Retries, *rec)
		return true
	})
	if err != nil || len(d.timers) == 0 {
		return err
	}
	last, err := d.last(ctx)
	if err != nil {
		return err
	}
	for _, r := range d.timers {
		last++
		if _, err := d.exec(ctx, inLineText, r.Seq, last); err != nil {
			return err
		}
	}
	d.result.TimersReady = len(d.timers)
	_, err = d.exec(ctx, drawText, last)
	return err
}

func byDue(a, b row) int { return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.Seq, b.Seq)) }
