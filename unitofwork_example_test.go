package waybill_test

import (
	"context"
	"fmt"
	"strconv"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/store/memory"
)

// begin runs fn in a transaction of the store in memory. With Postgres it is
//
//	func(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx) error) error {
//		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return fn(ctx, tx) })
//	}
func begin(store *memory.Store) func(context.Context, func(context.Context, *memory.Tx) error) error {
	return func(ctx context.Context, fn func(ctx context.Context, tx *memory.Tx) error) error {
		tx := store.Begin()
		defer tx.Rollback()
		if err := fn(ctx, tx); err != nil {
			return err
		}
		return tx.Commit()
	}
}

func ExampleUnitOfWork() {
	placed := waybill.NewTopic("orders.placed", waybill.JSON[string]())
	outbox, err := memory.New(memory.Options{Source: "/orders"})
	if err != nil {
		panic(err)
	}
	unit, err := waybill.NewUnitOfWork(outbox, begin(outbox))
	if err != nil {
		panic(err)
	}
	notify := func(ctx context.Context, order string) error { // knows no transaction
		return unit.Stage(ctx, placed.Message(order))
	}

	ctx := context.Background()
	err = unit.Do(ctx, func(ctx context.Context, tx *memory.Tx) error {
		tx.Put("order/17", "placed")
		return notify(ctx, "17")
	})
	fmt.Println(err, len(outbox.Records()))
	fmt.Println(notify(ctx, "18") != nil) // no transaction
	// Output:
	// <nil> 1
	// true
}

var (
	accountOpened = waybill.NewTopic("accounts.opened", waybill.JSON[string]())
	moneyPaidIn   = waybill.NewTopic("accounts.paid_in", waybill.JSON[int]())
)

// Account is an aggregate that records what happens to it.
type Account struct {
	waybill.Recorder
	ID      string
	Balance int
}

// OpenAccount returns a new account.
func OpenAccount(id string) *Account {
	a := &Account{ID: id}
	a.Record(accountOpened.Message(id, waybill.Key(id)))
	return a
}

// PayIn adds to the balance.
func (a *Account) PayIn(amount int) {
	a.Balance += amount
	a.Record(moneyPaidIn.Message(amount, waybill.Key(a.ID)))
}

func ExampleRecorder() {
	outbox, err := memory.New(memory.Options{Source: "/accounts"})
	if err != nil {
		panic(err)
	}
	unit, err := waybill.NewUnitOfWork(outbox, begin(outbox))
	if err != nil {
		panic(err)
	}
	account := OpenAccount("7")
	account.PayIn(100)
	err = unit.Do(context.Background(), func(ctx context.Context, tx *memory.Tx) error {
		tx.Put("account/"+account.ID, strconv.Itoa(account.Balance))
		return unit.StageRecorded(ctx, account)
	})
	if err != nil {
		panic(err) // rolled back: the account still has its events, for another try
	}
	for _, r := range outbox.Records() {
		fmt.Println(r.Envelope.Topic, string(r.Envelope.Body))
	}
	fmt.Println(len(account.Recorded()))
	// Output:
	// accounts.opened "7"
	// accounts.paid_in 100
	// 0
}

func ExampleStageRecorded() {
	outbox, err := memory.New(memory.Options{Source: "/accounts"})
	if err != nil {
		panic(err)
	}
	account := OpenAccount("7")
	tx := outbox.Begin()
	defer tx.Rollback()
	if _, err := waybill.StageRecorded(context.Background(), outbox, tx, account); err != nil {
		panic(err)
	}
	if err := tx.Commit(); err != nil {
		panic(err)
	}
	waybill.ForgetRecorded(account)
	fmt.Println(len(outbox.Records()), len(account.Recorded()))
	// Output: 1 0
}
