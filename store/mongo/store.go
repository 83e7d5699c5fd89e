package mongo

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

// Store is an outbox and an inbox in a MongoDB database. It is safe for concurrent use.
type Store struct {
	db      *driver.Database
	opts    Options
	stamper *core.Stamper

	outbox, members, fences, routes, notice, tickets, inbox, audit, meta *driver.Collection

	counter *driver.Collection // meta, for draws, which need not wait for a majority: the commit after them does

	stripes    chan int32 // fences that no call of this store writes now
	hint       chan struct{}
	prepared   atomic.Bool // the collections were created, or are there
	watch      watcher
	longRun    time.Duration // see there
	countLimit int64         // see there
	doubts     doubts

	migrating sync.Mutex
}

var (
	_ core.OutboxStore                = (*Store)(nil)
	_ waybill.Stager[*driver.Session] = (*Store)(nil)
	_ core.Checker                    = (*Store)(nil)
	_ admin.Migrator                  = (*Store)(nil)
	_ core.ClockSeeder                = (*Store)(nil)
)

// New returns a store in db, a database of a replica set. The client belongs to the caller and must outlive the store.
// The store reads from the primary and writes with the concern majority, with any defaults of the client. New does not
// connect: see [Store.Check].
func New(db *driver.Database, opts Options) (*Store, error) {
	if db == nil {
		return nil, waybill.Invalid("waybill/mongo: new", "db: is nil; pass client.Database(name)")
	}
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	stamper, err := core.NewStamper(core.StamperOptions{
		Source: opts.Source, Clock: opts.Clock, Limits: opts.Limits, TTL: opts.TTL, RouteTTL: opts.RouteTTL, Now: opts.Now,
		TracerProvider: opts.TracerProvider, Cancellable: opts.Cancellable,
	})
	if err != nil {
		return nil, err
	}
	s := &Store{db: db, opts: opts, stamper: stamper, hint: make(chan struct{}, 1), stripes: make(chan int32, stripes), longRun: longRun, countLimit: countLimit}
	for stripe := range int32(stripes) {
		s.stripes <- stripe
	}
	for name, c := range s.collections() {
		*c = db.Collection(opts.Prefix+name, options.Collection().SetReadConcern(readconcern.Majority()).
			SetWriteConcern(durably()).SetReadPreference(readpref.Primary()))
	}
	s.counter = s.meta.Clone(options.Collection().SetWriteConcern(writeconcern.W1()))
	return s, nil
}

// collections are the collections of the store by their names without the prefix.
func (s *Store) collections() map[string]**driver.Collection {
	return map[string]**driver.Collection{
		"outbox": &s.outbox, "members": &s.members, "fences": &s.fences, "routes": &s.routes, "notices": &s.notice,
		"tickets": &s.tickets, "inbox": &s.inbox, "audit": &s.audit, "meta": &s.meta,
	}
}

// Clock returns the clock of the stamps.
func (s *Store) Clock() *hlc.Clock { return s.stamper.Clock() }

func (s *Store) logger() *slog.Logger {
	if s.opts.Logger == nil {
		return slog.Default()
	}
	return s.opts.Logger
}

// Traits declares exact transaction ids, a fence by session, and durability, which needs journals and a majority.
func (s *Store) Traits() core.StoreTraits {
	return core.StoreTraits{SessionFence: true, Durable: true, SharedAcrossProcesses: true}
}

// ready creates the collections before the first use, if AutoMigrate is set.
func (s *Store) ready(ctx context.Context) error {
	if !s.opts.AutoMigrate || s.prepared.Load() {
		return nil
	}
	return s.Migrate(outside(ctx))
}
