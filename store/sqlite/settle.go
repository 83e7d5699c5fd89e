package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
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

	settleText = `UPDATE waybill_outbox
		SET state = ?2, version = version + 1, due_at = ?3, settled_at = ?4, hold = 0, held_since = NULL,
			attempts = attempts + ?5, crashes = CASE WHEN ?2 = {failed} THEN 0 ELSE crashes END, reason = ?6,
			blocks = ?7 AND key <> '', maybe_sent = maybe_sent OR ?8,
			error = coalesce(?9, error), error_at = CASE WHEN ?9 IS NULL THEN error_at ELSE ?10 END
		WHERE seq = ?1`
	// releaseText ends the hold of ?3, if there is one. A retry then waits on, until ?2.
	releaseText = `UPDATE waybill_outbox SET hold = 0, held_since = NULL, version = version + 1, maybe_sent = maybe_sent OR ?4,
		due_at = CASE WHEN state = {failed} AND hold = ?3 THEN ?2 ELSE due_at END WHERE seq = ?1`
	// A record that was abandoned, or published and kept, can have a stamp above those of all that are left.
	// A mark that is too far ahead itself, such as after the clock was set back, is lowered.
	stampText = `UPDATE waybill_meta SET value = ?1 WHERE name = 'hlc' AND (value < ?1 OR value > ?2)`

	heededText = `DELETE FROM waybill_outbox_control WHERE number = ?1 AND route = ?2 AND (kind <> {tell_from} OR slots & ~?3 = 0)`
	restText   = `UPDATE waybill_outbox_control SET slots = slots & ~?3 WHERE number = ?1 AND route = ?2 AND kind = {tell_from}`

	savepointText, releasePointText = `SAVEPOINT waybill_settle`, `RELEASE waybill_settle`
)

