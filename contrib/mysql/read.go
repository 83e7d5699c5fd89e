package waybillmysql

import (
	"cmp"
	"context"
	"database/sql"
	"slices"

	"github.com/waybill-go/waybill/core"
)

// A page comes from one REPEATABLE READ snapshot. Which transactions it does not show is asked before it begins: a
// transaction that has ended by then is in the snapshot; see horizon.go. Rows of a range are asked for in the same
// round trip as the head of the page, as many as are likely to be wanted. Only a page that wants more asks again.

// maxNotice bounds ReadResult.Notices, and maxRows the rows of one statement.
const (
	maxNotice = 1000
	maxRows   = 4096
)

const (
	rangeSQL = recordSQL + `FORCE INDEX (PRIMARY) WHERE route = ? AND state = 1 AND due_at = 0 AND seq > ? AND seq <= ?` +
		slotSQL + `AND (k <> '' OR NOT ?) AND seq NOT IN `
	keySQL = recordSQL + `FORCE INDEX (waybill_outbox_key) WHERE route = ? AND k = ? AND state = 1 AND due_at = 0 AND seq > ? AND seq <= ?
		ORDER BY seq LIMIT ?`
	keyWaitingSQL = lightAside + `(waybill_outbox_waits) WHERE route = ? AND k = ? AND (state = 4 OR state = 5 AND flags & 1 = 1 OR hold NOT IN (0, ?))` + endAsideSQL
	waitingSQL    = lightAside + `(waybill_outbox_line) WHERE route = ? AND state = 4 AND k <> '' AND seq > ?` + slotSQL + `ORDER BY seq LIMIT ?` + endAsideSQL
	blockingSQL   = lightAside + `(waybill_outbox_line) WHERE route = ? AND state = 5 AND flags & 1 = 1 AND seq > ?` + slotSQL + `ORDER BY seq LIMIT ?` + endAsideSQL
	heldSQL       = lightAside + `(waybill_outbox_hold) WHERE hold <> 0 AND hold <> ?` + endAsideSQL + `ORDER BY seq`

	// noticesSQL are the notices of routes. It has a lower bound, since those that are gone come first.
	noticesSQL = `waybill_outbox_notices FORCE INDEX (PRIMARY) WHERE number > ? AND route IN `

	epochSQL = `(SELECT CONCAT(MAX(IF(name = 'database', value, 0)), '/', MAX(IF(name = 'epoch', value, 0)), '/', @@server_id) FROM waybill_meta)`
)

// Read answers all parts of look from one snapshot, as core.OutboxStore says. It locks only, for a moment and at most
// every 20 ms, rows that are not locked. A limit of 0 or less is no limit.
func (s *Store) Read(ctx context.Context, self core.Session, look core.ReadRequest) (page core.ReadResult, err error) {
	next, running, err := s.sight(ctx)
	if err != nil {
		return page, classify("read", err)
	}
	err = s.read(ctx, "read", func(w *work) (err error) {
		w.self = self
		rd := reader{work: w, look: &look, page: core.ReadResult{SnapshotXmax: next, RunningTxs: running}}
		page = core.ReadResult{}
		if err := rd.head(ctx); err != nil || !rd.page.IsMember {
			return err
		}
		for _, part := range []func(context.Context) error{rd.fresh, rd.ranges, rd.keys, rd.again} {
			if err := part(ctx); err != nil {
				return err
			}
		}
		page = rd.page
		return nil
	})
	if err == nil && len(running) > 0 && slices.ContainsFunc(page.Ranges, keyed) {
		if page.MaybeEndedTxs, err = s.maybeEnded(ctx, running); err != nil {
			return core.ReadResult{}, classify("read", err)
		}
	}
	return page, err
}

// keyed reports whether a record has a key: it must not come before one that the snapshot shows, too.
func keyed(r core.Records) bool {
	return slices.ContainsFunc(r.Records, func(r core.Record) bool { return r.Envelope.Key != "" })
}

// reader answers one ReadRequest in its transaction.
type reader struct {
	*work
	look   *core.ReadRequest
	page   core.ReadResult
	first  [][]*row // the first rows of the ranges, of which limits were asked for
	limits []int
	others []*row // what other sessions hold
	asked  bool
}

