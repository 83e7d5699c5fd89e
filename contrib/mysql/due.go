package waybillmysql

import (
	"cmp"
	"context"
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
	ownRetriesSQL = lightAside + `(waybill_outbox_hold) WHERE hold = ? AND state = 4 AND due_at <= ? AND route = ?` + slotSQL + endAsideSQL
	dueSQL        = lightAside + `(waybill_outbox_line) WHERE route = ? AND state = ? AND due_at BETWEEN ? AND ? AND hold = 0` + slotSQL +
		`ORDER BY due_at, seq LIMIT ?` + endAsideSQL + `ORDER BY due_at, seq`
	nextSQL = `SELECT due_at FROM waybill_outbox_aside FORCE INDEX (waybill_outbox_line) WHERE route = ? AND state = ? AND due_at > ?
		AND (due_at = ` + endOfLine + ` OR hold = 0` + slotSQL + `) ORDER BY due_at LIMIT 1`

	// endOfLine is the due_at of the rows that end a line: the waiting records of a route and state. A look along
	// an index goes on over rows that are gone behind its range, until it meets one that is there. The rows are no
	// records: they have numbers below -1, and are not in waybill_outbox.
	endOfLine     = `9223372036854775807`
	endOfLinesSQL = `INSERT IGNORE INTO waybill_outbox_aside (seq, route, k, slot, state, due_at, ends_at, hold, flags)
		VALUES (-2 - ?, ?, '', 0, 1, ` + endOfLine + `, 0, 0, 0), (-3 - ?, ?, '', 0, 4, ` + endOfLine + `, 0, 0, 0)`
)

// Due looks for records that have come due, as core.OutboxStore says. One call works at a time. Several would meet each
// other's locks in the index of ids, and would then leave timers at their old numbers.
func (s *Store) Due(ctx context.Context, self core.Session, parts []core.RouteSlots, limit int) (page core.DueResult, err error) {
	select {
	case s.dueTurn <- struct{}{}:
		defer func() { <-s.dueTurn }()
	case <-ctx.Done():
		return page, classify("due", ctx.Err())
	}
	err = s.fenced(ctx, "due", self, func(w *work) error {
		d := due{work: w, limit: max(limit, 0), page: core.DueResult{NextIn: -1}}
		for _, part := range parts {
			own, err := w.owns(ctx, part.Route)
			if err != nil {
				return err
			}
			if part.Slots &= own; part.Slots == 0 {
				continue
			}
			if err := d.look(ctx, &part); err != nil {
				return err
			}
		}
		err := d.take(ctx)
		page = d.page
		return err
	})
	if err != nil {
		return core.DueResult{}, err
	}
	return page, nil
}

// due is one call of Due in its transaction.
type due struct {
	*work
	limit                 int
	mine, retries, timers []*row
	page                  core.DueResult
}

// look finds the due records of a part, and when the next one is due.
func (d *due) look(ctx context.Context, part *core.RouteSlots) error {
	if !part.DueExcludeHeld {
		mine, err := d.rows(ctx, ownRetriesSQL, d.self, d.now, part.Route, int64(part.Slots))
		if err != nil {
			return err
		}
		d.mine = append(d.mine, mine...)
	}
	since := int64(1)
	if part.MaxOverdue > 0 {
		since = max(since, d.now-part.MaxOverdue.Microseconds())
	}
	for state, list := range map[core.State]*[]*row{core.StateFailed: &d.retries, core.StatePending: &d.timers} {
		rows, err := d.rows(ctx, dueSQL, part.Route, state, since, d.now, int64(part.Slots), d.limit+1)
		if err != nil {
			return err
		}
		*list = append(*list, rows...)
		var at int64
		if found, err := d.one(ctx, []any{&at}, nextSQL, part.Route, state, d.now, int64(part.Slots)); err != nil {
			return err
		} else if found && at < math.MaxInt64 {
			d.next(duration(at - d.now))
		}
	}
	return nil
}

// endLines writes the rows that end the lines of a route. Two routes can have the same numbers; then one has no such
// rows, and longer looks.
func (w *work) endLines(ctx context.Context, route string) error {
	n := 2 * int64(crc32.ChecksumIEEE([]byte(route)))
	_, err := w.exec(ctx, endOfLinesSQL, n, route, n, route)
	return err
}

func (d *due) next(in time.Duration) {
	if d.page.NextIn < 0 || in < d.page.NextIn {
		d.page.NextIn = in
	}
}

