package table_test

// Handlers of one queue end at the same moment, or one of their records is locked. These tests count the settles, and
// see that none waits for another one.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	mongostore "github.com/waybill-go/waybill/store/mongo"
	"github.com/waybill-go/waybill/transport/table"
)

// lockable is a store a round trip of virtual time away, some of whose records are locked. It counts the settles.
type lockable struct {
	sharedtest.Store
	mem *store

	mu      sync.Mutex
	locked  map[string]bool
	settles int
	stored  map[string]int // outcomes, by id
}

// newLockable returns a store whose calls take a trip each.
func newLockable(t *testing.T, trip func(), locked ...string) *lockable {
	t.Helper()
	s := &lockable{mem: newStore(t), locked: map[string]bool{}, stored: map[string]int{}}
	for _, id := range locked {
		s.locked[id] = true
	}
	s.Store = sharedtest.Store{OutboxStore: s.mem, Before: func(context.Context, string, any) error {
		trip()
		return nil
	}}
	return s
}

// Settle answers as every store does: a locked record is refused alone.
func (s *lockable) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	_ = s.Before(ctx, "settle", outcomes)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settles++
	res := make(core.Results, len(outcomes))
	for i := range outcomes {
		ref := outcomes[i].Ref()
		if s.locked[ref.ID] {
			res[i] = core.NewOutcomeError("test: settle", ref, core.ErrLocked)
			continue
		}
		if res[i] = s.mem.Settle(ctx, self, outcomes[i:i+1])[0]; res[i] == nil {
			s.stored[ref.ID]++
		}
	}
	return res
}

func (s *lockable) storedNow() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.stored)
}

func (s *lockable) unlock() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.locked)
}

var errLater = errors.New("later")

// TestSettlesOfAQueueGoTogether: what ten handlers that end at the same moment have decided is a few calls of the
// store, whatever they have decided.
//
// TQ-07
func TestSettlesOfAQueueGoTogether(t *testing.T) {
	t.Parallel()
	const handlers, rounds = 10, 20
	for name, verdict := range map[string]func(n int64) error{
		"done":    func(int64) error { return nil },
		"retries": func(int64) error { return errLater },
		"parked":  func(int64) error { return waybill.Reject(errLater) },
		"mixed":   func(n int64) error { return []error{nil, errLater, waybill.Reject(errLater)}[n%3] },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newLockable(t, func() { time.Sleep(5 * time.Millisecond) })
				for i := range handlers * rounds {
					stage(t, s.mem, message(fmt.Sprint("m-", i)))
				}
				c, err := consumer.New(newTable(t, s, table.Options{}), consumer.Options{
					Logger: quiet, Concurrency: handlers, Prefetch: handlers, Retry: waybill.RetryDelays(time.Hour),
				})
				if err != nil {
					t.Fatal(err)
				}
				var begun atomic.Int64
				ends := [rounds]chan struct{}{} // of each round, when all of it are being handled
				for i := range ends {
					ends[i] = make(chan struct{})
				}
				err = c.Handle(waybill.Subscription{Queue: "mails"}, waybill.Handler{Name: waybill.AnyMessage, Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) {
					n := begun.Add(1) - 1
					if n%handlers == handlers-1 {
						close(ends[n/handlers])
					}
					<-ends[n/handlers]
					return waybill.HandlerProcessed, verdict(n)
				}})
				if err != nil {
					t.Fatal(err)
				}
				begin(t, c)
				patience.Moving(t, "all are stored", func() (int, bool) { n := s.storedNow(); return n, n == handlers*rounds })
				s.mu.Lock()
				defer s.mu.Unlock()
				t.Logf("%d settles of %d messages in %d rounds", s.settles, handlers*rounds, rounds)
				if s.settles > 3*rounds {
					t.Errorf("%d settles of %d messages, want at most three a round", s.settles, handlers*rounds)
				}
			})
		})
	}
}

// TestLockedRecordHoldsUpNoOther: while transactions have locked many records that were handled, all others are handled
// and settled. The locked ones are settled afterwards, and no handler runs again for them.
//
// TQ-07
func TestLockedRecordHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	const n = 1000
	for name, tt := range map[string]struct {
		opts    consumer.Options
		inOrder bool
		verdict error
		calls   int
	}{
		"done": {opts: consumer.Options{}},
		// one more than are locked
		"few":      {opts: consumer.Options{Concurrency: 6, Prefetch: 6}, calls: 2000},
		"retries":  {opts: consumer.Options{}, verdict: errLater},
		"in order": {opts: consumer.Options{Concurrency: 5}, inOrder: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				patience.BudgetOf(t).Calls(max(tt.calls, 1000), "a thousand messages, with a prefetch of six one at a time")
				var locked []string
				for i := range 5 {
					locked = append(locked, fmt.Sprint("m-", 7+150*i))
				}
				s := newLockable(t, func() { time.Sleep(time.Millisecond) }, locked...)
				for i := range n {
					stage(t, s.mem, message(fmt.Sprint("m-", i)))
				}
				tt.opts.Logger, tt.opts.Retry = quiet, waybill.RetryDelays(time.Hour)
				c, err := consumer.New(newTable(t, s, table.Options{}), tt.opts)
				if err != nil {
					t.Fatal(err)
				}
				var handled atomic.Int64
				err = c.Handle(waybill.Subscription{Queue: "mails", InOrder: tt.inOrder}, waybill.Handler{Name: waybill.AnyMessage, Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) {
					handled.Add(1)
					return waybill.HandlerProcessed, tt.verdict
				}})
				if err != nil {
					t.Fatal(err)
				}
				begin(t, c)
				patience.Moving(t, "the others are stored", func() (int, bool) { m := s.storedNow(); return m, m == n-len(locked) })
				s.unlock()
				patience.Moving(t, "the locked ones are stored", func() (int, bool) { m := s.storedNow(); return m, m == n })
				patience.Pass(t, time.Minute)
				if m := handled.Load(); m != n {
					t.Errorf("handlers ran %d times for %d messages", m, n)
				}
			})
		})
	}
}

