package mongo

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
	"github.com/waybill-go/waybill/internal/sleep"
)

// A removal must not overtake a call of the member that runs: that call would write after its session has ended.
// MongoDB shows such a conflict only if both write the same document. So each call of a member writes one of its
// fences, and the removal deletes all of them. There are several, so that a member's own calls do not conflict with
// each other.

// memberDoc is a document of the members collection.
type memberDoc struct {
	Session      int64         `bson:"_id"`
	Name         string        `bson:"name"`
	Heartbeats   int64         `bson:"heartbeats"`
	Lease        int64         `bson:"lease"` // microseconds
	Presence     int64         `bson:"presence"`
	Capacity     int           `bson:"capacity"`
	FreeCapacity int           `bson:"free_capacity"`
	Suspected    bool          `bson:"suspected"`
	Routes       []servedRoute `bson:"routes"`
	Joined       time.Time     `bson:"joined"` // for people
	Renewed      time.Time     `bson:"renewed"`
}

type servedRoute struct {
	Route             string `bson:"route"`
	InitialPartitions int    `bson:"partitions"`
	Unavailable       bool   `bson:"unavailable"`

	HandedOut       int           `bson:"handed_out"`
	OldestHandedOut time.Duration `bson:"oldest_handed_out"`
}

// removalError says that the removal of a member met a conflict.
type removalError struct {
	session core.Session
	err     error
}

func (e *removalError) Error() string { return "a removal conflicts with a lock: " + e.err.Error() }
func (e *removalError) Unwrap() error { return e.err }

// Heartbeat joins, renews or reads, as [rules.Heartbeat] says. A removal that conflicts is left out, and the rest runs
// again. A move from another member conflicts with the calls of that member that run.
func (s *Store) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	for {
		var membership core.Membership
		err := s.transact(ctx, "heartbeat", func(ctx context.Context, w *work) (err error) {
			membership, err = w.heartbeat(ctx, &m)
			if removal, ok := errors.AsType[*removalError](err); ok && conflicts(err) {
				return &lockedError{removal}
			}
			return err
		})
		if removal, ok := errors.AsType[*removalError](err); ok && conflicts(err) {
			m.Evict = slices.DeleteFunc(slices.Clone(m.Evict), func(r core.Eviction) bool { return r.Session == removal.session })
			if m.Leave && removal.session == m.Self.Session {
				if sleep.For(ctx, backOff(5)) != nil {
					return core.Membership{}, classify("heartbeat", err)
				}
			}
			continue
		}
		if err != nil {
			return core.Membership{}, classify("heartbeat", err)
		}
		if membership.HasNotices, err = s.hasNotices(outside(ctx), m.Self.Routes); err != nil {
			return core.Membership{}, classify("heartbeat", err)
		}
		return membership, nil
	}
}

// heartbeatTx is the part of a call of Heartbeat in its transaction that [rules.Heartbeat] asks for.
type heartbeatTx struct {
	*work
	self       core.Session
	membership core.Membership
	routes     map[string]*routeDoc
}

func (w *work) heartbeat(ctx context.Context, m *core.HeartbeatRequest) (core.Membership, error) {
	docs, err := w.metas(ctx, "epoch")
	if err != nil {
		return core.Membership{}, err
	}
	members, err := w.memberDocs(ctx)
	if err != nil {
		return core.Membership{}, err
	}
	t := heartbeatTx{work: w, self: m.Self.Session}
	if t.routes, err = w.routeDocs(ctx, nil); err != nil {
		return core.Membership{}, err
	}
	t.membership = membershipOf(members, t.routes)
	t.membership.StoreEpoch = docs["epoch"].text()
	err = rules.Heartbeat(ctx, &t, &t.membership, m)
	return t.membership, err
}

// Renew is of [rules.MembershipTx].
func (t *heartbeatTx) Renew(ctx context.Context, m *core.Member, joins bool) error {
	routes := []servedRoute{}
	for _, sv := range m.Routes {
		routes = append(routes, servedRoute(sv))
	}
	doc := bson.M{
		"name": m.Name, "heartbeats": m.Heartbeats, "lease": m.Lease.Microseconds(), "presence": m.Presence, "capacity": m.Capacity, "free_capacity": m.FreeCapacity,
		"suspected": m.Suspected, "routes": routes, "renewed": t.now,
	}
	if !joins {
		_, err := t.s.members.UpdateByID(ctx, int64(m.Session), bson.M{"$set": doc})
		return err
	}
	doc["_id"], doc["joined"] = int64(m.Session), t.now
	fences := make([]any, stripes)
	for stripe := range fences {
		fences[stripe] = bson.M{"_id": fenceID{int64(m.Session), int32(stripe)}, "n": 0, "hlc": int64(0)}
	}
	_, err := t.s.members.InsertOne(ctx, doc)
	if err == nil {
		_, err = t.s.fences.InsertMany(ctx, fences)
	}
	return raced(err)
}

// Suspect is of [rules.MembershipTx].
func (t *heartbeatTx) Suspect(ctx context.Context, session core.Session) error {
	_, err := t.s.members.UpdateByID(ctx, int64(session), bson.M{"$set": bson.M{"suspected": true}})
	return err
}

