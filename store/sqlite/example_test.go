package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/sqlite"
)

type order struct {
	ID string `json:"id"`
}

var orderPlaced = core.NewTopic("orders.placed", core.JSON[order]())

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
	defer store.Close()

	place := func(o order) error {
		tx, err := store.DB().BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		// Business rows go here, in the same transaction.
		if _, err := store.Stage(ctx, tx, orderPlaced.Message(o, core.Key(o.ID))); err != nil {
			return err
		}
		return tx.Commit()
	}
	fmt.Println(place(order{ID: "o-1"}))

	// A relay claims and publishes; a consumer handles each message once.
	claim, err := store.Claim(ctx, core.ClaimRequest{
		Owner: "example", Routes: []core.RouteOrder{{Route: core.DefaultRoute}}, MaxRecords: 10, Lease: core.DefaultBackoffCap,
	})
	if err != nil {
		panic(err)
	}
	e := claim.Records[0].Envelope
	for range 2 {
		status, err := store.Do(ctx, core.InboxKey{Consumer: "billing", Source: e.Source, ID: e.ID}, func(ctx context.Context, tx *sql.Tx) error {
			fmt.Println("billing", string(e.Body))
			return nil
		})
		fmt.Println(status == core.InboxDuplicate, err)
	}
	// Output:
	// <nil>
	// billing {"id":"o-1"}
	// false <nil>
	// true <nil>
}
