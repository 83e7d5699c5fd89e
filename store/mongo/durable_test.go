package mongo

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/transport/memory"
)

// DB-29: each commit, and each write outside of a transaction, asks for the journals of a majority. So a replica set
// that is configured to answer from memory, or a client with a weaker write concern, loses nothing that was answered.
func TestWritesAskForTheJournal(t *testing.T) {
	t.Parallel()
	m := testenv.MongoDB(t)
	var mu sync.Mutex
	seen := map[string]int{}
	client, err := driver.Connect(options.Client().ApplyURI(m.URI).SetMonitor(&event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		var c struct {
			Concern *struct {
				W any  `bson:"w"`
				J bool `bson:"j"`
			} `bson:"writeConcern"`
		}
		if err := bson.Unmarshal(e.Command, &c); err != nil || c.Concern == nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if seen[e.CommandName]++; c.Concern.W == "majority" && !c.Concern.J {
			t.Errorf("%s asks for a majority without its journals", e.CommandName)
		}
	}}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	s := openIn(t, client.Database(m.Database), Options{})
	u, err := s.NewUnitOfWork()
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Do(t.Context(), func(ctx context.Context, _ Tx) error {
		return u.Stage(ctx, waybill.RawMessage("t.x", "", nil))
	}); err != nil {
		t.Fatal(err)
	}
	bus, err := memory.New(memory.Options{Queues: []memory.Queue{{Name: "q", Bindings: []string{"t.*"}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = bus.Close(context.Background()) }()
	r, err := relay.New(s, bus, relay.Options{Logger: quiet, Lease: time.Minute})
	if err == nil {
		_, err = r.RunOnce(t.Context())
	}
	if err == nil {
		_, err = s.Do(t.Context(), core.InboxKey{Consumer: "c", Source: "s", ID: "i"}, func(context.Context, Tx) error { return nil })
	}
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, name := range []string{"insert", "commitTransaction"} {
		if seen[name] == 0 {
			t.Errorf("no %s had a write concern: %v", name, seen)
		}
	}
}
