package waybilltest_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The application that the tests are about: orders are billed, and reminded of after a day.

type Order struct {
	ID    string
	Cents int
}

var (
	OrderPlaced  = waybill.NewTopic("orders.placed", waybill.JSON[Order]())
	ReceiptReady = waybill.NewTopic("receipts.ready", waybill.JSON[Order]())
	Reminder     = waybill.NewTopic("orders.reminder", waybill.JSON[Order]())
)

// placeOrder is the producer: a business write and its messages in one transaction.
func placeOrder(ctx context.Context, outbox waybill.Stager[*memory.Tx], tx *memory.Tx, o Order) error {
	if o.Cents <= 0 {
		return errors.New("an order costs something")
	}
	tx.Put("order/"+o.ID, strconv.Itoa(o.Cents))
	_, err := outbox.Stage(ctx, tx,
		OrderPlaced.Message(o, waybill.Key(o.ID)),
		Reminder.Message(o, waybill.Delay(24*time.Hour), waybill.DedupeKey("remind "+o.ID)))
	return err
}

// billing are the consumer's handlers.
func billing(store *memory.Store) ([]waybill.Handler, error) {
	box, err := inbox.New[*memory.Tx](store, "billing", inbox.Options{})
	if err != nil {
		return nil, err
	}
	return []waybill.Handler{inbox.Handler(box, OrderPlaced, func(ctx context.Context, tx *memory.Tx, o Order) error {
		if o.Cents > 1_000_000 {
			return waybill.Reject(errors.New("too expensive"))
		}
		tx.Put("bill/"+o.ID, strconv.Itoa(o.Cents))
		_, err := store.Stage(ctx, tx, ReceiptReady.Message(o))
		return err
	})}, nil
}
