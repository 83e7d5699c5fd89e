package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/waybill-go/waybill/core"
)

// maxNotice bounds ReadResult.Notices.
const maxNotice = 1000

const (
	// pageText selects the fields of a page other than records.
	pageText = `SELECT (SELECT value FROM waybill_meta WHERE name = 'database'), (SELECT value FROM waybill_meta WHERE name = 'epoch')`

	// rangeText selects the ready records of a part, in order.
	rangeText = `SELECT ` + recordSQL + ` FROM waybill_outbox r INDEXED BY waybill_outbox_ready
		WHERE r.route = ?1 AND r.seq > ?3 AND r.seq <= ?4 AND r.due_at IS NULL AND r.settled_at IS NULL
			AND ` + slotSQL + ` AND (r.key <> '' OR NOT ?5)
		AND r.seq NOT IN (SELECT value FROM json_each(?6)) AND (r.key = '' OR r.key NOT IN (SELECT value FROM json_each(?7)))
		ORDER BY r.seq`
	// keyRangeText selects the ready records of a key, in order.
	keyRangeText = `SELECT ` + recordSQL + ` FROM waybill_outbox r INDEXED BY waybill_outbox_key
		WHERE r.route = ?1 AND r.key = ?2 AND r.key <> '' AND r.seq > ?3 AND r.seq <= ?4 AND r.due_at IS NULL
			AND r.settled_at IS NULL
		ORDER BY r.seq`
	// keyWaitingText and keyBlockingText select records that can block a key.
	keyWaitingText = `SELECT ` + rowSQL + ` FROM waybill_outbox r INDEXED BY waybill_outbox_waiting_key
		WHERE r.route = ?1 AND r.key = ?2 AND r.key <> '' AND (r.state = {failed} OR r.hold <> 0) ORDER BY r.seq`
	keyBlockingText = `SELECT ` + rowSQL + ` FROM waybill_outbox r INDEXED BY waybill_outbox_blocking_key
		WHERE r.route = ?1 AND r.key = ?2 AND r.blocks = 1 ORDER BY r.seq`
	// waitingText and blockingText do the same for a part.
	waitingText = `SELECT ` + rowSQL + ` FROM waybill_outbox r INDEXED BY waybill_outbox_waiting
		WHERE r.route = ?1 AND r.seq > ?3 AND (r.state = {failed} OR r.hold <> 0) AND ` + slotSQL + ` ORDER BY r.seq`
	blockingText = `SELECT ` + rowSQL + ` FROM waybill_outbox r INDEXED BY waybill_outbox_blocking
		WHERE r.route = ?1 AND r.seq > ?3 AND r.blocks = 1 AND ` + slotSQL + ` ORDER BY r.seq`

	anyNoticeText = `SELECT 1 FROM waybill_outbox_notices LIMIT 1`
	noticeText    = `SELECT number, kind, route, slot, key, id, seq, reason FROM waybill_outbox_notices
		WHERE route = ?1 AND CASE WHEN kind = {tell_from} THEN slots ELSE 1 << slot END & ?2 <> 0 ORDER BY number LIMIT ?3`
)

// Read answers all parts of look from one snapshot and locks nothing. SQLite has one writer at a time, so the order of
// numbers is the order of commits: the transaction ids say that no transaction runs. A limit of 0 or less is no limit.
func (s *Store) Read(ctx context.Context, self core.Session, request core.ReadRequest) (core.ReadResult, error) {
	var result core.ReadResult
	err := s.read(ctx, "read", func(w *work) error {
		rd := reader{work: w, self: self, request: &request}
		if err := rd.head(ctx); err != nil || !rd.result.IsMember {
			return err
		}
		if err := rd.records(ctx); err != nil {
			return err
		}
		result = rd.result
		return nil
	})
	if err != nil {
		return core.ReadResult{}, err
	}
	return result, nil
}

// reader answers one ReadRequest in its transaction.
type reader struct {
	*work
	self    core.Session
	request *core.ReadRequest
	result  core.ReadResult
}

// head fills in the fields of a page other than records.
func (rd *reader) head(ctx context.Context) (err error) {
	p := &rd.result
	if p.IsMember, p.Suspected, err = rd.member(ctx, rd.self); err != nil || !p.IsMember {
		return err
	}
	if p.StoreEpoch, err = rd.epoch(ctx); err != nil {
		return err
	}
	if p.LastSeq, err = rd.last(ctx); err != nil {
		return err
	}
	p.SnapshotXmax = 1
	if p.LastSeq != rd.request.KnownLastSeq {
		p.LastSeqXmax = p.SnapshotXmax
	}
	for _, part := range rd.request.Slots {
		own, err := rd.owns(ctx, rd.self, part.Route)
		if err != nil {
			return err
		}
		p.Owned = append(p.Owned, own&part.Slots)
	}
	p.Notices, err = rd.notices(ctx, merge(rd.request.Slots))
	return err
}

// epoch returns a text that differs in another database, and after a restore that was declared.
func (w *work) epoch(ctx context.Context) (string, error) {
	var database, epoch int64
	_, err := w.one(ctx, []any{&database, &epoch}, pageText)
	return strconv.FormatUint(uint64(database), 36) + "/" + strconv.FormatInt(epoch, 10), err
}

// records fills in the rest.
func (rd *reader) records(ctx context.Context) error {
	if err := rd.fresh(ctx); err != nil {
		return err
	}
	for i := range rd.request.Ranges {
		rs, err := rd.span(ctx, &rd.request.Ranges[i])
		if err != nil {
			return err
		}
		rd.result.Ranges = append(rd.result.Ranges, rs)
	}
	for i := range rd.request.Keys {
		rs, err := rd.key(ctx, &rd.request.Keys[i])
		if err != nil {
			return err
		}
		rd.result.Keys = append(rd.result.Keys, rs)
	}
	return rd.again(ctx)
}