// End is of [rules.MembershipTx]. It conflicts with every call of the member that runs.
func (t *heartbeatTx) End(ctx context.Context, session core.Session, died bool) (last int64, ok bool, err error) {
	if last, err = t.end(ctx, session, died); err != nil {
		return 0, false, &removalError{session, err}
	}
	return last, true, nil
}

func (t *heartbeatTx) end(ctx context.Context, session core.Session, died bool) (last int64, err error) {
	if _, err := t.s.members.DeleteOne(ctx, bson.M{"_id": int64(session)}); err != nil {
		return 0, err
	}
	if err := t.keepStamp(ctx, session); err != nil {
		return 0, err
	}
	if _, err := t.s.fences.DeleteMany(ctx, bson.M{"_id": bson.M{"$in": fencesOf(session)}}); err != nil {
		return 0, err
	}
	crashes := 0
	if died {
		crashes = 1
		var seq sequence
		err := t.s.meta.FindOne(ctx, sequenceID, options.FindOne().SetProjection(bson.M{"value": 1})).Decode(&seq)
		if err != nil {
			return 0, err
		}
		last = seq.Value
	}
	_, err = t.s.outbox.UpdateMany(ctx, bson.M{"hold": int64(session)}, bson.M{
		"$set":   bson.M{"hold": int64(0), "maybe": true},
		"$unset": bson.M{"held": ""},
		"$inc":   bson.M{"crashes": crashes, "version": int64(crashes)},
	})
	return last, err
}

// Transfer is of [rules.MembershipTx]. It writes fences of both, so that it conflicts with their removal, and with
// calls of the one that loses the partition.
func (t *heartbeatTx) Transfer(ctx context.Context, from, to core.Session) (bool, error) {
	if to != 0 {
		if known, err := t.touch(ctx, fencesOf(to)[:1]); err != nil || known == 0 {
			return false, err
		}
	}
	if from != 0 && from != t.self {
		_, err := t.touch(ctx, fencesOf(from))
		return err == nil, err
	}
	return true, nil
}

// keepStamp keeps the greatest stamp that a member settled.
func (t *heartbeatTx) keepStamp(ctx context.Context, session core.Session) error {
	cur, err := t.s.fences.Find(ctx, bson.M{"_id": bson.M{"$in": fencesOf(session)}})
	if err != nil {
		return err
	}
	var all []struct {
		HLC int64 `bson:"hlc"`
	}
	if err := cur.All(ctx, &all); err != nil {
		return err
	}
	top := int64(0)
	for _, f := range all {
		top = max(top, f.HLC)
	}
	if top == 0 {
		return nil
	}
	_, err = t.s.meta.UpdateOne(ctx, bson.M{"_id": "hlc"}, bson.M{"$max": bson.M{"hlc": top}})
	return err
}

// touch writes fences, and returns how many there are.
func (w *work) touch(ctx context.Context, ids bson.A) (known int, err error) {
	res, err := w.s.fences.UpdateMany(ctx, bson.M{"_id": bson.M{"$in": ids}}, bson.M{"$inc": bson.M{"n": 1}})
	if err != nil {
		return 0, err
	}
	return int(res.MatchedCount), nil
}

func (w *work) memberDocs(ctx context.Context) (map[int64]*memberDoc, error) {
	cur, err := w.s.members.Find(ctx, bson.M{})
	if err != nil {
		return nil, err
	}
	var all []*memberDoc
	if err := cur.All(ctx, &all); err != nil {
		return nil, err
	}
	out := map[int64]*memberDoc{}
	for _, d := range all {
		out[d.Session] = d
	}
	return out, nil
}

// epochDoc tells one database, and one history of it, from another.
type epochDoc struct {
	Database string    `bson:"database"` // random
	Epoch    int64     `bson:"epoch"`
	Now      time.Time `bson:"now"`
	Value    int64     `bson:"value"` // of the sequence, which is read together with the epoch
	Open     []drawn   `bson:"open"`
	ID       string    `bson:"_id"`
}

// clock sets the time of w.
func (w *work) clock(ctx context.Context) error {
	_, err := w.metas(ctx, "epoch")
	return err
}

// metas reads documents of the meta collection, with the server's time.
func (w *work) metas(ctx context.Context, ids ...string) (map[string]*epochDoc, error) {
	cur, err := w.s.meta.Aggregate(ctx, bson.A{
		bson.M{"$match": bson.M{"_id": bson.M{"$in": ids}}}, bson.M{"$addFields": bson.M{"now": "$$NOW"}},
	})
	if err != nil {
		return nil, err
	}
	var docs []*epochDoc
	if err := cur.All(ctx, &docs); err != nil {
		return nil, err
	}
	out := map[string]*epochDoc{}
	for _, d := range docs {
		out[d.ID] = d
		w.now = d.Now
	}
	if len(out) < len(ids) {
		return nil, misconfigured("read", errors.New(noSchema))
	}
	return out, nil
}
