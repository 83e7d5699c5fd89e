package waybillmysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

// The bits of column flags.
const (
	flagBlocks = 1 << iota
	flagWithdrawable
	flagMaybe
)

// stateWithdrawn is stored for abandoned records that the application took back, so that an index tells them apart.
const stateWithdrawn core.State = 6

// The statements that return a row all have the same columns: those of the record itself, and what costs more.
const (
	columns = `SELECT seq, route, id, version, slot, k, state, hold, due_at, ends_at, ready_since, flags, attempts, deliveries, crashes,
		topic, source, hlc, reason, error, error_at, dedupe_key, `
	lightSQL  = columns + `'', '' FROM waybill_outbox `
	attrsSQL  = columns + `attrs, '' FROM waybill_outbox `
	recordSQL = columns + `attrs, body FROM waybill_outbox `

	bySeqSQL = lightSQL + `FORCE INDEX (PRIMARY) WHERE `
	byIDSQL  = `WHERE id = ? AND route = ? `
	slotSQL  = ` AND (? >> slot) & 1 = 1 `
	liveSQL  = `state IN (1, 4) `

	// asideSQL … endAsideSQL encloses a condition on the records that stand aside.
	asideSQL    = `(SELECT seq FROM waybill_outbox_aside FORCE INDEX `
	lightAside  = columns + `'', '' FROM ` + asideSQL
	endAsideSQL = `) a JOIN waybill_outbox FORCE INDEX (PRIMARY) USING (seq) `
)

// row is a record as the database has it.
type row struct {
	core.Record
	state                     core.State
	due, ends, since, errorAt int64
	flags                     uint8
	reason                    waybill.Reason
	lastError, dedupe, attrs  string
}

func (r *row) live() bool           { return r.state == core.StatePending || r.state == core.StateFailed }
func (r *row) ready() bool          { return r.state == core.StatePending && r.due == 0 }
func (r *row) timer() bool          { return r.state == core.StatePending && r.due != 0 }
func (r *row) has(flag uint8) bool  { return r.flags&flag != 0 }
func (r *row) is(ref core.Ref) bool { return r.ID == ref.ID && r.Route == ref.Route }

// rows returns the rows of a statement that begins with columns.
func (w *work) rows(ctx context.Context, text string, args ...any) (out []*row, err error) {
	return out, w.ask(ctx, w.query(&out, text, args...))
}

// query appends the rows of a statement that begins with columns.
func (w *work) query(out *[]*row, text string, args ...any) query {
	f := newFields()
	return query{text, args, func(rows *sql.Rows) error {
		if err := f.next(rows); err != nil {
			return err
		}
		r := &row{}
		e := &r.Envelope
		r.Seq, r.Route, r.ID, r.Version = f.number(), f.text(), f.text(), f.number()
		r.Slot, e.Key, r.state, r.Holder = uint8(f.number()), f.text(), core.State(f.number()), core.Session(f.number())
		r.due, r.ends, r.since, r.flags = f.number(), f.number(), f.number(), uint8(f.number())
		r.Attempts, r.Deliveries, r.Crashes = int(f.number()), int(f.number()), int(f.number())
		e.Topic, e.Source, e.HLC = f.text(), f.text(), hlc.Timestamp(f.number())
		r.reason, r.lastError = waybill.Reason(f.text()), f.text()
		r.errorAt, r.dedupe, r.attrs, e.Body = f.number(), f.text(), f.text(), f.bytes()
		e.ID, r.Failed, r.Withdrawable = r.ID, r.state == core.StateFailed, r.has(flagWithdrawable)
		if r.state == stateWithdrawn {
			r.state = core.StateAbandoned
		}
		r.Age = duration(max(w.now-r.since, 0))
		if r.Expires = r.live() && r.ends != 0; r.Expires {
			r.Life = duration(r.ends - w.now)
		}
		*out = append(*out, r)
		return f.err
	}}
}

// decode sets the attributes. It sets Err if they are not those that Stage wrote.
func (r *row) decode() *row {
	for rest := r.attrs; rest != ""; {
		var name, value string
		var ok bool
		if name, rest, ok = cutText(rest); ok {
			value, rest, ok = cutText(rest)
		}
		if ok {
			ok = r.setAttribute(name, value)
		}
		if !ok {
			r.Err = fmt.Errorf("waybill/mysql: row %d of waybill_outbox: column attrs holds %d bytes that are not what Stage writes", r.Seq, len(r.attrs))
			return r
		}
	}
	return r
}

// The names in column attrs of what is no attribute of CloudEvents.
const (
	attrPriority = "!"
	headerPrefix = "#"
)

