package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
	"github.com/waybill-go/waybill/hlc"
)

const (
	// rowSQL are the columns of record r that the engine's rules need.
	rowSQL = `r.seq, r.route, r.id, r.version, coalesce(r.slot, -1), r.key, r.state, r.hold, coalesce(r.due_at, 0),
		r.due_at IS NOT NULL, r.blocks, r.cancellable,
	r.maybe_sent, r.attempts, r.deliveries, r.crashes`
	// recordSQL are the columns of the whole record.
	recordSQL = rowSQL + `, r.topic, r.hlc, r.expires_at, r.ready_since, r.attrs, r.body`

	// atSQL are the records whose sequences are in the JSON array ?1, in its order.
	atSQL    = ` FROM json_each(?1) j CROSS JOIN waybill_outbox r WHERE r.seq = j.value`
	findText = `SELECT ` + rowSQL + atSQL
	loadText = `SELECT ` + recordSQL + atSQL

	// slotSQL is true if record r is in the slots ?2, or was inserted by hand: then the program computes its slot.
	slotSQL = `((?2 >> r.slot) & 1 = 1 OR r.slot IS NULL)`

	memberText = `SELECT suspected FROM waybill_outbox_members WHERE session = ?1`
	ownedText  = `SELECT route, from_slot, to_slot FROM waybill_outbox_partitions WHERE owner = ?1`
)

// row is a record as the database has it, without its message.
type row struct {
	rules.Row
	key        string
	due        int64 // if it waits
	slotColumn int64
}

// scan reads rowSQL and the columns after it.
func (r *row) scan(rows *sql.Rows, after ...any) error {
	dest := append(make([]any, 0, 16+len(after)), &r.Seq, &r.Route, &r.ID, &r.Version, &r.slotColumn, &r.key, &r.State, (*int64)(&r.Holder), &r.due,
		&r.Waits, &r.Blocks, &r.Cancellable, &r.MaybeSent, &r.Attempts, &r.Deliveries, &r.Crashes)
	if err := rows.Scan(append(dest, after...)...); err != nil {
		return err
	}
	r.Slot, r.Keyed = uint8(r.slotColumn), r.key != ""
	if r.slotColumn < 0 || r.slotColumn >= core.NumSlots {
		r.Slot = core.SlotOf(r.Route, r.key, r.ID)
	}
	return nil
}

// obstructs returns r as a record that blocks its key, seen by self, or nil. Blocking abandoned ones count if block is
// set.
func (r *row) obstructs(self core.Session, block bool) (core.BlockingRecord, bool) {
	w := core.BlockingRecord{Ref: r.Ref, Slot: r.Slot, Key: r.key, HeldBy: r.Holder, Why: r.Obstructs(self, block)}
	return w, w.Why != 0
}

// record reads recordSQL.
func (w *work) record(rows *sql.Rows) (r row, rec core.Record, err error) {
	var expires sql.NullInt64
	var since, stamp int64
	var attrs string
	e := &rec.Envelope
	if err := r.scan(rows, &e.Topic, &stamp, &expires, &since, &attrs, &e.Body); err != nil {
		return r, rec, err
	}
	rec.Ref, rec.Slot, rec.Attempts, rec.Deliveries, rec.Crashes = r.Ref, r.Slot, r.Attempts, r.Deliveries, r.Crashes
	rec.Failed, rec.Cancellable, rec.HeldBy = r.State == core.StateFailed, r.Cancellable, r.Holder
	rec.DueFor = duration(max(w.now-since, 0))
	e.ID, e.Key, e.HLC = r.ID, r.key, hlc.Timestamp(stamp)
	if err := decodeAttrs(e, attrs); err != nil {
		rec.Err = fmt.Errorf("waybill/sqlite: read: row %d of %soutbox: %w", r.Seq, w.s.opts.Prefix, err)
	}
	w.s.complete(e)
	if expires.Valid {
		rec.Expires, rec.ExpiresIn = true, duration(expires.Int64-w.now)
		if e.Expires.IsZero() {
			e.Expires = time.UnixMicro(expires.Int64).UTC()
		}
	}
	return r, rec, nil
}

