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

// settle persists the outcomes of members. Outcomes other than published ones are those of one member. Published
// records mostly take one round trip, and the others two. An attempt fails as a whole if the database refuses one
// outcome; the last attempt finds which.
func (s *Store) settle(ctx context.Context, selves []core.Session, outcomes []core.Outcome) core.Results {
	if len(outcomes) == 0 {
		return core.Results{}
	}
	var st settler
	fresh := func(w *work) {
		st = settler{work: w, outcomes: outcomes, res: make(core.Results, len(outcomes)), changes: make([]change, len(outcomes))}
	}
	err := errOneByOne
	if s.canDeleteAtOnce(outcomes) {
		err = s.write(ctx, "settle", func(w *work) error {
			fresh(w)
			return st.atOnce(ctx, selves)
		})
		if n := number(err); n == notSure || n == lockTimeout {
			err = errOneByOne
		}
	}
	for _, alone := range [...]bool{false, true} {
		if err == nil || errors.Is(err, core.ErrFenced) || !errors.Is(err, errOneByOne) && waybill.ClassOf(err) == waybill.ClassOutage {
			break
		}
		err = s.fencedWith(ctx, "settle", selves, func(w *work) []query {
			w.alone = alone
			fresh(w)
			return st.lockAll()
		}, func(*work) error { return st.run(ctx) })
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

	seqs []int64 // of the records
	rows []*row  // those of them that are locked
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
	err = st.halves(ctx, others, func(at []int) error {
		changes := make([]change, len(at))
		for n, i := range at {
			changes[n] = st.changes[i]
		}
		return st.become(ctx, "", changes...)
	})
	if err == nil {
		err = st.halves(ctx, published, func(at []int) error { return st.publish(ctx, at) })
	}
	if err != nil {
		return err
	}
	return st.stamp(ctx)
}

// halves runs do for outcomes at once. In the last attempt it runs do for each half of those of which the database
// refuses one. Of a refused one nothing stays.
func (st *settler) halves(ctx context.Context, at []int, do func(at []int) error) error {
	if len(at) == 0 {
		return nil
	}
	if !st.alone {
		return do(at)
	}
	if _, err := st.exec(ctx, `SAVEPOINT waybill`); err != nil {
		return err
	}
	err := classify("settle", do(at))
	if err == nil || waybill.ClassOf(err) == waybill.ClassOutage {
		return err
	}
	if _, err := st.exec(ctx, `ROLLBACK TO SAVEPOINT waybill`); err != nil {
		return err
	}
	half := len(at) / 2
	if half == 0 {
		st.res[at[0]] = err
		return nil
	}
	if err := st.halves(ctx, at[:half], do); err != nil {
		return err
	}
	return st.halves(ctx, at[half:], do)
}

// canDeleteAtOnce reports whether all outcomes are those of published records, none of which is kept.
func (s *Store) canDeleteAtOnce(outcomes []core.Outcome) bool {
	return s.opened && core.RetentionPublished.DroppedAtOnce(s.opts.Retention) &&
		!slices.ContainsFunc(outcomes, func(o core.Outcome) bool { return o.NoticeNumber() != 0 || o.Event() != core.EventConfirmed })
}

// atOnce deletes published records in one round trip, the fences and the commit included. It changes nothing, and fails
// with notSure or lockTimeout, if a member is fenced, or a record is not there, not published, locked, or has a dedupe
// key. A deleted record was confirmed, since its id was.
func (st *settler) atOnce(ctx context.Context, selves []core.Session) error {
	st.self = selves[0]
	queries := []query{{text: `SET @waybill_now = ` + nowSQL}}
	for _, self := range selves { // one by one: a statement for several may lock others
		queries = append(queries, query{text: `SELECT ` + sure(`COUNT(*) = 1`) + ` INTO @waybill FROM waybill_outbox_fence WHERE session = ? LOCK IN SHARE MODE`, args: []any{self}})
	}
	stamp, seqs, ids, routes := int64(0), []int64(nil), []any(nil), []any(nil)
	for i := range st.outcomes {
		ref := st.outcomes[i].Ref()
		seqs, ids, stamp = append(seqs, ref.Seq), append(ids, ref.ID), max(stamp, st.outcomes[i].HLC())
		if !slices.Contains(routes, any(ref.Route)) {
			routes = append(routes, ref.Route)
		}
	}
	// CONCAT keeps the server from looking for the ids by their index, which takes 20 times as long.
	all := at(seqs) + ` AND ` + liveSQL + `AND dedupe_key = '' AND CONCAT(id, '') IN ` + places(len(ids)) + ` AND CONCAT(route, '') IN ` + places(len(routes))
	args := append(ids, routes...)
	version, err := st.s.serverVersion(ctx)
	switch {
	case err != nil:
		return err
	case isMariaDB(version): // which can delete without waiting for locks
		queries = append(queries, query{text: `SET STATEMENT innodb_lock_wait_timeout = 0, in_predicate_conversion_threshold = 0 FOR ` + deleteSQL(`waybill_outbox`) + all, args: args},
			query{text: `SET @waybill = ` + sure(`ROW_COUNT() = ?`), args: []any{len(seqs)}})
	default:
		queries = append(queries, query{text: `SELECT ` + sure(`COUNT(*) = ?`) + ` INTO @waybill FROM waybill_outbox FORCE INDEX (PRIMARY) WHERE ` + all + ` FOR UPDATE SKIP LOCKED`, args: append([]any{len(seqs)}, args...)},
			query{text: deleteSQL(`waybill_outbox`) + at(seqs)})
	}
	queries = append(queries, query{text: `SELECT EXISTS (SELECT 1 FROM waybill_outbox_aside WHERE seq BETWEEN ? AND ?) INTO @waybill_aside`, args: []any{slices.Min(seqs), slices.Max(seqs)}},
		query{text: deleteSQL(`waybill_outbox_aside`) + each(seqs) + ` AND @waybill_aside`})
	marks := stamp > st.s.stamped.Load()
	if marks { // as hlc.MaxMark does
		queries = append(queries, query{text: `SET @waybill_bound = ((@waybill_now DIV 1000 + ?) << 16) | 65535`, args: []any{hlc.DefaultMaxDrift.Milliseconds()}},
			query{text: `SET @waybill = ` + sure(`? <= @waybill_bound`), args: []any{stamp}},
			query{text: markStampSQL, args: []any{int64(st.self) % markRows, above(stamp)}})
	}
	queries = append(queries, query{`SELECT @waybill_now`, nil, func(rows *sql.Rows) error { return rows.Scan(&st.now) }})
	if err := st.askLast(ctx, queries...); err != nil || !marks {
		return err
	}
	st.mark = min(above(stamp), int64(hlc.MaxMark(time.UnixMicro(st.now))))
	return nil
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
	st.mark = min(above(stamp), bound)
	if err := st.put(ctx, `SET @waybill_bound = ?`, bound); err != nil {
		return err
	}
	return st.put(ctx, markStampSQL, int64(st.self)%markRows, st.mark)
}

// above is the mark for a stamp.
func above(stamp int64) int64 { return stamp + ahead.Milliseconds()<<16 }

// markStampSQL raises a mark up to a bound. One that is beyond it goes back.
const markStampSQL = `INSERT INTO waybill_meta (name, value) VALUES (CONCAT('hlc', ?), LEAST(?, @waybill_bound))
	ON DUPLICATE KEY UPDATE value = IF(value > @waybill_bound, VALUES(value), GREATEST(value, VALUES(value)))`
