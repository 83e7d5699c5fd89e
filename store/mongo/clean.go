package mongo

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

var _ core.Cleaner = (*Store)(nil)

// cleanBatch bounds the records of each kind that one call of Clean touches: expired, published, abandoned, cancelled.
const cleanBatch = 1000

// Clean keeps the collections small; see [core.Cleaner]. One call abandons up to 1,000 messages that expired while they
// waited for a time, or are due in partitions without an owner. It deletes up to 1,000 records each of those published,
// abandoned and cancelled whose retention has expired. Each kind is a transaction of its own. A record that another
// transaction has locked is left for later. The lease is a document of the meta collection, from a millisecond to an
// hour long.
func (s *Store) Clean(ctx context.Context, owner string, lease time.Duration) (core.Cleaned, error) {
	if err := core.CheckClean(owner, lease); err != nil {
		return core.Cleaned{}, err
	}
	c := cleaner{s: s, owner: core.ErrorText(errors.New(owner)), lease: lease}
	if err := c.elect(ctx); err != nil || !c.done.Leader {
		return core.Cleaned{}, err
	}
	c.done.Deleted = map[core.CleanedKind]int{}
	if err := c.expire(ctx); err != nil {
		return core.Cleaned{}, err
	}
	for _, class := range core.RetentionClasses() {
		keep := class.KeptFor(s.opts.Retention)
		if keep == waybill.Forever {
			continue
		}
		if err := c.purge(ctx, class, keep); err != nil {
			return core.Cleaned{}, err
		}
	}
	return c.done, classify("clean", s.sweepTickets(ctx))
}

// cleaner is one call of Clean.
type cleaner struct {
	s     *Store
	owner string
	lease time.Duration
	done  core.Cleaned
}

// elect takes or renews the lease.
func (c *cleaner) elect(ctx context.Context) error {
	return c.s.transact(ctx, "clean", func(ctx context.Context, w *work) error {
		c.done.Leader = false
		if err := w.clock(ctx); err != nil {
			return err
		}
		var d struct {
			Owner string    `bson:"owner"`
			Until time.Time `bson:"until"`
		}
		id := bson.M{"_id": "cleaner"}
		if err := c.s.meta.FindOne(ctx, id).Decode(&d); err != nil {
			return err
		}
		if d.Owner != c.owner && d.Until.After(w.now) && d.Until.Before(w.now.Add(core.MaxCleanLease+time.Second)) {
			return nil // somebody else cleans; a lease that ends later was written by a wrong clock
		}
		_, err := c.s.meta.UpdateOne(ctx, id, bson.M{"$set": bson.M{"owner": c.owner, "until": later(w.now, c.lease)}})
		c.done.Leader = err == nil
		return err
	})
}

// expire abandons expired records, and tells the owners of keys that were blocked.
func (c *cleaner) expire(ctx context.Context) error {
	var expired []*record
	err := c.s.transact(ctx, "clean", func(ctx context.Context, w *work) (err error) {
		expired, err = w.expired(ctx)
		return err
	})
	if err != nil {
		return err
	}
	p := pieces{
		s: c.s, op: "clean",
		do: func(ctx context.Context, w *work, from, to int) (func(), error) {
			n, err := w.expire(ctx, expired[from:to])
			return func() { c.done.Expired += n }, err
		},
		busy: func(int) {},
	}
	if err := p.run(ctx, 0, len(expired)); err != nil {
		return err
	}
	c.done.More = c.done.Expired >= cleanBatch
	return nil
}

// expired returns records that expired while they wait. Other ready records are left to the owner of their partition,
// if there is one.
func (w *work) expired(ctx context.Context) ([]*record, error) {
	if err := w.clock(ctx); err != nil {
		return nil, err
	}
	docs, err := w.routeDocs(ctx, nil)
	if err != nil {
		return nil, err
	}
	known, either := bson.A{}, bson.A{bson.M{"phase": bson.M{"$in": bson.A{phaseTimer, phaseRetry}}}}
	for _, d := range docs {
		free := core.AllSlots
		for i := range d.Partitions {
			if u := &d.Partitions[i]; u.Owner != 0 {
				free &^= core.SlotRange(uint8(u.From), uint8(u.To))
			}
		}
		if free == core.AllSlots {
			continue
		}
		known = append(known, d.Route)
		if free != 0 {
			either = append(either, slotFilter(bson.M{"phase": phaseReady, "route": d.Route}, free))
		}
	}
	either = append(either, bson.M{"phase": phaseReady, "route": bson.M{"$nin": known}})
	return w.all(ctx, bson.M{
		"expires": bson.M{"$lte": w.now}, "hold": int64(0),
		"$or": either,
	}, w.by("expires").SetProjection(headOnly).SetSort(bson.M{"expires": 1}).SetLimit(cleanBatch))
}

