package mongo

import (
	"context"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

var _ waybill.Canceller[*driver.Session] = (*Store)(nil)

// ledger keeps the records that a call in a transaction of the application reads, cancels and stages. It decides in
// memory, in the order of the call, and writes at the end, so that the round trips do not grow with the messages.
type ledger struct {
	s    *Store
	now  time.Time
	keep bool // cancelled records stay

	byID   map[recordID]*record
	byKey  map[dedupeID]*record
	routes map[string]*routeDoc

	added  []*record
	stored map[*record]bool
	dirty  map[*record]bson.M // the updates; none of one that goes
	tell   []core.Notice
}

func (s *Store) newLedger(now time.Time) *ledger {
	return &ledger{
		s: s, now: now, keep: !core.RetentionCancelled.DroppedAtOnce(s.opts.Retention),
		byID: map[recordID]*record{}, byKey: map[dedupeID]*record{}, stored: map[*record]bool{}, dirty: map[*record]bson.M{},
	}
}

// load reads the records with ids and the live ones with keys, and what dead members can have had out on routes.
func (l *ledger) load(ctx context.Context, ids, keys bson.A, routes []string) error {
	w := work{s: l.s, now: l.now}
	either := bson.A{}
	if len(ids) > 0 {
		either = append(either, bson.M{"_id": bson.M{"$in": ids}})
	}
	if len(keys) > 0 {
		either = append(either, bson.M{"dedupe": bson.M{"$in": keys}})
	}
	for _, filter := range either { // two commands: each has its index
		// in one round trip
		opts := options.Find().SetProjection(withoutBody).SetBatchSize(int32(len(ids) + len(keys) + 1))
		err := w.each(ctx, filter, opts, func(r *record) bool {
			if l.byID[r.ID] == nil {
				l.know(r)
				l.stored[r] = true
			}
			return true
		})
		if err != nil {
			return err
		}
	}
	if len(routes) == 0 {
		return nil
	}
	var err error
	l.routes, err = w.routeDocs(ctx, routes)
	return err
}

func (l *ledger) know(r *record) {
	l.byID[r.ID] = r
	if r.Dedupe != nil {
		l.byKey[*r.Dedupe] = r
	}
}

func (l *ledger) add(r *record) {
	l.know(r)
	l.added = append(l.added, r)
}

// forget takes the dedupe key from r, which lives on.
func (l *ledger) forget(r *record) {
	delete(l.byKey, *r.Dedupe)
	r.Dedupe, r.DedupeKey = nil, ""
	l.dirty[r] = bson.M{"$unset": bson.M{"dedupe": "", "dedupe_key": ""}}
}

// cancel takes r away, if no process can have it out.
func (l *ledger) cancelRecord(r *record, reason waybill.Reason) waybill.CancelStatus {
	f, d := r.facts(), l.routes[r.Route]
	status := rules.Cancellation(f, d.partitionOf(r))
	if status == waybill.CancelNotFound || status == waybill.CancelInFlight {
		return status
	}
	if rules.Tells(f) {
		l.tell = append(l.tell, noticeOf(core.NoticeKey, r))
	}
	if r.Dedupe != nil {
		delete(l.byKey, *r.Dedupe)
		r.Dedupe = nil
	}
	if l.keep {
		l.dirty[r] = r.abandon(d, reason, l.now)
	} else {
		delete(l.byID, r.ID)
		r.Phase, l.dirty[r] = 0, nil // it goes
	}
	return status
}

// partitionOf returns the facts about the partition of r that the rules need. d is nil for a route that was never
// served.
func (d *routeDoc) partitionOf(r *record) (out rules.Partition) {
	if d == nil {
		return out
	}
	out.MaybeOutUpTo = d.MaybeOutUpTo
	for i := range d.Partitions {
		if u := &d.Partitions[i]; u.From <= r.Slot && r.Slot < u.To {
			out = rules.Partition{Owner: core.Session(u.Owner), MaybeOutUpTo: u.MaybeOutUpTo}
		}
	}
	return out
}

// flush writes what the ledger decided.
func (l *ledger) flush(ctx context.Context) error {
	gone := bson.A{}
	var models []driver.WriteModel
	for r, update := range l.dirty {
		switch {
		case !l.stored[r]:
		case update == nil:
			gone = append(gone, r.ID)
		default:
			models = append(models, change(r.ID, update))
		}
	}
	if len(gone) > 0 {
		if _, err := l.s.outbox.DeleteMany(ctx, bson.M{"_id": bson.M{"$in": gone}}); err != nil {
			return err
		}
	}
	w := work{s: l.s, now: l.now}
	if err := w.write(ctx, models); err != nil {
		return err
	}
	docs := make([]any, 0, len(l.added))
	for _, r := range l.added {
		if r.unreadable != nil {
			return r.unreadable
		}
		if r.Phase != 0 {
			docs = append(docs, r)
		}
	}
	if len(docs) > 0 {
		if _, err := l.s.outbox.InsertMany(ctx, docs); err != nil {
			return err
		}
	}
	return w.tell(ctx, l.tell)
}

// Cancel cancels staged messages in the transaction of sess, by id or by dedupe key; see [waybill.Canceller]. It
// cancels messages that are scheduled, wait for a retry, or were staged as cancellable. Messages that a dead member
// can have had out are waybill.CancelUncertain. Messages that a member holds, and all other due ones, are
// waybill.CancelInFlight. Keys that name the same message get the same answer.
func (s *Store) Cancel(ctx context.Context, sess *driver.Session, keys ...waybill.CancelKey) ([]waybill.CancelStatus, error) {
	if err := running("cancel", sess); err != nil {
		return nil, err
	}
	keys, err := core.CheckCancelKeys(ctx, keys)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	out, err := s.cancel(driver.NewSessionContext(ctx, sess), keys)
	if err != nil {
		return nil, classify("cancel", raced(err))
	}
	return out, nil
}

func (s *Store) cancel(ctx context.Context, keys []waybill.CancelKey) ([]waybill.CancelStatus, error) {
	w := work{s: s}
	if err := w.clock(ctx); err != nil {
		return nil, err
	}
	l := s.newLedger(w.now)
	ids, dedupes := bson.A{}, bson.A{}
	var routes []string
	for i := range keys {
		k := &keys[i]
		routes = append(routes, k.Route)
		if k.DedupeKey != "" {
			dedupes = append(dedupes, dedupeID{k.Route, k.Topic, k.DedupeKey})
		} else {
			ids = append(ids, recordID{k.Route, k.ID})
		}
	}
	if err := l.load(ctx, ids, dedupes, routes); err != nil {
		return nil, err
	}
	// Keys that name the same message get the same answer, also when the first one has taken it away.
	named := func(k *waybill.CancelKey) *record {
		if k.DedupeKey != "" {
			return l.byKey[dedupeID{k.Route, k.Topic, k.DedupeKey}]
		}
		return l.byID[recordID{k.Route, k.ID}]
	}
	targets := make([]*record, len(keys))
	for i := range keys {
		targets[i] = named(&keys[i])
	}
	done := map[*record]waybill.CancelStatus{}
	out := make([]waybill.CancelStatus, len(keys))
	for i, r := range targets {
		if r == nil {
			continue
		}
		if _, ok := done[r]; !ok {
			done[r] = l.cancelRecord(r, waybill.ReasonCancelled)
		}
		out[i] = done[r]
	}
	return out, l.flush(ctx)
}

// noticeDoc is a document of the control collection.
type noticeDoc struct {
	Number int64  `bson:"_id"`
	Kind   int32  `bson:"kind"`
	Route  string `bson:"route"`
	Slot   int32  `bson:"slot"`
	Slots  int64  `bson:"slots"` // of NoticeReread: the slots whose owners have yet to heed it, as bits
	Key    string `bson:"key"`
	ID     string `bson:"id"`
	Seq    int64  `bson:"seq"`
	Reason string `bson:"reason"`
}

func (d *noticeDoc) notice() core.Notice {
	return core.Notice{
		Number: d.Number, Kind: core.NoticeKind(d.Kind), Route: d.Route, Slot: uint8(d.Slot), Key: d.Key, ID: d.ID, Seq: d.Seq,
		Reason: waybill.Reason(d.Reason),
	}
}

func noticeOf(kind core.NoticeKind, h *record) core.Notice {
	return core.Notice{Kind: kind, Route: h.ID.Route, Slot: h.slot(), Key: h.Key, ID: h.ID.ID, Seq: h.Seq}
}

// tell writes notices, and sets their numbers. These begin with the time, so that later ones are mostly
// greater. Two calls that draw the same numbers conflict, and one of them runs again.
func (w *work) tell(ctx context.Context, list []core.Notice) error {
	if len(list) == 0 {
		return nil
	}
	number := time.Now().UnixMilli()<<22 | rand.Int64N(1<<22)
	docs := make([]any, len(list))
	for i := range list {
		c := &list[i]
		c.Number = number + int64(i)
		docs[i] = noticeDoc{c.Number, int32(c.Kind), c.Route, int32(c.Slot), -1, c.Key, c.ID, c.Seq, string(c.Reason)}
	}
	_, err := w.s.notice.InsertMany(ctx, docs)
	return raced(err)
}
