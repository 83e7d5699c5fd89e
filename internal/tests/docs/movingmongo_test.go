package docs_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	driveroptions "go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/testenv"
	mongostore "github.com/waybill-go/waybill/store/mongo"
)

// forzeMessage is a document of forze's outbox.
type forzeMessage struct {
	ID, Status    string
	OutboxRoute   string    `bson:"outbox_route"`
	EventID       string    `bson:"event_id"`
	EventType     string    `bson:"event_type"`
	TenantID      string    `bson:"tenant_id"`
	ExecutionID   string    `bson:"execution_id"`
	CorrelationID string    `bson:"correlation_id"`
	CausationID   string    `bson:"causation_id"`
	OrderingKey   string    `bson:"ordering_key"`
	OccurredAt    time.Time `bson:"occurred_at"`
	AvailableAt   time.Time `bson:"available_at"`
	HLC           int64
	Payload       bson.Raw
}

// moveForze moves up to 100 unsent messages of old, the outbox of forze, and returns their number. The old relay is
// stopped. Given-up messages stay, and payloads that forze has encrypted.
func moveForze(ctx context.Context, unit *waybill.UnitOfWork[*mongo.Session], old *mongo.Collection) (n int, err error) {
	unsent := bson.M{"status": bson.M{"$in": bson.A{"pending", "processing"}}, "payload.__fz_enc__": nil}
	order := bson.D{{Key: "hlc", Value: 1}, {Key: "created_at", Value: 1}, {Key: "id", Value: 1}}
	err = unit.Do(ctx, func(ctx context.Context, _ *mongo.Session) error {
		found, err := old.Find(ctx, unsent, driveroptions.Find().SetSort(order).SetLimit(100))
		if err != nil {
			return err
		}
		var batch []forzeMessage
		if err := found.All(ctx, &batch); err != nil {
			return err
		}
		ids := bson.A{}
		for i := range batch {
			f := &batch[i]
			body, err := bson.MarshalExtJSON(f.Payload, false, false)
			if err != nil {
				return err
			}
			m := waybill.RawMessage(f.EventType, "application/json", body, waybill.ID(f.EventID), waybill.Key(f.OrderingKey),
				waybill.Tenant(f.TenantID), waybill.CorrelationID(f.CorrelationID), waybill.OccurredAt(f.OccurredAt),
				waybill.Routes(f.OutboxRoute), waybill.DeliverAt(f.AvailableAt))
			m.CausationID, m.RunID, m.HLC = f.CausationID, f.ExecutionID, hlc.Timestamp(f.HLC)
			if err := unit.Stage(ctx, m); err != nil {
				return err
			}
			ids = append(ids, f.ID)
		}
		n = len(ids)
		_, err = old.DeleteMany(ctx, bson.M{"id": bson.M{"$in": ids}})
		return err
	})
	return n, err
}

