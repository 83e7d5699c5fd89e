package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

const (
	// nextText selects the first record of a key that is due, if no other record keeps it waiting.
	nextText = `SELECT r.seq FROM waybill_outbox r INDEXED BY waybill_outbox_key
		WHERE r.route = ?1 AND r.key = ?2 AND r.key <> '' AND r.due_at IS NULL AND r.settled_at IS NULL AND NOT EXISTS (
			SELECT 1
				FROM waybill_outbox x INDEXED BY waybill_outbox_waiting_key
				WHERE x.route = ?1 AND x.key = ?2 AND x.key <> '' AND (x.state = {failed} OR x.hold <> 0))
		ORDER BY r.seq LIMIT 1`
	tellOwnerText = `INSERT INTO waybill_outbox_notices (kind, route, slot, key, id, seq, reason)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
		RETURNING number`
	untoldText = `SELECT 1 FROM waybill_outbox_notices WHERE number = ?1`
)

// DecideHead skips, sets aside or requeues the head of a blocked key; see [admin.BlockedKeys]. It is one transaction
// with SQLite's write lock. A notice tells the owner of the key.
//
// The first due record of a key can be skipped and set aside, too. Its owner does that as soon as the record is not
// out. DecideHead waits for it, at most ten seconds; then the decision stands, and the error says so. If the key's
// partition has no owner, no process can have the record out, and DecideHead does it alone.
func (s *Store) DecideHead(ctx context.Context, route, key, id string, action admin.HeadAction) error {
	if err := admin.CheckDecide(route, key, id, action); err != nil {
		return err
	}
	d := decision{route: route, key: key, id: id, action: action, reason: waybill.ReasonSkipped}
	if action == admin.HeadSetAside {
		d.reason = waybill.ReasonSetAside
	}
	err := s.write(ctx, "decide head", func(w *work) (changed bool, err error) {
		err = d.carryOut(ctx, w)
		return err == nil && d.answer == nil, err
	})
	if err != nil {
		return err
	}
	s.Wake()
	if d.told == nil {
		return d.answer
	}
	return admin.AwaitHead(ctx, decideOp, s, d.told)
}

// decision is one call of DecideHead.
type decision struct {
	route, key, id string
	action         admin.HeadAction
	reason         waybill.Reason // of a skip or a park
	told           *core.Notice   // the notice that tells the owner to do it
	answer         error          // not the database's
}

const decideOp = "waybill/sqlite: decide head"

func (d *decision) notHead() error { return admin.NotHead(decideOp, d.route, d.key, d.id) }

// carryOut carries out the decision, or tells the owner of a record that can be out.
func (d *decision) carryOut(ctx context.Context, w *work) error {
	var body sql.RawBytes
	r, err := w.lookup(ctx, []any{&body}, inspectText, d.route, d.id)
	switch {
	case err != nil:
		return err
	case r == nil || r.Envelope.Key != d.key:
		d.answer = d.notHead()
		return nil
	case r.State == core.StateProcessing:
		d.answer = admin.HeadInFlight(decideOp, d.route, d.key, d.id)
		return nil
	}
	isHead, isNext, err := w.isHead(ctx, r)
	switch {
	case err != nil:
		return err
	case isHead && d.action == admin.HeadRequeue:
		return d.requeue(ctx, w, r)
	case !isHead && (!isNext || d.action == admin.HeadRequeue):
		d.answer = d.notHead()
		return nil
	}
	u, err := w.partition(ctx, &r.row)
	if err != nil {
		return err
	}
	if isNext && u.Owner != 0 {
		d.told = &core.Notice{Kind: core.NoticeDecide, Route: d.route, Key: d.key, ID: d.id, Seq: r.Seq, Reason: d.reason}
		_, err = w.one(ctx, []any{&d.told.Number}, tellOwnerText,
			int64(core.NoticeDecide), d.route, int64(r.row.Slot), d.key, d.id, r.Seq, string(d.reason))
		return err
	}
	if err := w.abandon(ctx, &r.row, u, d.reason); err != nil {
		return err
	}
	return w.tell(ctx, core.NoticeKey, &r.row)
}

// isHead reports whether r, which no session holds, blocks its key, and whether it is the first of its key that is due.
func (w *work) isHead(ctx context.Context, r *stored) (head, next bool, err error) {
	var retry, gone sql.NullInt64
	if _, err := w.one(ctx, []any{&retry, &gone}, headsText, r.Route, r.Envelope.Key); err != nil {
		return false, false, err
	}
	// An abandoned record before a retry does not count: the route goes on after it, if it does not block.
	isRetry := retry.Valid && retry.Int64 == r.Seq
	isGone := gone.Valid && gone.Int64 == r.Seq && (!retry.Valid || r.Seq < retry.Int64)
	if isRetry || isGone {
		return true, false, nil
	}
	var first int64
	found, err := w.one(ctx, []any{&first}, nextText, r.Route, r.Envelope.Key)
	return false, found && first == r.Seq, err
}

func (d *decision) requeue(ctx context.Context, w *work, r *stored) error {
	w.s.decode(r)
	if r.Envelope.Expired(time.UnixMicro(w.now)) {
		d.answer = admin.HeadExpired(d.id, r.Envelope.Expires)
		return nil
	}
	taken, err := w.outlived(ctx, r)
	if err != nil {
		return err
	}
	if taken {
		d.answer = admin.HeadDuplicate(d.id)
		return nil
	}
	return w.requeue(ctx, new(pending), &r.row)
}