// expire abandons those of list that are as they were. It leaves the key blocked if abandoned messages block it.
func (w *work) expire(ctx context.Context, list []*record) (int, error) {
	if err := w.clock(ctx); err != nil {
		return 0, err
	}
	now, err := w.unchanged(ctx, list)
	if err != nil {
		return 0, err
	}
	docs, err := w.routeDocs(ctx, nil)
	if err != nil {
		return 0, err
	}
	var models []driver.WriteModel
	var told []core.Notice
	for _, r := range now {
		_, tells := rules.Sweeps(r.facts(), docs[r.Route].partitionOf(r))
		models = append(models, change(r.ID, r.abandon(docs[r.Route], waybill.ReasonExpired, w.now)))
		if tells {
			told = append(told, noticeOf(core.NoticeKey, r))
		}
	}
	if err := w.write(ctx, models); err != nil {
		return 0, locked(err)
	}
	return len(now), w.tell(ctx, told)
}

// unchanged returns those of list that are as they were and that no session holds.
func (w *work) unchanged(ctx context.Context, list []*record) (out []*record, err error) {
	refs := make([]core.Ref, len(list))
	for i, r := range list {
		refs[i] = r.ref()
	}
	found, err := w.byID(ctx, refs, headOnly)
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		if now := found[r.ID]; now != nil && now.Hold == 0 && now.Seq == r.Seq && now.Version == r.Version && now.Phase == r.Phase {
			out = append(out, now)
		}
	}
	return out, nil
}

// purge deletes the oldest records of class that are kept long enough. A key that one of them blocked goes on.
func (c *cleaner) purge(ctx context.Context, class core.RetentionClass, keep time.Duration) error {
	var old []*record
	err := c.s.transact(ctx, "clean", func(ctx context.Context, w *work) (err error) {
		if err := w.clock(ctx); err != nil {
			return err
		}
		old, err = w.all(ctx, bson.M{"class": int32(class), "settled": bson.M{"$lte": w.now.Add(-keep)}},
			w.by("settled").SetProjection(headOnly).SetSort(bson.M{"settled": 1}).SetLimit(cleanBatch))
		return err
	})
	if err != nil {
		return err
	}
	total := 0
	p := pieces{
		s: c.s, op: "clean",
		do: func(ctx context.Context, w *work, from, to int) (func(), error) {
			gone, err := w.drop(ctx, old[from:to])
			return func() {
				total += len(gone)
				for _, r := range gone {
					c.done.Deleted[core.CleanedKind{State: r.Phase.state(), Reason: waybill.Reason(r.Reason)}]++
				}
			}, err
		},
		busy: func(int) {},
	}
	if err := p.run(ctx, 0, len(old)); err != nil {
		return err
	}
	c.done.More = c.done.More || total >= cleanBatch
	return nil
}

// drop deletes those of list that are as they were, and returns them.
func (w *work) drop(ctx context.Context, list []*record) ([]*record, error) {
	now, err := w.unchanged(ctx, list)
	if err != nil || len(now) == 0 {
		return nil, err
	}
	ids := bson.A{}
	var told []core.Notice
	for _, r := range now {
		ids = append(ids, r.ID)
		if rules.Tells(r.facts()) {
			told = append(told, noticeOf(core.NoticeKey, r))
		}
	}
	if _, err := w.s.outbox.DeleteMany(ctx, bson.M{"_id": bson.M{"$in": ids}}); err != nil {
		return nil, locked(err)
	}
	return now, w.tell(ctx, told)
}
