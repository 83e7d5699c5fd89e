package mongo

import (
	"cmp"
	"context"
	"log/slog"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outboxtest"
	"github.com/waybill-go/waybill/internal/testenv"
)

func TestMain(m *testing.M) {
	if runChild() {
		return
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background), goleak.IgnoreAnyFunction(testenv.IdleMongoDB))
}

// quiet is the logger of tests that look at no log.
var quiet = slog.New(slog.DiscardHandler)

// connect returns a client of the test's own.
func connect(tb testing.TB, uri string) *driver.Client {
	tb.Helper()
	c, err := driver.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return c
}

// hostOf returns the address in a connection string.
func hostOf(uri string) string { return options.Client().ApplyURI(uri).Hosts[0] }

// database returns an empty database of the test's own.
func database(tb testing.TB) *driver.Database {
	tb.Helper()
	m := testenv.MongoDB(tb)
	return connect(tb, m.URI).Database(m.Database)
}

func open(tb testing.TB, opts Options) *Store {
	tb.Helper()
	return openIn(tb, database(tb), opts)
}

func openIn(tb testing.TB, db *driver.Database, opts Options) *Store {
	tb.Helper()
	opts.Source = cmp.Or(opts.Source, "/test")
	opts.AutoMigrate = true
	opts.Logger = cmp.Or(opts.Logger, quiet)
	s, err := New(db, opts)
	if err != nil {
		tb.Fatal(err)
	}
	if err := s.Check(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return s
}

// harness is the suite's harness around two stores on one database, as two processes have it.
type harness struct{ store, second *Store }

func newHarness(tb testing.TB, opts Options) *harness {
	tb.Helper()
	m := testenv.MongoDB(tb)
	return &harness{
		openIn(tb, connect(tb, m.URI).Database(m.Database), opts), openIn(tb, connect(tb, m.URI).Database(m.Database), opts),
	}
}

func (h *harness) Store() core.OutboxStore                          { return h.store }
func (h *harness) Reopen(context.Context) (core.OutboxStore, error) { return h.second, nil }

func (h *harness) Begin(context.Context) (outboxtest.Tx, error) { return h.begin() }

func (h *harness) begin() (*testTx, error) {
	sess, err := begin(h.store)
	return &testTx{h.store, sess, 0}, err
}

// begin starts a transaction of the application.
func begin(s *Store) (*driver.Session, error) {
	sess, err := s.db.Client().StartSession()
	if err != nil {
		return nil, err
	}
	return sess, sess.StartTransaction(options.Transaction().SetReadConcern(readconcern.Snapshot()))
}

func (h *harness) Records(ctx context.Context, route string) (out []outboxtest.Stored, err error) {
	w := work{s: h.store}
	err = w.each(ctx, bson.M{"route": route}, options.Find(), func(r *record) bool {
		out = append(out, outboxtest.Stored{
			ID: r.ID.ID, State: r.Phase.state(), Attempts: r.Attempts, Crashes: r.Crashes, Reason: waybill.Reason(r.Reason), LastError: r.Error,
		})
		return true
	})
	return out, err
}

// Save copies the collections; the database goes back to the copies, and the epoch is raised.
func (h *harness) Save(ctx context.Context) (func(context.Context) error, error) {
	copies := map[string][]any{}
	for name, c := range h.store.collections() {
		cur, err := (*c).Find(ctx, bson.M{})
		if err != nil {
			return nil, err
		}
		var docs []bson.D
		if err := cur.All(ctx, &docs); err != nil {
			return nil, err
		}
		for _, d := range docs {
			copies[name] = append(copies[name], d)
		}
	}
	return func(ctx context.Context) error {
		for name, c := range h.store.collections() {
			if _, err := (*c).DeleteMany(ctx, bson.M{}); err != nil {
				return err
			}
			if docs := copies[name]; len(docs) > 0 {
				if _, err := (*c).InsertMany(ctx, docs); err != nil {
					return err
				}
			}
		}
		_, err := h.store.meta.UpdateOne(ctx, bson.M{"_id": "epoch"}, bson.M{"$inc": bson.M{"epoch": int64(1)}})
		return err
	}, nil
}

type testTx struct {
	store *Store
	sess  *driver.Session
	ended int
}

func (t *testTx) Stage(ctx context.Context, rows ...core.StagedRow) error {
	_, err := t.store.StageRows(ctx, t.sess, rows...)
	return err
}

func (t *testTx) Commit(ctx context.Context) error {
	defer t.sess.EndSession(context.WithoutCancel(ctx))
	t.ended++
	return commit(ctx, t.sess)
}

func (t *testTx) Rollback(ctx context.Context) error {
	if t.ended++; t.ended > 1 {
		return nil
	}
	t.sess.EndSession(context.WithoutCancel(ctx))
	return nil
}

// Lock writes the record, as a transaction does that cancels it.
func (t *testTx) Lock(ctx context.Context, route, id string) error {
	_, err := t.store.outbox.UpdateOne(driver.NewSessionContext(ctx, t.sess), bson.M{"_id": recordID{route, id}},
		bson.M{"$set": bson.M{"locked_by_test": bson.NewObjectID()}})
	return err
}

// Redrive requeues one record, as Store.Redrive does, in the transaction.
func (t *testTx) Redrive(ctx context.Context, route, id string) error {
	ctx = driver.NewSessionContext(ctx, t.sess)
	w := &work{s: t.store}
	if err := w.clock(ctx); err != nil {
		return err
	}
	r, err := w.lookup(ctx, bson.M{"_id": recordID{route, id}}, withoutBody)
	if err != nil {
		return err
	}
	model, told := w.requeue(r, nil, "")
	if err := w.write(ctx, []driver.WriteModel{model}); err != nil {
		return err
	}
	return w.tell(ctx, []core.Notice{told})
}

// Tell writes a notice, as DecideHead does.
func (t *testTx) Tell(ctx context.Context, c core.Notice) error {
	w := &work{s: t.store}
	return w.tell(driver.NewSessionContext(ctx, t.sess), []core.Notice{c})
}
