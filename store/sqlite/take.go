package sqlite

import (
	"context"
	"database/sql"

	"github.com/waybill-go/waybill/core"
)

const (
	// holdText holds the record at ?1, and adds ?4 to its deliveries.
	holdText = `UPDATE waybill_outbox SET hold = ?2, held_since = ?3, deliveries = deliveries + ?4 WHERE seq = ?1`
	dropText = `UPDATE waybill_outbox SET hold = 0, held_since = NULL WHERE seq = ?1`
	// heldText selects the records that a session holds.
	heldText = `SELECT ` + rowSQL + ` FROM waybill_outbox r INDEXED BY waybill_outbox_hold WHERE r.hold = ?1 AND r.hold <> 0 ORDER BY r.seq`
	// freeText selects the ready records without key and holder.
	freeText = `SELECT ` + rowSQL + `, coalesce(length(r.body), 0) FROM waybill_outbox r INDEXED BY waybill_outbox_free
		WHERE r.route = ?1 AND r.key = '' AND r.hold = 0 AND r.due_at IS NULL AND r.settled_at IS NULL AND ` + slotSQL + ` ORDER BY r.seq`

	giveUpText = `UPDATE waybill_outbox_units SET owner = 0, term = term + 1, low = ?3 WHERE route = ?1 AND from_slot = ?2`
)

