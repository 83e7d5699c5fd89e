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
	// there. So free records are looked for without locks, and locked by their numbers, in one statement: a query
	// locks nothing for the query within it.
	freeSQL = `SELECT seq FROM waybill_outbox FORCE INDEX (waybill_outbox_key) WHERE ` + keylessSQL + `AND hold = 0 AND seq > ? AND seq <= ? AND seq NOT IN `
	takeSQL = `) a JOIN waybill_outbox FORCE INDEX (PRIMARY) USING (seq) WHERE ` + keylessSQL + `AND hold = 0 FOR UPDATE SKIP LOCKED`
	// namedSQL locks records by their numbers.
	namedSQL = recordSQL + `FORCE INDEX (PRIMARY) WHERE ` + keylessSQL + `AND hold IN (0, ?) AND `
	// metSQL are the ready records of a range, and metAgainSQL those with the given numbers.
	metSQL      = `SELECT seq, hold = 0 FROM waybill_outbox FORCE INDEX (waybill_outbox_key) WHERE ` + keylessSQL + `AND seq > ? AND seq <= ? AND seq NOT IN `
	metAgainSQL = `SELECT seq FROM waybill_outbox FORCE INDEX (PRIMARY) WHERE ` + keylessSQL + `AND `
)

// Hold writes holds, as core.OutboxStore says. A record that self neither holds nor owns by its partition is HoldGone.
// It takes two round trips, and more if other transactions have locked what it asks for.
func (s *Store) Hold(ctx context.Context, self core.Session, want core.HoldRequest) (out []core.HoldResult, err error) {
	var h *holding
	err = s.fencedWith(ctx, "hold", []core.Session{self}, func(w *work) []query {
		h = newHolding(w, &want)
		return h.first()
	}, func(*work) error {
		if err := h.answerNamed(ctx); err != nil {
			return err
		}
		if want.KeylessLimit > 0 {
			if err := h.answerNext(ctx); err != nil {
				return err
			}
		}
		out = h.out
		return h.hold(ctx, h.fresh, deliveries(&want))
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// holding is one Hold in its transaction.
type holding struct {
	*work
	want  *core.HoldRequest
	out   []core.HoldResult
	fresh []int64 // what self is to hold

	seqs  []int64 // of HoldRequest.Refs,
	named []*row  // and those of them that are locked now

	from, to int64            // where the next ones are looked for
	passed   []int64          // HoldRequest.ExtraSeqs that are not out
	known    map[int64]string // ids of HoldRequest.ExcludeRefs
	without  []int64          // what the range is to leave out
	mine     []*row           // what self holds
	asked    []*row           // those of passed that are locked now
	free     []*row           // those of the range that are locked now
	again    []int64          // those of passed that are ready
	met      []spot           // the first ready ones of the range
}

// spot is a number at which there is a ready record without a key.
type spot struct {
	seq  int64
	free bool
}

func newHolding(w *work, want *core.HoldRequest) *holding {
	h := &holding{work: w, want: want, known: map[int64]string{}}
	for _, ref := range want.Refs {
		h.seqs = append(h.seqs, ref.Seq)
	}
	h.from, h.to, h.passed = want.AfterSeq, want.UpToSeq, want.ExtraSeqs
	if h.to == 0 {
		h.from, h.to, h.passed = math.MinInt64, math.MaxInt64, nil
	}
	h.without = slices.Clone(h.passed)
	for _, ref := range want.ExcludeRefs {
		h.known[ref.Seq] = ref.ID
		h.without = append(h.without, ref.Seq)
	}
	h.passed = slices.DeleteFunc(slices.Clone(h.passed), func(seq int64) bool { _, isOut := h.known[seq]; return isOut })
	return h
}

// first are the statements that mostly suffice to see what can be held.
func (h *holding) first() (out []query) {
	if len(h.seqs) > 0 {
		out = append(out, h.ownQuery(), h.lockQuery(&h.named, h.seqs))
	}
	n := h.want.KeylessLimit
	if n <= 0 {
		return out
	}
	route, slots := h.want.KeylessSlots.Route, int64(h.want.KeylessSlots.Slots)
	out = append(out, h.query(&h.mine, mineSQL, h.self, h.from, h.to))
	if len(h.passed) > 0 {
		out = append(out, h.query(&h.asked, namedSQL+at(h.passed)+` ORDER BY seq LIMIT ? FOR UPDATE SKIP LOCKED`, route, slots, h.self, n))
	}
	// Locks come first, and then what is there. In the other order the Hold would go over records in silence that
	// are committed in between.
	without := list(h.without)
	out = append(out, h.query(&h.free, columns+`attrs, body FROM (`+freeSQL+without+` ORDER BY seq LIMIT ?`+takeSQL, route, slots, h.from, h.to, n, route, slots), query{
		metSQL + without + ` ORDER BY seq LIMIT ?`, []any{route, slots, h.from, h.to, h.mostMet()}, func(rows *sql.Rows) (err error) {
			var at spot
			err = rows.Scan(&at.seq, &at.free)
			h.met = append(h.met, at)
			return err
		},
	})
	if len(h.passed) > 0 {
		out = append(out, query{metAgainSQL + at(h.passed), []any{route, slots}, func(rows *sql.Rows) error {
			seq, err := value[int64](rows)
			h.again = append(h.again, seq)
			return err
		}})
	}
	return out
}

// mostMet bounds the records that a look sees: those that are held are among them.
func (h *holding) mostMet() int { return h.want.KeylessLimit + h.want.SkippedLimit }

// answerNamed takes the records of HoldRequest.Refs.
func (h *holding) answerNamed(ctx context.Context) error {
	got, busy, err := h.locked(ctx, h.seqs, h.named)
	if err != nil {
		return err
	}
	for _, ref := range h.want.Refs {
		own, err := h.owns(ctx, ref.Route)
		if err != nil {
			return err
		}
		t, r, locked := core.HoldResult{Ref: ref}, named(got, ref), false
		if r == nil {
			r = named(busy, ref)
			locked = r != nil
		}
		var writes bool
		if t.Status, writes = rules.Hold(r.facts(), ref, h.self, r != nil && own.Has(r.Slot), locked); writes {
			r.held(h.self, h.want)
			h.fresh = append(h.fresh, r.Seq)
		}
		if t.Status == core.HoldGranted {
			t.Deliveries = r.Deliveries
		}
		h.out = append(h.out, t)
	}
	return nil
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

// answerNext takes the next N without a key: first records that self holds and does not know, then those of
// HoldRequest.ExtraSeqs, then free ones of the range. The index by key has only the range's entries between From and
// To, and so few of records that are gone.
func (h *holding) answerNext(ctx context.Context) error {
	want, n := h.want, h.want.KeylessLimit
	rows := slices.DeleteFunc(h.mine, func(r *row) bool {
		id, isOut := h.known[r.Seq]
		return r.Route != want.KeylessSlots.Route || !want.KeylessSlots.Slots.Has(r.Slot) || !r.ready() || r.Envelope.Key != "" || isOut && id == r.ID ||
			slices.Contains(h.passed, r.Seq)
	})
	rows = append(rows, h.asked...)
	if err := h.lookOn(ctx, n-len(rows)); err != nil {
		return err
	}
	rows = append(rows, h.free...)
	bytes, took, last := int64(0), map[int64]bool{}, int64(math.MinInt64)
	for i, r := range rows[:min(len(rows), n)] {
		if bytes += int64(len(r.Envelope.Body)); i > 0 && want.Bytes > 0 && bytes > want.Bytes {
			break
		}
		if r.HeldBy != h.self {
			h.fresh = append(h.fresh, r.Seq)
			r.held(h.self, want)
		}
		rec := r.decode().Record
		h.out = append(h.out, core.HoldResult{Ref: rec.Ref, Status: core.HoldGranted, Record: &rec, Deliveries: rec.Deliveries})
		took[r.Seq], last = true, max(last, r.Seq)
	}
	if want.UpToSeq == 0 {
		return nil
	}
	end := h.to
	if len(took) == n {
		end = min(end, last)
	}
	var met []int64
	for _, at := range h.met {
		if !took[at.seq] && at.seq <= end && len(met) < want.SkippedLimit {
			met = append(met, at.seq)
		}
	}
	for _, seq := range h.again {
		if !took[seq] {
			met = append(met, seq)
		}
	}
	slices.Sort(met)
	for _, seq := range met {
		h.out = append(h.out, core.HoldResult{Ref: core.Ref{Route: want.KeylessSlots.Route, Seq: seq}, Status: core.HoldSkipped})
	}
	return nil
}

// lookOn looks further for free records of the range while fewer than n are locked for this Hold. Mostly the first look
// has seen that there are no others. Else other transactions have locked them, or members hold many.
func (h *holding) lookOn(ctx context.Context, n int) error {
	free := 0
	for _, at := range h.met {
		if at.free {
			free++
		}
	}
	if len(h.met) < h.mostMet() && free < h.want.KeylessLimit {
		return nil
	}
	route, slots := h.want.KeylessSlots.Route, int64(h.want.KeylessSlots.Slots)
	without := list(append(h.without, seqsOf(h.free)...))
	for after := h.from; len(h.free) < n; {
		most := n - len(h.free)
		seqs, err := collect(ctx, h.q, value[int64], freeSQL+without+` ORDER BY seq LIMIT ?`, route, slots, after, h.to, most)
		if err != nil || len(seqs) == 0 {
			return err
		}
		rows, err := h.rows(ctx, namedSQL+at(seqs)+` ORDER BY seq FOR UPDATE SKIP LOCKED`, route, slots, h.self)
		if h.free = append(h.free, rows...); err != nil || len(seqs) < most {
			return err
		}
		after = seqs[most-1] // others hold some of these by now, or have locked them
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
		_, err = w.exec(ctx, `UPDATE waybill_outbox_partitions SET owner = 0, term = term + 1, read_after = IF(? IN ('', `+epochSQL+`), ?, read_after)
			WHERE route = ? AND from_slot = ?`, partition.StoreEpoch, partition.ReadAfter, u.Route, u.From)
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
