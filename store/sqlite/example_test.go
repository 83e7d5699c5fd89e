package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/sqlite"
)

type order struct {
	ID string `json:"id"`
}

var orderPlaced = waybill.NewTopic("orders.placed", waybill.JSON[order]())

func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "waybill")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	store, err := sqlite.Open(ctx, filepath.Join(dir, "shop.db"), sqlite.Options{Source: "/orders", AutoMigrate: true})
	if err != nil {
		panic(err)
	}
	defer store.Close(ctx)

	place := func(o order) error {
		tx, err := store.DB().BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		// Business rows go here, in the same transaction.
		if _, err := store.Stage(ctx, tx, orderPlaced.Message(o, waybill.Key(o.ID))); err != nil {
			return err
		}
		return tx.Commit()
	}
	fmt.Println(place(order{ID: "o-1"}))

	// The engine of a relay does this: it joins, takes the partitions of the route, reads, publishes and settles.
	self := core.Member{Session: 1, Name: "example", Routes: []core.ServedRoute{{Route: waybill.DefaultRoute, InitialPartitions: 1}}}
	partition := core.SplitPartitions(waybill.DefaultRoute, 1)[0]
	if _, err := store.Heartbeat(ctx, core.HeartbeatRequest{Self: self, Join: true, Transfers: []core.Transfer{{Partition: partition, To: 1}}}); err != nil {
		panic(err)
	}
	part := core.RouteSlots{Route: waybill.DefaultRoute, Slots: core.AllSlots}
	result, err := store.Read(ctx, 1, core.ReadRequest{Ranges: []core.Range{{RouteSlots: part, UpToSeq: 1 << 62, Limit: 100}}})
	if err != nil {
		panic(err)
	}
	for _, r := range result.Ranges[0].Records {
		e := &r.Envelope
		for range 2 { // it may arrive twice: a consumer handles it once
			status, err := store.Do(ctx, core.InboxKey{Consumer: "billing", Source: e.Source, ID: e.ID},
				func(context.Context, *sql.Tx) error {
					fmt.Println("billing", string(e.Body))
					return nil
				})
			fmt.Println(status == core.InboxDuplicate, err)
		}
		fmt.Println(e.Topic, store.Settle(ctx, 1, []core.Outcome{core.Published(&r)}).FirstErr())
	}
	// Output:
	// <nil>
	// billing {"id":"o-1"}
	// false <nil>
	// true <nil>
	// orders.placed <nil>
}

// Open a file and stage a message in the transaction that writes the business rows.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "waybill")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	store, err := sqlite.Open(ctx, filepath.Join(dir, "shop.db"), sqlite.Options{Source: "/orders", AutoMigrate: true})
	if err != nil {
		panic(err)
	}
	defer store.Close(ctx)

	tx, err := store.DB().BeginTx(ctx, nil)
	if err != nil {
		panic(err)
	}
	defer tx.Rollback() // does nothing after the commit
	// Write the business rows here, with tx.
	staged, err := store.Stage(ctx, tx, orderPlaced.Message(order{ID: "o-1"}, waybill.ID("m-1")))
	if err != nil {
		panic(err)
	}
	fmt.Println(staged[0].ID, tx.Commit())
	// Output: m-1 <nil>
}

// Use a database that the application has opened. Migrate as a step of the deployment.
func ExampleNew() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "waybill")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+"?_txlock=immediate"+
		"&_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		panic(err)
	}
	defer db.Close()
	migrations, err := sqlite.NewMigrations(sqlite.MigrationOptions{})
	if err != nil {
		panic(err)
	}
	if err := migrations.Up(ctx, db); err != nil {
		panic(err)
	}
	store, err := sqlite.New(db, sqlite.Options{Source: "/orders"})
	if err != nil {
		panic(err)
	}
	defer store.Close(ctx) // leaves db open
	fmt.Println(store.Check(ctx))
	// Output: <nil>
}
