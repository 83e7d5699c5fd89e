package mongo

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

const (
	decideOp = "waybill/mongo: decide head"
)

// DecideHead skips, sets aside or requeues the head of a blocked key; see [admin.BlockedKeys]. A notice tells the
// owner of the key.
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
	err := s.transact(ctx, "decide head", func(ctx context.Context, w *work) error {
		d.told, d.answer = nil, nil
		return d.carryOut(ctx, w)
	})
	if _, ok := errors.AsType[*lockedError](err); ok {
		return admin.HeadInFlight(decideOp, route, key, id)
	}
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
	reason         waybill.Reason // of a skip or a set aside
	told           *core.Notice   // the notice that tells the owner to do it
	answer         error          // not the database's
}

func (d *decision) notHead() error { return admin.NotHead(decideOp, d.route, d.key, d.id) }

// carryOut carries out the decision, or tells the owner of a record that can be out.
func (d *decision) carryOut(ctx context.Context, w *work) error {
	if err := w.clock(ctx); err != nil {
		return err
	}
	r, err := w.lookup(ctx, bson.M{"_id": recordID{d.route, d.id}}, withoutBody)
	switch {
	case err != nil:
		return err
	case r == nil || r.Key != d.key:
		d.answer = d.notHead()
		return nil
	case r.Hold != 0:
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
	docs, err := w.routeDocs(ctx, []string{r.Route})
	if err != nil {
		return err
	}
	if isNext && docs[r.Route].partitionOf(r).Owner != 0 {
		c := noticeOf(core.NoticeDecide, r)
		c.Reason = d.reason
		list := []core.Notice{c}
		err := w.tell(ctx, list)
		d.told = &list[0]
		return err
	}
	if isNext { // nobody takes its partition until the transaction has ended
		if err := w.keepUnowned(ctx, r.Route); err != nil {
			return err
		}
	}
	if err := w.write(ctx, []driver.WriteModel{change(r.ID, r.abandon(docs[r.Route], d.reason, w.now))}); err != nil {
		return locked(err)
	}
	return w.tell(ctx, []core.Notice{noticeOf(core.NoticeKey, r)})
}

// keepUnowned conflicts with a move of a partition of the route: no session takes one until the transaction ends.
func (w *work) keepUnowned(ctx context.Context, route string) error {
	_, err := w.s.routes.UpdateOne(ctx, bson.M{"_id": route}, bson.M{"$inc": bson.M{"decisions": 1}}, options.UpdateOne().SetUpsert(true))
	return raced(err)
}

// isHead reports whether r, which no session holds, blocks its key, and whether it is the first of its key that is due.
func (w *work) isHead(ctx context.Context, r *record) (head, next bool, err error) {
	retry, gone, err := w.heads(ctx, r.Route, r.Key)
	if err != nil {
		return false, false, err
	}
	// An abandoned record before a retry does not count: the route goes on after it, if it does not block.
	isRetry := retry != nil && retry.ID == r.ID
	isGone := gone != nil && gone.ID == r.ID && (retry == nil || r.Seq < retry.Seq)
	if isRetry || isGone {
		return true, false, nil
	}
	for _, filter := range []bson.M{{"phase": phaseRetry}, {"hold": bson.M{"$gt": int64(0)}}} {
		if other, err := w.firstOf(ctx, r.Route, r.Key, filter); err != nil || other != nil {
			return false, false, err
		}
	}
	first, err := w.firstOf(ctx, r.Route, r.Key, bson.M{"phase": phaseReady})
	return false, first != nil && first.ID == r.ID, err
}

func (d *decision) requeue(ctx context.Context, w *work, r *record) error {
	st := w.stored(r, nil)
	if st.Envelope.Expired(w.now) {
		d.answer = admin.HeadExpired(d.id, st.Envelope.Expires)
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
	model, told := w.requeue(r, nil)
	if err := w.write(ctx, []driver.WriteModel{model}); err != nil {
		return locked(raced(err))
	}
	if err := w.undecide(ctx, []*record{r}); err != nil {
		return err
	}
	return w.tell(ctx, []core.Notice{told})
}
