package mongo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sleep"
)

var (
	_ core.Inbox[*driver.Session]      = (*Store)(nil)
	_ core.BatchInbox[*driver.Session] = (*Store)(nil)
	_ core.Marker[*driver.Session]     = (*Store)(nil)
	_ core.InboxPurger                 = (*Store)(nil)
)

const (
	// inboxWait is how long Do tries a key that another transaction is just handling, or a handler that conflicts.
	inboxWait = 30 * time.Second
	// swallowTries is how often a handler runs whose transaction the server has ended before the commit. A server
	// that changes its role does that, and a handler that swallows the error of a failed command, too.
	swallowTries = 3
	// longRun is how long a handler runs at least whose transaction the server may have ended for its age: half of
	// the 60 s that transactionLifetimeLimitSeconds is by default.
	longRun = 30 * time.Second
)

// inboxID is the id of a mark.
type inboxID struct {
	Consumer string `bson:"consumer"`
	Source   string `bson:"source"`
	ID       string `bson:"id"`
}

// Do runs fn once for key, as core.Inbox says. The context that fn gets carries the session: with it the collections of
// the same client take part in the transaction. MongoDB does not wait for a concurrent Do of the same key; this Do
// tries again, for at most 30 s. It also runs fn again if its writes conflict with others. fn must return the error of
// a command that failed, since the server has ended the transaction then. The server also ends a transaction after
// transactionLifetimeLimitSeconds, 60 by default: a handler that takes longer has failed.
func (s *Store) Do(ctx context.Context, key core.InboxKey, fn func(ctx context.Context, tx *driver.Session) error) (core.InboxStatus, error) {
	if err := core.CheckInboxKeys(key); err != nil {
		return core.InboxNone, err
	}
	out, err := s.handle(ctx, []core.InboxKey{key}, func(ctx context.Context, tx *driver.Session, _ []int) error { return fn(ctx, tx) })
	if err != nil {
		return core.InboxNone, err
	}
	return out[0], nil
}

// DoBatch is Do for many keys in one transaction; see [core.BatchInbox]. At most 100,000 keys.
func (s *Store) DoBatch(
	ctx context.Context, keys []core.InboxKey, fn func(ctx context.Context, tx *driver.Session, fresh []int) error,
) ([]core.InboxStatus, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	if err := core.CheckInboxKeys(keys...); err != nil {
		return nil, err
	}
	return s.handle(ctx, keys, fn)
}

// handlerError is the error of a handler.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }
func (e *handlerError) Unwrap() error { return e.err }

// handle marks keys and runs fn with the indexes of the new ones in one transaction, again as long as that conflicts.
func (s *Store) handle(
	ctx context.Context, keys []core.InboxKey, fn func(ctx context.Context, tx *driver.Session, fresh []int) error,
) (out []core.InboxStatus, err error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	var fresh []int
	swallowed := 0
	for try, until := 0, time.Now().Add(inboxWait); ; try++ {
		ended, began := false, time.Now() // fn has succeeded
		err := s.once(ctx, func(ctx context.Context) (err error) {
			ended = false
			if out, fresh, err = s.mark(ctx, keys); err != nil || len(fresh) == 0 {
				return err
			}
			if err := fn(ctx, driver.SessionFromContext(ctx), fresh); err != nil {
				return &handlerError{err}
			}
			if !driver.SessionFromContext(ctx).TransactionRunning() {
				return fmt.Errorf("waybill/mongo: inbox: %w: the handler ended the transaction itself; "+
					"it must leave that to the inbox", waybill.ErrInvalid)
			}
			ended = true
			return nil
		})
		if err == nil {
			return out, nil
		}
		switch took := time.Since(began); {
		case hasCode(err, 251) && took >= s.longRun:
			// A run that is as long again ends in the same way: it must cost an attempt, or it never ends.
			return nil, rolledBack("after %s, which is longer than the server allows: make the handler shorter, or raise transactionLifetimeLimitSeconds (%w)",
				took.Round(time.Second), err)
		case ended && hasCode(err, 251):
			if swallowed++; swallowed == swallowTries {
				return nil, rolledBack("before its commit: the handler must return the error of a command that failed (%w)", err)
			}
		}
		if !conflicts(err) || time.Now().After(until) || sleep.For(ctx, backOff(try)) != nil {
			return nil, inboxError(err)
		}
	}
}

// rolledBack is the error of a handler whose transaction the server has ended through its own fault.
func rolledBack(format string, args ...any) error {
	return &waybill.Error{Op: "waybill/mongo: inbox", Class: waybill.ClassRejected, Err: fmt.Errorf("the transaction was rolled back "+format, args...)}
}

// inboxError returns the handler's own error, unless the server cannot be used now: that costs no attempt.
func inboxError(err error) error {
	h, ok := errors.AsType[*handlerError](err)
	if !ok {
		return classify("inbox", err)
	}
	if waybill.ClassOf(h.err) == waybill.ClassUnknown && down(h.err) {
		return outage("inbox", h.err)
	}
	return h.err
}

