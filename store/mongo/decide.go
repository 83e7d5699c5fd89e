package mongo

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
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
	d := decision{route: route, key: key, id: id, action: action}
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
	told           *core.Notice // the notice that tells the owner to do it
	answer         error        // not the database's
}

// carryOut carries out the decision, or tells the owner of a record that can be out.
func (d *decision) carryOut(ctx context.Context, w *work) error {
	if err := w.clock(ctx); err != nil {
		return err
	}
	r, err := w.lookup(ctx, bson.M{"_id": recordID{d.route, d.id}}, withoutBody)
	if err != nil {
		return err
	}
	what := rules.HeadNone
	var doc *routeDoc
	if r != nil && r.Key == d.key {
		h := heads{work: w, found: map[int64]*record{}}
		k, err := h.Heads(ctx, d.route, d.key, 0, true)
		if err != nil {
			return err
		}
		docs, err := w.routeDocs(ctx, []string{d.route})
		if err != nil {
			return err
		}
		doc = docs[d.route]
		what = k.Decide(r.facts(), doc.partitionOf(r), d.action)
	}
	switch reason := rules.HeadReason(d.action); what {
	case rules.HeadNone:
		d.answer = admin.NotHead(decideOp, d.route, d.key, d.id)
	case rules.HeadInFlight:
		d.answer = admin.HeadInFlight(decideOp, d.route, d.key, d.id)
	case rules.HeadRequeued:
		return d.requeue(ctx, w, r)
	case rules.HeadTold:
		list := []core.Notice{noticeOf(core.NoticeDecide, r)}
		d.told, list[0].Reason = &list[0], reason
		return w.tell(ctx, list)
	case rules.HeadEnded:
		if !r.waits() && r.live() { // nobody takes its partition until the transaction has ended
			if err := w.keepUnowned(ctx, r.Route); err != nil {
				return err
			}
		}
		if err := w.write(ctx, []driver.WriteModel{change(r.ID, r.abandon(doc, reason, w.now))}); err != nil {
			return locked(err)
		}
		return w.tell(ctx, []core.Notice{noticeOf(core.NoticeKey, r)})
	}
	return nil
}

// keepUnowned conflicts with a move of a partition of the route: no session takes one until the transaction ends.
func (w *work) keepUnowned(ctx context.Context, route string) error {
	_, err := w.s.routes.UpdateOne(ctx, bson.M{"_id": route}, bson.M{"$inc": bson.M{"decisions": 1}}, options.UpdateOne().SetUpsert(true))
	return raced(err)
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
	model, told := w.requeue(r, nil, "")
	if err := w.write(ctx, []driver.WriteModel{model}); err != nil {
		return locked(raced(err))
	}
	if err := w.undecide(ctx, []*record{r}); err != nil {
		return err
	}
	return w.tell(ctx, []core.Notice{told})
}
