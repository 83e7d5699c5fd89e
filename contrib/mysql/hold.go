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

// Hold writes holds, as core.OutboxStore says. A record that self neither holds nor owns by its partition is HoldGone.
func (s *Store) Hold(ctx context.Context, self core.Session, want core.HoldRequest) (out []core.HoldResult, err error) {
	err = s.fenced(ctx, "hold", self, func(w *work) (err error) {
		if out, err = w.named(ctx, &want); err == nil && want.N > 0 {
			err = w.next(ctx, &want, &out)
		}
		return err
	})
	return out, err
}

// named takes the records of HoldRequest.Refs.
func (w *work) named(ctx context.Context, want *core.HoldRequest) (out []core.HoldResult, err error) {
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
		t, r, locked := core.HoldResult{Ref: ref}, named(got, ref), false
		if r == nil {
			r = named(busy, ref)
			locked = r != nil
		}
		var writes bool
		if t.Status, writes = rules.Hold(r.facts(), ref, w.self, r != nil && own.Has(r.Slot), locked); writes {
			r.held(w.self, want)
			fresh = append(fresh, r.Seq)
		}
		if t.Status == core.HoldGranted {
			t.Deliveries = r.Deliveries
		}
		out = append(out, t)
	}
	return out, w.hold(ctx, fresh, deliveries(want))
}

// held notes that self holds r.
func (r *row) held(self core.Session, want *core.HoldRequest) {
	f := rules.Held(r.facts(), self, want.Deliver)
	r.Holder, r.Deliveries = f.Holder, f.Deliveries
}

func deliveries(want *core.HoldRequest) int {
	if want.Deliver {
		return 1
	}
	return 0
}

// next takes the next N without a key: first records that self holds and does not know.
func (w *work) next(ctx context.Context, want *core.HoldRequest, out *[]core.HoldResult) error {
	known := map[int64]string{}
	for _, ref := range want.Out {
		known[ref.Seq] = ref.ID
	}
	var mine []*row
	all, err := w.rows(ctx, mineSQL, w.self)
	for _, r := range all {
		id, isOut := known[r.Seq]
		if r.Route == want.Slots.Route && want.Slots.Slots.Has(r.Slot) && r.ready() && r.Envelope.Key == "" && (!isOut || id != r.ID) && len(mine) < want.N {
			mine = append(mine, r)
		}
	}
	if err == nil && len(mine) < want.N {
		var free []*row
		free, err = w.rows(ctx, freeSQL, want.Slots.Route, int64(want.Slots.Slots), want.N-len(mine))
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
			r.held(w.self, want)
		}
		rec := r.decode().Record
		*out = append(*out, core.HoldResult{Ref: rec.Ref, Status: core.HoldGranted, Record: &rec, Deliveries: rec.Deliveries})
	}
	if err != nil {
		return err
	}
	return w.hold(ctx, fresh, deliveries(want))
}

// ReleasePartition frees a partition, as core.OutboxStore says. It also returns false if one of self's other holds in
// the partition is locked.
func (s *Store) ReleasePartition(ctx context.Context, self core.Session, partition core.PartitionState, out []core.Ref) (done bool, err error) {
	u := partition.Partition
	err = s.fenced(ctx, "release a partition", self, func(w *work) error {
		done = true
		now, err := w.partitions(ctx, `WHERE route = ? AND from_slot = ? AND to_slot = ? FOR UPDATE`, u.Route, u.From, u.To)
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
		if before, err := rules.GivenUp(owner, term, self, partition.Term); before || err != nil {
			if err != nil {
				err = core.Fenced("waybill/mysql: release a partition", self)
			}
			return err
		}
		if done, err = w.keep(ctx, u, out); err != nil || !done {
			return err
		}
		_, err = w.exec(ctx, `UPDATE waybill_outbox_partitions SET owner = 0, term = term + 1, read_after = ? WHERE route = ? AND from_slot = ?`, partition.ReadAfter, u.Route, u.From)
		return err
	})
	return done && err == nil, err
}

// keep holds exactly the records of out in the partition, and reports whether no lock prevented it.
func (w *work) keep(ctx context.Context, partition core.Partition, out []core.Ref) (bool, error) {
	var seqs, hold, drop []int64
	wanted := map[int64]core.Ref{}
	for _, ref := range out {
		seqs, wanted[ref.Seq] = append(seqs, ref.Seq), ref
	}
	mine, err := w.rows(ctx, lightAside+`(waybill_outbox_hold) WHERE hold = ? AND route = ?`+endAsideSQL, w.self, partition.Route)
	if err != nil {
		return false, err
	}
	for _, r := range mine {
		if _, ok := wanted[r.Seq]; !ok && partition.Slots().Has(r.Slot) {
			seqs = append(seqs, r.Seq)
		}
	}
	got, busy, err := w.lock(ctx, seqs)
	isOut := func(r *row) bool { return rules.Kept(r.facts(), wanted[r.Seq], w.self, true) }
	for _, r := range busy {
		if r.Route == partition.Route && partition.Slots().Has(r.Slot) && (isOut(r) || r.Holder == w.self) {
			return false, err
		}
	}
	for _, r := range got {
		switch isOut := isOut(r); {
		case r.Route != partition.Route || !partition.Slots().Has(r.Slot):
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
