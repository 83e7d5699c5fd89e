package mongo

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

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
