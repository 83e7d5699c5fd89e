package mongo

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
	"github.com/waybill-go/waybill/hlc"
)

// MongoDB does not wait for a lock: a write to a document that another transaction has written fails at once, and with
// it the whole transaction. So a settle is tried as one transaction, and after a conflict in halves, until the locked
// record stands alone as core.ErrLocked. In the common case, without a conflict, the published records are one
// statement.

// Settle persists outcomes, as core.OutboxStore says, in one transaction. If a record is locked, it settles them in
// halves, and the locked one is core.ErrLocked. A stale outcome is core.ErrChanged even if its partition has another
// owner. An outcome that the database refuses, such as by a validator of the application, fails alone.
func (s *Store) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	res, done := make(core.Results, len(outcomes)), make([]bool, len(outcomes))
	p := pieces{
		s: s, op: "settle", member: true, self: self, stamps: stampsOf(outcomes),
		do: func(ctx context.Context, w *work, from, to int) (func(), error) {
			st := settler{work: w, self: self, outcomes: outcomes[from:to], res: make(core.Results, to-from)}
			err := st.run(ctx)
			return func() {
				for i := range st.res {
					res[from+i], done[from+i] = st.res[i], true
				}
			}, err
		},
		busy: func(i int) {
			res[i], done[i] = core.NewOutcomeError("waybill/mongo: settle", outcomes[i].Ref(), core.ErrLocked), true
		},
	}
	p.each(ctx, 0, len(outcomes), func(i int, err error) {
		if !done[i] {
			res[i] = err
		}
	})
	return res
}

// SettleGroup settles what several members have published, as table.GroupSettler says. It tries that once, since the
// halves of a group are its members.
func (s *Store) SettleGroup(ctx context.Context, selves []core.Session, outcomes [][]core.Outcome) bool {
	st := settler{self: selves[0], outcomes: slices.Concat(outcomes...)}
	err := s.fencedAll(ctx, "settle", selves, stampsOf(st.outcomes), func(ctx context.Context, w *work) error {
		st = settler{work: w, self: st.self, outcomes: st.outcomes, res: make(core.Results, len(st.outcomes))}
		return st.run(ctx)
	})
	return err == nil && st.res.FirstErr() == nil
}

// stampsOf returns the stamps of outcomes that are to be kept.
func stampsOf(outcomes []core.Outcome) (settled stamps) {
	bound := int64(hlc.MaxMark(time.Now()))
	for i := range outcomes {
		stamp := outcomes[i].HLC()
		if settled.top = max(settled.top, stamp); stamp <= bound {
			settled.near = max(settled.near, stamp)
		}
	}
	return settled
}

// each runs the pieces, and in halves if the database refuses one of them: that one fails alone.
func (p *pieces) each(ctx context.Context, from, to int, failed func(i int, err error)) {
	err := p.run(ctx, from, to)
	switch {
	case err == nil:
	case to-from == 1, isAnswer(err), waybill.ClassOf(err) == waybill.ClassOutage, ctx.Err() != nil:
		for i := from; i < to; i++ {
			failed(i, err)
		}
	default:
		mid := (from + to) / 2
		p.each(ctx, from, mid, failed)
		p.each(ctx, mid, to, failed)
	}
}

// settler is one Settle in its transaction.
type settler struct {
	*work
	self     core.Session
	outcomes []core.Outcome
	res      core.Results

	found     map[recordID]*record // for outcomes other than published
	own       map[string]core.Slots
	published []int
	changes   []driver.WriteModel
}

func (st *settler) run(ctx context.Context) error {
	if err := st.load(ctx); err != nil {
		return err
	}
	for i := range st.outcomes {
		o := &st.outcomes[i]
		var err error
		switch {
		case o.NoticeNumber() != 0:
			err = st.noticeDone(ctx, o)
		case o.Event() == core.EventNone:
			err = waybill.Invalid("waybill/mongo: settle", "outcome: is zero; "+
				"build it with core.Published, Retry, Abandon, Cancel, Release or DeleteNotice")
		case o.Event() == core.EventConfirmed:
			st.published = append(st.published, i)
		default:
			err = st.other(o)
		}
		if err != nil && !isAnswer(err) && !errors.Is(err, waybill.ErrInvalid) {
			return err
		}
		st.res[i] = err
	}
	if err := st.publish(ctx); err != nil {
		return err
	}
	return locked(st.write(ctx, st.changes))
}