// TestLockedIsAnsweredOnce: a settle says of a locked record that it is busy, and of the others that they are stored.
// Another settle of it waits for the result, or gets it afterwards. Then the delivery is settled.
func TestLockedIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	for name, waits := range map[string]bool{"waits": true, "comes later": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newLockable(t, func() { time.Sleep(time.Millisecond) }, "m-0")
				stage(t, s.mem, message("m-0"), message("m-1"))
				r := subscribe(t, newTable(t, s, table.Options{}))
				ds := receive(t, r, 2)
				for i, err := range r.Settle(tenMinutes(t), []core.Ack{core.AckDone(ds[0]), core.AckDone(ds[1])}) {
					if locked := ds[i].Envelope.ID == "m-0"; errors.Is(err, core.ErrLocked) != locked || !locked && err != nil {
						t.Errorf("%s: %v", ds[i].Envelope.ID, err)
					}
				}
				locked := ds[0]
				if locked.Envelope.ID != "m-0" {
					locked = ds[1]
				}
				ack := []core.Ack{core.AckDone(locked)}
				ended := make(chan error, 1)
				if waits {
					go func() { ended <- r.Settle(tenMinutes(t), ack).FirstErr() }()
					patience.Pass(t, 10*time.Second)
					select {
					case err := <-ended:
						t.Errorf("a settle of a locked record did not wait: %v", err)
						ended <- err
					default:
					}
				}
				s.unlock()
				patience.Pass(t, 10*time.Second)
				if !waits {
					ended <- r.Settle(tenMinutes(t), ack).FirstErr()
				}
				if err := <-ended; err != nil {
					t.Error(err)
				}
				if err := r.Settle(tenMinutes(t), ack).FirstErr(); !errors.Is(err, waybill.ErrLeaseLost) {
					t.Errorf("a settled delivery can be settled again: %v", err)
				}
			})
		})
	}
}

// lockedHoldsUpNoOther locks records of a real store while they are handled, as a transaction of the application does.
func lockedHoldsUpNoOther(t *testing.T, b backend, lock func(id string) (unlock func())) {
	t.Helper()
	const n, locked = 200, 4
	var msgs []waybill.Message
	for i := range n {
		msgs = append(msgs, message(fmt.Sprint("m-", i)))
	}
	if err := b.stage(t.Context(), msgs...); err != nil {
		t.Fatal(err)
	}
	tr, err := table.New(b.store, table.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	c, err := consumer.New(tr, consumer.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var unlocks []func()
	var handled atomic.Int64
	err = c.Handle(waybill.Subscription{Queue: "mails"}, waybill.Handler{Name: waybill.AnyMessage, Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		handled.Add(1)
		mu.Lock()
		defer mu.Unlock()
		if len(unlocks) < locked {
			unlocks = append(unlocks, lock(d.Envelope.ID))
		}
		return waybill.HandlerProcessed, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	begin(t, c)
	inspector, _ := core.As[admin.Inspector](b.store)
	left := func() int64 {
		page, err := inspector.List(t.Context(), admin.Filter{}, admin.PageRequest{Limit: n})
		if err != nil {
			t.Fatal(err)
		}
		return int64(len(page.Records))
	}
	patience.Moving(t, "the others are settled", func() (int64, bool) { m := left(); return m, m == locked })
	mu.Lock()
	for _, unlock := range unlocks {
		unlock()
	}
	mu.Unlock()
	patience.Moving(t, "the locked ones are settled", func() (int64, bool) { m := left(); return m, m == 0 })
	if m := handled.Load(); m != n {
		t.Errorf("handlers ran %d times for %d messages", m, n)
	}
}

// TQ-07
func TestLockedRecordOnPostgres(t *testing.T) {
	t.Parallel()
	b, pool := postgresBackend(t, 16)
	lockedHoldsUpNoOther(t, b, func(id string) (unlock func()) {
		tx, err := pool.Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), "SELECT FROM waybill.waybill_outbox WHERE id = $1 FOR UPDATE", id)
		}
		if err != nil {
			t.Error(err)
		}
		return func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }
	})
}

// TQ-07
func TestLockedRecordOnMongoDB(t *testing.T) {
	t.Parallel()
	m := testenv.MongoDB(t)
	client, err := mongo.Connect(options.Client().ApplyURI(m.URI))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	db := client.Database(m.Database)
	s, err := mongostore.New(db, mongostore.Options{Source: "/test", AutoMigrate: true, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	unit, err := s.NewUnitOfWork()
	if err != nil {
		t.Fatal(err)
	}
	stage := func(ctx context.Context, msgs ...waybill.Message) error {
		return unit.Do(ctx, func(ctx context.Context, _ *mongo.Session) error { return unit.Stage(ctx, msgs...) })
	}
	lockedHoldsUpNoOther(t, backend{s, stage}, func(id string) (unlock func()) {
		sess, err := client.StartSession()
		if err == nil {
			err = sess.StartTransaction()
		}
		if err == nil {
			_, err = db.Collection("waybill_outbox").UpdateOne(mongo.NewSessionContext(t.Context(), sess), bson.M{"_id.id": id}, bson.M{"$set": bson.M{"locked_by_test": true}})
		}
		if err != nil {
			t.Error(err)
		}
		return func() { sess.EndSession(context.WithoutCancel(t.Context())) }
	})
}
