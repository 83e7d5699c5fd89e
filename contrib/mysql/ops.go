package waybillmysql

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// The bounds of one step: rows of a kind that Clean touches, and rows that List reads at once.
const (
	cleanBatch = 1000
	walkBatch  = 500
)

const (
	expiredSQL = lightAside + `(waybill_outbox_ends) WHERE state IN (1, 4) AND ends_at BETWEEN ? AND ? AND hold = 0 AND (due_at <> 0
		OR NOT EXISTS (SELECT 1 FROM waybill_outbox_partitions u WHERE u.route = waybill_outbox_aside.route AND u.owner <> 0
			AND u.from_slot <= waybill_outbox_aside.slot AND u.to_slot > waybill_outbox_aside.slot)) ORDER BY ends_at LIMIT ?` + endAsideSQL
	settledSQL = lightAside + `(waybill_outbox_ends) WHERE state = ? AND ends_at BETWEEN ? AND ? ORDER BY ends_at LIMIT ?` + endAsideSQL
)

// Clean keeps the tables small; see [core.Cleaner]. One call abandons up to 1,000 messages that expired while they
// waited for a time, or are due in partitions without an owner. It deletes up to 1,000 records of each class whose
// retention has expired. The lease is a row of the meta table, from a millisecond to an hour long.
func (s *Store) Clean(ctx context.Context, owner string, lease time.Duration) (out core.Cleaned, err error) {
	if err := core.CheckClean(owner, lease); err != nil {
		return out, err
	}
	var looks []look
	began := time.Now()
	err = s.write(ctx, "clean", func(w *work) error {
		out, looks = core.Cleaned{}, nil
		n, err := w.exec(ctx, `UPDATE waybill_meta SET owner = ?, value = `+nowSQL+` + ? WHERE name = 'cleaner'
			AND (owner = ? OR value NOT BETWEEN `+nowSQL+` AND `+nowSQL+` + ?)`, core.ErrorText(errors.New(owner)), lease.Microseconds(),
			core.ErrorText(errors.New(owner)), core.MaxCleanLease.Microseconds())
		if err != nil || n == 0 {
			return err
		}
		if _, err := w.one(ctx, []any{&w.now}, `SELECT `+nowSQL); err != nil {
			return err
		}
		out = core.Cleaned{Leader: true, Deleted: map[core.CleanedKind]int{}}
		sweep := look{at: &s.swept, from: s.swept.start(began)}
		rows, full, err := w.pick(ctx, expiredSQL, max(sweep.from, 1), w.now, cleanBatch)
		if err != nil {
			return err
		}
		if !full {
			sweep.newest = w.now // only rows before it are left that are locked, or become free
		}
		looks = append(looks, sweep)
		partitions, err := w.partitionsOf(ctx, rows)
		if err != nil {
			return err
		}
		if err := w.abandon(ctx, rows, partitions, waybill.ReasonExpired); err != nil {
			return err
		}
		out.Expired, out.More = len(rows), len(rows) == cleanBatch
		told := slices.DeleteFunc(rows, func(r *row) bool {
			_, tells := rules.Sweeps(r.facts(), partitions(r))
			return !tells
		})
		if err := w.tell(ctx, core.NoticeKey, told...); err != nil {
			return err
		}
		for _, class := range core.RetentionClasses() {
			l := look{at: &s.cleaned[class], from: s.cleaned[class].start(began)}
			if err := w.purge(ctx, class, &l, &out); err != nil {
				return err
			}
			looks = append(looks, l)
		}
		return nil
	})
	for _, l := range looks {
		if err != nil {
			l.newest, l.end = 0, 0 // but not at once from the beginning again
		}
		l.at.done(l.from, began, time.Now(), l.newest, l.end)
	}
	return out, err
}

// look is a look of Clean, and what resume.done wants to know of it.
type look struct {
	at                *resume
	from, newest, end int64
}

// pick locks the records that text selects, and leaves out those that have changed or are locked. full says that text
// may select more.
func (w *work) pick(ctx context.Context, text string, args ...any) (out []*row, full bool, err error) {
	rows, err := w.rows(ctx, text, args...)
	if err != nil {
		return nil, false, err
	}
	got, _, err := w.lock(ctx, seqsOf(rows))
	for _, r := range rows {
		if now := got[r.Seq]; now != nil && now.Version == r.Version && now.HeldBy == r.HeldBy {
			out = append(out, now)
		}
	}
	return out, len(rows) >= cleanBatch, err
}

