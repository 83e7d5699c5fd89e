package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
	"github.com/waybill-go/waybill/hlc"
)

const (
	// publishedSQL finds records by (sequence, id, route) in the JSON array ?1.
	publishedSQL = ` WHERE settled_at IS NULL AND seq IN (
		SELECT r.seq
			FROM json_each(?1) j CROSS JOIN waybill_outbox r
			WHERE r.seq = j.value->>0 AND r.id = j.value->>1 AND r.route = j.value->>2)
		RETURNING seq, id`

	publishText = `DELETE FROM waybill_outbox` + publishedSQL
	// keepText is used if Options.Retention keeps published records.
	keepText = `UPDATE waybill_outbox
		SET state = {published}, version = version + 1, due_at = NULL, settled_at = ?2, hold = 0, held_since = NULL` + publishedSQL

	// settleText makes records what rules.Settle has made of them: the JSON array ?1 has an array for each.
	settleText = `UPDATE waybill_outbox
		SET state = j.state, version = j.version, due_at = j.due, settled_at = j.settled, hold = 0, held_since = NULL,
			attempts = j.attempts, crashes = j.crashes, reason = j.reason, blocks = j.blocks, maybe_sent = j.maybe,
			error = coalesce(j.error, waybill_outbox.error), error_at = CASE WHEN j.error IS NULL THEN error_at ELSE ?2 END
		FROM (SELECT value->>0 AS seq, value->>1 AS state, value->>2 AS version, value->>3 AS due, value->>4 AS settled, value->>5 AS attempts,
			value->>6 AS crashes, value->>7 AS reason, value->>8 AS blocks, value->>9 AS maybe, value->>10 AS error FROM json_each(?1)) j
		WHERE waybill_outbox.seq = j.seq`
	// A record that was abandoned, or published and kept, can have a stamp above those of all that are left.
	// A mark that is too far ahead itself, such as after the clock was set back, is lowered.
	stampText = `UPDATE waybill_meta SET value = ?1 WHERE name = 'hlc' AND (value < ?1 OR value > ?2)`

	noticeDoneText = `DELETE FROM waybill_outbox_notices WHERE number = ?1 AND route = ?2 AND (kind <> {tell_from} OR slots & ~?3 = 0)`
	restText       = `UPDATE waybill_outbox_notices SET slots = slots & ~?3 WHERE number = ?1 AND route = ?2 AND kind = {tell_from}`

	savepointText, releasePointText = `SAVEPOINT waybill_settle`, `RELEASE waybill_settle`
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

// settle persists the outcomes of members. Outcomes other than published ones are those of one member.
func (s *Store) settle(ctx context.Context, selves []core.Session, outcomes []core.Outcome) core.Results {
	if len(outcomes) == 0 {
		return core.Results{}
	}
	var res core.Results
	err := s.write(ctx, "settle", func(w *work) (bool, error) {
		for _, self := range selves {
			known, _, err := w.member(ctx, self)
			switch {
			case err != nil:
				return false, err
			case !known:
				return false, core.NewFencedError("waybill/sqlite: settle", self)
			}
		}
		st := settler{work: w, self: selves[0], outcomes: outcomes, res: make(core.Results, len(outcomes)), keeps: s.keeps()}
		if err := st.run(ctx); err != nil {
			return false, err
		}
		res = st.res
		return st.changed, nil
	})
	if err != nil {
		return core.AllFailed(len(outcomes), err)
	}
	return res
}

// settler is one Settle in its transaction.
type settler struct {
	*work
	self     core.Session
	outcomes []core.Outcome
	res      core.Results
	keeps    bool // published records stay
	changed  bool

	rows    map[int64]*row // for outcomes other than published
	changes map[int]rules.Change
}

func (st *settler) run(ctx context.Context) error {
	if _, err := st.exec(ctx, savepointText); err != nil {
		return err
	}
	if err := st.find(ctx); err != nil {
		return err
	}
	var published, others []int
	for i := range st.outcomes {
		o := &st.outcomes[i]
		switch {
		case o.NoticeNumber() != 0:
			err := st.noticeDone(ctx, o)
			if st.res[i], err = st.alone(ctx, err); err != nil {
				return err
			}
			st.changed = st.changed || st.res[i] == nil
		case o.Event() == core.EventConfirmed:
			published = append(published, i)
		case o.Event() == core.EventNone:
			st.res[i] = waybill.Invalid("waybill/sqlite: settle", "outcome: is zero; "+
				"build it with core.Published, Retry, Abandon, Cancel, Release or DeleteNotice")
		default:
			if ok, err := st.other(ctx, i); err != nil {
				return err
			} else if ok {
				others = append(others, i)
			}
		}
	}
	if err := st.halves(ctx, others, st.store); err != nil {
		return err
	}
	if err := st.halves(ctx, published, st.publish); err != nil {
		return err
	}
	return st.stamp(ctx)
}

// find reads the records of outcomes other than published.
func (st *settler) find(ctx context.Context) (err error) {
	var seqs []int64
	for i := range st.outcomes {
		if o := &st.outcomes[i]; o.NoticeNumber() == 0 && o.Event() != core.EventConfirmed {
			seqs = append(seqs, o.Ref().Seq)
		}
	}
	st.changes = map[int]rules.Change{}
	st.rows, err = st.at(ctx, seqs)
	return err
}

// halves runs do for outcomes at once, or one by one if the database refuses one.
func (st *settler) halves(ctx context.Context, at []int, do func(ctx context.Context, at []int) error) error {
	if len(at) == 0 {
		return nil
	}
	err := do(ctx, at)
	if err == nil {
		return nil
	}
	of, fatal := st.alone(ctx, err)
	switch {
	case fatal != nil:
		return fatal
	case len(at) == 1:
		st.res[at[0]] = of
		return nil
	}
	if err := st.halves(ctx, at[:len(at)/2], do); err != nil {
		return err
	}
	return st.halves(ctx, at[len(at)/2:], do)
}

// alone reports whether err concerns one outcome only. Otherwise, or if the whole transaction is gone, it is fatal.
func (st *settler) alone(ctx context.Context, err error) (of, fatal error) {
	if err == nil || isAnswer(err) {
		return err, nil
	}
	err = st.s.classify("settle", err)
	if waybill.ClassOf(err) == waybill.ClassOutage {
		return nil, err
	}
	// SQLite can have rolled back everything, and later statements would not be in a transaction.
	if _, gone := st.exec(ctx, releasePointText); gone != nil {
		return nil, err
	}
	_, fatal = st.exec(ctx, savepointText)
	return err, fatal
}

// other decides about an outcome other than published, and reports whether there is something to store.
func (st *settler) other(ctx context.Context, i int) (bool, error) {
	o := &st.outcomes[i]
	own, err := st.owns(ctx, st.self, o.Ref().Route)
	if err != nil {
		return false, err
	}
	r := named(st.rows, o.Ref())
	to, err := rules.Settle(r, o, st.self, r != nil && own.Has(r.Slot))
	if err != nil {
		st.res[i] = core.NewOutcomeError("waybill/sqlite: settle", o.Ref(), err)
		return false, nil
	}
	if to.Row == *r {
		return false, nil
	}
	*r, st.changes[i] = to.Row, to // a second outcome of the call finds it changed
	return true, nil
}

// store stores the changes of outcomes.
func (st *settler) store(ctx context.Context, at []int) error {
	list := make([][11]any, len(at))
	for n, i := range at {
		c := st.changes[i]
		var due, settled any
		switch {
		case !c.Live():
			settled = st.now
		case c.Due:
			due = st.now + micros(c.In)
		case c.Waits:
			due = st.rows[c.Seq].due
		}
		list[n] = [11]any{
			c.Seq, c.State, c.Version, due, settled, c.Attempts, c.Crashes, nullable(string(c.Reason)), c.Blocks, c.MaybeSent, nullable(c.Error),
		}
	}
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	_, err = st.exec(ctx, settleText, string(text), st.now)
	st.changed = st.changed || err == nil
	return err
}

// noticeDone deletes a notice. One of kind 3 concerns all slots of a route: it goes when all owners have carried it
// out.
func (st *settler) noticeDone(ctx context.Context, o *core.Outcome) error {
	own, err := st.owns(ctx, st.self, o.Ref().Route)
	if err != nil {
		return err
	}
	n, err := st.exec(ctx, noticeDoneText, o.NoticeNumber(), o.Ref().Route, bits(own))
	if err != nil || n > 0 {
		return err
	}
	_, err = st.exec(ctx, restText, o.NoticeNumber(), o.Ref().Route, bits(own))
	return err
}

// publish deletes the published records.
func (st *settler) publish(ctx context.Context, at []int) error {
	refs := make([][3]any, len(at))
	for i, j := range at {
		ref := st.outcomes[j].Ref()
		refs[i] = [3]any{ref.Seq, ref.ID, ref.Route}
	}
	text, err := json.Marshal(refs)
	if err != nil {
		return err
	}
	query, args := publishText, []any{string(text)}
	if st.keeps {
		query, args = keepText, append(args, st.now)
	}
	done := make(map[int64]string, len(at))
	err = st.each(ctx, func(rows *sql.Rows) (bool, error) {
		var seq int64
		var id string
		err := rows.Scan(&seq, &id)
		done[seq] = id
		return true, err
	}, query, args...)
	if err != nil {
		return err
	}
	st.changed = st.changed || len(done) > 0
	var missing []int64
	for _, j := range at {
		if ref := st.outcomes[j].Ref(); done[ref.Seq] != ref.ID {
			missing = append(missing, ref.Seq)
		}
	}
	rows, err := st.at(ctx, missing)
	if err != nil {
		return err
	}
	for _, j := range at {
		ref := st.outcomes[j].Ref()
		id, ok := done[ref.Seq]
		var r *rules.Row
		if other := rows[ref.Seq]; other != nil {
			r = &other.Row
		}
		switch {
		case ok && id == ref.ID:
			err = nil
		case ok:
			err = core.ErrChanged
		default:
			err = rules.Confirmed(r, ref)
		}
		if st.res[j] = err; err != nil {
			st.res[j] = core.NewOutcomeError("waybill/sqlite: settle", ref, err)
		}
	}
	return nil
}

// stamp keeps the highest stamp that was settled.
func (st *settler) stamp(ctx context.Context) error {
	var stamp int64
	bound := int64(hlc.MaxMark(time.UnixMicro(st.now)))
	for i := range st.outcomes {
		if s := st.outcomes[i].HLC(); st.res[i] == nil && s <= bound {
			stamp = max(stamp, s)
		}
	}
	if !st.changed || stamp == 0 {
		return nil
	}
	_, err := st.exec(ctx, stampText, stamp, bound)
	return err
}
