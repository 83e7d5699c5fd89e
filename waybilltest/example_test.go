package waybilltest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/store/memory"
	"github.com/waybill-go/waybill/waybilltest"
)

// t stands for the *testing.T of a test, which an example does not have.
var t printer

type printer struct{}

func (printer) Helper()                        {}
func (printer) Context() context.Context       { return context.Background() }
func (printer) Errorf(format string, a ...any) { fmt.Printf(format+"\n", a...) }
func (printer) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }

func ExampleNew() {
	env := waybilltest.New(t, waybilltest.Options{AllowUnhandled: true}) // receipts and reminders are for others
	handlers, err := billing(env.Store)
	if err != nil {
		t.Fatalf("%v", err)
	}
	env.Handle(handlers...)

	err = env.Do(func(ctx context.Context, tx *memory.Tx) error {
		return placeOrder(ctx, env.Store, tx, Order{ID: "o-1", Cents: 990})
	})
	fmt.Println("error:", err)

	bill, _ := env.Store.Get("bill/o-1") // the handler's effect
	fmt.Println("billed:", bill)
	fmt.Println("receipts:", waybilltest.Values(env, ReceiptReady)) // what the handler staged
	for _, s := range env.Sent() {
		fmt.Println(s.Envelope.Topic, "after", s.DueIn)
	}
	// Output:
	// error: <nil>
	// billed: 990
	// receipts: [{o-1 990}]
	// orders.placed after 0s
	// receipts.ready after 0s
	// orders.reminder after 24h0m0s
}

func ExampleFlow_Redeliver() {
	env := waybilltest.New(t, waybilltest.Options{AllowUnhandled: true}) // receipts and reminders are for others
	handlers, err := billing(env.Store)
	if err != nil {
		t.Fatalf("%v", err)
	}
	env.Handle(handlers...)
	env.Stage(OrderPlaced.Message(Order{ID: "o-1", Cents: 990}, waybill.ID("m-1")))

	again := env.Redeliver("m-1")
	fmt.Println("again:", again.Status)
	fmt.Println("receipts:", len(waybilltest.Values(env, ReceiptReady)))

	poison := env.Deliver(waybill.Envelope{ID: "m-2", Source: "/foreign", Topic: "orders.placed", Body: []byte("not JSON")})
	fmt.Println("parked:", poison.Reason)
	// Output:
	// again: duplicate
	// receipts: 1
	// parked: undecodable
}

// PlaceOrder is a producer on a real database: it takes the transaction of its driver.
func PlaceOrder(ctx context.Context, outbox waybill.Stager[pgx.Tx], tx pgx.Tx, o Order) error {
	// … the INSERT of the order
	_, err := outbox.Stage(ctx, tx, OrderPlaced.Message(o, waybill.Key(o.ID)), Reminder.Message(o, waybill.Delay(24*time.Hour)))
	return err
}

func ExampleRecorder() {
	outbox := waybilltest.NewRecorder[pgx.Tx](t)
	var tx pgx.Tx // none is needed, unless the producer uses it: then give that of your test database
	if err := PlaceOrder(t.Context(), outbox, tx, Order{ID: "o-1", Cents: 990}); err != nil {
		t.Fatalf("%v", err)
	}
	fmt.Println("placed:", waybilltest.Require(outbox, OrderPlaced)) // fails the test unless there is exactly one
	for _, r := range outbox.Recorded() {
		fmt.Println(r.Envelope.Topic, r.Route, r.Envelope.Key, r.Delay)
	}
	// Output:
	// placed: {o-1 990}
	// orders.placed default o-1 0s
	// orders.reminder default  24h0m0s
}

func ExampleDeliver() {
	// Any handler, on any database. This one has none.
	handler := waybill.HandlerFor(OrderPlaced, func(ctx context.Context, o Order) error {
		if d, _ := waybill.DeliveryFrom(ctx); d.Attempt < 3 {
			return waybill.RetryAfter(errors.New("the printer is out of paper"), time.Minute)
		}
		return waybill.Reject(errors.New("no printer"))
	})
	d := waybilltest.Delivery(t, OrderPlaced, Order{ID: "o-1", Cents: 990})
	fmt.Println(waybilltest.Deliver(t.Context(), handler, d).Verdict)
	d.Attempt = 3
	fmt.Println(waybilltest.Deliver(t.Context(), handler, d).Reason)
	// Output:
	// retry
	// rejected
}

// A test on virtual time: the broker is down for an hour, the handler fails twice, and no time passes.
func TestBillingSurvivesAnOutage(t *testing.T) {
	t.Parallel()
	waybilltest.Run(t, waybilltest.LoopOptions{}, func(t *testing.T, l *waybilltest.Loop) {
		t.Helper()
		failures := 2
		l.Start(waybill.HandlerFor(OrderPlaced, func(ctx context.Context, o Order) error {
			if failures--; failures >= 0 {
				return errors.New("not today")
			}
			return nil
		}))
		l.FailPublish(func(waybill.Envelope) error { return waybill.Outage(errors.New("the broker is down")) })
		l.Stage(OrderPlaced.Message(Order{ID: "o-1", Cents: 990}))

		begin := time.Now()
		time.AfterFunc(time.Hour, func() { l.FailPublish(nil) })
		l.Idle()
		if took := time.Since(begin); took < time.Hour || len(l.Published()) != 1 || failures != -1 || len(l.Parked()) != 0 {
			t.Errorf("after %s: published %d, parked %v, %d failures left", took, len(l.Published()), l.Parked(), failures)
		}
	})
}

// A hundred histories with random faults: each order is billed once, although calls fail and answers get lost.
func TestBillingSurvivesFaults(t *testing.T) {
	waybilltest.Simulate(t, waybilltest.SimulateOptions{}, func(tb waybilltest.TB, l *waybilltest.Loop, r *rand.Rand) {
		box, err := inbox.New(l.Inbox(), "billing", inbox.Options{})
		if err != nil {
			tb.Fatalf("%v", err)
		}
		l.Start(inbox.Handler(box, OrderPlaced, func(ctx context.Context, tx *memory.Tx, o Order) error {
			before, _ := tx.Get(o.ID)
			tx.Put(o.ID, before+"billed")
			return nil
		}))
		for i := range 1 + r.IntN(20) {
			l.Stage(OrderPlaced.Message(Order{ID: fmt.Sprint("o-", i)}))
		}
		l.Idle()
		for _, m := range l.Published() {
			o, _ := OrderPlaced.Decode(&m)
			if bill, _ := l.Store.Get(o.ID); bill != "billed" {
				tb.Errorf("%s is %q", o.ID, bill)
			}
		}
	})
}