// head fills in the fields of a page other than records, and reads the first rows of the ranges, all at once.
func (rd *reader) head(ctx context.Context) error {
	p := &rd.page
	lastSQL, err := rd.s.lastSQL(ctx, rd.q, "waybill_outbox")
	if err != nil {
		return err
	}
	lastNoticeSQL, err := rd.s.lastSQL(ctx, rd.q, "waybill_outbox_notices")
	if err != nil {
		return err
	}
	noticesOf := []any{rd.look.AfterNotice}
	want := map[string]core.Slots{}
	for _, part := range rd.look.Slots {
		want[part.Route] |= part.Slots
		noticesOf = append(noticesOf, part.Route)
	}
	own := map[string]core.Slots{}
	queries := []query{{
		`SELECT suspected, ` + nowSQL + `, ` + epochSQL + `, ` + lastSQL + `, ` + lastNoticeSQL + ` FROM waybill_outbox_members WHERE session = ?`,
		[]any{rd.self},
		func(rows *sql.Rows) error {
			p.IsMember = true
			return rows.Scan(&p.Suspected, &rd.now, &p.StoreEpoch, &p.LastSeq, &p.LastNotice)
		},
	}, {
		partitionsSQL + `WHERE owner = ?`, []any{rd.self}, func(rows *sql.Rows) error {
			u, err := scanPartition(rows)
			own[u.Partition.Route] |= u.Partition.Slots()
			return err
		},
	}, {
		`SELECT number, route, kind, slot, seq, k, id, reason FROM ` + noticesSQL + places(len(noticesOf)-1) + ` ORDER BY number`, noticesOf,
		func(rows *sql.Rows) error {
			var c core.Notice
			err := rows.Scan(&c.Number, &c.Route, &c.Kind, &c.Slot, &c.Seq, &c.Key, &c.ID, &c.Reason)
			if want[c.Route].Has(c.Slot) && len(p.Notices) < maxNotice {
				p.Notices = append(p.Notices, c)
			}
			return err
		},
	}}
	ask := rd.askLast // unless there is more to ask for
	if len(rd.look.NewlyOwned)+len(rd.look.Keys)+len(rd.look.Recheck) > 0 {
		ask = rd.ask
	}
	rd.first, rd.limits = make([][]*row, len(rd.look.Ranges)), make([]int, len(rd.look.Ranges))
	for i := range rd.look.Ranges {
		rg := &rd.look.Ranges[i]
		if rd.limits[i] = rd.atFirst(rg.Limit); rd.limits[i] <= rg.Limit || rg.Limit <= 0 {
			ask = rd.ask
		}
		queries = append(queries, rd.query(&rd.first[i], rangeSQL+list(rg.ExcludeSeqs)+` ORDER BY seq LIMIT ?`,
			rg.Route, rg.AfterSeq, rg.UpToSeq, int64(rg.Slots), rg.KeyedOnly, rd.limits[i]))
	}
	if err := ask(ctx, queries...); err != nil || !p.IsMember {
		return err
	}
	rd.s.lastSeq.Store(p.LastSeq)
	for _, part := range rd.look.Slots {
		p.Owned = append(p.Owned, own[part.Route]&part.Slots)
	}
	if p.LastSeq != rd.look.KnownLastSeq || p.LastNotice != rd.look.KnownLastNotice {
		p.LastSeqXmax, err = rd.s.upper(ctx)
	}
	return err
}

func (rd *reader) blocks(route string) bool { return slices.Contains(rd.look.BlockingRoutes, route) }

// held returns the records that other sessions hold, asked for once.
func (rd *reader) held(ctx context.Context) (_ []*row, err error) {
	if !rd.asked {
		rd.others, err = rd.rows(ctx, heldSQL, rd.self)
		rd.asked = err == nil
	}
	return rd.others, err
}

// add adds those of rows to list that block their key, once each.
func (rd *reader) add(list []core.BlockingRecord, rows []*row, wanted func(r *row) bool) []core.BlockingRecord {
	for _, r := range rows {
		w, ok := r.waiting(rd.self, rd.blocks(r.Route))
		if ok && wanted(r) && !slices.ContainsFunc(list, func(o core.BlockingRecord) bool { return o.Seq == w.Seq }) {
			list = append(list, w)
		}
	}
	return list
}

// fresh answers ReadRequest.NewlyOwned.
func (rd *reader) fresh(ctx context.Context) error {
	limit, p := rd.look.BlockingLimit, &rd.page
	if limit <= 0 {
		limit = 1 << 30
	}
	for _, part := range rd.look.NewlyOwned {
		wanted := func(r *row) bool {
			return r.Route == part.Route && part.Slots.Has(r.Slot) && r.Seq > rd.look.NewlyOwnedAfter
		}
		held, err := rd.held(ctx)
		if err != nil {
			return err
		}
		p.Blocking = rd.add(p.Blocking, held, wanted)
		texts := []string{waitingSQL, blockingSQL}
		if !rd.blocks(part.Route) {
			texts = texts[:1]
		}
		for _, text := range texts {
			rows, err := rd.rows(ctx, text, part.Route, rd.look.NewlyOwnedAfter, int64(part.Slots), limit+1)
			if err != nil {
				return err
			}
			p.Blocking = rd.add(p.Blocking, rows, wanted)
		}
	}
	slices.SortFunc(p.Blocking, func(a, b core.BlockingRecord) int { return cmp.Compare(a.Seq, b.Seq) })
	if len(p.Blocking) > limit {
		p.Blocking, p.MoreBlocking = p.Blocking[:limit], true
	}
	return nil
}

