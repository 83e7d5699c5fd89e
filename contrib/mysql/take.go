package waybillmysql

import (
	"context"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// Records are locked with SKIP LOCKED, so that no call waits for a stager or an operator. A locked one is answered as
// such. See row.go for the locks that a statement takes on rows beside those that are meant.

const (
	mineSQL = columns + `attrs, body FROM ` + asideSQL + `(waybill_outbox_hold) WHERE hold = ?` + endAsideSQL + `ORDER BY seq`
	freeSQL = recordSQL + `FORCE INDEX (waybill_outbox_key) WHERE route = ? AND k = '' AND state = 1 AND due_at = 0 AND hold = 0` + slotSQL +
		`ORDER BY seq LIMIT ? FOR UPDATE SKIP LOCKED`
)

// Take writes holds, as core.OutboxStore says. A record that self neither holds nor owns by its unit is GripGone.
func (s *Store) Take(ctx context.Context, self core.Session, want core.Want) (out []core.Taken, err error) {
	err = s.fenced(ctx, "take", self, func(w *work) (err error) {
		if out, err = w.named(ctx, &want); err == nil && want.N > 0 {
			err = w.next(ctx, &want, &out)
		}
		return err
	})
	return out, err
}

// named takes the records of Want.Refs.
func (w *work) named(ctx context.Context, want *core.Want) (out []core.Taken, err error) {
	seqs := make([]int64, len(want.Refs))
	for i, ref := range want.Refs {
		seqs[i] = ref.Seq
	}
	got, busy, err := w.lock(ctx, seqs)
	if err != nil {
		return nil, err
	}
	var fresh []int64
	for _, ref := range want.Refs {
		own, err := w.owns(ctx, ref.Route)
		if err != nil {
			return nil, err
		}
		t, r, locked := core.Taken{Ref: ref}, named(got, ref), false
		if r == nil {
			r = named(busy, ref)
			locked = r != nil
		}
		var writes bool
		if t.Grip, writes = rules.Hold(r.facts(), ref, w.self, r != nil && own.Has(r.Slot), locked); writes {
			r.Holder, fresh = w.self, append(fresh, r.Seq)
			r.Deliveries += deliveries(want)
		}
		if t.Grip == core.GripHeld {
			t.Deliveries = r.Deliveries
		}
		out = append(out, t)
	}
	return out, w.hold(ctx, fresh, deliveries(want))
}

func deliveries(want *core.Want) int {
	if want.Deliver {
		return 1
	}
	return 0
}

// next takes the next N without a key: first records that self holds and does not know.
func (w *work) next(ctx context.Context, want *core.Want, out *[]core.Taken) error {
	known := map[int64]string{}
	for _, ref := range want.Out {
		known[ref.Seq] = ref.ID
	}
	var mine []*row
	all, err := w.rows(ctx, mineSQL, w.self)
	for _, r := range all {
		id, isOut := known[r.Seq]
		if r.Route == want.Part.Route && want.Part.Slots.Has(r.Slot) && r.ready() && r.Envelope.Key == "" && (!isOut || id != r.ID) && len(mine) < want.N {
			mine = append(mine, r)
		}
	}
	if err == nil && len(mine) < want.N {
		var free []*row
		free, err = w.rows(ctx, freeSQL, want.Part.Route, int64(want.Part.Slots), want.N-len(mine))
		mine = append(mine, free...)
	}
	var fresh []int64
	bytes := int64(0)
	for i, r := range mine {
		if bytes += int64(len(r.Envelope.Body)); i > 0 && want.Bytes > 0 && bytes > want.Bytes {
			break
		}
		if r.Holder != w.self {
			fresh = append(fresh, r.Seq)
			r.Holder = w.self
			r.Deliveries += deliveries(want)
		}
		rec := r.decode().Record
		*out = append(*out, core.Taken{Ref: rec.Ref, Grip: core.GripHeld, Record: &rec, Deliveries: rec.Deliveries})
	}
	if err != nil {
		return err
	}
	return w.hold(ctx, fresh, deliveries(want))
}

// GiveUp frees a unit, as core.OutboxStore says. It also returns false if one of self's other holds in the unit is
// locked.
func (s *Store) GiveUp(ctx context.Context, self core.Session, unit core.OwnedUnit, out []core.Ref) (done bool, err error) {
	u := unit.Unit
	err = s.fenced(ctx, "give a unit up", self, func(w *work) error {
		done = true
		now, err := w.units(ctx, `WHERE route = ? AND from_slot = ? AND to_slot = ? FOR UPDATE`, u.Route, u.From, u.To)
		var owner core.Session
		var term int64
		if len(now) > 0 {
			owner, term = now[0].Owner, now[0].Term
		} else if err == nil {
			_, err = w.one(ctx, []any{&term}, `SELECT term FROM waybill_outbox_routes WHERE route = ?`, u.Route)
		}
		if err != nil {
			return err
		}
		if before, err := rules.GivenUp(owner, term, self, unit.Term); before || err != nil {
			if err != nil {
				err = core.Fenced("waybill/mysql: give a unit up", self)
			}
			return err
		}
		if done, err = w.keep(ctx, u, out); err != nil || !done {
			return err
		}
		_, err = w.exec(ctx, `UPDATE waybill_outbox_units SET owner = 0, term = term + 1, low = ? WHERE route = ? AND from_slot = ?`, unit.Low, u.Route, u.From)
		return err
	})
	return done && err == nil, err
}

// keep holds exactly the records of out in the unit, and reports whether no lock prevented it.
func (w *work) keep(ctx context.Context, unit core.Unit, out []core.Ref) (bool, error) {
	var seqs, hold, drop []int64
	wanted := map[int64]core.Ref{}
	for _, ref := range out {
		seqs, wanted[ref.Seq] = append(seqs, ref.Seq), ref
	}
	mine, err := w.rows(ctx, lightAside+`(waybill_outbox_hold) WHERE hold = ? AND route = ?`+endAsideSQL, w.self, unit.Route)
	if err != nil {
		return false, err
	}
	for _, r := range mine {
		if _, ok := wanted[r.Seq]; !ok && unit.Slots().Has(r.Slot) {
			seqs = append(seqs, r.Seq)
		}
	}
	got, busy, err := w.lock(ctx, seqs)
	isOut := func(r *row) bool { return rules.Kept(r.facts(), wanted[r.Seq], w.self, true) }
	for _, r := range busy {
		if r.Route == unit.Route && unit.Slots().Has(r.Slot) && (isOut(r) || r.Holder == w.self) {
			return false, err
		}
	}
	for _, r := range got {
		switch isOut := isOut(r); {
		case r.Route != unit.Route || !unit.Slots().Has(r.Slot):
		case isOut && r.Holder == 0:
			hold = append(hold, r.Seq)
		case !isOut && r.Holder == w.self:
			drop = append(drop, r.Seq)
		}
	}
	if err == nil {
		err = w.hold(ctx, hold, 0)
	}
	if err == nil {
		err = w.set(ctx, drop, `hold = 0`)
	}
	return err == nil, err
}
