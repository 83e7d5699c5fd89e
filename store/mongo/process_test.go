package mongo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/relay"
)

const (
	childRole       = "WAYBILL_MONGO_TEST_ROLE"
	childURI        = "WAYBILL_MONGO_TEST_URI"
	childName       = "WAYBILL_MONGO_TEST_DATABASE"
	childPartitions = 4
	childLease      = time.Second
)

// childKeys are keys, one in each partition, so that each relay that has partitions has work.
var childKeys = sharedtest.KeyOfEach("default", childPartitions)

// runChild makes the test binary one of the processes of TestKilledProcesses.
func runChild() bool {
	role := os.Getenv(childRole)
	if role == "" {
		return false
	}
	ctx := context.Background()
	c, err := driver.Connect(options.Client().ApplyURI(os.Getenv(childURI)))
	if err == nil {
		var s *Store
		if s, err = New(c.Database(os.Getenv(childName)), Options{Source: "/orders", Logger: quiet, PollInterval: 20 * time.Millisecond}); err == nil {
			err = map[string]func(context.Context, *Store) error{"producer": produce, "relay": publish}[role](ctx, s)
		}
	}
	fmt.Fprintln(os.Stderr, role, err)
	os.Exit(1)
	return true
}

// produce commits a business document and its message, over and over. The number comes from the transaction.
func produce(ctx context.Context, s *Store) error {
	u, err := s.NewUnitOfWork()
	if err != nil {
		return err
	}
	orders := s.db.Collection("orders")
	key := childKeys[rand.IntN(childPartitions)]
	for {
		err := u.Do(ctx, func(ctx context.Context, _ Tx) error {
			var count struct{ N int }
			inc := bson.M{"$inc": bson.M{"n": 1}}
			err := orders.FindOneAndUpdate(ctx, bson.M{"_id": key}, inc, options.FindOneAndUpdate().SetUpsert(true).
				SetReturnDocument(options.After)).Decode(&count)
			if err != nil {
				return err
			}
			m := waybill.RawMessage("orders.placed", "text/plain", nil, waybill.ID(key+"-"+strconv.Itoa(count.N)), waybill.Key(key))
			return u.Stage(ctx, m)
		})
		if err != nil && waybill.ClassOf(err) != waybill.ClassOutage {
			return err
		}
	}
}

// publish runs a relay.
func publish(ctx context.Context, s *Store) error {
	r, err := relay.New(s, &effects{s}, relay.Options{
		Lease: childLease, BatchSize: 20, Routes: []relay.Route{{Partitions: childPartitions}}, Logger: quiet,
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// effects is a broker with a consumer: each message has one effect, through the inbox. The effects of a key are
// numbered.
type effects struct{ s *Store }

func (f *effects) Traits() core.PublisherTraits {
	return core.PublisherTraits{KeyOrder: core.KeyOrderSerial, Confirmed: true}
}

func (f *effects) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	res := make(core.Results, len(batch))
	for i := range batch {
		_, res[i] = f.s.Do(ctx, core.InboxKey{Consumer: "billing", Source: batch[i].Source, ID: batch[i].ID},
			func(ctx context.Context, _ Tx) error { return f.effect(ctx, &batch[i]) })
	}
	return res
}

func (f *effects) effect(ctx context.Context, e *waybill.Envelope) error {
	var count struct{ N int }
	err := f.s.db.Collection("handled").FindOneAndUpdate(ctx, bson.M{"_id": e.Key}, bson.M{"$inc": bson.M{"n": 1}},
		options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&count)
	if err != nil {
		return err
	}
	_, err = f.s.db.Collection("effects").InsertOne(ctx, bson.M{
		"message": e.ID, "expected": e.Key + "-" + strconv.Itoa(count.N), "by": os.Getpid(),
	})
	return err
}

// Two producers and two relays, each a process of its own, are killed at any moment and started again: every committed
// order has exactly one effect, and those of one key come in order. At last one relay is left, and finishes alone.
// DB-15 ST-01 DB-02 DB-04 IN-01 IN-03 IN-07 OR-02 OR-08
func TestKilledProcesses(t *testing.T) {
	tier.Nightly(t, "kills eight processes, with real leases: 10 s")
	t.Parallel()
	m := testenv.MongoDB(t)
	s := openIn(t, connect(t, m.URI).Database(m.Database), Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, name := range []string{"orders", "handled", "effects"} {
		if err := s.db.CreateCollection(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	number := func(collection string, filter bson.M) int {
		t.Helper()
		n, err := s.db.Collection(collection).CountDocuments(ctx, filter)
		if err != nil {
			t.Fatal(err)
		}
		return int(n)
	}
	await := func(what string, done func() bool) {
		t.Helper()
		patience.Moving(t, what, func() (int, bool) { return number("effects", bson.M{}), done() })
	}
	start := func(role string) *sharedtest.Process {
		t.Helper()
		return sharedtest.StartProcess(t, childRole+"="+role, childURI+"="+m.URI, childName+"="+m.Database)
	}
	roles := []string{"relay", "relay", "producer", "producer"}
	children := make([]*sharedtest.Process, len(roles))
	for i, role := range roles {
		children[i] = start(role)
	}
	for range 8 {
		before := number("effects", bson.M{})
		await("there are more effects", func() bool { return number("effects", bson.M{}) > before+3 })
		i := rand.IntN(len(roles))
		children[i].Kill()
		children[i] = start(roles[i])
	}
	for _, c := range children[1:] {
		c.Kill()
	}
	await("all is published", func() bool { return number("waybill_outbox", bson.M{}) == 0 })

	cur, err := s.db.Collection("orders").Find(ctx, bson.M{})
	if err != nil {
		t.Fatal(err)
	}
	var orders []struct {
		ID string `bson:"_id"`
		N  int
	}
	if err := cur.All(ctx, &orders); err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, o := range orders {
		total += o.N
	}
	var names, by []any
	if err := s.db.Collection("effects").Distinct(ctx, "message", bson.M{}).Decode(&names); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Collection("effects").Distinct(ctx, "by", bson.M{}).Decode(&by); err != nil {
		t.Fatal(err)
	}
	n := number("effects", bson.M{})
	t.Logf("%d orders, %d effects, by %d processes", total, n, len(by))
	if total == 0 || n != total || len(names) != total {
		t.Errorf("%d orders, %d effects of %d messages", total, n, len(names))
	}
	if late := number("effects", bson.M{"$expr": bson.M{"$ne": bson.A{"$message", "$expected"}}}); late != 0 {
		t.Errorf("%d effects came out of their key's order", late)
	}
}
