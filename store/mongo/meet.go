package mongo

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill/core"
)

// A removal must not overtake a call of the member that runs: that call would write after its session has ended.
// MongoDB shows such a conflict only if both write the same document. So each call of a member writes one of its
// fences, and the removal deletes all of them. There are several, so that a member's own calls do not conflict with
// each other.

// memberDoc is a document of the members collection.
type memberDoc struct {
	Session  int64     `bson:"_id"`
	Name     string    `bson:"name"`
	Beat     int64     `bson:"beat"`
	Lease    int64     `bson:"lease"` // microseconds
	Presence int64     `bson:"presence"`
	Handlers int       `bson:"handlers"`
	Free     int       `bson:"free"`
	Flag     bool      `bson:"flag"`
	Serves   []serving `bson:"serves"`
	Joined   time.Time `bson:"joined"` // for people
	Renewed  time.Time `bson:"renewed"`
}

type serving struct {
	Route  string `bson:"route"`
	Units  int    `bson:"units"`
	Unable bool   `bson:"unable"`
}

// removalError says that the removal of a member met a conflict.
type removalError struct {
	session core.Session
	err     error
}

func (e *removalError) Error() string { return "a removal meets a lock: " + e.err.Error() }
func (e *removalError) Unwrap() error { return e.err }

// Meet joins, renews or looks, as core.OutboxStore says. A session that is not a member changes nothing. A removal that
// conflicts is left out, and the rest runs again. A move from another member conflicts with the calls of that member
// that run.
func (s *Store) Meet(ctx context.Context, m core.Meeting) (core.Roster, error) {
	for {
		var roster core.Roster
		err := s.transact(ctx, "meet", func(ctx context.Context, w *work) (err error) {
			roster, err = w.meet(ctx, &m)
			if removal, ok := errors.AsType[*removalError](err); ok && conflicts(err) {
				return &lockedError{removal}
			}
			return err
		})
		if removal, ok := errors.AsType[*removalError](err); ok && conflicts(err) {
			m.Remove = slices.DeleteFunc(slices.Clone(m.Remove), func(r core.Removal) bool { return r.Session == removal.session })
			if m.Leave && removal.session == m.Self.Session {
				if pause(ctx, backOff(5)) != nil {
					return core.Roster{}, classify("meet", err)
				}
			}
			continue
		}
		if err != nil {
			return core.Roster{}, classify("meet", err)
		}
		var beside error
		var asked sync.WaitGroup // both at once: a member has a third of its lease for a Meet
		asked.Go(func() { roster.Told, beside = s.told(outside(ctx), m.Self.Serves) })
		roster.Unserved, err = s.unserved(outside(ctx), roster.Units)
		asked.Wait()
		if err = errors.Join(err, beside); err != nil {
			return core.Roster{}, classify("meet", err)
		}
		return roster, nil
	}
}

// meeting is one call of Meet in its transaction.
type meeting struct {
	*work
	m       *core.Meeting
	epoch   string
	members map[int64]*memberDoc
	routes  map[string]*routeDoc
}

func (w *work) meet(ctx context.Context, m *core.Meeting) (roster core.Roster, err error) {
	docs, err := w.metas(ctx, "epoch")
	if err != nil {
		return roster, err
	}
	t := meeting{work: w, m: m, epoch: docs["epoch"].text()}
	if t.members, err = w.memberDocs(ctx); err != nil {
		return roster, err
	}
	if t.routes, err = w.routeDocs(ctx, nil); err != nil {
		return roster, err
	}
	if m.Self.Session != 0 {
		if err := t.run(ctx); err != nil {
			return roster, err
		}
	}
	return t.roster(), nil
}

func (t *meeting) run(ctx context.Context) error {
	known, err := t.renew(ctx)
	if err != nil || !known {
		return err
	}
	for _, sv := range t.m.Self.Serves {
		t.makeUnits(sv)
	}
	for _, r := range t.m.Remove {
		if d := t.members[int64(r.Session)]; d != nil && d.Beat == r.Beat {
			if err := t.end(ctx, r.Session, true); err != nil {
				return &removalError{r.Session, err}
			}
		}
	}
	for i := range t.m.Moves {
		if err := t.move(ctx, &t.m.Moves[i]); err != nil {
			return err
		}
	}
	for _, f := range t.m.Flag {
		if err := t.flag(ctx, f); err != nil {
			return err
		}
	}
	if t.m.Leave && t.members[int64(t.m.Self.Session)] != nil {
		if err := t.end(ctx, t.m.Self.Session, false); err != nil {
			return &removalError{t.m.Self.Session, err}
		}
	}
	return t.save(ctx)
}

