package waybillmysql

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
	"github.com/waybill-go/waybill/hlc"
)

// ahead is how far the stored mark is above the settled stamps: so it is written once in that time, and not by each
// settle. markRows are the rows that members write it to, so that they do not wait for each other.
const (
	ahead    = time.Second
	markRows = 64
)

// Settle persists outcomes, as core.OutboxStore says, in one transaction. A stale outcome is core.ErrChanged even if
// its partition has another owner. An outcome that the database refuses, such as by a trigger of the application, fails
// alone.
func (s *Store) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	return s.settle(ctx, []core.Session{self}, outcomes)
}

// SettleGroup settles what several members have published, as table.GroupSettler says.
func (s *Store) SettleGroup(ctx context.Context, selves []core.Session, outcomes [][]core.Outcome) bool {
	return s.settle(ctx, selves, slices.Concat(outcomes...)).FirstErr() == nil
}

// settle persists the outcomes of members. Outcomes other than published ones are those of one member. Each attempt
// takes two round trips if it can. An attempt fails as a whole if the database refuses one outcome; the last attempt
// finds which.
func (s *Store) settle(ctx context.Context, selves []core.Session, outcomes []core.Outcome) core.Results {
	var st settler
	if len(outcomes) == 0 {
		return core.Results{}
	}
	attempt := func(alone bool, first func(st *settler) []query, how func(st *settler, ctx context.Context) error) error {
		return s.fencedWith(ctx, "settle", selves, func(w *work) []query {
			w.alone = alone
			st = settler{work: w, outcomes: outcomes, res: make(core.Results, len(outcomes)), changes: make([]change, len(outcomes))}
			return first(&st)
		}, func(*work) error { return how(&st, ctx) })
	}
	err := errOneByOne
	if s.canDeleteAtOnce(ctx, outcomes) {
		if err = attempt(false, (*settler).deleteAll, (*settler).atOnce); number(err) == lockTimeout {
			err = errOneByOne
		}
	}
	for _, alone := range [...]bool{!s.opened, true} {
		if err == nil || errors.Is(err, core.ErrFenced) || !errors.Is(err, errOneByOne) && waybill.ClassOf(err) == waybill.ClassOutage {
			break
		}
		err = attempt(alone, (*settler).lockAll, (*settler).run)
	}
	if err != nil {
		return core.AllFailed(len(outcomes), err)
	}
	s.stamped.Store(max(s.stamped.Load(), st.mark))
	return st.res
}

// errOneByOne says that records must be locked and looked at.
var errOneByOne = errors.New("not all records are published, there, free, and without a dedupe key")

// settler is one Settle in its transaction.
type settler struct {
	*work
	outcomes  []core.Outcome
	res       core.Results
	got, busy map[int64]*row
	changes   []change // of outcomes other than published
	mark      int64

	seqs  []int64 // of the records
	rows  []*row  // those of them that are locked
	n     int64   // how many records were deleted
	aside bool    // some of them may stand aside
}

// lockAll locks the records, and asks for the partitions if the rules need them.
func (st *settler) lockAll() (out []query) {
	owns := false
	for i := range st.outcomes {
		if o := &st.outcomes[i]; o.NoticeNumber() == 0 {
			st.seqs = append(st.seqs, o.Ref().Seq)
			owns = owns || o.Event() != core.EventConfirmed
		}
	}
	slices.Sort(st.seqs)
	if st.seqs = slices.Compact(st.seqs); len(st.seqs) > 0 {
		out = append(out, st.lockQuery(&st.rows, st.seqs))
	}
	if owns {
		out = append(out, st.ownQuery())
	}
	return out
}

func (st *settler) run(ctx context.Context) (err error) {
	if st.got, st.busy, err = st.locked(ctx, st.seqs, st.rows); err != nil {
		return err
	}
	var published, others []int
	for i := range st.outcomes {
		o := &st.outcomes[i]
		var err error
		switch {
		case o.NoticeNumber() != 0: // of one owner: this store tells each record, and never a core.NoticeReread
			err = st.put(ctx, `DELETE FROM waybill_outbox_notices WHERE number = ? AND route = ?`, o.NoticeNumber(), o.Ref().Route)
		case o.Event() == core.EventConfirmed:
			if st.res[i] = st.confirmed(o.Ref()); st.res[i] == nil && st.got[o.Ref().Seq] != nil {
				published = append(published, i)
			}
			continue
		case o.Event() == core.EventNone:
			err = waybill.Invalid("waybill/mysql: settle", "outcome: is zero; build it with core.Published, Retry, Abandon, Cancel, Release or DeleteNotice")
		default:
			if err = st.other(ctx, i); err == nil && st.changes[i].row != nil {
				others = append(others, i)
			}
		}
		if err = classify("settle", err); waybill.ClassOf(err) == waybill.ClassOutage {
			return err
		}
		st.res[i] = err
	}
	err = st.halves(others, func(at []int) error {
		changes := make([]change, len(at))
		for n, i := range at {
			changes[n] = st.changes[i]
		}
		return st.become(ctx, "", changes...)
	})
	if err == nil {
		err = st.halves(published, func(at []int) error { return st.publish(ctx, at) })
	}
	if err != nil {
		return err
	}
	return st.stamp(ctx)
}

// halves runs do for outcomes at once, or one by one if the database refuses one and says so at once.
func (st *settler) halves(at []int, do func(at []int) error) error {
	if len(at) == 0 {
		return nil
	}
	err := classify("settle", do(at))
	switch half := len(at) / 2; {
	case err == nil || !st.alone || waybill.ClassOf(err) == waybill.ClassOutage:
		return err
	case half == 0:
		st.res[at[0]] = err
		return nil
	default:
		if err := st.halves(at[:half], do); err != nil {
			return err
		}
		return st.halves(at[half:], do)
	}
}

