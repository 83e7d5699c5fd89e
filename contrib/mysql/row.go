package waybillmysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
	"github.com/waybill-go/waybill/hlc"
)

// The bits of column flags.
const (
	flagBlocks = 1 << iota
	flagCancellable
	flagMaybe
)

// stateCancelled is stored for abandoned records that the application took back, so that an index tells them apart.
const stateCancelled core.State = 6

// The statements that return a row all have the same columns: those of the record itself, and the costly ones. Those on
// records aside begin there (STRAIGHT_JOIN): the server does not count rows that are gone but kept by an open read
// view, and can choose to go over all of the outbox instead.
const (
	columns = `SELECT STRAIGHT_JOIN seq, route, id, version, slot, k, state, hold, due_at, ends_at, ready_since, flags, attempts, deliveries, crashes,
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
		r.Slot, e.Key, r.state, r.HeldBy = uint8(f.number()), f.text(), core.State(f.number()), core.Session(f.number())
		r.due, r.ends, r.since, r.flags = f.number(), f.number(), f.number(), uint8(f.number())
		r.Attempts, r.Deliveries, r.Crashes = int(f.number()), int(f.number()), int(f.number())
		e.Topic, e.Source, e.HLC = f.text(), f.text(), hlc.Timestamp(f.number())
		r.reason, r.lastError = waybill.Reason(f.text()), f.text()
		r.errorAt, r.dedupe, r.attrs, e.Body = f.number(), f.text(), f.text(), f.bytes()
		e.ID, r.Failed, r.Cancellable = r.ID, r.state == core.StateFailed, r.has(flagCancellable)
		if r.state == stateCancelled {
			r.state = core.StateAbandoned
		}
		r.DueFor = duration(max(w.now-r.since, 0))
		if r.Expires = r.live() && r.ends != 0; r.Expires {
			r.ExpiresIn = duration(r.ends - w.now)
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

// The names in column attrs that are no attributes of CloudEvents.
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
func (r *row) waiting(self core.Session, blocks bool) (core.BlockingRecord, bool) {
	w := core.BlockingRecord{Ref: r.Ref, Slot: r.Slot, Key: r.Envelope.Key, HeldBy: r.HeldBy, Why: r.facts().Obstructs(self, blocks)}
	return w, w.Why != 0
}

// facts returns the facts about r that the rules need; nil if r is nil.
func (r *row) facts() *rules.Row {
	if r == nil {
		return nil
	}
	return &rules.Row{
		Ref: r.Ref, Slot: r.Slot, State: r.state, Reason: r.reason, Holder: r.HeldBy, Keyed: r.Envelope.Key != "", Waits: r.live() && r.due != 0,
		Cancellable: r.Cancellable, Blocks: r.has(flagBlocks), MaybeSent: r.has(flagMaybe),
		Attempts: r.Attempts, Deliveries: r.Deliveries, Crashes: r.Crashes,
	}
}

// named returns the one of rows that ref names, of any version, or nil.
func named(rows map[int64]*row, ref core.Ref) *row {
	if r := rows[ref.Seq]; r != nil && r.is(ref) {
		return r
	}
	return nil
}

// change is a locked record, as it was, and as a rule has made it.
type change struct {
	*row
	to rules.Change
}

// maxChanges bounds the records that one statement changes each in another way.
const maxChanges = 500

// become makes records what the rules have made of them, in two statements. also are more assignments.
func (w *work) become(ctx context.Context, also string, changes ...change) error {
	for len(changes) > 0 {
		n := min(len(changes), maxChanges)
		if err := w.becomeSome(ctx, also, changes[:n]); err != nil {
			return err
		}
		changes = changes[n:]
	}
	return nil
}

func (w *work) becomeSome(ctx context.Context, also string, changes []change) error {
	seqs, ended := make([]int64, len(changes)), []*row(nil)
	for i, c := range changes {
		if seqs[i] = c.Seq; !c.to.Live() {
			ended = append(ended, c.row)
		}
	}
	var sets []string
	var args []any
	// One value for all, or one for each. A list of sequences begins with one that is none.
	assign := func(column string, value func(c *change) any) {
		values := make([]any, 0, len(changes))
		for i := range changes {
			if v := value(&changes[i]); len(values) < 1 || len(values) > 1 || v != values[0] {
				for len(values) < i {
					values = append(values, values[0])
				}
				values = append(values, v)
			}
		}
		text := `?`
		if len(values) > 1 {
			field := list(seqsOf(rowsOf(changes)))
			text = `ELT(FIELD(seq, ` + field[1:len(field)-1] + `), 0` + strings.Repeat(`, ?`, len(values)) + `)`
		}
		if column == "error" {
			text, values = `IF(`+text+` = '', error, `+text+`)`, append(slices.Clip(values), values...)
		}
		sets, args = append(sets, column+` = `+text), append(args, values...)
	}
	assign("state", func(c *change) any { return storedState(c.to.State, c.to.Reason) })
	assign("due_at", func(c *change) any {
		switch {
		case c.to.Due:
			return w.now + c.to.In.Microseconds()
		case c.to.Waits:
			return c.due
		}
		return int64(0)
	})
	assign("ends_at", func(c *change) any {
		if c.to.Live() {
			return c.ends
		}
		return w.now
	})
	assign("flags", func(c *change) any { return flags(&c.to.Row) })
	assign("hold", func(c *change) any { return int64(c.to.Holder) })
	assign("attempts", func(c *change) any { return int64(c.to.Attempts) })
	assign("deliveries", func(c *change) any { return int64(c.to.Deliveries) })
	assign("crashes", func(c *change) any { return int64(c.to.Crashes) })
	assign("reason", func(c *change) any { return string(c.to.Reason) })
	assign("error_at", func(c *change) any {
		if c.to.Error == "" {
			return c.errorAt
		}
		return w.now
	})
	assign("error", func(c *change) any { return c.to.Error })
	if err := w.set(ctx, seqs, `version = version + 1, `+strings.Join(sets, `, `)+also, args...); err != nil {
		return err
	}
	return w.free(ctx, ended)
}

func rowsOf(changes []change) []*row {
	out := make([]*row, len(changes))
	for i := range changes {
		out[i] = changes[i].row
	}
	return out
}

// storedState is the state as it is stored.
func storedState(s core.State, reason waybill.Reason) int64 {
	if s == core.StateAbandoned && reason.Cancelled() {
		s = stateCancelled
	}
	return int64(s)
}

func flags(r *rules.Row) (out int64) {
	for flag, is := range map[int64]bool{flagBlocks: r.Blocks, flagCancellable: r.Cancellable, flagMaybe: r.MaybeSent} {
		if is {
			out |= flag
		}
	}
	return out
}

// lock locks the records at seqs that no transaction has locked. Busy are the others that are there. Only the primary
// key is used: another plan would lock further rows.
func (w *work) lock(ctx context.Context, seqs []int64) (got, busy map[int64]*row, err error) {
	got, busy = make(map[int64]*row, len(seqs)), map[int64]*row{}
	if len(seqs) == 0 {
		return got, busy, nil
	}
	var rows []*row
	if err := w.ask(ctx, w.lockQuery(&rows, seqs)); err != nil {
		return got, busy, err
	}
	return w.locked(ctx, seqs, rows)
}

// lockQuery locks what lock does.
func (w *work) lockQuery(out *[]*row, seqs []int64) query {
	return w.query(out, bySeqSQL+at(seqs)+` FOR UPDATE SKIP LOCKED`)
}

// locked returns the rows that were locked, and the others at seqs.
func (w *work) locked(ctx context.Context, seqs []int64, rows []*row) (got, busy map[int64]*row, err error) {
	got, busy = make(map[int64]*row, len(seqs)), map[int64]*row{}
	for _, r := range rows {
		got[r.Seq] = r
	}
	if len(got) == len(seqs) {
		return got, busy, nil
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
	if err := w.put(ctx, `UPDATE waybill_outbox FORCE INDEX (PRIMARY) SET `+assignments+` WHERE `+at(seqs), args...); err != nil {
		return err
	}
	return w.put(ctx, copyAsideSQL+at(seqs))
}

const copyAsideSQL = `REPLACE INTO waybill_outbox_aside (seq, route, k, slot, state, due_at, ends_at, hold, flags)
	SELECT seq, route, k, slot, state, due_at, ends_at, hold, flags FROM waybill_outbox FORCE INDEX (PRIMARY) WHERE `

// remove deletes records that are locked.
func (w *work) remove(ctx context.Context, rows []*row) error {
	if len(rows) == 0 {
		return nil
	}
	if err := w.deleteFrom(ctx, "waybill_outbox", at(seqsOf(rows))); err != nil {
		return err
	}
	if err := w.deleteFrom(ctx, "waybill_outbox_aside", each(seqsOf(rows))); err != nil {
		return err
	}
	return w.free(ctx, rows)
}

// deleteFrom uses the primary key: a scan would lock the rows of others.
func (w *work) deleteFrom(ctx context.Context, table, where string, args ...any) error {
	text := `DELETE r FROM ` + table + ` r FORCE INDEX (PRIMARY) WHERE `
	if w.safe {
		text = deleteSQL(table)
	}
	return w.put(ctx, text+where, args...)
}

// deleteSQL begins a DELETE on a connection with safe updates. MariaDB uses an index by itself then, MySQL one that is
// named. With FORCE INDEX both would be slower.
func deleteSQL(table string) string {
	return `DELETE /*+ INDEX(` + table + ` PRIMARY) */ FROM ` + table + ` WHERE `
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
	return w.set(ctx, seqs, holdSQL(w.self, deliveries))
}

func holdSQL(self core.Session, deliveries int) string {
	return fmt.Sprintf(`hold = %d, deliveries = deliveries + %d`, self, deliveries)
}

// abandon ends locked records for a caller other than their owners.
func (w *work) abandon(ctx context.Context, rows []*row, partitions func(r *row) rules.Partition, reason waybill.Reason) error {
	changes := make([]change, len(rows))
	for i, r := range rows {
		changes[i] = change{r, rules.Change{Row: rules.End(r.facts(), partitions(r), reason)}}
	}
	return w.become(ctx, "", changes...)
}

// partitionsOf returns the facts about the partitions of rows that the rules need.
func (w *work) partitionsOf(ctx context.Context, rows []*row) (func(r *row) rules.Partition, error) {
	var routes []any
	for _, r := range rows {
		if !slices.Contains(routes, any(r.Route)) {
			routes = append(routes, r.Route)
		}
	}
	var partitions []core.PartitionState
	if len(routes) > 0 {
		var err error
		partitions, err = w.partitions(ctx, `WHERE route IN `+places(len(routes))+` UNION ALL SELECT route, 0, 64, 0, term, read_after, uncertain_up_to FROM waybill_outbox_routes
			WHERE route IN `+places(len(routes)), append(slices.Clip(routes), routes...)...)
		if err != nil {
			return nil, err
		}
	}
	return func(r *row) (out rules.Partition) {
		for _, u := range partitions {
			if u.Partition.Route == r.Route && u.Partition.Slots().Has(r.Slot) {
				return rules.Partition{Owner: u.Owner, MaybeOutUpTo: u.MaybeOutUpTo}
			}
		}
		return out
	}, nil
}

// tell writes notices for the owners of rows.
func (w *work) tell(ctx context.Context, kind core.NoticeKind, rows ...*row) error {
	if len(rows) == 0 {
		return nil
	}
	if err := w.draw(ctx); err != nil {
		return err
	}
	var args []any
	for _, r := range rows {
		args = append(args, r.Route, kind, r.Slot, r.Seq, r.Envelope.Key, r.ID)
	}
	_, err := w.exec(ctx, `INSERT INTO waybill_outbox_notices (route, kind, slot, seq, k, id, reason) VALUES `+
		strings.Repeat(`, (?, ?, ?, ?, ?, ?, '')`, len(rows))[2:], args...)
	return err
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
		if err := w.ask(ctx, w.ownQuery()); err != nil {
			return 0, err
		}
	}
	return w.own[route], nil
}

// ownQuery has owns answer without a round trip of its own.
func (w *work) ownQuery() query {
	w.own = map[string]core.Slots{}
	return query{partitionsSQL + `WHERE owner = ?`, []any{w.self}, func(rows *sql.Rows) error {
		u, err := scanPartition(rows)
		w.own[u.Partition.Route] |= u.Partition.Slots()
		return err
	}}
}

const partitionsSQL = `SELECT route, from_slot, to_slot, owner, term, read_after, uncertain_up_to FROM waybill_outbox_partitions `

func (w *work) partitions(ctx context.Context, where string, args ...any) ([]core.PartitionState, error) {
	return collect(ctx, w.q, scanPartition, partitionsSQL+where, args...)
}

func scanPartition(rows *sql.Rows) (u core.PartitionState, err error) {
	return u, rows.Scan(&u.Partition.Route, &u.Partition.From, &u.Partition.To, &u.Owner, &u.Term, &u.ReadAfter, &u.MaybeOutUpTo)
}

// lastSQL returns an expression of the last number of a table that was drawn, or a later one. MySQL caches that figure,
// unless it is told not to.
func (s *Store) lastSQL(ctx context.Context, q querier, table string) (string, error) {
	v, err := s.serverVersion(ctx)
	if err == nil && !isMariaDB(v) {
		const set = `SET SESSION information_schema_stats_expiry = 0`
		if t, ok := q.(*transaction); ok && t.pending != "" {
			t.pending = strings.Replace(t.pending, set+"; ", "", 1) + set + "; "
		} else {
			_, err = q.ExecContext(ctx, set)
		}
	}
	return `(SELECT COALESCE(AUTO_INCREMENT, 1) - 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '` + table + `')`, err
}

func (w *work) last(ctx context.Context) (last int64, err error) {
	text, err := w.s.lastSQL(ctx, w.q, "waybill_outbox")
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
