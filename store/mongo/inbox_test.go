package mongo

import (
	"context"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/inboxtest"
)

// inboxHarness is the harness of core/inboxtest.
type inboxHarness struct {
	store   *Store
	effects *driver.Collection
}

func newInboxHarness(t *testing.T) *inboxHarness {
	t.Helper()
	s := open(t, Options{})
	h := &inboxHarness{s, s.db.Collection("effects")}
	if _, err := h.effects.InsertOne(t.Context(), bson.M{"_id": "there"}); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *inboxHarness) Inbox() core.Inbox[*driver.Session] { return h.store }

func (h *inboxHarness) Effect(ctx context.Context, tx *driver.Session, name string) error {
	_, err := h.effects.InsertOne(driver.NewSessionContext(ctx, tx), bson.M{"name": name})
	return err
}

func (h *inboxHarness) Effects(ctx context.Context, name string) (int, error) {
	n, err := h.effects.CountDocuments(ctx, bson.M{"name": name})
	return int(n), err
}

// Break inserts a duplicate.
func (h *inboxHarness) Break(ctx context.Context, tx *driver.Session) error {
	_, err := h.effects.InsertOne(driver.NewSessionContext(ctx, tx), bson.M{"_id": "there"})
	return err
}

func (h *inboxHarness) Begin(context.Context) (*driver.Session, func(ctx context.Context, commit bool) error, error) {
	sess, err := begin(h.store)
	return sess, func(ctx context.Context, ok bool) error {
		defer sess.EndSession(context.WithoutCancel(ctx))
		if ok {
			return commit(ctx, sess)
		}
		return sess.AbortTransaction(ctx)
	}, err
}

// IN-01 IN-02 IN-03 IN-04 IN-05 IN-07 IN-08 IN-09
func TestInbox(t *testing.T) {
	t.Parallel()
	h := newInboxHarness(t)
	inboxtest.Run(t, func(*testing.T) inboxtest.Harness[*driver.Session] { return h })
}

// The server ends a transaction that is too old. Its handler has failed, since the next run takes as long: whether it
// notices the end itself or the commit does. That is no outage, which would cost no attempt and never end.
func TestHandlerBeyondTheTransactionsLimit(t *testing.T) {
	t.Parallel()
	h := newInboxHarness(t)
	h.store.longRun = 0 // every run is that long
	for name, fn := range map[string]func(ctx context.Context, tx *driver.Session) error{
		"the commit notices": func(ctx context.Context, tx *driver.Session) error {
			_ = h.Break(ctx, tx)
			return nil
		},
		"the handler notices": func(ctx context.Context, tx *driver.Session) error {
			_ = h.Break(ctx, tx)
			return h.Effect(ctx, tx, "late")
		},
	} {
		runs := 0
		_, err := h.store.Do(t.Context(), core.InboxKey{Consumer: "c", Source: "/s", ID: name}, func(ctx context.Context, tx *driver.Session) error {
			runs++
			return fn(ctx, tx)
		})
		if waybill.ClassOf(err) != waybill.ClassRejected || runs != 1 || !strings.Contains(err.Error(), "transactionLifetimeLimitSeconds") {
			t.Errorf("%s: %d runs and %v (%s)", name, runs, err, waybill.ClassOf(err))
		}
	}
}

// A handler that swallows the error of a failed command has failed: that costs an attempt, and the handler does not run
// on and on. A handler whose transaction conflicts runs again, at no cost. IN-01 IN-03 IN-07.
func TestHandlersThatRunAgain(t *testing.T) {
	t.Parallel()
	h := newInboxHarness(t)
	key := core.InboxKey{Consumer: "c", Source: "/s", ID: "1"}
	runs := 0
	_, err := h.store.Do(t.Context(), key, func(ctx context.Context, tx *driver.Session) error {
		runs++
		_ = h.Break(ctx, tx)
		return nil
	})
	if waybill.ClassOf(err) != waybill.ClassRejected || runs != swallowTries {
		t.Errorf("a swallowed error: %d runs and %v (%s)", runs, err, waybill.ClassOf(err))
	}
	runs = 0
	status, err := h.store.Do(t.Context(), key, func(ctx context.Context, tx *driver.Session) error {
		if runs++; runs == 1 { // somebody else changes what this transaction reads and writes
			if err := h.effects.FindOne(ctx, bson.M{"_id": "there"}).Err(); err != nil {
				return err
			}
			if _, err := h.effects.UpdateOne(outside(ctx), bson.M{"_id": "there"}, bson.M{"$set": bson.M{"n": 1}}); err != nil {
				return err
			}
		}
		_, err := h.effects.UpdateOne(ctx, bson.M{"_id": "there"}, bson.M{"$inc": bson.M{"n": 1}})
		return err
	})
	if err != nil || status != core.InboxNew || runs != 2 {
		t.Errorf("a conflict: %d runs, %s and %v", runs, status, err)
	}
	runs = 0
	_, err = h.store.Do(t.Context(), core.InboxKey{Consumer: "c", Source: "/s", ID: "2"}, func(ctx context.Context, tx *driver.Session) error {
		runs++
		return h.Break(ctx, tx)
	})
	if !driver.IsDuplicateKeyError(err) || waybill.ClassOf(err) != waybill.ClassUnknown || runs != 1 {
		t.Errorf("the handler's own duplicate: %d runs and %v", runs, err)
	}
}
