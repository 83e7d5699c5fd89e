package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/store/sqlite"
)

// Order is the business row and, as JSON, the message.
type Order struct {
	ID    string `json:"id"`
	Cents int    `json:"cents"`
}

// OrderPlaced is the topic, declared once for both sides.
var OrderPlaced = waybill.NewTopic("orders.placed", waybill.JSON[Order]())

const tables = `
CREATE TABLE orders (id TEXT PRIMARY KEY, cents INTEGER NOT NULL);
CREATE TABLE bills (order_id TEXT NOT NULL, cents INTEGER NOT NULL);` // no unique key: a doubled effect would show

var errChangedMyMind = errors.New("the customer changed their mind")

// placeOrders places orders from several goroutines; every tenth transaction is rolled back after it staged.
func placeOrders(ctx context.Context, store *sqlite.Store, placed *atomic.Int64) error {
	g, ctx := errgroup.WithContext(ctx)
	for p := range producers {
		g.Go(func() error {
			for i := p; i < orders; i += producers {
				o := Order{ID: fmt.Sprintf("order-%04d", i), Cents: 100 + i}
				var changeOfMind error
				if i%10 == 9 {
					changeOfMind = errChangedMyMind
				}
				err := placeOrder(ctx, store, o, changeOfMind)
				if err != nil && !errors.Is(err, errChangedMyMind) {
					return err
				}
				placed.Add(1)
			}
			return nil
		})
	}
	return g.Wait()
}

// placeOrder writes the order and stages its message in one transaction: both exist, or neither.
func placeOrder(ctx context.Context, store *sqlite.Store, o Order, changeOfMind error) (err error) {
	tx, err := store.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreDone(tx.Rollback()))
		}
	}()
	if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id, cents) VALUES (?, ?)`, o.ID, o.Cents); err != nil {
		return err
	}
	if _, err := store.Stage(ctx, tx, OrderPlaced.Message(o)); err != nil {
		return err
	}
	if changeOfMind != nil {
		return changeOfMind
	}
	return tx.Commit()
}

func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}