// purge deletes the oldest rows of class whose time is over. A key that one of them blocked goes on.
func (w *work) purge(ctx context.Context, class core.RetentionClass, l *look, out *core.Cleaned) error {
	keep, state := class.KeptFor(w.s.opts.Retention), class.State()
	if keep == waybill.Forever {
		return nil
	}
	if class == core.RetentionCancelled {
		state = stateCancelled
	}
	old := w.now - keep.Microseconds()
	rows, full, err := w.pick(ctx, settledSQL, state, l.from, old, cleanBatch)
	if err != nil {
		return err
	}
	if !full {
		l.end = old
	}
	for _, r := range rows {
		l.newest = max(l.newest, r.ends)
		out.Deleted[core.CleanedKind{State: r.state, Reason: r.reason}]++
	}
	out.More = out.More || len(rows) == cleanBatch
	if err := w.remove(ctx, rows); err != nil {
		return err
	}
	return w.tell(ctx, core.NoticeKey, slices.DeleteFunc(rows, func(r *row) bool { return !rules.Tells(r.facts()) })...)
}

// stored returns r as operators see it.
func (w *work) stored(r *row, members map[core.Session]holder) admin.Stored {
	at := func(us int64) time.Time {
		if us == 0 {
			return time.Time{}
		}
		return time.UnixMicro(us).UTC()
	}
	rec := r.decode().Record
	out := admin.Stored{
		Envelope: rec.Envelope, Route: r.Route, Seq: r.Seq, State: r.facts().Shown(), Reason: r.reason, Attempts: r.Attempts, Crashes: r.Crashes,
		Age: duration(w.now - r.since), LastError: r.lastError, LastErrorAt: at(r.errorAt), Err: r.Err,
	}
	out.SetDedupeKey(r.dedupe)
	switch m := members[r.HeldBy]; {
	case r.HeldBy != 0:
		out.Owner, out.LeaseIn = m.name, duration(max(m.until-w.now, 0))
	case r.due != 0:
		out.DueIn = duration(max(r.due-w.now, 0))
	case !r.live():
		out.SettledAt = at(r.ends)
	}
	return out
}

// holder is a member as operators see it.
type holder struct {
	session core.Session
	name    string
	until   int64 // the end of its lease
}

// bySession returns the members by their session.
func (w *work) bySession(ctx context.Context) (map[core.Session]holder, error) {
	if _, err := w.one(ctx, []any{&w.now}, `SELECT `+nowSQL); err != nil {
		return nil, err
	}
	found, err := collect(ctx, w.q, func(rows *sql.Rows) (m holder, err error) {
		return m, rows.Scan(&m.session, &m.name, &m.until)
	}, `SELECT session, name, renewed_at + lease FROM waybill_outbox_members`)
	out := map[core.Session]holder{}
	for _, m := range found {
		out[m.session] = m
	}
	return out, err
}

// Inspect returns the record of a message on a route. A held record is processing.
func (s *Store) Inspect(ctx context.Context, route, id string) (out admin.Stored, err error) {
	err = s.read(ctx, "inspect", func(w *work) error {
		members, err := w.bySession(ctx)
		if err != nil {
			return err
		}
		rows, err := w.rows(ctx, recordSQL+byIDSQL, id, route)
		if err == nil && len(rows) == 0 {
			err = admin.NoRecord("waybill/mysql: inspect", route, id)
		}
		if err == nil {
			out = w.stored(rows[0], members)
		}
		return err
	})
	return out, err
}

// List returns a page of the records that f selects, without bodies. It finds ids, and records that were abandoned, by
// their index. It looks for all others by sequence, at most page.Budget rows.
func (s *Store) List(ctx context.Context, f admin.Filter, page admin.PageRequest) (out admin.Listing, err error) {
	if page, err = admin.CheckList(&f, page); err != nil {
		return out, err
	}
	err = s.read(ctx, "list", func(w *work) (err error) {
		out, _, err = w.list(ctx, &f, page, func(core.State, waybill.Reason) bool { return true })
		return err
	})
	return out, err
}

// list returns a page of the records that f and takes select, and their rows.
func (w *work) list(
	ctx context.Context, f *admin.Filter, page admin.PageRequest, takes func(core.State, waybill.Reason) bool,
) (out admin.Listing, found []*row, err error) {
	members, err := w.bySession(ctx)
	if err != nil {
		return out, nil, err
	}
	text, args := attrsSQL+`FORCE INDEX (PRIMARY) WHERE seq > ? ORDER BY seq LIMIT ?`, []any(nil)
	switch {
	case len(f.IDs) > 0:
		for _, id := range f.IDs {
			args = append(args, id)
		}
		text = attrsSQL + `FORCE INDEX (waybill_outbox_id) WHERE id IN ` + places(len(f.IDs)) + ` AND seq > ? ORDER BY seq LIMIT ?`
	case f.OnlyAbandoned():
		text = columns + `attrs, '' FROM ` + asideSQL + `(waybill_outbox_ends) WHERE state IN (5, 6) AND seq > ? ORDER BY seq LIMIT ?` + endAsideSQL + `ORDER BY seq`
	}
	for looked, after := 0, page.After; ; {
		n := min(walkBatch, page.Budget-looked)
		rows, err := w.rows(ctx, text, append(slices.Clip(args), after, n)...)
		if err != nil {
			return out, nil, err
		}
		for _, r := range rows {
			looked, after = looked+1, r.Seq
			if st := w.stored(r, members); f.Matches(&st) && takes(st.State, st.Reason) {
				out.Records, found = append(out.Records, st), append(found, r)
			}
			if len(out.Records) == page.Limit || looked == page.Budget {
				out.Next = after
				return out, found, nil
			}
		}
		if len(rows) < n {
			return out, found, nil
		}
	}
}