func (rd *reader) ranges(ctx context.Context) error {
	for i := range rd.look.Ranges {
		rg := &rd.look.Ranges[i]
		got, err := rd.span(rg.AfterSeq, rg.Limit, rd.limits[i], func(from int64, n int) ([]*row, error) {
			if from == rg.AfterSeq {
				return rd.first[i], ctx.Err()
			}
			return rd.rows(ctx, rangeSQL+list(rg.ExcludeSeqs)+` ORDER BY seq LIMIT ?`, rg.Route, from, rg.UpToSeq, int64(rg.Slots), rg.KeyedOnly, n)
		})
		if err != nil {
			return err
		}
		rd.page.Ranges = append(rd.page.Ranges, got)
	}
	return nil
}

func (rd *reader) keys(ctx context.Context) error {
	for i := range rd.look.Keys {
		kr := &rd.look.Keys[i]
		got, err := rd.span(kr.AfterSeq, kr.Limit, rd.atFirst(kr.Limit), func(from int64, n int) ([]*row, error) {
			return rd.rows(ctx, keySQL, kr.Route, kr.Key, from, kr.UpToSeq, n)
		})
		if err != nil {
			return err
		}
		rows, err := rd.rows(ctx, keyWaitingSQL, kr.Route, kr.Key, rd.self)
		if err != nil {
			return err
		}
		out := core.KeyRecords{Records: got.Records, More: got.More}
		out.Blocking = rd.add(nil, rows, func(r *row) bool { return r.Route == kr.Route && r.Envelope.Key == kr.Key })
		rd.page.Keys = append(rd.page.Keys, out)
	}
	return nil
}

// atFirst returns how many rows to ask for at first: the server sends all of them, wanted or not. It allows for bodies
// that are 16 times as large as those of the last page.
func (rd *reader) atFirst(limit int) int {
	if limit <= 0 {
		limit = maxRows
	}
	size := rd.s.bodySize.Load()
	if rd.look.Bytes <= 0 || size == 0 {
		return min(limit+1, 64)
	}
	return min(limit+1, max(64, int(rd.look.Bytes/size/16)))
}

// span reads ready records within the limits, n rows at first. The size of the bodies so far tells how many more to ask
// for, since the server sends all rows of a statement.
func (rd *reader) span(from int64, limit, n int, ask func(from int64, n int) ([]*row, error)) (out core.Records, err error) {
	if limit <= 0 {
		limit = 1 << 30
	}
	bytes := int64(0)
	for {
		rows, err := ask(from, n)
		if err != nil {
			return out, err
		}
		out.Records = slices.Grow(out.Records, min(len(rows), limit-len(out.Records)))
		for _, r := range rows {
			bytes += int64(len(r.Envelope.Body))
			if got := len(out.Records); got == limit || got > 0 && rd.look.Bytes > 0 && bytes > rd.look.Bytes {
				out.More = true
				return out, nil
			}
			out.Records = append(out.Records, r.decode().Record)
			from = r.Seq
		}
		if len(out.Records) > 0 {
			rd.s.bodySize.Store(bytes/int64(len(out.Records)) + 1)
		}
		if len(rows) < n {
			return out, nil
		}
		n = min(limit-len(out.Records)+1, maxRows)
		if rd.look.Bytes > 0 && bytes > 0 {
			n = min(n, int((rd.look.Bytes-bytes)*int64(len(out.Records))/bytes)+1)
		}
	}
}

// again answers ReadRequest.Recheck. It ignores versions: a record that the caller remembers can have been changed.
func (rd *reader) again(ctx context.Context) error {
	if len(rd.look.Recheck) == 0 {
		return nil
	}
	seqs := make([]int64, len(rd.look.Recheck))
	refs := make(map[int64]core.Ref, len(seqs))
	for i, ref := range rd.look.Recheck {
		seqs[i], refs[ref.Seq] = ref.Seq, ref
	}
	rows, err := rd.rows(ctx, recordSQL+`FORCE INDEX (PRIMARY) WHERE `+at(seqs)+` ORDER BY seq`)
	for _, r := range rows {
		w, waits := r.waiting(rd.self, rd.blocks(r.Route))
		switch {
		case !r.is(refs[r.Seq]):
		case r.ready(), r.live() && r.HeldBy != 0:
			rd.page.Rechecked = append(rd.page.Rechecked, r.decode().Record)
		case waits, r.facts().Retry():
			if !waits {
				w.Why = core.BlockedByRetry // without a key it holds none, and waits all the same
			}
			rd.page.RecheckedBlocking = append(rd.page.RecheckedBlocking, w)
		}
	}
	return err
}