// Take writes holds, as core.OutboxStore says. A record that self neither holds nor owns by its unit is GripGone. No
// record is locked by others: SQLite has one writer.
func (s *Store) Take(ctx context.Context, self core.Session, want core.Want) ([]core.Taken, error) {
	var out []core.Taken
	err := s.write(ctx, "take", func(w *work) (bool, error) {
		if known, _, err := w.member(ctx, self); err != nil || !known {
			if err == nil {
				err = core.Fenced("waybill/sqlite: take", self)
			}
			return false, err
		}
		t := taker{work: w, self: self, want: &want}
		for _, ref := range want.Refs {
			if err := t.named(ctx, ref); err != nil {
				return false, err
			}
		}
		if want.N > 0 {
			if err := t.next(ctx); err != nil {
				return false, err
			}
		}
		out = t.out
		return t.changed, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// taker is one Take in its transaction.
type taker struct {
	*work
	self    core.Session
	want    *core.Want
	out     []core.Taken
	changed bool
}

// named takes one record of Want.Refs.
func (t *taker) named(ctx context.Context, ref core.Ref) error {
	found := core.Taken{Ref: ref, Grip: core.GripGone}
	defer func() { t.out = append(t.out, found) }()
	r, err := t.find(ctx, ref)
	if err != nil || r == nil || !r.live() || r.Version != ref.Version {
		return err
	}
	if r.holder != t.self {
		own, err := t.owns(ctx, t.self, ref.Route)
		if err != nil || !own.Has(r.slot) {
			return err
		}
		if r.holder != 0 {
			found.Grip = core.GripLocked
			return nil
		}
		if err := t.grip(ctx, r); err != nil {
			return err
		}
	}
	found.Grip, found.Deliveries = core.GripHeld, r.deliveries
	return nil
}

// grip holds r, which self does not hold.
func (t *taker) grip(ctx context.Context, r *row) error {
	add := 0
	if t.want.Deliver {
		add = 1
	}
	r.deliveries += add
	t.changed = true
	_, err := t.exec(ctx, holdText, r.Seq, int64(t.self), t.now, add)
	return err
}

// next takes the next N without a key: first records that self holds and does not know.
func (t *taker) next(ctx context.Context) error {
	want := t.want
	known := map[int64]string{}
	for _, ref := range want.Out {
		if ref.Route == want.Part.Route {
			known[ref.Seq] = ref.ID
		}
	}
	mine, err := t.held(ctx, t.self, func(r *row) bool {
		id, out := known[r.Seq]
		return r.Route == want.Part.Route && want.Part.Slots.Has(r.slot) && r.ready() && r.key == "" && (!out || id != r.ID)
	})
	if err != nil {
		return err
	}
	var free []row
	if n := want.N - len(mine); n > 0 {
		if free, err = t.free(ctx, n); err != nil {
			return err
		}
	}
	var bytes int64
	for i, r := range append(mine[:min(len(mine), want.N)], free...) {
		rec, err := t.load(ctx, r.Seq)
		if err != nil {
			return err
		}
		if bytes += int64(len(rec.Envelope.Body)); i > 0 && want.Bytes > 0 && bytes > want.Bytes {
			break
		}
		if r.holder != t.self {
			if err := t.grip(ctx, &r); err != nil {
				return err
			}
		}
		rec.Holder, rec.Deliveries = t.self, r.deliveries
		t.out = append(t.out, core.Taken{Ref: rec.Ref, Grip: core.GripHeld, Record: &rec, Deliveries: rec.Deliveries})
	}
	return nil
}

// held returns the wanted ones of the records that the session holds, by sequence.
func (w *work) held(ctx context.Context, self core.Session, wanted func(*row) bool) (out []row, err error) {
	err = w.each(ctx, func(rows *sql.Rows) (bool, error) {
		var r row
		if err := r.scan(rows); err != nil {
			return false, err
		}
		if wanted(&r) {
			out = append(out, r)
		}
		return true, nil
	}, heldText, int64(self))
	return out, err
}

// free returns up to n records that nobody holds, within the limit of bytes.
func (t *taker) free(ctx context.Context, n int) (out []row, err error) {
	part := t.want.Part
	var bytes int64
	err = t.each(ctx, func(rows *sql.Rows) (bool, error) {
		var r row
		var size int64
		if err := r.scan(rows, &size); err != nil {
			return false, err
		}
		if !part.Slots.Has(r.slot) {
			return true, nil
		}
		out = append(out, r)
		bytes += size
		return len(out) < n && (t.want.Bytes <= 0 || bytes <= t.want.Bytes), nil
	}, freeText, part.Route, bits(part.Slots))
	return out, err
}

// GiveUp frees a unit, as core.OutboxStore says. It never returns false: no record is locked by others. A route whose
// units are gone keeps their greatest term.
func (s *Store) GiveUp(ctx context.Context, self core.Session, unit core.OwnedUnit, out []core.Ref) (bool, error) {
	u := unit.Unit
	err := s.write(ctx, "give a unit up", func(w *work) (bool, error) {
		known, _, err := w.member(ctx, self)
		if err != nil {
			return false, err
		}
		var owner, term, low, careful int64
		found, err := w.one(ctx, []any{&owner, &term}, ownerText, u.Route, u.From, u.To)
		if err == nil && !found {
			_, err = w.one(ctx, []any{&low, &careful, &term}, hintText, u.Route)
		}
		switch {
		case err != nil:
			return false, err
		case known && term > unit.Term:
			return false, nil // it was given up before
		case known && term == unit.Term && core.Session(owner) == self:
			return true, w.giveUp(ctx, self, u, unit.Low, out)
		}
		return false, core.Fenced("waybill/sqlite: give a unit up", self)
	})
	return err == nil, err
}

func (w *work) giveUp(ctx context.Context, self core.Session, unit core.Unit, low int64, out []core.Ref) error {
	slots := unit.Slots()
	keep := map[int64]bool{}
	for _, ref := range out {
		r, err := w.find(ctx, ref)
		if err != nil {
			return err
		}
		if r == nil || !r.live() || r.Version != ref.Version || ref.Route != unit.Route ||
			!slots.Has(r.slot) || r.holder != 0 && r.holder != self {
			continue
		}
		keep[r.Seq] = true
		if r.holder == 0 {
			if _, err := w.exec(ctx, holdText, r.Seq, int64(self), w.now, 0); err != nil {
				return err
			}
		}
	}
	drop, err := w.held(ctx, self, func(r *row) bool { return r.Route == unit.Route && slots.Has(r.slot) && !keep[r.Seq] })
	if err != nil {
		return err
	}
	for i := range drop {
		if _, err := w.exec(ctx, dropText, drop[i].Seq); err != nil {
			return err
		}
	}
	_, err = w.exec(ctx, giveUpText, unit.Route, unit.From, low)
	return err
}
