package waybillmysql

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

const (
	ownRetriesSQL = lightAside + `(waybill_outbox_hold) WHERE hold = ? AND state = 4 AND due_at <= @waybill_now AND route = ?` + slotSQL + endAsideSQL
	dueSQL        = lightAside + `(waybill_outbox_line) WHERE route = ? AND state = ? AND due_at BETWEEN GREATEST(1, @waybill_now - ?) AND @waybill_now AND hold = 0` + slotSQL +
		`ORDER BY due_at, seq LIMIT ?` + endAsideSQL + `ORDER BY due_at, seq`
	nextSQL = `SELECT due_at FROM waybill_outbox_aside FORCE INDEX (waybill_outbox_line) WHERE route = ? AND state = ? AND due_at > @waybill_now
		AND (due_at = ` + endOfLine + ` OR hold = 0` + slotSQL + `) ORDER BY due_at LIMIT 1`

	// endOfLine is the due_at of the rows that end a line: the waiting records of a route and state. A look along
	// an index goes on over rows that are gone behind its range, until it meets one that is there. The rows are no
	// records: they have numbers below -1, and are not in waybill_outbox.
	endOfLine     = `9223372036854775807`
	endOfLinesSQL = `INSERT IGNORE INTO waybill_outbox_aside (seq, route, k, slot, state, due_at, ends_at, hold, flags)
		VALUES (-2 - ?, ?, '', 0, 1, ` + endOfLine + `, 0, 0, 0), (-3 - ?, ?, '', 0, 4, ` + endOfLine + `, 0, 0, 0)`
)

// Due looks for records that have come due, as core.OutboxStore says. A look takes one round trip, and one that finds
// records takes two more. One call works at a time. Several would meet each other's locks in the index of ids, and
// would then leave timers at their old numbers.
func (s *Store) Due(ctx context.Context, self core.Session, parts []core.RouteSlots, limit int) (page core.DueResult, err error) {
	select {
	case s.dueTurn <- struct{}{}:
		defer func() { <-s.dueTurn }()
	case <-ctx.Done():
		return page, classify("due", ctx.Err())
	}
	found, err := s.lookDue(ctx, self, parts, max(limit, 0))
	if err != nil {
		return page, err
	}
	page = core.DueResult{NextIn: found.nextIn}
	if len(found.mine)+len(found.retries)+len(found.timers) == 0 {
		return page, nil
	}
	for _, alone := range [...]bool{false, true} { // a wait for a lock ends the first attempt
		d := due{found: found}
		err = s.fencedWith(ctx, "due", []core.Session{self}, func(w *work) []query {
			w.alone = alone
			d = due{work: w, found: found, page: core.DueResult{NextIn: found.nextIn}}
			return d.first()
		}, func(*work) error { return d.take(ctx) })
		if page = d.page; number(err) != lockTimeout {
			break
		}
	}
	if err != nil {
		return core.DueResult{}, err
	}
	return page, nil
}

// found are the due records that a look has found. It has locked none of them.
type found struct {
	mine, retries, timers []*row // mine are the retries that self holds already
	nextIn                time.Duration
}

// lookDue looks in those slots of parts that self owns. Mostly self owns all of them.
func (s *Store) lookDue(ctx context.Context, self core.Session, parts []core.RouteSlots, limit int) (f found, err error) {
	for {
		var own map[string]core.Slots
		err := s.read(ctx, "due", func(w *work) error {
			w.self, f = self, found{nextIn: -1}
			member := false
			queries := []query{{text: `SET @waybill_now = ` + nowSQL}, {`SELECT @waybill_now FROM waybill_outbox_fence WHERE session = ?`, []any{self}, func(rows *sql.Rows) error {
				member = true
				return rows.Scan(&w.now)
			}}, w.ownQuery()}
			for i := range parts {
				queries = append(queries, f.look(w, &parts[i], limit)...)
			}
			err := w.askLast(ctx, queries...)
			if own = w.own; err == nil && !member {
				err = core.NewFencedError("waybill/mysql: due", self)
			}
			return err
		})
		if err != nil {
			return found{}, err
		}
		var owned []core.RouteSlots
		whole := true
		for _, part := range parts {
			whole = whole && part.Slots&^own[part.Route] == 0
			if part.Slots &= own[part.Route]; part.Slots != 0 {
				owned = append(owned, part)
			}
		}
		if whole {
			f.mine = f.cut(f.mine, limit)
			f.retries, f.timers = f.cut(f.retries, limit-len(f.mine)), f.cut(f.timers, limit)
			return f, nil
		}
		parts = owned
	}
}