func (r *row) setAttribute(name, value string) bool {
	e := &r.Envelope
	if header, is := strings.CutPrefix(name, headerPrefix); is {
		if e.Headers == nil {
			e.Headers = map[string]string{}
		}
		e.Headers[header] = value
		return true
	}
	if name == attrPriority {
		n, err := strconv.ParseUint(value, 10, 8)
		e.Priority = uint8(n)
		return err == nil
	}
	known, err := core.SetAttribute(e, name, value)
	return known && err == nil
}

// cutText returns the first text of attrs, and the rest. A text is its length, a colon, and its bytes.
func cutText(attrs string) (text, rest string, ok bool) {
	length, rest, ok := strings.Cut(attrs, ":")
	n, err := strconv.Atoi(length)
	if !ok || err != nil || n < 0 || n > len(rest) {
		return "", "", false
	}
	return rest[:n], rest[n:], true
}

// encode returns column attrs: names and values, in turn. Reading them costs a fraction of what JSON does.
func encode(e *waybill.Envelope) []byte {
	var out []byte
	add := func(name, value string) {
		for _, text := range [...]string{name, value} {
			out = append(append(strconv.AppendInt(out, int64(len(text)), 10), ':'), text...)
		}
	}
	add(core.AttrContentType, e.ContentType)
	for _, at := range core.AppendAttributes(make([]core.Attribute, 0, 16), e) {
		switch at.Name {
		// They have columns.
		case core.AttrSpecVersion, core.AttrID, core.AttrSource, core.AttrKey, core.AttrHLC:
		default:
			add(at.Name, at.Value)
		}
	}
	for name, value := range e.Headers {
		add(headerPrefix+name, value)
	}
	if e.Priority != 0 {
		add(attrPriority, strconv.Itoa(int(e.Priority)))
	}
	return out
}

// waiting returns r as a record that blocks its key, seen by self.
func (r *row) waiting(self core.Session, blocks bool) (core.Waiting, bool) {
	w := core.Waiting{Ref: r.Ref, Slot: r.Slot, Key: r.Envelope.Key, Holder: r.Holder}
	switch {
	case r.Holder != 0 && r.Holder != self:
		w.Why = core.ObstacleHeld
	case r.Failed:
		w.Why = core.ObstacleRetrying
	case r.has(flagBlocks) && blocks:
		w.Why = core.ObstacleBlocking
	}
	return w, w.Why != 0
}

// lock locks the records at seqs that no transaction has locked. Busy are the others that are there. Only the primary
// key is used: another plan would lock rows that nobody asked for.
func (w *work) lock(ctx context.Context, seqs []int64) (got, busy map[int64]*row, err error) {
	got, busy = make(map[int64]*row, len(seqs)), map[int64]*row{}
	if len(seqs) == 0 {
		return got, busy, nil
	}
	rows, err := w.rows(ctx, bySeqSQL+at(seqs)+` FOR UPDATE SKIP LOCKED`)
	for _, r := range rows {
		got[r.Seq] = r
	}
	if err != nil || len(got) == len(seqs) {
		return got, busy, err
	}
	rows, err = w.rows(ctx, bySeqSQL+at(seqs))
	for _, r := range rows {
		if got[r.Seq] == nil {
			busy[r.Seq] = r
		}
	}
	return got, busy, err
}

// set changes records that are locked, and copies them aside.
func (w *work) set(ctx context.Context, seqs []int64, assignments string, args ...any) error {
	if len(seqs) == 0 {
		return nil
	}
	if _, err := w.exec(ctx, `UPDATE waybill_outbox FORCE INDEX (PRIMARY) SET `+assignments+` WHERE `+at(seqs), args...); err != nil {
		return err
	}
	return w.copyAside(ctx, seqs)
}

func (w *work) copyAside(ctx context.Context, seqs []int64) error {
	_, err := w.exec(ctx, `REPLACE INTO waybill_outbox_aside (seq, route, k, slot, state, due_at, ends_at, hold, flags)
		SELECT seq, route, k, slot, state, due_at, ends_at, hold, flags FROM waybill_outbox FORCE INDEX (PRIMARY) WHERE `+at(seqs))
	return err
}

// remove deletes records that are locked.
func (w *work) remove(ctx context.Context, rows []*row) error {
	if len(rows) == 0 {
		return nil
	}
	for _, table := range [...]string{"waybill_outbox", "waybill_outbox_aside"} {
		if err := w.deleteFrom(ctx, table, at(seqsOf(rows))); err != nil {
			return err
		}
	}
	return w.free(ctx, rows)
}