// canDeleteAtOnce reports whether all outcomes are those of published records, none of them is kept, and the server can
// delete without waiting for locks.
func (s *Store) canDeleteAtOnce(ctx context.Context, outcomes []core.Outcome) bool {
	version, err := s.serverVersion(ctx)
	return err == nil && isMariaDB(version) && s.opened && core.RetentionPublished.DroppedAtOnce(s.opts.Retention) &&
		!slices.ContainsFunc(outcomes, func(o core.Outcome) bool { return o.NoticeNumber() != 0 || o.Event() != core.EventConfirmed })
}

// deleteAll deletes published records without locking them first. CONCAT keeps the server from looking for the ids by
// their index, which takes 20 times as long.
func (st *settler) deleteAll() []query {
	var args, routes []any
	for i := range st.outcomes {
		ref := st.outcomes[i].Ref()
		st.seqs, args = append(st.seqs, ref.Seq), append(args, ref.ID)
		if !slices.Contains(routes, any(ref.Route)) {
			routes = append(routes, ref.Route)
		}
	}
	slices.Sort(st.seqs)
	return []query{{
		`SET STATEMENT innodb_lock_wait_timeout = 0, in_predicate_conversion_threshold = 0 FOR DELETE FROM waybill_outbox WHERE ` +
			at(st.seqs) + ` AND ` + liveSQL + `AND dedupe_key = '' AND CONCAT(id, '') IN ` + places(len(args)) + ` AND CONCAT(route, '') IN ` + places(len(routes)) +
			`; SELECT ROW_COUNT(), EXISTS (SELECT 1 FROM waybill_outbox_aside WHERE seq BETWEEN ? AND ?)`,
		append(append(args, routes...), st.seqs[0], st.seqs[len(st.seqs)-1]), func(rows *sql.Rows) error { return rows.Scan(&st.n, &st.aside) },
	}}
}

// atOnce fails if not all records were deleted. A deleted record was confirmed, since its id was.
func (st *settler) atOnce(ctx context.Context) error {
	if st.n != int64(len(st.outcomes)) {
		return errOneByOne
	}
	if st.aside {
		if err := st.deleteFrom(ctx, "waybill_outbox_aside", at(st.seqs)); err != nil {
			return err
		}
	}
	return st.stamp(ctx)
}

// confirmed answers for a published record. One that is there no more, or kept, is not in got then.
func (st *settler) confirmed(ref core.Ref) error {
	r, busy := st.got[ref.Seq], st.busy[ref.Seq]
	var err error
	switch {
	case busy != nil && busy.is(ref) && busy.live():
		err = core.ErrLocked
	case busy != nil:
		err = rules.Confirmed(busy.facts(), ref)
	case r != nil && r.is(ref) && r.live():
		return nil
	default:
		if err = rules.Confirmed(r.facts(), ref); err == nil {
			delete(st.got, ref.Seq)
		}
	}
	if err != nil {
		err = core.NewOutcomeError("waybill/mysql: settle", ref, err)
	}
	return err
}

// publish ends published records.
func (st *settler) publish(ctx context.Context, at []int) error {
	rows := make([]*row, len(at))
	for i, j := range at {
		rows[i] = st.got[st.outcomes[j].Ref().Seq]
	}
	if core.RetentionPublished.DroppedAtOnce(st.s.opts.Retention) {
		return st.remove(ctx, rows)
	}
	changes := make([]change, len(rows))
	for i, r := range rows {
		changes[i] = change{r, rules.Change{Row: rules.Publish(r.facts())}}
	}
	return st.become(ctx, "", changes...)
}

// other decides about an outcome other than published.
func (st *settler) other(ctx context.Context, i int) error {
	o := &st.outcomes[i]
	ref := o.Ref()
	if busy := named(st.busy, ref); busy != nil && busy.facts().Is(ref) {
		return core.NewOutcomeError("waybill/mysql: settle", ref, core.ErrLocked)
	}
	own, err := st.owns(ctx, ref.Route)
	if err != nil {
		return err
	}
	r := named(st.got, ref)
	f := r.facts()
	to, err := rules.Settle(f, o, st.self, r != nil && own.Has(r.Slot))
	if err != nil {
		return core.NewOutcomeError("waybill/mysql: settle", ref, err)
	}
	if to.Row != *f {
		was := *r
		st.changes[i], r.Version = change{&was, to}, to.Version // a second outcome of the call finds it changed
	}
	return nil
}

// stamp keeps a mark above the stamps that were settled, until a settle reaches it.
func (st *settler) stamp(ctx context.Context) error {
	stamp, bound := int64(0), int64(hlc.MaxMark(time.UnixMicro(st.now)))
	for i := range st.outcomes {
		if s := st.outcomes[i].HLC(); st.res[i] == nil && s <= bound {
			stamp = max(stamp, s)
		}
	}
	if stamp <= st.s.stamped.Load() {
		return nil
	}
	st.mark = min(stamp+ahead.Milliseconds()<<16, bound)
	return st.put(ctx, `INSERT INTO waybill_meta (name, value) VALUES (CONCAT('hlc', ?), ?)
		ON DUPLICATE KEY UPDATE value = IF(value > ?, VALUES(value), GREATEST(value, VALUES(value)))`,
		int64(st.self)%markRows, st.mark, bound)
}