// mark inserts the marks of keys that are new, in their order, and returns the status of each key, and the indexes of
// those.
func (s *Store) mark(ctx context.Context, keys []core.InboxKey) (out []core.InboxStatus, fresh []int, err error) {
	ids := make(bson.A, len(keys))
	at, kept := map[inboxID]int{}, map[inboxID][]byte{}
	for i := range keys {
		id := inboxID{keys[i].Consumer, keys[i].Source, keys[i].ID}
		ids[i] = id
		if _, twice := at[id]; !twice {
			at[id] = i
		}
	}
	for chunk := range slices.Chunk(ids, maxIn) {
		known, err := s.marks(ctx, bson.M{"_id": bson.M{"$in": chunk}}, options.Find())
		if err != nil {
			return nil, nil, err
		}
		for _, m := range known {
			delete(at, m.ID)
			kept[m.ID] = m.ContentHash
		}
	}
	for id, i := range at {
		fresh = append(fresh, i)
		kept[id] = keys[i].ContentHashBytes() // for what stands twice
	}
	out = make([]core.InboxStatus, len(keys))
	for i := range keys {
		out[i] = keys[i].StatusOfMarked(kept[ids[i].(inboxID)]) //nolint:forcetypeassert // as above
	}
	for _, i := range fresh {
		out[i] = core.InboxNew
	}
	if len(fresh) == 0 {
		return out, nil, nil
	}
	slices.Sort(fresh)
	w := work{s: s}
	if err := w.clock(ctx); err != nil {
		return nil, nil, err
	}
	docs := make([]any, len(fresh))
	for i, n := range fresh {
		doc := bson.D{{Key: "_id", Value: ids[n]}, {Key: "handled", Value: w.now}}
		if hash := keys[n].ContentHashBytes(); hash != nil {
			doc = append(doc, bson.E{Key: "content_hash", Value: hash})
		}
		docs[i] = doc
	}
	slices.SortFunc(docs, func(a, b any) int {
		return compareIDs(a.(bson.D)[0].Value.(inboxID), b.(bson.D)[0].Value.(inboxID)) //nolint:forcetypeassert // as above
	})
	_, err = s.inbox.InsertMany(ctx, docs)
	return out, fresh, raced(err)
}

// mark is one document of the inbox.
type mark struct {
	ID          inboxID `bson:"_id"`
	ContentHash []byte  `bson:"content_hash"`
}

// marks returns the marks that filter selects.
func (s *Store) marks(ctx context.Context, filter any, opts *options.FindOptionsBuilder) (all []mark, err error) {
	cur, err := s.inbox.Find(ctx, filter, opts.SetProjection(bson.M{"_id": 1, "content_hash": 1}))
	if err != nil {
		return nil, err
	}
	return all, cur.All(ctx, &all)
}

func compareIDs(a, b inboxID) int {
	return cmp.Or(cmp.Compare(a.Consumer, b.Consumer), cmp.Compare(a.Source, b.Source), cmp.Compare(a.ID, b.ID))
}

// Mark marks key in the transaction of sess; see [core.Marker]. If another transaction is just marking key, the error
// matches waybill.ErrRetryTx: roll back, and run the transaction again, as WithTransaction does by itself.
func (s *Store) Mark(ctx context.Context, sess *driver.Session, key core.InboxKey) (core.InboxStatus, error) {
	if err := running("mark", sess); err != nil {
		return core.InboxNone, err
	}
	if err := core.CheckInboxKeys(key); err != nil {
		return core.InboxNone, err
	}
	if err := s.ready(ctx); err != nil {
		return core.InboxNone, err
	}
	out, _, err := s.mark(driver.NewSessionContext(ctx, sess), []core.InboxKey{key})
	if err != nil {
		return core.InboxNone, classify("mark", err)
	}
	return out[0], nil
}

// PurgeInbox deletes old marks; see [core.InboxPurger]. At most 100,000 at a time.
func (s *Store) PurgeInbox(ctx context.Context, consumer string, age time.Duration, limit int) (n int, err error) {
	if err := core.CheckPurge(age, limit); err != nil {
		return 0, err
	}
	err = s.transact(ctx, "purge the inbox", func(ctx context.Context, w *work) error {
		n = 0
		if err := w.clock(ctx); err != nil {
			return err
		}
		consumers := []string{consumer}
		if consumer == "" {
			if err := s.inbox.Distinct(outside(ctx), "_id.consumer", bson.M{}).Decode(&consumers); err != nil {
				return err
			}
		}
		for _, c := range consumers {
			gone, err := s.purgeOf(ctx, c, w.now.Add(-age), limit-n)
			if err != nil {
				return err
			}
			if n += gone; n >= limit {
				break
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

func (s *Store) purgeOf(ctx context.Context, consumer string, before time.Time, limit int) (int, error) {
	marks, err := s.marks(ctx, bson.M{"_id.consumer": consumer, "handled": bson.M{"$lt": before}},
		options.Find().SetHint(s.opts.Prefix+"handled").SetSort(bson.M{"handled": 1}).SetLimit(int64(limit)))
	if err != nil {
		return 0, err
	}
	n, old := 0, make([]inboxID, len(marks))
	for i := range marks {
		old[i] = marks[i].ID
	}
	for chunk := range slices.Chunk(old, maxIn) {
		res, err := s.inbox.DeleteMany(ctx, bson.M{"_id": bson.M{"$in": chunk}})
		if err != nil {
			return 0, err
		}
		n += int(res.DeletedCount)
	}
	return n, nil
}