// load reads the records, and the slots that self owns.
func (st *settler) load(ctx context.Context) (err error) {
	var refs, others []core.Ref
	for i := range st.outcomes {
		ref := st.outcomes[i].Ref()
		switch o := &st.outcomes[i]; {
		case o.NoticeNumber() == 0 && o.Event() == core.EventConfirmed:
		case o.NoticeNumber() == 0:
			refs = append(refs, ref)
			others = append(others, ref)
		default:
			others = append(others, ref)
		}
	}
	if st.own, err = st.owned(ctx, st.self, routesOfRefs(others)); err != nil {
		return err
	}
	st.found, err = st.byID(ctx, refs, headOnly)
	return err
}

// publish ends the published records. One that is gone, or kept, is a success. Only if the count shows that some were
// not there it reads what is in their place.
func (st *settler) publish(ctx context.Context) error {
	if len(st.published) == 0 {
		return nil
	}
	ids, seqs := make(bson.A, len(st.published)), make(bson.A, len(st.published))
	for n, i := range st.published {
		ref := st.outcomes[i].Ref()
		ids[n], seqs[n] = recordID{ref.Route, ref.ID}, ref.Seq
	}
	n, err := st.end(ctx, bson.M{
		"_id": bson.M{"$in": ids}, "seq": bson.M{"$in": seqs}, "phase": bson.M{"$in": bson.A{phaseReady, phaseTimer, phaseRetry}},
	})
	if err != nil {
		return locked(err)
	}
	if n == int64(len(ids)) {
		return nil
	}
	// Some were not there: are they gone, or is something else in their place?
	byID, err := st.all(ctx, bson.M{"_id": bson.M{"$in": ids}}, options.Find().SetProjection(headOnly))
	if err != nil {
		return err
	}
	bySeq, err := st.all(ctx, bson.M{"seq": bson.M{"$in": seqs}}, st.by("seq").SetProjection(headOnly))
	if err != nil {
		return err
	}
	id, seq := map[recordID]*record{}, map[int64]*record{}
	for _, r := range byID {
		id[r.ID] = r
	}
	for _, r := range bySeq {
		seq[r.Seq] = r
	}
	for _, i := range st.published {
		ref := st.outcomes[i].Ref()
		key := recordID{ref.Route, ref.ID}
		same, other := id[key], seq[ref.Seq]
		if other == nil {
			other = same
		}
		if rules.Confirmed(other.facts(), ref) != nil || same != nil && same.Seq != ref.Seq {
			st.res[i] = core.NewOutcomeError("waybill/mongo: settle", ref, core.ErrChanged)
		}
	}
	return nil
}

// other persists an outcome other than published.
func (st *settler) other(o *core.Outcome) error {
	ref := o.Ref()
	r := st.found[recordID{ref.Route, ref.ID}]
	f := r.facts()
	to, err := rules.Settle(f, o, st.self, r != nil && st.own[ref.Route].Has(r.slot()))
	if err != nil {
		return core.NewOutcomeError("waybill/mongo: settle", ref, err)
	}
	if to.Row != *f {
		st.changes = append(st.changes, change(r.ID, r.become(&to, st.now))) // a second outcome for it is stale
	}
	return nil
}

// noticeDone deletes a notice. A NoticeReread concerns all slots of a route: it goes when all owners have carried it
// out.
func (st *settler) noticeDone(ctx context.Context, o *core.Outcome) error {
	var d noticeDoc
	one := bson.M{"_id": o.NoticeNumber(), "route": o.Ref().Route}
	err := st.s.notice.FindOne(ctx, one).Decode(&d)
	if errors.Is(err, driver.ErrNoDocuments) {
		return nil
	}
	if err != nil {
		return err
	}
	rest := core.Slots(d.Slots) &^ st.own[d.Route]
	if core.NoticeKind(d.Kind) == core.NoticeReread && rest != 0 {
		_, err = st.s.notice.UpdateOne(ctx, one, bson.M{"$set": bson.M{"slots": int64(rest)}})
		return err
	}
	_, err = st.s.notice.DeleteOne(ctx, one)
	return err
}

// end deletes published records, or keeps them as Options.Retention says, and returns how many.
func (st *settler) end(ctx context.Context, filter bson.M) (int64, error) {
	if core.RetentionPublished.DroppedAtOnce(st.s.opts.Retention) {
		res, err := st.s.outbox.DeleteMany(ctx, filter)
		if err != nil {
			return 0, err
		}
		return res.DeletedCount, nil
	}
	res, err := st.s.outbox.UpdateMany(ctx, filter, bson.M{
		"$set": bson.M{
			"phase": phasePublished, "settled": st.now, "class": int32(core.RetentionPublished), "hold": int64(0),
		},
		"$unset": bson.M{"due": "", "dedupe": "", "held": ""},
		"$inc":   bson.M{"version": int64(1)},
	})
	if err != nil {
		return 0, err
	}
	return res.MatchedCount, nil
}
