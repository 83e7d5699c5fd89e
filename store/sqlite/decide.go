package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

const (
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
	d := decision{route: route, key: key, id: id, action: action}
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
	told           *core.Notice // the notice that tells the owner to do it
	answer         error        // not the database's
}

const decideOp = "waybill/sqlite: decide head"

// carryOut carries out the decision, or tells the owner of a record that can be out.
func (d *decision) carryOut(ctx context.Context, w *work) error {
	var body sql.RawBytes
	r, err := w.lookup(ctx, []any{&body}, inspectText, d.route, d.id)
	if err != nil {
		return err
	}
	change := rules.HeadNone
	var u rules.Partition
	if r != nil && r.Envelope.Key == d.key {
		k, err := (*heads)(w).Heads(ctx, d.route, d.key, 0, true)
		if err != nil {
			return err
		}
		if u, err = w.partition(ctx, &r.row); err != nil {
			return err
		}
		change = k.Decide(&r.row.Row, u, d.action)
	}
	switch reason := rules.HeadReason(d.action); change {
	case rules.HeadNone:
		d.answer = admin.NotHead(decideOp, d.route, d.key, d.id)
	case rules.HeadInFlight:
		d.answer = admin.HeadInFlight(decideOp, d.route, d.key, d.id)
	case rules.HeadRequeued:
		return d.requeue(ctx, w, r)
	case rules.HeadTold:
		d.told = &core.Notice{Kind: core.NoticeDecide, Route: d.route, Key: d.key, ID: d.id, Seq: r.Seq, Reason: reason}
		_, err = w.one(ctx, []any{&d.told.Number}, tellOwnerText,
			int64(core.NoticeDecide), d.route, int64(r.row.Slot), d.key, d.id, r.Seq, string(reason))
	case rules.HeadEnded:
		if err = w.abandon(ctx, &r.row, u, reason); err == nil {
			err = w.tell(ctx, core.NoticeKey, &r.row)
		}
	}
	return err
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
