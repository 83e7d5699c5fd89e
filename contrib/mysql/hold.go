package waybillmysql

import (
	"context"
	"database/sql"
	"math"
	"slices"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// Records are locked with SKIP LOCKED, so that no call waits for a stager or an operator. A locked one is answered as
// such. See row.go for the locks that a statement takes on rows beside those that are meant.

const (
	mineSQL = columns + `attrs, body FROM ` + asideSQL + `(waybill_outbox_hold) WHERE hold = ? AND seq > ? AND seq <= ?` + endAsideSQL + `ORDER BY seq`

	// keylessSQL are the ready records of a route without a key, with and without a hold.
	keylessSQL = `route = ? AND k = '' AND state = 1 AND due_at = 0` + slotSQL
	// A locking read along an index goes on over rows that are gone behind its range, until it meets one that is
	// there. So free records are looked for without locks, and locked by their numbers.
	freeSQL  = `SELECT seq FROM waybill_outbox FORCE INDEX (waybill_outbox_key) WHERE ` + keylessSQL + `AND hold = 0 AND seq > ? AND seq <= ? AND seq NOT IN `
	namedSQL = recordSQL + `FORCE INDEX (PRIMARY) WHERE ` + keylessSQL + `AND hold IN (0, ?) AND `
	// metSQL are the numbers of ready records that a Hold has not taken.
	metSQL      = `SELECT seq FROM waybill_outbox FORCE INDEX (waybill_outbox_key) WHERE ` + keylessSQL + `AND seq > ? AND seq <= ? AND seq NOT IN `
	metAgainSQL = `SELECT seq FROM waybill_outbox FORCE INDEX (PRIMARY) WHERE ` + keylessSQL + `AND `
)

// Hold writes holds, as core.OutboxStore says. A record that self neither holds nor owns by its partition is HoldGone.
func (s *Store) Hold(ctx context.Context, self core.Session, want core.HoldRequest) (out []core.HoldResult, err error) {
	err = s.fenced(ctx, "hold", self, func(w *work) (err error) {
		if out, err = w.named(ctx, &want); err == nil && want.KeylessLimit > 0 {
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
	f := rules.Held(r.facts(), self, want.CountDelivery)
	r.HeldBy, r.Deliveries = f.Holder, f.Deliveries
}

func deliveries(want *core.HoldRequest) int {
	if want.CountDelivery {
		return 1
	}
	return 0
}

// next takes the next N without a key: first records that self holds and does not know, then those of
// HoldRequest.ExtraSeqs, then free ones of the range. The index by key has only the range's entries between From and
// To, and so few of records that are gone.
func (w *work) next(ctx context.Context, want *core.HoldRequest, out *[]core.HoldResult) error {
	from, to, passed, most := want.AfterSeq, want.UpToSeq, want.ExtraSeqs, want.SkippedLimit
	if to == 0 {
		from, to, passed, most = math.MinInt64, math.MaxInt64, nil, 0
	}
	known, without := map[int64]string{}, slices.Clone(passed)
	for _, ref := range want.ExcludeRefs {
		known[ref.Seq] = ref.ID
		without = append(without, ref.Seq)
	}
	passed = slices.DeleteFunc(slices.Clone(passed), func(seq int64) bool { _, isOut := known[seq]; return isOut })
	var mine []*row
	all, err := w.rows(ctx, mineSQL, w.self, from, to)
	for _, r := range all {
		id, isOut := known[r.Seq]
		if r.Route == want.KeylessSlots.Route && want.KeylessSlots.Slots.Has(r.Slot) && r.ready() && r.Envelope.Key == "" && (!isOut || id != r.ID) &&
			!slices.Contains(passed, r.Seq) && len(mine) < want.KeylessLimit {
			mine = append(mine, r)
		}
	}
	route, slots := want.KeylessSlots.Route, int64(want.KeylessSlots.Slots)
	take := func(seqs []int64) {
		if err == nil && len(seqs) > 0 && len(mine) < want.KeylessLimit {
			var rows []*row
			rows, err = w.rows(ctx, namedSQL+at(seqs)+` ORDER BY seq LIMIT ? FOR UPDATE SKIP LOCKED`, route, slots, w.self, want.KeylessLimit-len(mine))
			mine = append(mine, rows...)
		}
	}
	take(passed)
	for after := from; err == nil && len(mine) < want.KeylessLimit; {
		n := want.KeylessLimit - len(mine)
		var free []int64
		free, err = collect(ctx, w.q, value[int64], freeSQL+list(without)+` ORDER BY seq LIMIT ?`, route, slots, after, to, n)
		take(free)
		if len(free) < n {
			break
		}
		after = free[n-1] // others hold some of these by now, or have locked them
	}
	var fresh []int64
	bytes, took, last := int64(0), 0, int64(math.MinInt64)
	for i, r := range mine {
		if bytes += int64(len(r.Envelope.Body)); i > 0 && want.Bytes > 0 && bytes > want.Bytes {
			break
		}
		if r.HeldBy != w.self {
			fresh = append(fresh, r.Seq)
			r.held(w.self, want)
		}
		rec := r.decode().Record
		*out = append(*out, core.HoldResult{Ref: rec.Ref, Status: core.HoldGranted, Record: &rec, Deliveries: rec.Deliveries})
		without = append(without, r.Seq)
		took, last = took+1, max(last, r.Seq)
	}
	if err == nil {
		err = w.hold(ctx, fresh, deliveries(want))
	}
	if err != nil || most == 0 && len(passed) == 0 {
		return err
	}
	if took == want.KeylessLimit {
		to = min(to, last)
	}
	return w.met(ctx, want, from, to, passed, without, out)
}

// met adds the records that next met and did not hold. without are those that the range is to leave out.
func (w *work) met(ctx context.Context, want *core.HoldRequest, from, to int64, passed, without []int64, out *[]core.HoldResult) error {
	held := map[int64]bool{}
	for i := range *out {
		held[(*out)[i].Ref.Seq] = (*out)[i].Record != nil
	}
	var met []int64
	scan := func(rows *sql.Rows) error {
		seq, err := value[int64](rows)
		if !held[seq] {
			met = append(met, seq)
		}
		return err
	}
	route, slots := want.KeylessSlots.Route, int64(want.KeylessSlots.Slots)
	queries := []query{{metSQL + list(without) + ` ORDER BY seq LIMIT ?`, []any{route, slots, from, to, want.SkippedLimit}, scan}}
	if len(passed) > 0 {
		queries = append(queries, query{metAgainSQL + at(passed), []any{route, slots}, scan})
	}
	if err := w.ask(ctx, queries...); err != nil {
		return err
	}
	slices.Sort(met)
	for _, seq := range met {
		*out = append(*out, core.HoldResult{Ref: core.Ref{Route: route, Seq: seq}, Status: core.HoldSkipped})
	}
	return nil
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
				err = core.NewFencedError("waybill/mysql: release a partition", self)
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
		if r.Route == partition.Route && partition.Slots().Has(r.Slot) && (isOut(r) || r.HeldBy == w.self) {
			return false, err
		}
	}
	for _, r := range got {
		switch isOut := isOut(r); {
		case r.Route != partition.Route || !partition.Slots().Has(r.Slot):
		case isOut && r.HeldBy == 0:
			hold = append(hold, r.Seq)
		case !isOut && r.HeldBy == w.self:
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