// renew reports whether the caller is a member. A late renewal, behind a later one, changes nothing.
func (t *meeting) renew(ctx context.Context) (known bool, err error) {
	self := &t.m.Self
	old := t.members[int64(self.Session)]
	switch {
	case old != nil && self.Beat <= old.Beat:
		return true, nil
	case old == nil && (!t.m.Join || t.m.Leave):
		return false, nil
	}
	d := &memberDoc{
		Session: int64(self.Session), Name: self.Name, Beat: self.Beat, Lease: self.Lease.Microseconds(), Presence: self.Presence,
		Handlers: self.Handlers, Free: self.Free, Serves: []serving{}, Joined: t.now, Renewed: t.now,
	}
	for _, sv := range self.Serves {
		d.Serves = append(d.Serves, serving(sv))
	}
	t.members[d.Session] = d
	if old != nil {
		d.Joined, d.Flag = old.Joined, old.Flag && old.Presence == d.Presence
		_, err = t.s.members.ReplaceOne(ctx, bson.M{"_id": d.Session}, d)
		return true, err
	}
	fences := make([]any, lanes)
	for lane := range fences {
		fences[lane] = bson.M{"_id": fenceID{d.Session, int32(lane)}, "n": 0, "hlc": int64(0)}
	}
	if _, err = t.s.members.InsertOne(ctx, d); err == nil {
		_, err = t.s.fences.InsertMany(ctx, fences)
	}
	return true, raced(err)
}

// flag sets the flag of a member that still has the given presence.
func (t *meeting) flag(ctx context.Context, f core.Flagging) error {
	d := t.members[int64(f.Session)]
	if d == nil || d.Presence != f.Presence || f.Presence == 0 || d.Flag {
		return nil
	}
	d.Flag = true
	_, err := t.s.members.UpdateOne(ctx, bson.M{"_id": d.Session}, bson.M{"$set": bson.M{"flag": true}})
	return err
}

// end frees the units and the records of a member. The records that it held can have been delivered. If it died, each
// of them counts a crash, and its units keep the number up to which it can have read. It conflicts with every call of
// the member that runs.
func (t *meeting) end(ctx context.Context, session core.Session, died bool) error {
	delete(t.members, int64(session))
	if _, err := t.s.members.DeleteOne(ctx, bson.M{"_id": int64(session)}); err != nil {
		return err
	}
	if err := t.keepStamp(ctx, session); err != nil {
		return err
	}
	if _, err := t.s.fences.DeleteMany(ctx, bson.M{"_id": bson.M{"$in": fencesOf(session)}}); err != nil {
		return err
	}
	crashes, careful := 0, int64(0)
	if died {
		crashes = 1
		var seq sequence
		err := t.s.meta.FindOne(ctx, sequenceID, options.FindOne().SetProjection(bson.M{"value": 1})).Decode(&seq)
		if err != nil {
			return err
		}
		careful = seq.Value
	}
	_, err := t.s.outbox.UpdateMany(ctx, bson.M{"hold": int64(session)}, bson.M{
		"$set":   bson.M{"hold": int64(0), "maybe": true},
		"$unset": bson.M{"held": ""},
		"$inc":   bson.M{"crashes": crashes, "version": int64(crashes)},
	})
	if err != nil {
		return err
	}
	for _, d := range t.routes {
		for i := range d.Units {
			if u := &d.Units[i]; u.Owner == int64(session) {
				u.Owner, u.Term, u.Careful = 0, u.Term+1, max(u.Careful, careful)
				d.dirty = true
			}
		}
	}
	return nil
}

// keepStamp keeps the greatest stamp that a member settled.
func (t *meeting) keepStamp(ctx context.Context, session core.Session) error {
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

// touch writes a fence of a member, so that its removal conflicts, and reports whether it is one.
func (t *meeting) touch(ctx context.Context, ids bson.A) (bool, error) {
	res, err := t.s.fences.UpdateMany(ctx, bson.M{"_id": bson.M{"$in": ids}}, bson.M{"$inc": bson.M{"n": 1}})
	if err != nil {
		return false, err
	}
	return res.MatchedCount > 0, nil
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
