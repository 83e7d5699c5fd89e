package checker_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/checker"
	"github.com/waybill-go/waybill/internal/historytest"
	"github.com/waybill-go/waybill/internal/sleep"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	mongostore "github.com/waybill-go/waybill/store/mongo"
)

// documents is a database of MongoDB, or of its stand-in, and a queue in memory.
type documents struct {
	server *testenv.Mongo
	proxy  *testenv.Proxy // before the server, for relays; nil for a replica set, which tells its own addresses
	prefix string
	client *mongo.Client
	store  *mongostore.Store
	queues *historytest.Queues
}

func (s *documents) open(client *mongo.Client) (*mongostore.Store, error) {
	return mongostore.New(client.Database(s.server.Database), mongostore.Options{
		Source: "/checker", Prefix: s.prefix, Logger: slog.New(slog.DiscardHandler), PollInterval: 20 * time.Millisecond,
	})
}

func (s *documents) collection(name string) *mongo.Collection {
	return s.client.Database(s.server.Database).Collection(s.prefix + name)
}

type documentTx struct {
	*mongo.Session
	s *mongostore.Store
}

func (x documentTx) Stage(ctx context.Context, msgs ...waybill.Message) ([]waybill.Staged, error) {
	return x.s.Stage(ctx, x.Session, msgs...)
}

// Exec has no savepoints: the producer gives its transaction up.
func (documentTx) Exec(context.Context, string) error { return errors.ErrUnsupported }

func (x documentTx) Commit(ctx context.Context) error {
	defer x.EndSession(context.WithoutCancel(ctx))
	return x.CommitTransaction(ctx)
}

func (x documentTx) Rollback() { x.EndSession(context.Background()) }

func (s *documents) Begin(context.Context) (historytest.Tx, error) {
	sess, err := s.client.StartSession()
	if err == nil {
		err = sess.StartTransaction()
	}
	return documentTx{sess, s.store}, err
}

// Relay connects anew, as another process would.
func (s *documents) Relay(w *historytest.World, n int) (*historytest.Runner, error) {
	uri := s.server.URI
	if s.proxy != nil {
		uri = "mongodb://" + s.proxy.Addr() + "/?directConnection=true&serverSelectionTimeoutMS=500"
	}
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		return nil, err
	}
	store, err := s.open(client)
	if err != nil {
		return nil, err
	}
	return s.queues.Relay(n, store, func() { _ = client.Disconnect(context.WithoutCancel(w.T.Context())) })
}

// Harm cuts the connections of relays, or lets none through for a while.
func (s *documents) Harm(w *historytest.World, d *checker.Dice, last bool) {
	if s.proxy == nil {
		return
	}
	if !last && d.N(2) == 0 {
		s.proxy.Refuse()
		_ = sleep.For(w.T.Context(), d.Up(historytest.Lease))
		_ = s.proxy.Accept()
	}
	s.proxy.Cut()
}

func (s *documents) Rows(ctx context.Context, _ []string) (int, map[checker.Ref]checker.Final, error) {
	cur, err := s.collection("outbox").Find(ctx, bson.M{})
	if err != nil {
		return 0, nil, err
	}
	var rows []struct {
		ID struct {
			Route string `bson:"route"`
			ID    string `bson:"id"`
		} `bson:"_id"`
		Phase    int    `bson:"phase"`
		Reason   string `bson:"reason"`
		Attempts int    `bson:"attempts"`
		Crashes  int    `bson:"crashes"`
	}
	if err := cur.All(ctx, &rows); err != nil {
		return 0, nil, err
	}
	live, final := 0, map[checker.Ref]checker.Final{}
	for _, r := range rows {
		state := core.State(r.Phase)
		if r.Phase == 2 { // scheduled
			state = core.StatePending
		}
		if !state.Terminal() {
			live++
		}
		final[checker.Ref{Route: r.ID.Route, ID: r.ID.ID}] = checker.Final{
			State: state, Reason: waybill.Reason(r.Reason), Attempts: r.Attempts, Crashes: r.Crashes,
		}
	}
	return live, final, nil
}

func (s *documents) Keeper() admin.BlockedKeys {
	k, _ := core.As[admin.BlockedKeys](s.store)
	return k
}

func (s *documents) Drain(w *historytest.World) (map[checker.Ref]int, error) {
	ctx := w.T.Context()
	effects := s.collection("effects")
	if err := s.queues.Handle(func(key core.InboxKey) error {
		_, err := s.store.Do(ctx, key, func(ctx context.Context, _ *mongo.Session) error {
			_, err := effects.InsertOne(ctx, bson.M{"route": key.Consumer, "id": key.ID})
			return err
		})
		return err
	}); err != nil {
		return nil, err
	}
	cur, err := effects.Find(ctx, bson.M{})
	if err != nil {
		return nil, err
	}
	var rows []struct{ Route, ID string }
	if err := cur.All(ctx, &rows); err != nil {
		return nil, err
	}
	out := map[checker.Ref]int{}
	for _, r := range rows {
		out[checker.Ref{Route: r.Route, ID: r.ID}]++
	}
	return out, nil
}

// P1 P2 P3 P4 P5 OR-02 OR-03 OR-04 DB-15 DB-24: relays with a client each, whose connections are cut.
func TestMongoHistories(t *testing.T) {
	tier.Nightly(t, "histories in real time over a database that starts slowly: a minute; the gate has those of SQLite and Postgres")
	t.Parallel()
	n := number("WAYBILL_CHECKER_MONGO", 8)
	server := testenv.MongoDB(t)
	client, err := mongo.Connect(options.Client().ApplyURI(server.URI))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	historytest.Run(t, n, 2, func(t *testing.T, seed uint64, i int) *historytest.World {
		t.Helper()
		s := &documents{server: server, client: client, prefix: "h" + strconv.Itoa(i) + "_"}
		if server.Emulated {
			s.proxy = testenv.NewProxy(t, options.Client().ApplyURI(server.URI).Hosts[0])
		}
		var err error
		if s.store, err = s.open(client); err == nil {
			err = s.store.Migrate(t.Context())
		}
		if err == nil {
			err = client.Database(server.Database).CreateCollection(t.Context(), s.prefix+"effects")
		}
		if err != nil {
			t.Fatal(err)
		}
		w := historytest.New(t, seed, "h"+strconv.Itoa(i), s, checker.Options{})
		s.queues = w.NewQueues()
		return w
	})
}
