package mongo_test

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	mongostore "github.com/waybill-go/waybill/store/mongo"
)

type Order struct {
	ID string `bson:"_id" json:"id"`
}

var OrderPlaced = waybill.NewTopic("orders.placed", waybill.JSON[Order]())

// Stage in the transactions of a unit of work.
func ExampleStore_NewUnitOfWork() {
	place := func(ctx context.Context, o Order) error {
		client, err := mongo.Connect(options.Client().ApplyURI("mongodb://localhost:27017/?replicaSet=rs0"))
		if err != nil {
			return err
		}
		db := client.Database("shop")
		store, err := mongostore.New(db, mongostore.Options{Source: "/orders"})
		if err != nil {
			return err
		}
		if err := store.Migrate(ctx); err != nil { // as a step of the deployment
			return err
		}
		unit, err := store.NewUnitOfWork()
		if err != nil {
			return err
		}
		return unit.Do(ctx, func(ctx context.Context, _ *mongo.Session) error {
			// This ctx carries the session. With another one the insert is not in the transaction.
			if _, err := db.Collection("orders").InsertOne(ctx, o); err != nil {
				return err
			}
			return unit.Stage(ctx, OrderPlaced.Message(o, waybill.Key(o.ID)))
		})
	}
	_ = place
}

// Stage in a transaction of the driver's own.
func ExampleStore_Stage() {
	place := func(ctx context.Context, session *mongo.Session, store *mongostore.Store, orders *mongo.Collection, o Order) error {
		_, err := session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
			if _, err := orders.InsertOne(ctx, o); err != nil {
				return nil, err
			}
			return store.Stage(ctx, mongo.SessionFromContext(ctx), OrderPlaced.Message(o))
		})
		return err
	}
	_ = place
}

// Handle messages in the transaction of their marks.
func ExampleStore_Do() {
	handler := func(store *mongostore.Store, bills *mongo.Collection) (waybill.Handler, error) {
		billing, err := inbox.New(store, "billing", inbox.Options{})
		if err != nil {
			return waybill.Handler{}, err
		}
		return inbox.Handler(billing, OrderPlaced, func(ctx context.Context, _ *mongo.Session, o Order) error {
			_, err := bills.InsertOne(ctx, bson.M{"order": o.ID}) // ctx carries the session
			return err
		}), nil
	}
	_ = handler
}

var _ core.Inbox[*mongo.Session] = (*mongostore.Store)(nil)

// Create the roles of the programs, as a user that may do so.
func ExampleStore_Roles() {
	create := func(ctx context.Context, db *mongo.Database, store *mongostore.Store) error {
		for _, role := range store.Roles() {
			if err := db.RunCommand(ctx, role).Err(); err != nil {
				return err
			}
		}
		return nil
	}
	_ = create
}
