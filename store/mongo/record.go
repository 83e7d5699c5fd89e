package mongo

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
	"github.com/waybill-go/waybill/hlc"
)

// phase is where a record is in its life. The numbers are stored. They are those of core.State, but for phaseTimer.
type phase int32

const (
	phaseReady     = phase(core.StatePending)   // due: in line, also if somebody holds it
	phaseTimer     = phase(2)                   // pending, scheduled for later
	phasePublished = phase(core.StatePublished) // kept for its retention
	phaseRetry     = phase(core.StateFailed)    // waits for its next attempt
	phaseAbandoned = phase(core.StateAbandoned)
)

func (p phase) state() core.State {
	if p == phaseTimer {
		return core.StatePending
	}
	return core.State(p)
}

// recordID identifies a message on a route.
type recordID struct {
	Route string `bson:"route"`
	ID    string `bson:"id"`
}

// dedupeID names a live message by its dedupe key.
type dedupeID struct {
	Route string `bson:"route"`
	Topic string `bson:"topic"`
	Key   string `bson:"key"`
}

// record is a document of the outbox.
type record struct {
	ID          recordID  `bson:"_id"`
	Seq         int64     `bson:"seq"`
	Route       string    `bson:"route"` // as in the id, for indexes
	Key         string    `bson:"key"`
	Slot        int32     `bson:"slot"`
	Version     int64     `bson:"version"`
	Phase       phase     `bson:"phase"`
	Due         time.Time `bson:"due,omitempty"` // of timers and retries
	Hold        int64     `bson:"hold"`          // session of the holder; 0 = none
	Maybe       bool      `bson:"maybe"`         // it can have arrived
	Cancellable bool      `bson:"cancellable"`
	Blocks      bool      `bson:"blocks"` // it was abandoned, and blocks its key on routes that block
	Attempts    int       `bson:"attempts"`
	Deliveries  int       `bson:"deliveries"`
	Crashes     int       `bson:"crashes"`
	HLC         int64     `bson:"hlc"`
	Topic       string    `bson:"topic"`
	Dedupe      *dedupeID `bson:"dedupe,omitempty"` // while it is live
	Since       time.Time `bson:"since"`            // when it was or is first due
	Expires     time.Time `bson:"expires,omitempty"`

	DedupeKey string        `bson:"dedupe_key,omitempty"` // as it was staged
	Held      time.Time     `bson:"held,omitempty"`
	Settled   time.Time     `bson:"settled,omitempty"`
	Class     *int32        `bson:"class,omitempty"` // core.RetentionClass, of settled ones
	Reason    string        `bson:"reason,omitempty"`
	Error     string        `bson:"error,omitempty"`
	ErrorAt   time.Time     `bson:"error_at,omitempty"`
	Attrs     bson.RawValue `bson:"attrs"`
	Body      []byte        `bson:"body"`

	unreadable error
}

// withoutBody and headOnly leave out what is large.
var (
	withoutBody = bson.M{"body": 0}
	headOnly    = bson.M{"body": 0, "attrs": 0, "error": 0}
)

func (r *record) ref() core.Ref {
	return core.Ref{Route: r.ID.Route, Seq: r.Seq, ID: r.ID.ID, Version: r.Version}
}
func (r *record) live() bool           { return !r.Phase.state().Terminal() }
func (r *record) waits() bool          { return r.Phase == phaseTimer || r.Phase == phaseRetry }
func (r *record) holder() core.Session { return core.Session(r.Hold) }
func (r *record) slot() uint8          { return uint8(r.Slot) }

// facts returns the facts about r that the rules need; nil if r is nil.
func (r *record) facts() *rules.Row {
	if r == nil {
		return nil
	}
	return &rules.Row{
		Ref: r.ref(), Slot: r.slot(), State: r.Phase.state(), Reason: waybill.Reason(r.Reason), Holder: r.holder(), Keyed: r.Key != "",
		Waits: r.waits(), Cancellable: r.Cancellable, Blocks: r.Blocks, MaybeSent: r.Maybe,
		Attempts: r.Attempts, Deliveries: r.Deliveries, Crashes: r.Crashes,
	}
}