// fresh answers ReadRequest.NewlyOwned.
func (rd *reader) fresh(ctx context.Context) error {
	limit, p := rd.request.BlockingLimit, &rd.result
	for _, part := range merge(rd.request.NewlyOwned) {
		texts := []string{waitingText}
		block := slices.Contains(rd.request.BlockingRoutes, part.Route)
		if block {
			texts = append(texts, blockingText)
		}
		for _, text := range texts {
			n := 0
			err := rd.each(ctx, func(rows *sql.Rows) (bool, error) {
				var r row
				if err := r.scan(rows); err != nil {
					return false, err
				}
				if w, ok := r.obstructs(rd.self, block); ok && part.Slots.Has(r.Slot) {
					p.Blocking = append(p.Blocking, w)
					n++
				}
				return limit <= 0 || n <= limit, nil
			}, text, part.Route, bits(part.Slots), rd.request.NewlyOwnedAfter)
			if err != nil {
				return err
			}
		}
	}
	slices.SortFunc(p.Blocking, func(a, b core.BlockingRecord) int { return cmp.Compare(a.Seq, b.Seq) })
	if limit > 0 && len(p.Blocking) > limit {
		p.Blocking, p.MoreBlocking = p.Blocking[:limit], true
	}
	return nil
}

// span answers a range.
func (rd *reader) span(ctx context.Context, rg *core.Range) (core.Records, error) {
	return rd.collect(ctx, rg.Limit, func(r *row) bool { return rg.Slots.Has(r.Slot) },
		rangeText, rg.Route, bits(rg.Slots), rg.AfterSeq, rg.UpToSeq, rg.KeyedOnly, list(rg.ExcludeSeqs), list(rg.ExcludeKeys))
}

// key answers a range of a key.
func (rd *reader) key(ctx context.Context, kr *core.KeyRange) (out core.KeyRecords, err error) {
	got, err := rd.collect(ctx, kr.Limit, func(*row) bool { return true }, keyRangeText, kr.Route, kr.Key, kr.AfterSeq, kr.UpToSeq)
	if err != nil {
		return out, err
	}
	out.Records, out.More = got.Records, got.More
	block := slices.Contains(rd.request.BlockingRoutes, kr.Route)
	for _, text := range []string{keyWaitingText, keyBlockingText} {
		err := rd.each(ctx, func(rows *sql.Rows) (bool, error) {
			var r row
			if err := r.scan(rows); err != nil {
				return false, err
			}
			if w, ok := r.obstructs(rd.self, block); ok {
				out.Blocking = append(out.Blocking, w)
			}
			return true, nil
		}, text, kr.Route, kr.Key)
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

// collect returns those of the records that text selects which the ReadRequest wants, within the limits.
func (rd *reader) collect(ctx context.Context, limit int, wanted func(*row) bool, text string, args ...any) (out core.Records, err error) {
	var bytes int64
	err = rd.each(ctx, func(rows *sql.Rows) (bool, error) {
		r, rec, err := rd.record(rows)
		if err != nil {
			return false, err
		}
		if !wanted(&r) {
			return true, nil
		}
		bytes += int64(len(rec.Envelope.Body))
		if n := len(out.Records); n > 0 && (limit > 0 && n >= limit || rd.request.Bytes > 0 && bytes > rd.request.Bytes) {
			out.More = true
			return false, nil
		}
		out.Records = append(out.Records, rec)
		return true, nil
	}, text, args...)
	return out, err
}

// again answers ReadRequest.Recheck. It ignores versions: a record that the caller remembers can have been changed.
func (rd *reader) again(ctx context.Context) error {
	p := &rd.result
	rows, err := rd.at(ctx, seqsOf(rd.request.Recheck))
	if err != nil {
		return err
	}
	var ready []int64
	for _, ref := range rd.request.Recheck {
		if named(rows, ref) == nil {
			continue
		}
		r := rows[ref.Seq]
		switch w, ok := r.obstructs(rd.self, slices.Contains(rd.request.BlockingRoutes, ref.Route)); {
		case r.Ready(), r.Live() && r.Holder != 0:
			ready = append(ready, r.Seq)
		case ok:
			p.RecheckedBlocking = append(p.RecheckedBlocking, w)
		case r.Retry():
			w.Why = core.BlockedByRetry // without a key it holds none, and waits all the same
			p.RecheckedBlocking = append(p.RecheckedBlocking, w)
		}
	}
	return rd.load(ctx, ready, func(rec *core.Record) bool {
		p.Rechecked = append(p.Rechecked, *rec)
		return true
	})
}

// notices returns the notices of parts, by number.
func (w *work) notices(ctx context.Context, parts []core.RouteSlots) (out []core.Notice, err error) {
	var one int
	if some, err := w.one(ctx, []any{&one}, anyNoticeText); err != nil || !some {
		return nil, err
	}
	for _, part := range parts {
		err := w.each(ctx, func(rows *sql.Rows) (bool, error) {
			var c core.Notice
			err := rows.Scan(&c.Number, &c.Kind, &c.Route, &c.Slot, &c.Key, &c.ID, &c.Seq, &c.Reason)
			out = append(out, c)
			return true, err
		}, noticeText, part.Route, bits(part.Slots), maxNotice)
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(out, func(a, b core.Notice) int { return cmp.Compare(a.Number, b.Number) })
	return out[:min(len(out), maxNotice)], nil
}

// list returns values as a JSON array.
func list[T int64 | string](values []T) string {
	if len(values) == 0 {
		return "[]"
	}
	text, err := json.Marshal(values)
	if err != nil {
		return "[]" // numbers and texts can always be written
	}
	return string(text)
}
