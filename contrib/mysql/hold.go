package waybillmysql

import (
	"context"
	"database/sql"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

// Records are locked with SKIP LOCKED, so that no call waits for a stager or an operator. A locked one is answered as
// such. See row.go for the locks that a statement takes on rows beside those that are meant.

const (
	mineSQL = columns + `attrs, body FROM ` + asideSQL + `(waybill_outbox_hold) WHERE hold = ? AND seq > ? AND seq <= ?` + endAsideSQL + `ORDER BY seq`

	// keylessSQL are the ready records of a route without a key, with and without a hold.
	keylessSQL = `route = ? AND k = '' AND state = 1 AND due_at = 0` + slotSQL
	takeSQL    = `) a JOIN waybill_outbox FORCE INDEX (PRIMARY) USING (seq) WHERE ` + keylessSQL + `AND hold = 0 FOR UPDATE SKIP LOCKED`
	// namedSQL locks records by their numbers.
	namedSQL = recordSQL + `FORCE INDEX (PRIMARY) WHERE ` + keylessSQL + `AND hold IN (0, ?) AND `
	// metAgainSQL are the ready ones of them.
	metAgainSQL = `SELECT seq FROM waybill_outbox FORCE INDEX (PRIMARY) WHERE ` + keylessSQL + `AND `
)

// Hold writes holds, as core.OutboxStore says. A record that self neither holds nor owns by its partition is HoldGone.
// The next records without a key mostly take one round trip, and all others two. It takes more if other transactions
// have locked what it asks for.
func (s *Store) Hold(ctx context.Context, self core.Session, want core.HoldRequest) ([]core.HoldResult, error) {
	var h *holding
	var before []*row
	if s.opened && len(want.Refs) == 0 && want.KeylessLimit > 0 {
		err := s.write(ctx, "hold", func(w *work) error {
			w.self = self
			h = newHolding(w, &want, nil)
			return h.atOnce(ctx)
		})
		switch {
		case err == nil && h.all():
			h.grant(h.free)
			return h.out, nil
		case err == nil:
			before = h.free
		case number(err) != notSure && number(err) != noPreparing:
			return nil, err
		}
	}
	err := s.fencedWith(ctx, "hold", []core.Session{self}, func(w *work) []query {
		h = newHolding(w, &want, before)
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
		return h.hold(ctx, h.fresh, deliveries(&want))
	})
	if err != nil {
		return nil, err
	}
	return h.out, nil
}

// holding is one Hold in its transaction.
type holding struct {
	*work
	want  *core.HoldRequest
	out   []core.HoldResult
	fresh []int64 // what self is to hold

	seqs  []int64 // of HoldRequest.Refs,
	named []*row  // and those of them that are locked now

	before   []*row           // the next ones that a transaction before this one has taken
	n        int              // how many more are asked for
	from, to int64            // where they are looked for
	passed   []int64          // HoldRequest.ExtraSeqs that are not out
	known    map[int64]string // ids of HoldRequest.ExcludeRefs
	without  []int64          // what the range is to leave out
	mine     []*row           // what self holds
	asked    []*row           // those of passed that are locked now
	free     []*row           // those of the range that are locked now
	again    []int64          // those of passed that are ready
	met      []spot           // the first ready ones of the range
	found    int              // how many free ones atOnce saw, and
	fit      int              // how many of them it was to take
}

// spot is a number at which there is a ready record without a key.
type spot struct {
	seq  int64
	free bool
}

func newHolding(w *work, want *core.HoldRequest, before []*row) *holding {
	h := &holding{work: w, want: want, before: before, n: want.KeylessLimit - len(before), known: map[int64]string{}}
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
	for _, r := range before {
		h.known[r.Seq] = r.ID
		h.without = append(h.without, r.Seq)
	}
	h.passed = slices.DeleteFunc(slices.Clone(h.passed), func(seq int64) bool { _, isOut := h.known[seq]; return isOut })
	return h
}

// first are the statements that mostly suffice to see what can be held.
func (h *holding) first() (out []query) {
	if len(h.seqs) > 0 {
		out = append(out, h.ownQuery(), h.lockQuery(&h.named, h.seqs))
	}
	if h.n <= 0 {
		return out
	}
	route, slots := h.want.KeylessSlots.Route, int64(h.want.KeylessSlots.Slots)
	out = append(out, h.query(&h.mine, mineSQL, h.self, h.from, h.to))
	if len(h.passed) > 0 {
		out = append(out, h.query(&h.asked, namedSQL+at(h.passed)+` ORDER BY seq LIMIT ? FOR UPDATE SKIP LOCKED`, route, slots, h.self, h.n))
	}
	free := columns + `attrs, body FROM (` + h.inRange(`seq`, h.without) + ` AND hold = 0 ORDER BY seq LIMIT ?` + takeSQL
	return append(append(out, h.query(&h.free, free, route, slots, h.from, h.to, h.n, route, slots)), h.metQueries()...)
}

// near is how many numbers a range may have for each record that is looked for, so that a look goes over all of them:
// it looks at few pages for many records. Along the index by key a look goes on over rows that are gone behind its
// range, until it meets one that is there: an open read view keeps them.
const near = 4

// inRange asks for what of the ready records of the range. A locking read would also lock rows that are gone. So free
// records are looked for without locks, and locked by their numbers: a query locks nothing for the query within it.
func (h *holding) inRange(what string, without []int64) string {
	index := `waybill_outbox_key`
	if last := h.s.lastSeq.Load(); last > 0 && h.from >= min(h.to, last)-near*int64(h.mostMet()) {
		index = `PRIMARY`
	}
	return `SELECT ` + what + ` FROM waybill_outbox FORCE INDEX (` + index + `) WHERE ` + keylessSQL + `AND seq > ? AND seq <= ? AND seq NOT IN ` + list(without)
}

// metQueries tell what is there. Locks come first: else the Hold would go over records in silence that are committed in
// between.
func (h *holding) metQueries() []query {
	route, slots := h.want.KeylessSlots.Route, int64(h.want.KeylessSlots.Slots)
	out := []query{{h.inRange(`seq, hold = 0`, h.without) + ` ORDER BY seq LIMIT ?`, []any{route, slots, h.from, h.to, h.mostMet()}, func(rows *sql.Rows) (err error) {
		var at spot
		err = rows.Scan(&at.seq, &at.free)
		h.met = append(h.met, at)
		return err
	}}}
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

// atOnce takes the next records in one round trip, the fence and the commit included. It fails with notSure, and
// changes nothing, if self is fenced, or holds some that the caller does not know. The records that it takes, and no
// others, are locked.
func (h *holding) atOnce(ctx context.Context) error {
	route, slots := h.want.KeylessSlots.Route, int64(h.want.KeylessSlots.Slots)
	bytes := h.want.Bytes
	if bytes <= 0 {
		bytes = math.MaxInt64
	}
	free := `(` + h.inRange(`seq, 1 AS late, LENGTH(body) AS size`, h.without) + ` AND hold = 0 ORDER BY seq LIMIT ?)`
	args := []any{route, slots, h.from, h.to, h.n}
	queries := []query{
		{text: `SET @waybill_now = ` + nowSQL + longListsSQL},
		{text: `SELECT ` + sure(`COUNT(*) = 1`) + ` INTO @waybill FROM waybill_outbox_fence WHERE session = ? LOCK IN SHARE MODE`, args: []any{h.self}},
		{text: `SELECT STRAIGHT_JOIN ` + sure(`COUNT(*) = 0`) + ` INTO @waybill FROM ` + asideSQL + `(waybill_outbox_hold) WHERE hold = ? AND seq > ? AND seq <= ? AND seq NOT IN ` +
			list(slices.Collect(maps.Keys(h.known))) + endAsideSQL + `WHERE ` + keylessSQL, args: []any{h.self, h.from, h.to, route, slots}},
	}
	if len(h.passed) > 0 {
		passed := ` FROM waybill_outbox FORCE INDEX (PRIMARY) WHERE ` + keylessSQL + `AND ` + at(h.passed) + ` AND hold = ?`
		queries = append(queries, query{text: `SELECT ` + sure(`COUNT(*) = 0`) + ` INTO @waybill` + passed, args: []any{route, slots, h.self}})
		free += ` UNION ALL SELECT seq, 0, LENGTH(body)` + passed
		args = append(args, route, slots, 0)
	}
	queries = append(queries, query{text: `SELECT ` + whereSQL + `, COUNT(*), COALESCE(MAX(found), 0) INTO @waybill_where, @waybill_fit, @waybill_found FROM (
		SELECT seq, COUNT(*) OVER () AS found, ROW_NUMBER() OVER (ORDER BY late, seq) AS place, SUM(size) OVER (ORDER BY late, seq) AS total FROM (` + free + `) free
		) counted WHERE place <= ? AND (place = 1 OR total <= ?)`, args: append(args, h.n, bytes)},
		query{`SELECT @waybill_now, @waybill_fit, @waybill_found`, nil, func(rows *sql.Rows) error { return rows.Scan(&h.now, &h.fit, &h.found) }})
	// The server alone knows their numbers.
	for _, q := range [...]query{
		{`SELECT ` + whereSQL + ` INTO @waybill_where FROM waybill_outbox FORCE INDEX (PRIMARY) WHERE state = 1 AND due_at = 0 AND hold = 0 AND %s FOR UPDATE SKIP LOCKED`, nil, nil},
		{`UPDATE waybill_outbox FORCE INDEX (PRIMARY) SET ` + holdSQL(h.self, deliveries(h.want)) + ` WHERE %s`, nil, nil},
		{copyAsideSQL + `%s`, nil, nil},
		h.query(&h.free, recordSQL+`FORCE INDEX (PRIMARY) WHERE %s ORDER BY seq`),
	} {
		before, behind, _ := strings.Cut(q.text, `%s`)
		queries = append(queries, query{text: `SET @waybill_text = CONCAT(?, @waybill_where, ?)`, args: []any{before, behind}},
			query{text: `PREPARE waybill FROM @waybill_text`}, query{`EXECUTE waybill`, nil, q.scan})
	}
	return h.askLast(ctx, append(queries, h.metQueries()...)...)
}

// whereSQL is a condition for the rows of a query, as at has it.
const whereSQL = `CASE COUNT(*) WHEN 0 THEN 'seq = -1' WHEN MAX(seq) - MIN(seq) + 1 THEN CONCAT('(seq BETWEEN ', MIN(seq), ' AND ', MAX(seq) - 1, ' OR seq = ', MAX(seq), ')')
	ELSE CONCAT('seq IN (', GROUP_CONCAT(seq), ')') END`

// longListsSQL keeps MariaDB from making a join of a long list, which locks others. MySQL takes it for a comment.
const longListsSQL = ` /*M!100600 , in_predicate_conversion_threshold = 0 */`

// all reports whether atOnce took all that it was to take. Else other transactions had locked some, and there can be
// others behind them.
func (h *holding) all() bool {
	return len(h.free) == h.fit || h.found == h.fit && h.found < h.n
}

// answerNext takes the next N without a key: first records that self holds and does not know, then those of
// HoldRequest.ExtraSeqs, then free ones of the range.
func (h *holding) answerNext(ctx context.Context) error {
	want := h.want
	rows := slices.DeleteFunc(h.mine, func(r *row) bool {
		id, isOut := h.known[r.Seq]
		return r.Route != want.KeylessSlots.Route || !want.KeylessSlots.Slots.Has(r.Slot) || !r.ready() || r.Envelope.Key != "" || isOut && id == r.ID ||
			slices.Contains(h.passed, r.Seq)
	})
	rows = append(rows, h.asked...)
	if err := h.lookOn(ctx, h.n-len(rows)); err != nil {
		return err
	}
	h.grant(slices.Concat(h.before, rows, h.free))
	return nil
}

// grant answers that the first N of rows are held, and which records were met beside them.
func (h *holding) grant(rows []*row) {
	want, n := h.want, h.want.KeylessLimit
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
		return
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
	if h.n <= 0 || len(h.met) < h.mostMet() && free < h.n {
		return nil
	}
	route, slots := h.want.KeylessSlots.Route, int64(h.want.KeylessSlots.Slots)
	text := h.inRange(`seq`, append(h.without, seqsOf(h.free)...)) + ` AND hold = 0 ORDER BY seq LIMIT ?`
	for after := h.from; len(h.free) < n; {
		most := n - len(h.free)
		seqs, err := collect(ctx, h.q, value[int64], text, route, slots, after, h.to, most)
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
