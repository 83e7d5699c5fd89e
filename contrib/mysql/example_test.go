package waybillmysql_test

import (
	"context"

	"github.com/waybill-go/waybill"
	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
)

type Order struct {
	ID string `json:"id"`
}

var OrderPlaced = waybill.NewTopic("orders.placed", waybill.JSON[Order]())

// place writes an order and its message in one transaction.
func place(ctx context.Context, store *waybillmysql.Store, o Order) error {
	tx, err := store.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id) VALUES (?)", o.ID); err != nil {
		return err
	}
	if _, err := store.Stage(ctx, tx, OrderPlaced.Message(o)); err != nil {
		return err
	}
	return tx.Commit()
}

func Example() {
	ctx := context.Background()
	store, err := waybillmysql.Open("user:password@tcp(db:3306)/shop", waybillmysql.Options{Source: "/orders"})
	if err != nil {
		return
	}
	if err := store.Migrate(ctx); err != nil { // when you deploy; or run schema.sql yourself
		return
	}
	_ = place(ctx, store, Order{ID: "o-1"})
}
