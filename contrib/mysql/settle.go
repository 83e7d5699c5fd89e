package waybillmysql

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

// ahead is how far the stored mark is above the settled stamps: so it is written once in that time, and not by each
// settle. markRows are the rows that members write it to, so that they do not wait for each other.
const (
	ahead    = time.Second
	markRows = 64
)

// Settle persists outcomes, as core.OutboxStore says, in one transaction. A stale outcome is core.ErrChanged even if
// its unit has another owner. An outcome that the database refuses, such as by a trigger of the application, fails
// alone.
func (s *Store) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	var st settler
	if len(outcomes) == 0 {
		return core.Results{}
	}
	settle := func(how func(st *settler, ctx context.Context) error) error {
		return s.fenced(ctx, "settle", self, func(w *work) error {
			st = settler{work: w, outcomes: outcomes, res: make(core.Results, len(outcomes))}
			return how(&st, ctx)
		})
	}
	err := errOneByOne
	if s.canDeleteAtOnce(ctx, outcomes) {
		err = settle((*settler).atOnce)
	}
	if errors.Is(err, errOneByOne) {
		err = settle((*settler).run)
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
	mark      int64
}

func (st *settler) run(ctx context.Context) (err error) {
	var seqs []int64
	for i := range st.outcomes {
		if o := &st.outcomes[i]; o.Control() == 0 {
			seqs = append(seqs, o.Ref().Seq)
		}
	}
	slices.Sort(seqs)
	if st.got, st.busy, err = st.lock(ctx, slices.Compact(seqs)); err != nil {
		return err
	}
	var published []int
	for i := range st.outcomes {
		o := &st.outcomes[i]
		switch {
		case o.Control() != 0:
			_, err = st.exec(ctx, `DELETE FROM waybill_outbox_control WHERE number = ? AND route = ?`, o.Control(), o.Ref().Route)
		case o.Event() == core.EventConfirmed:
			if st.res[i] = st.confirmed(o.Ref()); st.res[i] == nil && st.got[o.Ref().Seq] != nil {
				published = append(published, i)
			}
			continue
		case o.Event() == core.EventNone:
			err = waybill.Invalid("waybill/mysql: settle", "outcome: is zero; build it with core.Published, Retry, Abandon, Withdraw, Release or Heeded")
		default:
			err = st.other(ctx, o)
		}
		if err = classify("settle", err); waybill.ClassOf(err) == waybill.ClassOutage {
			return err
		}
		st.res[i] = err
	}
	if err := st.publish(ctx, published); err != nil {
		return err
	}
	return st.stamp(ctx)
}

// canDeleteAtOnce reports whether all outcomes are those of published records, none of them is kept, and the server can
// delete without waiting for locks.
func (s *Store) canDeleteAtOnce(ctx context.Context, outcomes []core.Outcome) bool {
	version, err := s.serverVersion(ctx)
	return err == nil && isMariaDB(version) && s.opened && core.RetentionPublished.DroppedAtOnce(s.opts.Retention) &&
		!slices.ContainsFunc(outcomes, func(o core.Outcome) bool { return o.Control() != 0 || o.Event() != core.EventConfirmed })
}

// atOnce deletes published records without locking them first, and fails if that is not everything. What is deleted was
// confirmed, since its id was. CONCAT keeps the server from looking for the ids by their index, which takes 20 times as
// long.
func (st *settler) atOnce(ctx context.Context) error {
	var seqs []int64
	var args, routes []any
	for i := range st.outcomes {
		ref := st.outcomes[i].Ref()
		seqs, args = append(seqs, ref.Seq), append(args, ref.ID)
		if !slices.Contains(routes, any(ref.Route)) {
			routes = append(routes, ref.Route)
		}
	}
	slices.Sort(seqs)
	n, aside := int64(0), false
	err := st.ask(ctx, query{
		`SET STATEMENT innodb_lock_wait_timeout = 0, in_predicate_conversion_threshold = 0 FOR DELETE FROM waybill_outbox WHERE ` +
			at(seqs) + ` AND ` + liveSQL + `AND dedupe_key = '' AND CONCAT(id, '') IN ` + places(len(args)) + ` AND CONCAT(route, '') IN ` + places(len(routes)) +
			`; SELECT ROW_COUNT(), EXISTS (SELECT 1 FROM waybill_outbox_aside WHERE seq BETWEEN ? AND ?)`,
		append(append(args, routes...), seqs[0], seqs[len(seqs)-1]), func(rows *sql.Rows) error { return rows.Scan(&n, &aside) },
	})
	switch outage := waybill.ClassOf(classify("settle", err)) == waybill.ClassOutage; {
	case outage && number(err) != lockTimeout:
		return err
	case err != nil || n != int64(len(st.outcomes)):
		return errOneByOne
	case aside:
		if err := st.deleteFrom(ctx, "waybill_outbox_aside", at(seqs)); err != nil {
			return err
		}
	}
	return st.stamp(ctx)
}