// Redrive puts failed and abandoned records back, in one bounded step; see [admin.Redriver]. It never touches a record
// that a member holds or another transaction has locked. Notices tell the owners.
func (s *Store) Redrive(ctx context.Context, req admin.RedriveRequest) (out admin.Redriven, err error) {
	if req, err = admin.CheckRedrive(req, s.opts.Limits); err != nil {
		return out, err
	}
	mark, err := rules.RepairMark(ctx, s, &req)
	if err != nil {
		return out, err
	}
	err = s.write(ctx, "redrive", func(w *work) error {
		found, rows, err := w.list(ctx, &req.Filter, req.Page, req.Takes)
		if err != nil {
			return err
		}
		out = admin.Redriven{Next: found.Next}
		last, err := w.last(ctx)
		if err != nil {
			return err
		}
		got, _, err := w.lock(ctx, seqsOf(rows))
		if err != nil {
			return err
		}
		given := map[[3]string]bool{} // dedupe keys that this step gave a live message
		var back []*row
		for i, r := range rows {
			if now := got[r.Seq]; now == nil || now.Version != r.Version || now.HeldBy != r.HeldBy {
				continue // somebody was faster
			}
			st, key := &found.Records[i], [3]string{r.Route, r.Envelope.Topic, r.dedupe}
			c := admin.Candidate{
				State: st.State, Reason: st.Reason, Age: st.Age, Expired: st.Envelope.Expired(time.UnixMicro(w.now)),
				Keyed: r.Envelope.Key != "", Last: r.Seq >= last, Taken: r.dedupe != "" && given[key],
			}
			if r.dedupe != "" && !r.live() && !c.Taken {
				live, err := w.rows(ctx, byKeySQL, r.dedupe, r.Envelope.Topic, r.Route, r.Route)
				if err != nil {
					return err
				}
				c.Taken = len(live) > 0
			}
			cause := req.Refusal(&c)
			if out.Count(cause); cause != "" {
				continue
			}
			given[key], back = true, append(back, r)
		}
		if req.DryRun {
			return nil
		}
		return w.requeue(ctx, req.Body, mark, back...)
	})
	return out, err
}

// requeue makes records that are locked ready again, at their places, and tells their owners. It removes expiries that
// have passed. body, if not nil, replaces the bodies; mark, if not empty, is a header of such messages.
func (w *work) requeue(ctx context.Context, body []byte, mark string, rows ...*row) error {
	if len(rows) == 0 {
		return nil
	}
	var changes []change
	var keys []any
	told := map[core.NoticeKind][]*row{}
	for _, r := range rows {
		expired := r.Envelope.Expired(time.UnixMicro(w.now))
		if expired {
			r.Envelope.Expires = time.Time{}
		}
		if mark != "" {
			if r.Envelope.Headers == nil {
				r.Envelope.Headers = map[string]string{}
			}
			r.Envelope.Headers[rules.RepairHeader] = mark
		}
		if expired || mark != "" {
			if err := w.set(ctx, []int64{r.Seq}, `attrs = ?`, encode(&r.Envelope)); err != nil {
				return err
			}
		}
		if r.dedupe != "" && !r.live() {
			keys = append(keys, r.dedupe, r.Envelope.Topic, r.Route, r.ID)
		}
		to, kind := rules.Requeue(r.facts())
		r.ends = micros(r.Envelope.Expires)
		changes, told[kind] = append(changes, change{r, rules.Change{Row: to}}), append(told[kind], r)
	}
	if err := w.become(ctx, `, error = '', error_at = 0`, changes...); err != nil {
		return err
	}
	if len(keys) > 0 {
		if _, err := w.exec(ctx, dedupeSQL+dedupeRow+strings.Repeat(`,`+dedupeRow, len(keys)/4-1), keys...); err != nil {
			return err
		}
	}
	if body != nil {
		if err := w.set(ctx, seqsOf(rows), `body = ?`, body); err != nil {
			return err
		}
	}
	for kind, rows := range told {
		if err := w.tell(ctx, kind, rows...); err != nil {
			return err
		}
	}
	return nil
}