// become makes r what a rule has made of it, and returns the update that makes the stored record the same.
func (r *record) become(to *rules.Change, now time.Time) bson.M {
	r.Phase, r.Reason, r.Hold, r.Version = phase(to.State), string(to.Reason), int64(to.Holder), to.Version
	if to.Timer() {
		r.Phase = phaseTimer
	}
	r.Blocks, r.Maybe, r.Attempts, r.Deliveries, r.Crashes = to.Blocks, to.MaybeSent, to.Attempts, to.Deliveries, to.Crashes
	set := bson.M{
		"phase": r.Phase, "hold": r.Hold, "version": r.Version, "blocks": r.Blocks, "maybe": r.Maybe,
		"attempts": r.Attempts, "deliveries": r.Deliveries, "crashes": r.Crashes,
	}
	unset := bson.M{"held": ""}
	if r.Reason != "" {
		set["reason"] = r.Reason
	} else {
		unset["reason"] = ""
	}
	if to.Due {
		set["due"] = later(now, to.In)
	} else if !to.Waits {
		unset["due"] = ""
	}
	if to.Error != "" {
		set["error"], set["error_at"] = to.Error, now
	}
	if !to.Live() {
		class := int32(core.RetentionClassOf(to.State, to.Reason))
		r.Settled, r.Class, r.Dedupe = now, &class, nil
		set["settled"], set["class"] = now, class
		unset["dedupe"] = ""
	}
	return bson.M{"$set": set, "$unset": unset}
}

// abandon ends r for a caller other than its owner, and returns the update that does.
func (r *record) abandon(d *routeDoc, reason waybill.Reason, now time.Time) bson.M {
	return r.become(&rules.Change{Row: rules.End(r.facts(), d.partitionOf(r), reason)}, now)
}

// obstructs returns r as a record that blocks its key, seen by self. Blocking abandoned ones count if block is set.
func (r *record) obstructs(self core.Session, block bool) (core.BlockingRecord, bool) {
	w := core.BlockingRecord{Ref: r.ref(), Slot: r.slot(), Key: r.Key, HeldBy: r.holder(), Why: r.facts().Obstructs(self, block)}
	return w, w.Why != 0
}

// decode reads a document. Of a spoiled one it reads all that can be read, and sets unreadable.
func decode(raw bson.Raw) record {
	var r record
	err := bson.Unmarshal(raw, &r)
	if err == nil {
		return r
	}
	r = record{unreadable: fmt.Errorf("a field has another type than Stage writes: %w", err)}
	for name, at := range map[string]any{
		"_id": &r.ID, "seq": &r.Seq, "key": &r.Key, "slot": &r.Slot, "version": &r.Version, "phase": &r.Phase, "hold": &r.Hold,
		"topic": &r.Topic, "since": &r.Since,
	} {
		_ = raw.Lookup(name).Unmarshal(at) // what cannot be read stays zero
	}
	return r
}

// each calls fn for the records that filter selects until fn returns false.
func (w *work) each(ctx context.Context, filter any, opts *options.FindOptionsBuilder, fn func(r *record) bool) error {
	cur, err := w.s.outbox.Find(ctx, filter, opts)
	if err != nil {
		return err
	}
	defer func() { _ = cur.Close(ctx) }()
	for cur.Next(ctx) {
		r := decode(cur.Current)
		r.Body = append([]byte(nil), r.Body...)
		if !fn(&r) {
			return nil
		}
	}
	return cur.Err()
}

// by are options that name the index to use.
func (w *work) by(index string) *options.FindOptionsBuilder {
	return options.Find().SetHint(w.s.opts.Prefix + index)
}

// all returns the records that filter selects.
func (w *work) all(ctx context.Context, filter any, opts *options.FindOptionsBuilder) (out []*record, err error) {
	err = w.each(ctx, filter, opts, func(r *record) bool {
		out = append(out, r)
		return true
	})
	return out, err
}

