package sqltest_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/waybilltest"
	"github.com/waybill-go/waybill/waybilltest/sqltest"
)

// t stands for the *testing.T of a test, which an example does not have.
var t printer

type printer struct{}

var cleanups []func() // of examples

func (printer) Helper()                        {}
func (printer) Cleanup(f func())               { cleanups = append(cleanups, f) }
func (printer) Context() context.Context       { return context.Background() }
func (printer) Errorf(format string, a ...any) { fmt.Printf(format+"\n", a...) }
func (printer) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }

func ExampleNew() {
	env := sqltest.New(t, waybilltest.Options{})
	if _, err := env.DB.ExecContext(t.Context(), "CREATE TABLE bills (order_id TEXT, cents INTEGER)"); err != nil {
		t.Fatalf("%v", err)
	}
	box, err := inbox.New(env.Store, "billing", inbox.Options{})
	if err != nil {
		t.Fatalf("%v", err)
	}
	env.Handle(inbox.Handler(box, OrderPlaced, func(ctx context.Context, tx *sql.Tx, o Order) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO bills (order_id, cents) VALUES ($1, $2)", o.ID, o.Cents)
		return err
	}))

	err = env.Do(func(ctx context.Context, tx *sql.Tx) error { // the producer's transaction
		_, err := env.Store.Stage(ctx, tx, OrderPlaced.Message(Order{ID: "o-1", Cents: 990}, waybill.ID("m-1")))
		return err
	})
	again := env.Redeliver("m-1")

	var bills, cents int
	if err := env.DB.QueryRowContext(t.Context(), "SELECT count(*), sum(cents) FROM bills").Scan(&bills, &cents); err != nil {
		t.Fatalf("%v", err)
	}
	fmt.Println("error:", err)
	fmt.Println("again:", again.Status)
	fmt.Println("bills:", bills, "cents:", cents)
	// Output:
	// error: <nil>
	// again: duplicate
	// bills: 1 cents: 990
}