// look asks for the due records of a part, and when the next one is due.
func (f *found) look(w *work, part *core.RouteSlots, limit int) (out []query) {
	slots := int64(part.Slots)
	if !part.DueExcludeHeld {
		out = append(out, w.query(&f.mine, ownRetriesSQL, w.self, part.Route, slots))
	}
	within := int64(math.MaxInt64)
	if part.MaxOverdue > 0 {
		within = part.MaxOverdue.Microseconds()
	}
	add := func(list *[]*row, state core.State) {
		out = append(out, w.query(list, dueSQL, part.Route, state, within, slots, limit+1), query{nextSQL, []any{part.Route, state, slots}, func(rows *sql.Rows) error {
			at, err := value[int64](rows)
			if at < math.MaxInt64 {
				f.next(duration(at - w.now))
			}
			return err
		}})
	}
	add(&f.retries, core.StateFailed)
	add(&f.timers, core.StatePending)
	return out
}

// endLines writes the rows that end the lines of a route. Two routes can have the same numbers; then one has no such
// rows, and longer looks.
func (w *work) endLines(ctx context.Context, route string) error {
	n := 2 * int64(crc32.ChecksumIEEE([]byte(route)))
	_, err := w.exec(ctx, endOfLinesSQL, n, route, n, route)
	return err
}

// next notes that a record is due in that time.
func (f *found) next(in time.Duration) { f.nextIn = sooner(f.nextIn, in) }

// sooner returns the earlier one of two times; negative = never.
func sooner(a, b time.Duration) time.Duration {
	if a < 0 {
		return b
	}
	return min(a, b)
}

// cut returns the first n records of a list. The others are due at once.
func (f *found) cut(list []*row, n int) []*row {
	slices.SortFunc(list, func(a, b *row) int { return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.Seq, b.Seq)) })
	if len(list) > n {
		list = list[:n]
		f.next(0)
	}
	return list
}

// due is one call of Due that has found records, in its transaction.
type due struct {
	*work
	found
	page                 core.DueResult
	held, fresh, waiting []*row // mine, the retries and the timers, as they are now, and the latter two locked
	marked               bool
}

// first locks what was found, and reads the retries. Those that self holds already are not locked: their results would
// meet the lock.
func (d *due) first() []query {
	const byNumberSQL = recordSQL + `FORCE INDEX (PRIMARY) WHERE `
	out := []query{d.ownQuery()}
	if len(d.mine) > 0 {
		out = append(out, d.query(&d.held, byNumberSQL+at(seqsOf(d.mine))))
	}
	if len(d.retries) > 0 {
		out = append(out, d.query(&d.fresh, byNumberSQL+at(seqsOf(d.retries))+` FOR UPDATE SKIP LOCKED`))
	}
	if len(d.timers) > 0 {
		out = append(out, d.lockQuery(&d.waiting, seqsOf(d.timers)), d.drawQuery(&d.marked))
	}
	return out
}

