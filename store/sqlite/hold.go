package sqlite

import (
	"context"
	"database/sql"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// SQLite has one writer, so no record is ever locked by another transaction, and a Hold that changes something takes
// the only lock. Rows are first chosen by their index without bodies, and then loaded by number.

const (
	// holdText holds the records whose sequences are in the JSON array ?1, and adds ?4 to their deliveries.
	holdText = `UPDATE waybill_outbox SET hold = ?2, held_since = ?3, deliveries = deliveries + ?4 WHERE seq IN (SELECT value FROM json_each(?1))`
	dropText = `UPDATE waybill_outbox SET hold = 0, held_since = NULL WHERE seq IN (SELECT value FROM json_each(?1))`
	// heldText selects the records that a session holds.
	heldText = `SELECT ` + rowSQL + ` FROM waybill_outbox r INDEXED BY waybill_outbox_hold WHERE r.hold = ?1 AND r.hold <> 0 ORDER BY r.seq`
	// freeText selects the ready records without key and holder.
	freeText = `SELECT ` + rowSQL + `, coalesce(length(r.body), 0) FROM waybill_outbox r INDEXED BY waybill_outbox_free
		WHERE r.route = ?1 AND r.key = '' AND r.hold = 0 AND r.due_at IS NULL AND r.settled_at IS NULL AND ` + slotSQL + ` ORDER BY r.seq`

	releasePartitionText = `UPDATE waybill_outbox_partitions SET owner = 0, term = term + 1, read_after = iif(?4, ?3, read_after) WHERE route = ?1 AND from_slot = ?2`
)

// Hold writes holds, as core.OutboxStore says. A record that self neither holds nor owns by its partition is HoldGone.
// No record is locked by others: SQLite has one writer.
func (s *Store) Hold(ctx context.Context, self core.Session, want core.HoldRequest) ([]core.HoldResult, error) {
	var out []core.HoldResult
	err := s.write(ctx, "hold", func(w *work) (bool, error) {
		if known, _, err := w.member(ctx, self); err != nil || !known {
			if err == nil {
				err = core.NewFencedError("waybill/sqlite: hold", self)
			}
			return false, err
		}
		t := holding{work: w, self: self, want: &want}
		if err := t.named(ctx); err != nil {
			return false, err
		}
		if want.KeylessLimit > 0 {
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

// holding is one Hold in its transaction.
type holding struct {
	*work
	self    core.Session
	want    *core.HoldRequest
	out     []core.HoldResult
	changed bool
}

// named takes the records of HoldRequest.Refs.
func (t *holding) named(ctx context.Context) error {
	rows, err := t.at(ctx, seqsOf(t.want.Refs))
	if err != nil {
		return err
	}
	var fresh []int64
	for _, ref := range t.want.Refs {
		own, err := t.owns(ctx, t.self, ref.Route)
		if err != nil {
			return err
		}
		found, r := core.HoldResult{Ref: ref}, named(rows, ref)
		var writes bool
		if found.Status, writes = rules.Hold(r, ref, t.self, r != nil && own.Has(r.Slot), false); writes {
			*r, fresh = rules.Held(r, t.self, t.want.CountDelivery), append(fresh, ref.Seq)
		}
		if found.Status == core.HoldGranted {
			found.Deliveries = r.Deliveries
		}
		t.out = append(t.out, found)
	}
	return t.holdStatus(ctx, fresh)
}

// holdStatus holds records that self does not hold.
func (t *holding) holdStatus(ctx context.Context, seqs []int64) error {
	t.changed = t.changed || len(seqs) > 0
	return t.hold(ctx, t.self, seqs, t.want.CountDelivery)
}

// next takes the next N without a key: first records that self holds and does not know.
func (t *holding) next(ctx context.Context) error {
	want := t.want
	known := map[int64]string{}
	for _, ref := range want.ExcludeRefs {
		if ref.Route == want.KeylessSlots.Route {
			known[ref.Seq] = ref.ID
		}
	}
	mine, err := t.held(ctx, t.self, func(r *row) bool {
		id, out := known[r.Seq]
		return r.Route == want.KeylessSlots.Route && want.KeylessSlots.Slots.Has(r.Slot) && r.Ready() && r.key == "" && (!out || id != r.ID)
	})
	if err != nil {
		return err
	}
	var free []row
	if n := want.KeylessLimit - len(mine); n > 0 {
		if free, err = t.free(ctx, n); err != nil {
			return err
		}
	}
	var bytes int64
	var seqs, fresh []int64
	for _, r := range append(mine[:min(len(mine), want.KeylessLimit)], free...) {
		seqs = append(seqs, r.Seq)
	}
	err = t.load(ctx, seqs, func(rec *core.Record) bool {
		if bytes += int64(len(rec.Envelope.Body)); bytes > want.Bytes && want.Bytes > 0 && bytes > int64(len(rec.Envelope.Body)) {
			return false
		}
		if rec.HeldBy != t.self {
			fresh = append(fresh, rec.Seq)
			if rec.HeldBy = t.self; want.CountDelivery {
				rec.Deliveries++
			}
		}
		t.out = append(t.out, core.HoldResult{Ref: rec.Ref, Status: core.HoldGranted, Record: rec, Deliveries: rec.Deliveries})
		return true
	})
	if err != nil {
		return err
	}
	return t.holdStatus(ctx, fresh)
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

// free returns up to n records that no session holds, within the limit of bytes.
func (t *holding) free(ctx context.Context, n int) (out []row, err error) {
	part := t.want.KeylessSlots
	var bytes int64
	err = t.each(ctx, func(rows *sql.Rows) (bool, error) {
		var r row
		var size int64
		if err := r.scan(rows, &size); err != nil {
			return false, err
		}
		if !part.Slots.Has(r.Slot) {
			return true, nil
		}
		out = append(out, r)
		bytes += size
		return len(out) < n && (t.want.Bytes <= 0 || bytes <= t.want.Bytes), nil
	}, freeText, part.Route, bits(part.Slots))
	return out, err
}

// ReleasePartition frees a partition, as core.OutboxStore says. It never returns false: no record is locked by others.
// A route whose partitions are gone keeps their greatest term.
func (s *Store) ReleasePartition(ctx context.Context, self core.Session, partition core.PartitionState, out []core.Ref) (bool, error) {
	u := partition.Partition
	err := s.write(ctx, "release a partition", func(w *work) (bool, error) {
		known, _, err := w.member(ctx, self)
		if err != nil {
			return false, err
		}
		var owner, term, low, careful int64
		found, err := w.one(ctx, []any{&owner, &term}, ownerText, u.Route, u.From, u.To)
		if err == nil && !found {
			_, err = w.one(ctx, []any{&low, &careful, &term}, hintText, u.Route)
		}
		if err == nil && known {
			var before bool
			if before, err = rules.GivenUp(core.Session(owner), term, self, partition.Term); err == nil {
				if before {
					return false, nil
				}
				return true, w.releasePartition(ctx, self, partition, out)
			}
			err = nil
		}
		if err == nil {
			err = core.NewFencedError("waybill/sqlite: release a partition", self)
		}
		return false, err
	})
	return err == nil, err
}

func (w *work) releasePartition(ctx context.Context, self core.Session, released core.PartitionState, out []core.Ref) error {
	partition := released.Partition
	slots := partition.Slots()
	rows, err := w.at(ctx, seqsOf(out))
	if err != nil {
		return err
	}
	keep := map[int64]bool{}
	var hold, drop []int64
	for _, ref := range out {
		r := named(rows, ref)
		if rules.Kept(r, ref, self, r != nil && ref.Route == partition.Route && slots.Has(r.Slot)) && !keep[ref.Seq] {
			if keep[ref.Seq] = true; r.Holder == 0 {
				hold = append(hold, ref.Seq)
			}
		}
	}
	if err := w.hold(ctx, self, hold, false); err != nil {
		return err
	}
	held, err := w.held(ctx, self, func(r *row) bool { return r.Route == partition.Route && slots.Has(r.Slot) && !keep[r.Seq] })
	if err != nil {
		return err
	}
	for i := range held {
		drop = append(drop, held[i].Seq)
	}
	if len(drop) > 0 {
		if _, err := w.exec(ctx, dropText, list(drop)); err != nil {
			return err
		}
	}
	epoch, err := w.epoch(ctx)
	if err != nil {
		return err
	}
	_, err = w.exec(ctx, releasePartitionText, partition.Route, partition.From, released.ReadAfter, rules.SameLife(released.StoreEpoch, epoch))
	return err
}