// byID returns the records with these ids, of any version.
func (w *work) byID(ctx context.Context, refs []core.Ref, projection bson.M) (map[recordID]*record, error) {
	ids := make(bson.A, len(refs))
	for i, ref := range refs {
		ids[i] = recordID{ref.Route, ref.ID}
	}
	found := map[recordID]*record{}
	if len(ids) == 0 {
		return found, nil
	}
	opts := options.Find().SetProjection(projection).SetBatchSize(int32(len(ids) + 1)) // in one round trip
	err := w.each(ctx, bson.M{"_id": bson.M{"$in": ids}}, opts, func(r *record) bool {
		found[r.ID] = r
		return true
	})
	return found, err
}

// envelope returns the message of r, and an error if a part of it cannot be read.
func (s *Store) envelope(r *record) (waybill.Envelope, error) {
	e := waybill.Envelope{ID: r.ID.ID, Topic: r.Topic, Key: r.Key, HLC: hlc.Timestamp(r.HLC), Body: r.Body}
	err := r.unreadable
	if bad := decodeAttrs(&e, r.Attrs); err == nil {
		err = bad
	}
	if e.Type == "" {
		e.Type = e.Topic
	}
	if e.Source == "" {
		e.Source = s.opts.Source
	}
	if err != nil {
		err = fmt.Errorf("waybill/mongo: read: record %d of %s: %w", r.Seq, s.outbox.Name(), err)
	}
	return e, err
}

// record returns r for the engine.
func (w *work) record(r *record) core.Record {
	rec := core.Record{
		Ref: r.ref(), Slot: r.slot(), Attempts: r.Attempts, Deliveries: r.Deliveries, Crashes: r.Crashes, Failed: r.Phase == phaseRetry,
		Cancellable: r.Cancellable, HeldBy: r.holder(), DueFor: max(w.now.Sub(r.Since), 0),
	}
	rec.Envelope, rec.Err = w.s.envelope(r)
	if !r.Expires.IsZero() {
		rec.Expires, rec.ExpiresIn = true, r.Expires.Sub(w.now)
		if rec.Envelope.Expires.IsZero() {
			rec.Envelope.Expires = r.Expires.UTC()
		}
	}
	return rec
}

// slotFilter adds to filter that a record is in slots.
func slotFilter(filter bson.M, slots core.Slots) bson.M {
	if slots == core.AllSlots {
		return filter
	}
	list := bson.A{}
	for n := range uint8(core.NumSlots) {
		if slots.Has(n) {
			list = append(list, int32(n))
		}
	}
	filter["slot"] = bson.M{"$in": list}
	return filter
}

// merge joins the parts of each route into one, in the order in which routes are first named.
func merge(parts []core.RouteSlots) []core.RouteSlots {
	var out []core.RouteSlots
	at := map[string]int{}
	for _, p := range parts {
		if i, ok := at[p.Route]; ok {
			out[i].Slots, out[i].DueExcludeHeld = out[i].Slots|p.Slots, out[i].DueExcludeHeld && p.DueExcludeHeld
			continue
		}
		at[p.Route] = len(out)
		out = append(out, p)
	}
	return out
}

// later returns t + d, never earlier, in the milliseconds that MongoDB stores.
func later(t time.Time, d time.Duration) time.Time { return ceil(t.Add(d)) }

func ceil(t time.Time) time.Time {
	if down := t.Truncate(time.Millisecond); !down.Equal(t) {
		return down.Add(time.Millisecond)
	}
	return t
}

// write executes several changes of the outbox as one command.
func (w *work) write(ctx context.Context, models []driver.WriteModel) error {
	if len(models) == 0 {
		return nil
	}
	_, err := w.s.outbox.BulkWrite(ctx, models)
	return err
}

// change returns a write model that changes the record with id.
func change(id recordID, update any) driver.WriteModel {
	return driver.NewUpdateOneModel().SetFilter(bson.M{"_id": id}).SetUpdate(update)
}