// cut returns the first n records of a list. The others are due at once.
func (d *due) cut(list []*row, n int) []*row {
	slices.SortFunc(list, func(a, b *row) int { return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.Seq, b.Seq)) })
	if len(list) > n {
		list = list[:n]
		d.next(0)
	}
	return list
}

// first locks the first n records of a list, and leaves out those that are locked or have changed: they are due at
// once.
func (d *due) first(ctx context.Context, list []*row, n int) (out []*row, err error) {
	list = d.cut(list, n)
	got, _, err := d.lock(ctx, seqsOf(list))
	for _, r := range list {
		if now := got[r.Seq]; now != nil && now.Version == r.Version && now.HeldBy == r.HeldBy && now.due == r.due {
			out = append(out, now)
		} else {
			d.next(0)
		}
	}
	return out, err
}

// take holds the retries and makes the timers ready. The retries that self holds already are not locked: their results
// would meet the lock.
func (d *due) take(ctx context.Context) error {
	mine := d.cut(d.mine, d.limit)
	fresh, err := d.first(ctx, d.retries, d.limit-len(mine))
	if err != nil {
		return err
	}
	if err := d.hold(ctx, seqsOf(fresh), 0); err != nil {
		return err
	}
	retries := append(mine, fresh...)
	rows, err := d.rows(ctx, recordSQL+`FORCE INDEX (PRIMARY) WHERE `+at(seqsOf(retries)))
	if err != nil {
		return err
	}
	held := make(map[int64]*row, len(rows))
	for _, r := range rows {
		held[r.Seq] = r
	}
	for _, r := range retries {
		if now := held[r.Seq]; now != nil && now.Version == r.Version && now.HeldBy == d.self {
			d.page.Retries = append(d.page.Retries, now.decode().Record)
		} else {
			d.next(0)
		}
	}
	timers, err := d.first(ctx, d.timers, d.limit)
	if err != nil || len(timers) == 0 {
		return err
	}
	return d.inLine(ctx, timers)
}

// inLine gives records new numbers. Rows that this transaction deletes again draw them: another way to draw one is not
// the same in all versions of the server.
func (d *due) inLine(ctx context.Context, rows []*row) error {
	seqs := seqsOf(rows)
	d.alone = true // which of the changes waits for a lock decides what follows
	if err := d.draw(ctx); err != nil {
		return err
	}
	name, drawn, args := waybill.NewID(), make([]int64, len(rows)), []any(nil)
	for i := range rows {
		args = append(args, name+strconv.Itoa(i))
	}
	const place = `, ('', ?, '', '', 0, '', '')`
	res, err := d.q.ExecContext(ctx, `INSERT INTO waybill_outbox (route, id, topic, k, slot, attrs, body) VALUES `+strings.Repeat(place, len(seqs))[2:], args...)
	if err != nil {
		return err
	}
	first, err := res.LastInsertId()
	for i := range drawn {
		drawn[i] = first + int64(i) // the rows of one INSERT are numbered in turn
	}
	if err == nil {
		err = d.deleteFrom(ctx, "waybill_outbox", at(drawn))
	}
	if err != nil {
		return err
	}
	err = d.move(ctx, seqs, drawn)
	if number(err) != lockTimeout {
		return err
	}
	for i, r := range rows {
		err := d.move(ctx, seqs[i:i+1], drawn[i:i+1])
		if number(err) == lockTimeout {
			err = d.stay(ctx, r)
		}
		if err != nil {
			return err
		}
	}
	return nil
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

// move changes numbers. The index of ids then has an entry with the same id, and the server locks the one behind it,
// too, which another transaction can have locked. It must not wait for that.
func (d *due) move(ctx context.Context, seqs, to []int64) error {
	from, into, limit := list(seqs), list(to), ""
	if v, err := d.s.serverVersion(ctx); err != nil {
		return err
	} else if isMariaDB(v) {
		limit = `SET STATEMENT innodb_lock_wait_timeout = 0 FOR `
	}
	n, err := d.exec(ctx, limit+`UPDATE waybill_outbox FORCE INDEX (PRIMARY) SET seq = ELT(FIELD(seq, `+from[1:len(from)-1]+`), `+
		into[1:len(into)-1]+`), due_at = 0, version = version + 1 WHERE `+at(seqs))
	if err != nil {
		return err
	}
	d.page.TimersReady += int(n)
	if err := d.deleteFrom(ctx, "waybill_outbox_aside", at(seqs)); err != nil {
		return err
	}
	return d.put(ctx, copyAsideSQL+at(to))
}
