package testenv_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
)

// mongoDB returns a database of its own, and a collection with an index on n.
func mongoDB(t *testing.T, uri, name string) (*mongo.Client, *mongo.Collection) {
	t.Helper()
	c, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	coll := c.Database(name).Collection("things")
	if _, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "first"}, {Key: "n", Value: 0}}); err != nil {
		t.Fatal(err)
	}
	return c, coll
}

// beginMongo starts a transaction with one snapshot.
func beginMongo(t *testing.T, c *mongo.Client) (context.Context, *mongo.Session) {
	t.Helper()
	s, err := c.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.EndSession(context.Background()) })
	if err := s.StartTransaction(options.Transaction().SetReadConcern(readconcern.Snapshot())); err != nil {
		t.Fatal(err)
	}
	return mongo.NewSessionContext(t.Context(), s), s
}

func id(v any) bson.D { return bson.D{{Key: "_id", Value: v}} }

func has(ctx context.Context, t *testing.T, coll *mongo.Collection, v any) bool {
	t.Helper()
	err := coll.FindOne(ctx, id(v)).Err()
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		t.Fatal(err)
	}
	return err == nil
}

func label(err error, name string) bool {
	le, ok := errors.AsType[mongo.LabeledError](err)
	return ok && le.HasErrorLabel(name)
}

const transient = "TransientTransactionError"

// The server behaves in transactions as MongoDB does, as far as the store of this module needs that.
func TestMongoDBTransactions(t *testing.T) {
	t.Parallel()
	db := testenv.MongoDB(t)
	c, coll := mongoDB(t, db.URI, db.Database)

	tx, s := beginMongo(t, c)
	if _, err := coll.InsertOne(tx, id("a")); err != nil {
		t.Fatal(err)
	}
	if has(t.Context(), t, coll, "a") || !has(tx, t, coll, "a") {
		t.Error("a write shows before the commit, or not in its own transaction")
	}
	if err := s.AbortTransaction(t.Context()); err != nil || has(t.Context(), t, coll, "a") {
		t.Errorf("after a rollback: %v", err)
	}

	tx, s = beginMongo(t, c)
	if has(tx, t, coll, "b") { // it takes its snapshot now
		t.Error("b is there already")
	}
	if _, err := coll.InsertOne(t.Context(), id("b")); err != nil {
		t.Fatal(err)
	}
	if has(tx, t, coll, "b") {
		t.Error("a transaction sees what was committed after its snapshot")
	}
	if err := s.CommitTransaction(t.Context()); err != nil {
		t.Error(err)
	}
	tx, s = beginMongo(t, c)
	if _, err := coll.InsertOne(tx, id("b")); !mongo.IsDuplicateKeyError(err) {
		t.Errorf("a duplicate: %v", err)
	}
	if err := s.CommitTransaction(t.Context()); !label(err, transient) {
		t.Errorf("commit after a failed command: %v", err)
	}
}

// A second transaction that writes what a first one has written conflicts, and does not wait for it.
func TestMongoDBConflict(t *testing.T) {
	t.Parallel()
	db := testenv.MongoDB(t)
	c, coll := mongoDB(t, db.URI, db.Database)
	inc := bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}
	for name, write := range map[string]func(ctx context.Context) error{
		"insert": func(ctx context.Context) error { _, err := coll.InsertOne(ctx, id("new")); return err },
		"update": func(ctx context.Context) error { _, err := coll.UpdateOne(ctx, id("first"), inc); return err },
		"modify": func(ctx context.Context) error { return coll.FindOneAndUpdate(ctx, id("first"), inc).Err() },
		"delete": func(ctx context.Context) error { _, err := coll.DeleteOne(ctx, id("first")); return err },
	} {
		first, s := beginMongo(t, c)
		if err := write(first); err != nil {
			t.Fatal(err)
		}
		second, s2 := beginMongo(t, c)
		if err := write(second); !label(err, transient) {
			t.Errorf("%s: a conflict is %v", name, err)
		}
		_ = s2.AbortTransaction(t.Context())
		if err := s.AbortTransaction(t.Context()); err != nil {
			t.Error(err)
		}
		if again, s := beginMongo(t, c); write(again) != nil || s.AbortTransaction(t.Context()) != nil {
			t.Errorf("%s: after the rollback it still conflicts", name)
		}
	}
}

// Transactions that meet all take effect, one after the other.
func TestMongoDBWithTransaction(t *testing.T) {
	t.Parallel()
	db := testenv.MongoDB(t)
	c, coll := mongoDB(t, db.URI, db.Database)
	const workers, rounds = 4, 10
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds {
				s, err := c.StartSession()
				if err != nil {
					t.Error(err)
					return
				}
				_, err = s.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
					if _, err := coll.InsertOne(ctx, id(fmt.Sprint(w, "-", i))); err != nil {
						return nil, err
					}
					return coll.UpdateOne(ctx, id("first"), bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
				})
				s.EndSession(t.Context())
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var first struct{ N int }
	if err := coll.FindOne(t.Context(), id("first")).Decode(&first); err != nil || first.N != workers*rounds {
		t.Errorf("%d of %d transactions took effect: %v", first.N, workers*rounds, err)
	}
	if n, err := coll.CountDocuments(t.Context(), bson.D{}); err != nil || n != workers*rounds+1 {
		t.Errorf("%d documents, want %d: %v", n, workers*rounds+1, err)
	}
}

// A transaction whose client is gone ends.
func TestMongoDBClientGone(t *testing.T) {
	t.Parallel()
	db := testenv.MongoDB(t)
	if !db.Emulated {
		t.Skip("a replica set ends such a transaction only after a minute")
	}
	c, coll := mongoDB(t, db.URI, db.Database)
	proxy := testenv.NewProxy(t, hostOf(db.URI))
	dying, err := mongo.Connect(options.Client().
		ApplyURI("mongodb://" + proxy.Addr() + "/?directConnection=true").SetServerSelectionTimeout(patience.For(time.Second)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dying.Disconnect(context.Background()) })
	tx, _ := beginMongo(t, dying)
	if _, err := dying.Database(db.Database).Collection("things").InsertOne(tx, id("a")); err != nil {
		t.Fatal(err)
	}
	proxy.Close()
	patience.Until(t, "its document is free again", func() bool {
		again, s := beginMongo(t, c)
		_, err := coll.InsertOne(again, id("a"))
		_ = s.AbortTransaction(t.Context())
		return err == nil
	})
}

func hostOf(uri string) string {
	opts := options.Client().ApplyURI(uri)
	return opts.Hosts[0]
}