// deleteFrom uses the primary key: a scan would lock the rows of others. With safe updates the server uses an index by
// itself, and is faster.
func (w *work) deleteFrom(ctx context.Context, table, where string, args ...any) error {
	text := `DELETE r FROM ` + table + ` r FORCE INDEX (PRIMARY) WHERE `
	if w.safe {
		text = `DELETE FROM ` + table + ` WHERE `
	}
	_, err := w.exec(ctx, text+where, args...)
	return err
}

// free frees the dedupe keys of records that have ended. rows are the records as they were.
func (w *work) free(ctx context.Context, rows []*row) error {
	var args []any
	for _, r := range rows {
		if r.dedupe != "" && r.live() {
			args = append(args, r.dedupe, r.Envelope.Topic, r.Route, r.ID)
		}
	}
	if len(args) == 0 {
		return nil
	}
	return w.deleteFrom(ctx, "waybill_outbox_dedupe", strings.Repeat(` OR dedupe_key = ? AND topic = ? AND route = ? AND id = ?`, len(args)/4)[4:], args...)
}

// hold writes holds of self, and adds to the deliveries.
func (w *work) hold(ctx context.Context, seqs []int64, deliveries int) error {
	return w.set(ctx, seqs, `hold = ?, deliveries = deliveries + ?`, w.self, deliveries)
}

// abandon ends records for good, and tells the owners of their keys if asked to. blocks are the new flags.
func (w *work) abandon(ctx context.Context, rows []*row, reason waybill.Reason, blocks int) error {
	state := core.StateAbandoned
	if reason.Withdrawn() {
		state = stateWithdrawn
	}
	err := w.set(ctx, seqsOf(rows), `state = ?, version = version + 1, due_at = 0, ends_at = ?, flags = (flags & ~1) | IF(k = '', 0, ?),
		reason = ?`, state, w.now, blocks, string(reason))
	if err != nil {
		return err
	}
	return w.free(ctx, rows)
}

// tell writes control records for the owners of rows.
func (w *work) tell(ctx context.Context, kind core.ControlKind, rows ...*row) error {
	for _, r := range rows {
		if _, err := w.exec(ctx, `INSERT INTO waybill_outbox_control (route, kind, slot, seq, k, id, reason) VALUES (?, ?, ?, ?, ?, ?, '')`,
			r.Route, kind, r.Slot, r.Seq, r.Envelope.Key, r.ID); err != nil {
			return err
		}
	}
	return nil
}

func seqsOf(rows []*row) []int64 {
	out := make([]int64, len(rows))
	for i, r := range rows {
		out[i] = r.Seq
	}
	return out
}

// owns returns the slots of the route that self owns.
func (w *work) owns(ctx context.Context, route string) (core.Slots, error) {
	if w.own == nil {
		w.own = map[string]core.Slots{}
		units, err := w.units(ctx, `WHERE owner = ?`, w.self)
		if err != nil {
			return 0, err
		}
		for _, u := range units {
			w.own[u.Unit.Route] |= u.Unit.Slots()
		}
	}
	return w.own[route], nil
}

const unitsSQL = `SELECT route, from_slot, to_slot, owner, term, low, careful FROM waybill_outbox_units `

func (w *work) units(ctx context.Context, where string, args ...any) ([]core.OwnedUnit, error) {
	return collect(ctx, w.q, scanUnit, unitsSQL+where, args...)
}

func scanUnit(rows *sql.Rows) (u core.OwnedUnit, err error) {
	return u, rows.Scan(&u.Unit.Route, &u.Unit.From, &u.Unit.To, &u.Owner, &u.Term, &u.Low, &u.Careful)
}

// lastSQL returns an expression of the last sequence that was drawn, or a later one. MySQL caches that figure, unless
// it is told not to.
func (s *Store) lastSQL(ctx context.Context, q querier) (string, error) {
	v, err := s.serverVersion(ctx)
	if err == nil && !isMariaDB(v) {
		_, err = q.ExecContext(ctx, `SET SESSION information_schema_stats_expiry = 0`)
	}
	return `(SELECT COALESCE(AUTO_INCREMENT, 1) - 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'waybill_outbox')`, err
}

func (w *work) last(ctx context.Context) (last int64, err error) {
	text, err := w.s.lastSQL(ctx, w.q)
	if err == nil {
		_, err = w.one(ctx, []any{&last}, `SELECT `+text)
	}
	return last, err
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

var errNoTx = errors.New("tx: is nil; begin a transaction in the store's database, use it, commit it")