// still returns those of list that are as they were found, as they are now. The others are due at once: they were
// locked, or have changed.
func (d *due) still(list, now []*row) (out []*row) {
	by := make(map[int64]*row, len(now))
	for _, r := range now {
		by[r.Seq] = r
	}
	for _, r := range list {
		if now := by[r.Seq]; now != nil && now.Version == r.Version && now.HeldBy == r.HeldBy && now.due == r.due && d.own[r.Route].Has(r.Slot) {
			out = append(out, now)
		} else {
			d.page.NextIn = 0
		}
	}
	return out
}

// take holds the retries and makes the timers ready.
func (d *due) take(ctx context.Context) error {
	timers := d.still(d.timers, d.waiting)
	if err := d.inLine(ctx, timers); err != nil {
		return err
	}
	fresh := d.still(d.retries, d.fresh)
	for _, r := range append(d.still(d.mine, d.held), fresh...) {
		r.HeldBy = d.self
		d.page.Retries = append(d.page.Retries, r.decode().Record)
	}
	return d.hold(ctx, seqsOf(fresh), 0)
}

// inLine gives timers new numbers. Rows that this transaction deletes again draw them: another way to draw one is not
// the same in all versions of the server. The rows of one INSERT are numbered in turn.
func (d *due) inLine(ctx context.Context, timers []*row) error {
	if len(timers) == 0 {
		return nil
	}
	if !d.marked {
		return errNoMarks
	}
	name, args := waybill.NewID(), []any(nil)
	for i := range timers {
		args = append(args, name+strconv.Itoa(i))
	}
	const place = `, ('', ?, '', '', 0, '', '')`
	err := d.put(ctx, `INSERT INTO waybill_outbox (route, id, topic, k, slot, attrs, body) VALUES `+strings.Repeat(place, len(timers))[2:], args...)
	if err == nil {
		err = d.put(ctx, `SET @waybill_first = LAST_INSERT_ID()`)
	}
	if err == nil {
		err = d.deleteFrom(ctx, "waybill_outbox", atDrawn(0, len(timers)))
	}
	if err != nil {
		return err
	}
	if !d.alone {
		return d.move(ctx, timers, 0)
	}
	for i, r := range timers {
		err := d.move(ctx, timers[i:i+1], i)
		if number(err) == lockTimeout {
			err = d.stay(ctx, r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// atDrawn is at for n of the numbers that were drawn, from one on.
func atDrawn(from, n int) string {
	return fmt.Sprintf(`(seq BETWEEN @waybill_first + %d AND @waybill_first + %d OR seq = @waybill_first + %[2]d + 1)`, from, from+n-2)
}

// stay makes a timer ready at its old number. A notice tells its owner, which reads there no more.
func (d *due) stay(ctx context.Context, r *row) error {
	if err := d.set(ctx, []int64{r.Seq}, `due_at = 0, version = version + 1`); err != nil {
		return err
	}
	d.page.TimersReady++
	_, kind := rules.Requeue(r.facts())
	return d.tell(ctx, kind, r)
}

// move gives timers the numbers that were drawn, from one on. The index of ids then has an entry with the same id, and
// the server locks the one behind it, too, which another transaction can have locked. It must not wait for that.
func (d *due) move(ctx context.Context, timers []*row, from int) error {
	seqs, limit := seqsOf(timers), ""
	if v, err := d.s.serverVersion(ctx); err != nil {
		return err
	} else if isMariaDB(v) {
		limit = `SET STATEMENT innodb_lock_wait_timeout = 0 FOR `
	}
	turn := list(seqs)
	if err := d.put(ctx, limit+`UPDATE waybill_outbox FORCE INDEX (PRIMARY) SET seq = @waybill_first + ? + FIELD(seq, `+turn[1:len(turn)-1]+`) - 2, due_at = 0, version = version + 1 WHERE `+
		at(seqs), from); err != nil {
		return err
	}
	d.page.TimersReady += len(timers)
	if err := d.deleteFrom(ctx, "waybill_outbox_aside", at(seqs)); err != nil {
		return err
	}
	return d.put(ctx, copyAsideSQL+atDrawn(from, len(timers)))
}