// markForze turns the marks of old, the inbox of forze, into those of box.
func markForze(ctx context.Context, unit *waybill.UnitOfWork[*mongo.Session], old *mongo.Collection, route, source string, box *inbox.Inbox[*mongo.Session]) error {
	found, err := old.Find(ctx, bson.M{"inbox_route": route})
	if err != nil {
		return err
	}
	var marks []struct {
		MessageID string `bson:"message_id"`
	}
	if err := found.All(ctx, &marks); err != nil {
		return err
	}
	for _, m := range marks {
		if err := unit.Do(ctx, func(ctx context.Context, tx *mongo.Session) error {
			_, err := box.Mark(ctx, tx, source, m.MessageID)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// TestMovingForzeMongo: the functions that docs/migrating.md names move the documents that forze 0.16.2 wrote, with all
// their fields, in their order, and leave messages that were sent, given up or encrypted.
//
// MV-01, MV-02.
func TestMovingForzeMongo(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	m := testenv.MongoDB(t)
	client, err := mongo.Connect(driveroptions.Client().ApplyURI(m.URI))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.WithoutCancel(ctx)) })
	db := client.Database(m.Database)
	store, err := mongostore.New(db, mongostore.Options{Source: "/orders"})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	unit, err := store.NewUnitOfWork()
	if err != nil {
		t.Fatal(err)
	}
	var docs []bson.M
	if err := bson.UnmarshalExtJSON([]byte(`{"all": `+read(t, filepath.Join("testdata", "moving", "forze-mongo.json"))+`}`), false, &struct{ All *[]bson.M }{&docs}); err != nil {
		t.Fatal(err)
	}
	old := db.Collection("old_outbox")
	for _, d := range docs {
		if d["available_at"] != nil {
			d["available_at"] = time.Now().Add(time.Hour)
		}
	}
	if _, err := old.InsertMany(ctx, docs); err != nil {
		t.Fatal(err)
	}
	if _, err := old.InsertOne(ctx, bson.M{"id": "e", "event_id": "e", "status": "pending", "payload": bson.M{"__fz_enc__": "AbCd"}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{7, 0} {
		if n, err := moveForze(ctx, unit, old); n != want || err != nil {
			t.Fatalf("%d moved, want %d: %v", n, want, err)
		}
	}
	if n, err := old.CountDocuments(ctx, bson.M{}); n != 3 || err != nil {
		t.Fatalf("%d old documents stay: %v", n, err)
	}
	all, err := store.List(ctx, admin.Filter{}, admin.PageRequest{Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	seqs := map[string]int64{}
	for i := range all.Records {
		seqs[all.Records[i].Envelope.ID] = all.Records[i].Seq
	}
	last := int64(0)
	for _, d := range docs[2:] { // published, given up, and what moves, in its order
		text := func(name string) string { s, _ := d[name].(string); return s }
		got, err := store.Inspect(ctx, text("outbox_route"), text("event_id"))
		if err != nil {
			t.Fatal(err)
		}
		e := got.Envelope
		if key := text("ordering_key"); key == "one-key" {
			if seqs[e.ID] <= last {
				t.Errorf("message %s of a key moved in another order", e.ID)
			}
			last = seqs[e.ID]
		}
		body, err := bson.MarshalExtJSON(d["payload"], false, false)
		if err != nil {
			t.Fatal(err)
		}
		if !sameJSON(t, body, e.Body) {
			t.Errorf("the body is %s, was %s", e.Body, body)
		}
		e.Body = nil
		want := waybill.Envelope{
			ID: text("event_id"), Topic: "order.placed", Type: "order.placed", Source: "/orders", Time: d["occurred_at"].(bson.DateTime).Time().UTC(),
			ContentType: "application/json", Key: text("ordering_key"), Tenant: text("tenant_id"), CorrelationID: text("correlation_id"),
			CausationID: text("causation_id"), RunID: text("execution_id"), HLC: hlc.Timestamp(d["hlc"].(int64)),
		}
		if diff := cmp.Diff(want, e); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if scheduled := d["available_at"] != nil; scheduled != (got.DueIn > 0) {
			t.Errorf("message %s is due in %s", e.ID, got.DueIn)
		}
	}

	// A message with a mark of forze is a duplicate, that of another consumer is not.
	marks := db.Collection("old_inbox")
	if _, err := marks.InsertMany(ctx, []bson.M{{"inbox_route": "orders-inbox", "message_id": "m-1"}, {"inbox_route": "others", "message_id": "m-2"}}); err != nil {
		t.Fatal(err)
	}
	box, err := inbox.New(store, "orders", inbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := markForze(ctx, unit, marks, "orders-inbox", "/orders", box); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]core.InboxStatus{"m-1": core.InboxDuplicate, "m-2": core.InboxNew} {
		if err := unit.Do(ctx, func(ctx context.Context, tx *mongo.Session) error {
			got, err := box.Mark(ctx, tx, "/orders", id)
			if got != want {
				t.Errorf("mark of %s: %v, want %v", id, got, want)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	if err := json.Unmarshal(a, &x); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &y); err != nil {
		t.Fatal(err)
	}
	return cmp.Equal(x, y)
}