// confirmed answers for a published record: gone, or published and kept, is as good as done now.
func (st *settler) confirmed(ref core.Ref) error {
	r, busy := st.got[ref.Seq], st.busy[ref.Seq]
	switch {
	case busy != nil && busy.is(ref) && busy.live():
		return core.Refused("waybill/mysql: settle", ref, core.ErrBusy)
	case r != nil && (!r.is(ref) || !r.live() && r.state != core.StatePublished), busy != nil && !busy.is(ref):
		return core.Refused("waybill/mysql: settle", ref, core.ErrChanged)
	case r != nil && !r.live():
		delete(st.got, ref.Seq)
	}
	return nil
}

// publish ends published records at once, or one by one if the database refuses one.
func (st *settler) publish(ctx context.Context, at []int) (err error) {
	if len(at) == 0 {
		return nil
	}
	rows := make([]*row, len(at))
	for i, j := range at {
		rows[i] = st.got[st.outcomes[j].Ref().Seq]
	}
	if core.RetentionPublished.DroppedAtOnce(st.s.opts.Retention) {
		err = st.remove(ctx, rows)
	} else if err = st.set(ctx, seqsOf(rows), `state = 3, version = version + 1, due_at = 0, ends_at = ?, hold = 0, flags = flags & ~1`, st.now); err == nil {
		err = st.free(ctx, rows)
	}
	err = classify("settle", err)
	switch half := len(at) / 2; {
	case err == nil || waybill.ClassOf(err) == waybill.ClassOutage:
		return err
	case half == 0:
		st.res[at[0]] = err
		return nil
	default:
		if err := st.publish(ctx, at[:half]); err != nil {
			return err
		}
		return st.publish(ctx, at[half:])
	}
}

// other persists an outcome other than published.
func (st *settler) other(ctx context.Context, o *core.Outcome) error {
	ref := o.Ref()
	refuse := func(why error) error { return core.Refused("waybill/mysql: settle", ref, why) }
	r, busy := st.got[ref.Seq], st.busy[ref.Seq]
	switch {
	case busy != nil && busy.is(ref) && busy.live() && busy.Version == ref.Version:
		return refuse(core.ErrBusy)
	case r == nil, !r.is(ref), !r.live(), r.Version != ref.Version:
		return refuse(core.ErrChanged)
	case r.Holder != st.self:
		if own, err := st.owns(ctx, ref.Route); err != nil || !own.Has(r.Slot) {
			if err == nil {
				err = refuse(core.ErrFenced)
			}
			return err
		}
	}
	r.Version++ // a second outcome of the call finds it changed
	flags, seq := 0, []int64{ref.Seq}
	if o.Unknown() {
		flags = flagMaybe
	}
	due, blocks, attempts := st.now+o.In().Microseconds(), 0, 0
	if o.CountsAttempt() {
		attempts = 1
	}
	if o.Reason().Blocks() {
		blocks = flagBlocks
	}
	var err error
	switch {
	case o.Event() == core.EventReleased && r.Holder != 0 && r.Holder != st.self:
		r.Version--
		return nil // the hold is another's
	case o.Event() == core.EventReleased && (!r.Failed || r.Holder != st.self):
		return st.set(ctx, seq, `hold = 0, version = version + 1, flags = flags | ?`, flags)
	case o.Event() == core.EventReleased:
		return st.set(ctx, seq, `hold = 0, version = version + 1, flags = flags | ?, due_at = ?`, flags, due)
	case o.State() == core.StateFailed:
		err = st.set(ctx, seq, `state = 4, version = version + 1, due_at = ?, crashes = 0, flags = flags & ~1`, due)
	default:
		err = st.abandon(ctx, []*row{r}, o.Reason(), blocks)
	}
	if err != nil {
		return err
	}
	return st.set(ctx, seq, `hold = 0, attempts = attempts + ?, flags = flags | ?, error_at = IF(? = '', error_at, ?), error = IF(? = '', error, ?)`,
		attempts, flags, o.Error(), st.now, o.Error(), o.Error())
}

// stamp keeps a mark above the stamps that were settled, until a settle reaches it.
func (st *settler) stamp(ctx context.Context) error {
	stamp, bound := int64(0), int64(hlc.MaxMark(time.UnixMicro(st.now)))
	for i := range st.outcomes {
		if s := st.outcomes[i].Stamp(); st.res[i] == nil && s <= bound {
			stamp = max(stamp, s)
		}
	}
	if stamp <= st.s.stamped.Load() {
		return nil
	}
	st.mark = min(stamp+ahead.Milliseconds()<<16, bound)
	_, err := st.exec(ctx, `INSERT INTO waybill_meta (name, value) VALUES (CONCAT('hlc', ?), ?)
		ON DUPLICATE KEY UPDATE value = IF(value > ?, VALUES(value), GREATEST(value, VALUES(value)))`,
		int64(st.self)%markRows, st.mark, bound)
	return err
}