// complete fills in the fields that are missing in a row that plain SQL inserted. Its source is that of this store: a
// file belongs to one service.
func (s *Store) complete(e *waybill.Envelope) {
	if e.Type == "" {
		e.Type = e.Topic
	}
	if e.Source == "" {
		e.Source = s.opts.Source
	}
}

// at returns the rows at seqs, by sequence.
func (w *work) at(ctx context.Context, seqs []int64) (map[int64]*row, error) {
	out := make(map[int64]*row, len(seqs))
	if len(seqs) == 0 {
		return out, nil
	}
	err := w.each(ctx, func(rows *sql.Rows) (bool, error) {
		r := &row{}
		err := r.scan(rows)
		out[r.Seq] = r
		return true, err
	}, findText, list(seqs))
	return out, err
}

// named returns the one of rows that ref names, of any version, or nil.
func named(rows map[int64]*row, ref core.Ref) *rules.Row {
	if r := rows[ref.Seq]; r != nil && r.ID == ref.ID && r.Route == ref.Route {
		return &r.Row
	}
	return nil
}

// load calls fn with the whole records at seqs, in their order, until it returns false.
func (w *work) load(ctx context.Context, seqs []int64, fn func(rec *core.Record) bool) error {
	if len(seqs) == 0 {
		return nil
	}
	return w.each(ctx, func(rows *sql.Rows) (bool, error) {
		_, rec, err := w.record(rows)
		return err == nil && fn(&rec), err
	}, loadText, list(seqs))
}

// hold writes holds of self, and adds to the deliveries.
func (w *work) hold(ctx context.Context, self core.Session, seqs []int64, deliver bool) error {
	if len(seqs) == 0 {
		return nil
	}
	_, err := w.exec(ctx, holdText, list(seqs), int64(self), w.now, deliver)
	return err
}

func seqsOf(refs []core.Ref) []int64 {
	out := make([]int64, len(refs))
	for i, ref := range refs {
		out[i] = ref.Seq
	}
	return out
}

// member reports whether the session is a member, and whether it is suspected.
func (w *work) member(ctx context.Context, session core.Session) (known, suspected bool, err error) {
	if session == 0 {
		return false, false, nil
	}
	known, err = w.one(ctx, []any{&suspected}, memberText, int64(session))
	return known, suspected, err
}

// owns returns the slots of the route that self owns. A work asks for one session only.
func (w *work) owns(ctx context.Context, self core.Session, route string) (core.Slots, error) {
	if w.own == nil {
		w.own = map[string]core.Slots{}
		err := w.each(ctx, func(rows *sql.Rows) (bool, error) {
			var u core.Partition
			if err := rows.Scan(&u.Route, &u.From, &u.To); err != nil {
				return false, err
			}
			w.own[u.Route] |= u.Slots()
			return true, nil
		}, ownedText, int64(self))
		if err != nil {
			return 0, err
		}
	}
	return w.own[route], nil
}

// merge joins the parts of each route into one, in the order in which routes are first named.
func merge(parts []core.RouteSlots) []core.RouteSlots {
	var out []core.RouteSlots
	at := map[string]int{}
	for _, p := range parts {
		if i, ok := at[p.Route]; ok {
			out[i].Slots, out[i].DueExcludeHeld = out[i].Slots|p.Slots, out[i].DueExcludeHeld && p.DueExcludeHeld
			continue
		}
		at[p.Route] = len(out)
		out = append(out, p)
	}
	return out
}

// bits returns slots as the database stores them.
func bits(s core.Slots) int64 { return int64(s) }

// micros returns d in microseconds, at least one if it is above 0.
func micros(d time.Duration) int64 {
	if d > 0 {
		return max(d.Microseconds(), 1)
	}
	return 0
}
