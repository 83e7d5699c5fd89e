package mongo

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
)

// Tx is what handlers and producers get.
type Tx = *driver.Session

// ST-16 ST-01: without a running transaction nothing is staged, cancelled or marked, and the error says what to do.
func TestRefusedWithoutTransaction(t *testing.T) {
	t.Parallel()
	m := testenv.MongoDB(t)
	s := openIn(t, connect(t, m.URI).Database(m.Database), Options{})
	idle, err := s.db.Client().StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer idle.EndSession(context.Background())
	ended, err := begin(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := ended.AbortTransaction(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer ended.EndSession(context.Background())
	for name, sess := range map[string]Tx{"nil": nil, "no transaction": idle, "an ended one": ended} {
		_, stage := s.Stage(t.Context(), sess, message(1))
		_, cancel := s.Cancel(t.Context(), sess, waybill.CancelKey{ID: "1"})
		_, mark := s.Mark(t.Context(), sess, core.InboxKey{Consumer: "c", Source: "/s", ID: "1"})
		for what, err := range map[string]error{"stage": stage, "cancel": cancel, "mark": mark} {
			if !errors.Is(err, waybill.ErrInvalid) {
				t.Errorf("%s, %s: %v", what, name, err)
			}
		}
	}
	other := openIn(t, connect(t, m.URI).Database(m.Database), Options{})
	foreign, err := begin(other)
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.EndSession(context.Background())
	if _, err := s.Stage(t.Context(), foreign, message(1)); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("another client's session: %v", err)
	}
	if n, err := s.outbox.CountDocuments(t.Context(), bson.M{}); err != nil || n != 0 {
		t.Errorf("%d records: %v", n, err)
	}
}

// ST-03: the context of a unit of work carries the session: business writes and messages are one transaction, run again
// together when they conflict, and rolled back together.
func TestUnitOfWork(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	u, err := s.NewUnitOfWork()
	if err != nil {
		t.Fatal(err)
	}
	orders := s.db.Collection("orders")
	if _, err := orders.InsertOne(t.Context(), bson.M{"_id": "count", "n": 0}); err != nil {
		t.Fatal(err)
	}
	order := func(ctx context.Context, i int) error {
		if _, err := orders.UpdateOne(ctx, bson.M{"_id": "count"}, bson.M{"$inc": bson.M{"n": 1}}); err != nil {
			return err
		}
		return u.Stage(ctx, message(i), waybill.RawMessage("t.x", "", nil, waybill.Routes("same"), waybill.Replace("k")))
	}
	const workers, rounds = 3, 5
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds {
				if err := u.Do(t.Context(), func(ctx context.Context, _ Tx) error { return order(ctx, w*rounds+i) }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	errNo := errors.New("no")
	err = u.Do(t.Context(), func(ctx context.Context, _ Tx) error {
		if err := order(ctx, 1000); err != nil {
			return err
		}
		return errNo
	})
	if !errors.Is(err, errNo) {
		t.Errorf("the error of a function came out as %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = u.Do(t.Context(), func(ctx context.Context, _ Tx) error {
			_ = order(ctx, 1001)
			panic("no")
		})
	}()
	var count struct{ N int }
	if err := orders.FindOne(t.Context(), bson.M{"_id": "count"}).Decode(&count); err != nil {
		t.Fatal(err)
	}
	n, err := s.outbox.CountDocuments(t.Context(), bson.M{"route": benchRoute})
	if err != nil || n != workers*rounds || count.N != workers*rounds {
		t.Errorf("%d orders and %d messages of %d transactions: %v", count.N, n, workers*rounds, err)
	}
	if n, err := s.outbox.CountDocuments(t.Context(), bson.M{"route": "same"}); err != nil || n != 1 {
		t.Errorf("%d messages with one dedupe key: %v", n, err)
	}
}

// counted returns a store in a database of its own, and the number of its commands so far.
func counted(t *testing.T) (*Store, *atomic.Int64) {
	t.Helper()
	m, n := testenv.MongoDB(t), new(atomic.Int64)
	c, err := driver.Connect(options.Client().ApplyURI(m.URI).SetMonitor(&event.CommandMonitor{
		Started: func(context.Context, *event.CommandStartedEvent) { n.Add(1) },
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return openIn(t, c.Database(m.Database), Options{}), n
}

// TQ-07: what several members of a process have published is one transaction.
func TestGroupedSettles(t *testing.T) {
	t.Parallel()
	s, n := counted(t)
	together, alone := sharedtest.GroupedSettles(t, s, func(msgs ...waybill.Message) {
		in(t, s, func(ctx context.Context, tx *driver.Session) error {
			_, err := s.Stage(ctx, tx, msgs...)
			return err
		})
	}, n.Load)
	t.Logf("%d commands together, %d alone", together, alone)
	if together > 4 {
		t.Errorf("%d commands for five members together, want two for the fences, the deletion and the commit", together)
	}
}

// The round trips of a Stage do not grow with its messages: three for new ones, nine at most. ST-02 DB-15.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	s, n := counted(t)
	stage := func(msgs ...waybill.Message) int {
		sess, err := begin(s)
		if err != nil {
			t.Fatal(err)
		}
		defer sess.EndSession(context.Background())
		before := n.Load()
		if _, err := s.Stage(t.Context(), sess, msgs...); err != nil {
			t.Fatal(err)
		}
		count := int(n.Load() - before)
		if err := commit(t.Context(), sess); err != nil {
			t.Fatal(err)
		}
		return count
	}
	var fresh, first, second []waybill.Message
	for i := range 300 {
		k := strconv.Itoa(i)
		fresh = append(fresh, waybill.RawMessage("t.x", "", nil))
		first = append(first, waybill.RawMessage("t.y", "", nil, waybill.DedupeKey(k), waybill.Key(k)))
		second = append(second, waybill.RawMessage("t.y", "", nil, waybill.ID(k), waybill.Replace(k), waybill.Key(k)))
	}
	if got := stage(fresh...); got != 3 {
		t.Errorf("%d round trips for new messages, want 3", got)
	}
	if got := stage(first...); got > 9 {
		t.Errorf("%d round trips for messages with dedupe keys, want 9 at most", got)
	}
	if _, err := s.outbox.UpdateMany(t.Context(), bson.M{"slot": bson.M{"$lt": 32}}, bson.M{"$set": bson.M{"hold": int64(1)}}); err != nil {
		t.Fatal(err) // some cannot be replaced
	}
	if got := stage(second...); got > 9 {
		t.Errorf("%d round trips for messages that replace others, want 9 at most", got)
	}
}
