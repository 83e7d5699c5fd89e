package mongo

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// version is that of the collections and indexes. All changes only add.
const version = 1

// index is an index that the store needs. Its name is Options.Prefix + name.
type index struct {
	collection, name string
	keys             bson.D
	partial          bson.D // nil = every document
	unique           bool
}

func asc(fields ...string) (keys bson.D) {
	for _, f := range fields {
		keys = append(keys, bson.E{Key: f, Value: int32(1)})
	}
	return keys
}

func when(field string, condition any) bson.D { return bson.D{{Key: field, Value: condition}} }

// needed are the indexes beside those on _id. Most are empty, or nearly so, as long as all goes well.
var needed = []index{
	// Reading a route in staging order; counting.
	{"outbox", "ready", asc("route", "phase", "seq", "slot"), nil, false},
	// Reading a key in staging order, and finding the records that block it.
	{"outbox", "key", asc("route", "key", "phase", "seq"), when("key", bson.D{{Key: "$gt", Value: ""}}), false},
	// The next records without a key and without a holder.
	{
		"outbox", "free", asc("route", "seq"),
		bson.D{{Key: "phase", Value: int32(phaseReady)}, {Key: "hold", Value: int64(0)}, {Key: "key", Value: ""}},
		false,
	},
	// Numbers are never used twice; walking over all records.
	{"outbox", "seq", asc("seq"), nil, true},
	// One live message has a dedupe key.
	{"outbox", "dedupe", asc("dedupe"), when("dedupe", bson.D{{Key: "$exists", Value: true}}), true},
	// Schedules and retries, by time.
	{"outbox", "due", asc("route", "phase", "due"), when("due", bson.D{{Key: "$exists", Value: true}}), false},
	// The records of one session, and all held records.
	{"outbox", "hold", asc("hold", "route", "seq"), when("hold", bson.D{{Key: "$gt", Value: int64(0)}}), false},
	// Abandoned messages that block their key.
	{"outbox", "blocks", asc("route", "key", "seq"), when("blocks", true), false},
	// Retries by key, for operators, and abandoned messages in staging order.
	{"outbox", "waiting", asc("phase", "route", "key"), when("phase", int32(phaseRetry)), false},
	{"outbox", "gone", asc("phase", "seq"), when("phase", int32(phaseAbandoned)), false},
	// Settled messages by time, for cleaning.
	{"outbox", "settled", asc("class", "settled"), when("settled", bson.D{{Key: "$exists", Value: true}}), false},
	// Messages that expire.
	{"outbox", "expires", asc("expires"), when("expires", bson.D{{Key: "$exists", Value: true}}), false},
	{"notices", "route", asc("route", "_id"), nil, false},
	// The oldest marks of a consumer, to be purged.
	{"inbox", "handled", asc("_id.consumer", "handled"), nil, false},
}

// Migrate creates the collections, their indexes and the documents that the store needs. Many processes can call it at
// once, and again at any time. It never changes or drops anything.
func (s *Store) Migrate(ctx context.Context) error {
	s.migrating.Lock()
	defer s.migrating.Unlock()
	if err := s.migrate(ctx); err != nil {
		return classify("migrate", err)
	}
	s.prepared.Store(true)
	return nil
}

func (s *Store) migrate(ctx context.Context) error {
	lists := map[string][]driver.IndexModel{}
	for i := range needed {
		ix := &needed[i]
		opts := options.Index().SetName(s.opts.Prefix + ix.name)
		if ix.partial != nil {
			opts = opts.SetPartialFilterExpression(ix.partial)
		}
		if ix.unique {
			opts = opts.SetUnique(true)
		}
		lists[ix.collection] = append(lists[ix.collection], driver.IndexModel{Keys: ix.keys, Options: opts})
	}
	for name, c := range s.collections() {
		// Within a transaction a collection is better not made.
		err := s.db.CreateCollection(ctx, (*c).Name())
		if err != nil && !hasCode(err, 48) {
			return err
		}
		if list := lists[name]; len(list) > 0 {
			if _, err := (*c).Indexes().CreateMany(ctx, list); err != nil {
				return fmt.Errorf("indexes of %s: %w", (*c).Name(), err)
			}
		}
	}
	for _, d := range []bson.D{
		{{Key: "_id", Value: "sequence"}, {Key: "value", Value: int64(0)}, {Key: "open", Value: bson.A{}}},
		{{Key: "_id", Value: "epoch"}, {Key: "database", Value: bson.NewObjectID().Hex()}, {Key: "epoch", Value: int64(1)}},
		{{Key: "_id", Value: "hlc"}, {Key: "hlc", Value: int64(0)}},
		{{Key: "_id", Value: "audit"}, {Key: "number", Value: int64(0)}},
		{{Key: "_id", Value: "cleaner"}, {Key: "owner", Value: ""}},
		{{Key: "_id", Value: "schema"}, {Key: "version", Value: int32(version)}},
	} {
		if _, err := s.meta.InsertOne(ctx, d); err != nil && !driver.IsDuplicateKeyError(err) {
			return err
		}
	}
	return nil
}

// hasCode reports whether err has the code c.
func hasCode(err error, c int) bool {
	se, ok := errors.AsType[driver.ServerError](err)
	return ok && se.HasErrorCode(c)
}

// Check reports collections and indexes that are missing, and a server without transactions. It tries one out, since
// there are servers that accept transactions and do not roll them back. With AutoMigrate it migrates first.
func (s *Store) Check(ctx context.Context) error {
	if s.opts.AutoMigrate {
		if err := s.Migrate(ctx); err != nil {
			return err
		}
	}
	var d struct {
		Version int `bson:"version"`
	}
	err := s.meta.FindOne(ctx, bson.M{"_id": "schema"}).Decode(&d)
	if errors.Is(err, driver.ErrNoDocuments) {
		return misconfigured("check", fmt.Errorf("collection %s has no version: run Migrate, or set Options.AutoMigrate, "+
			"or correct Options.Prefix or the name of the database", s.meta.Name()))
	}
	if err != nil {
		return classify("check", err)
	}
	if d.Version < version {
		return misconfigured("check", fmt.Errorf("the collections have version %d, this program needs %d: run Migrate", d.Version, version))
	}
	if err := s.tryTransactions(ctx); err != nil {
		return classify("check", err)
	}
	diffs, err := s.Drift(ctx)
	if err != nil {
		return err
	}
	for _, diff := range diffs {
		return misconfigured("check", fmt.Errorf("%s is %s, and must be %s: run Migrate, or drop an index that has another shape first",
			diff.Object, diff.Have, diff.Want))
	}
	return nil
}

// tryTransactions rolls a transaction back and looks whether it left something.
func (s *Store) tryTransactions(ctx context.Context) error {
	doc := bson.M{"_id": bson.NewObjectID()}
	defer func() { _, _ = s.tickets.DeleteOne(context.WithoutCancel(ctx), doc) }()
	err := s.once(ctx, func(ctx context.Context) error {
		if _, err := s.tickets.InsertOne(ctx, doc); err != nil {
			return err
		}
		return errAsked
	})
	if !errors.Is(err, errAsked) {
		return err
	}
	err = s.tickets.FindOne(ctx, doc).Err()
	switch {
	case err == nil:
		return misconfigured("check", fmt.Errorf("a transaction that was rolled back left a document in %s: %s", s.tickets.Name(), noTransactions))
	case errors.Is(err, driver.ErrNoDocuments):
		return nil
	}
	return err
}