// Settle persists outcomes, as core.OutboxStore says, in one transaction. A stale outcome is core.ErrChanged even if
// its unit has another owner. An outcome that the database refuses, such as by a trigger of the application, fails
// alone.
func (s *Store) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	if len(outcomes) == 0 {
		return core.Results{}
	}
	var res core.Results
	err := s.write(ctx, "settle", func(w *work) (bool, error) {
		known, _, err := w.member(ctx, self)
		switch {
		case err != nil:
			return false, err
		case !known:
			return false, core.Fenced("waybill/sqlite: settle", self)
		}
		st := settler{work: w, self: self, outcomes: outcomes, res: make(core.Results, len(outcomes)), keeps: s.keeps()}
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
}

func (st *settler) run(ctx context.Context) error {
	if _, err := st.exec(ctx, savepointText); err != nil {
		return err
	}
	var published []int
	for i := range st.outcomes {
		o := &st.outcomes[i]
		switch {
		case o.Control() == 0 && o.Event() == core.EventConfirmed:
			published = append(published, i)
		case o.Control() == 0 && o.Event() == core.EventNone:
			st.res[i] = waybill.Invalid("waybill/sqlite: settle", "outcome: is zero; "+
				"build it with core.Published, Retry, Abandon, Withdraw, Release or Heeded")
		default:
			err := st.other(ctx, o)
			if st.res[i], err = st.alone(ctx, err); err != nil {
				return err
			}
			st.changed = st.changed || st.res[i] == nil
		}
	}
	if err := st.publish(ctx, published); err != nil {
		return err
	}
	return st.stamp(ctx)
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

// other persists an outcome other than published.
func (st *settler) other(ctx context.Context, o *core.Outcome) error {
	ref := o.Ref()
	if o.Control() != 0 {
		return st.heeded(ctx, o)
	}
	r, err := st.find(ctx, ref)
	switch {
	case err != nil:
		return err
	case r == nil, !r.live(), r.Version != ref.Version:
		return core.Refused("waybill/sqlite: settle", ref, core.ErrChanged)
	case r.holder != st.self:
		own, err := st.owns(ctx, st.self, ref.Route)
		if err != nil {
			return err
		}
		if !own.Has(r.slot) {
			return core.Refused("waybill/sqlite: settle", ref, core.ErrFenced)
		}
	}
	if o.Event() == core.EventReleased {
		return st.release(ctx, r, o)
	}
	attempt := 0
	if o.CountsAttempt() {
		attempt = 1
	}
	var due, settled any
	switch o.State() { //nolint:exhaustive // what is rejected or given up
	case core.StateFailed:
		due = st.now + micros(o.In())
	case core.StateAbandoned:
		settled = st.now
	default:
	}
	_, err = st.exec(ctx, settleText, r.Seq, int64(o.State()), due, settled, attempt,
		nullable(string(o.Reason())), o.Reason().Blocks(), o.Unknown(), nullable(o.Error()), st.now)
	return err
}

// release ends self's hold. A hold of another session stays.
func (st *settler) release(ctx context.Context, r *row, o *core.Outcome) error {
	if r.holder != 0 && r.holder != st.self {
		return nil
	}
	_, err := st.exec(ctx, releaseText, r.Seq, st.now+micros(o.In()), int64(st.self), o.Unknown())
	return err
}

// heeded deletes a control record. One of kind 3 concerns all slots of a route: it goes when all owners have heeded it.
func (st *settler) heeded(ctx context.Context, o *core.Outcome) error {
	own, err := st.owns(ctx, st.self, o.Ref().Route)
	if err != nil {
		return err
	}
	n, err := st.exec(ctx, heededText, o.Control(), o.Ref().Route, bits(own))
	if err != nil || n > 0 {
		return err
	}
	_, err = st.exec(ctx, restText, o.Control(), o.Ref().Route, bits(own))
	return err
}

// publish deletes the published records at once, or one by one if the database refuses one.
func (st *settler) publish(ctx context.Context, at []int) error {
	if len(at) == 0 {
		return nil
	}
	err := st.publishAll(ctx, at)
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
	if err := st.publish(ctx, at[:len(at)/2]); err != nil {
		return err
	}
	return st.publish(ctx, at[len(at)/2:])
}

func (st *settler) publishAll(ctx context.Context, at []int) error {
	type named [3]any
	refs := make([]named, len(at))
	for i, j := range at {
		ref := st.outcomes[j].Ref()
		refs[i] = named{ref.Seq, ref.ID, ref.Route}
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
	for _, j := range at {
		ref := st.outcomes[j].Ref()
		switch id, ok := done[ref.Seq]; {
		case !ok:
			if st.res[j], err = st.published(ctx, ref); err != nil {
				return err
			}
		case id != ref.ID:
			st.res[j] = core.Refused("waybill/sqlite: settle", ref, core.ErrChanged)
		default:
			st.res[j] = nil
		}
	}
	return nil
}

// published answers for a published record that was not live: it can be gone, or kept; both are a success.
func (st *settler) published(ctx context.Context, ref core.Ref) (answer, err error) {
	var r row
	there := false
	err = st.each(ctx, func(rows *sql.Rows) (bool, error) {
		there = true
		return false, r.scan(rows)
	}, findText, ref.Seq)
	if there && (r.ID != ref.ID || r.Route != ref.Route || r.state != core.StatePublished) {
		answer = core.Refused("waybill/sqlite: settle", ref, core.ErrChanged)
	}
	return answer, err
}

// stamp keeps the highest stamp that was settled.
func (st *settler) stamp(ctx context.Context) error {
	var stamp int64
	bound := int64(hlc.MaxMark(time.UnixMicro(st.now)))
	for i := range st.outcomes {
		if s := st.outcomes[i].Stamp(); st.res[i] == nil && s <= bound {
			stamp = max(stamp, s)
		}
	}
	if !st.changed || stamp == 0 {
		return nil
	}
	_, err := st.exec(ctx, stampText, stamp, bound)
	return err
}
