package sqltest_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/waybilltest"
	"github.com/waybill-go/waybill/waybilltest/sqltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(closing{m}) }

// closing ends the examples before it looks for leaks.
type closing struct{ *testing.M }

func (c closing) Run() int {
	code := c.M.Run()
	for _, f := range cleanups {
		f()
	}
	return code
}

// Order is the application's event.
type Order struct {
	ID    string `json:"id"`
	Cents int    `json:"cents"`
}

var (
	OrderPlaced  = waybill.NewTopic("orders.placed", waybill.JSON[Order]())
	ReceiptReady = waybill.NewTopic("receipts.ready", waybill.JSON[Order]())
)

// Shop is the application's code: it knows database/sql and Waybill, and no test.
type Shop struct {
	Outbox waybill.Stager[*sql.Tx]
	Fail   error
}

// Bill is a handler as it is in production.
func (s *Shop) Bill(ctx context.Context, tx *sql.Tx, o Order) error {
	if _, err := tx.ExecContext(ctx, "INSERT INTO bills (order_id, cents) VALUES ($1, $2)", o.ID, o.Cents); err != nil {
		return err
	}
	if _, err := s.Outbox.Stage(ctx, tx, ReceiptReady.Message(o)); err != nil {
		return err
	}
	return s.Fail
}

// newShop returns the shop on an environment with its table.
func newShop(tb sqltest.TB, opts waybilltest.Options) (*Shop, *sqltest.Env) {
	tb.Helper()
	env := sqltest.New(tb, opts)
	if _, err := env.DB.ExecContext(tb.Context(), "CREATE TABLE bills (order_id TEXT, cents INTEGER)"); err != nil {
		tb.Fatalf("%v", err)
	}
	shop := &Shop{Outbox: env.Store}
	box, err := inbox.New(env.Store, "billing", inbox.Options{})
	if err != nil {
		tb.Fatalf("%v", err)
	}
	env.Handle(inbox.Handler(box, OrderPlaced, shop.Bill))
	return shop, env
}

func bills(tb sqltest.TB, env *sqltest.Env) (n int) {
	tb.Helper()
	if err := env.DB.QueryRowContext(tb.Context(), "SELECT count(*) FROM bills").Scan(&n); err != nil {
		tb.Fatalf("%v", err)
	}
	return n
}

func TestEffectOnce(t *testing.T) {
	_, env := newShop(t, waybilltest.Options{AllowUnhandled: true})
	staged := env.Stage(OrderPlaced.Message(Order{ID: "o-1", Cents: 990}))
	if n := bills(t, env); n != 1 {
		t.Fatalf("%d bills after one message, not 1", n)
	}
	if r := env.Redeliver(staged[0].ID); r.Status != waybill.HandlerDuplicate || r.Verdict != core.VerdictDone {
		t.Errorf("a duplicate is %v, %v: %v", r.Status, r.Verdict, r.Err)
	}
	if n, receipts := bills(t, env), len(env.Sent("receipts.ready")); n != 1 || receipts != 1 {
		t.Errorf("%d bills and %d receipts after a duplicate, not 1 and 1", n, receipts)
	}
}

func TestFailureLeavesNothing(t *testing.T) {
	shop, env := newShop(t, waybilltest.Options{AllowUnhandled: true})
	shop.Fail = errors.New("no paper")
	err := env.Do(func(ctx context.Context, tx *sql.Tx) error {
		_, err := shop.Outbox.Stage(ctx, tx, OrderPlaced.Message(Order{ID: "o-1", Cents: 990}))
		return err
	})
	if !errors.Is(err, shop.Fail) {
		t.Fatalf("Do returns %v, not the handler's error", err)
	}
	if n, receipts, parked := bills(t, env), len(env.Sent("receipts.ready")), env.Parked(); n != 0 || receipts != 0 || len(parked) != 1 {
		t.Errorf("%d bills, %d receipts and %d parked messages after a failure, not 0, 0 and 1", n, receipts, len(parked))
	}
	shop.Fail = nil
	if r := env.Redeliver(env.Sent("orders.placed")[0].Envelope.ID); r.Status != waybill.HandlerProcessed {
		t.Errorf("the message after its failure is %v: %v", r.Status, r.Err)
	}
	if n := bills(t, env); n != 1 {
		t.Errorf("%d bills after the second delivery, not 1", n)
	}
}

func TestRolledBackProducer(t *testing.T) {
	shop, env := newShop(t, waybilltest.Options{AllowUnhandled: true})
	rollback := errors.New("the customer went away")
	err := env.Do(func(ctx context.Context, tx *sql.Tx) error {
		_, err := shop.Outbox.Stage(ctx, tx, OrderPlaced.Message(Order{ID: "o-1"}))
		return errors.Join(err, rollback)
	})
	if !errors.Is(err, rollback) || len(env.Sent()) != 0 || len(env.Waiting()) != 0 {
		t.Errorf("after a rollback: %v, %d sent, %d waiting", err, len(env.Sent()), len(env.Waiting()))
	}
}

// Two messages in the order of their times, and a retry, each with the time that it would have waited.
func TestTimes(t *testing.T) {
	shop, env := newShop(t, waybilltest.Options{AllowUnhandled: true, Retry: waybill.RetryDelays(time.Minute)})
	env.Stage(OrderPlaced.Message(Order{ID: "late"}, waybill.Delay(2*time.Hour)), OrderPlaced.Message(Order{ID: "early"}, waybill.Delay(time.Hour)))
	shop.Fail = errors.New("no paper")
	err := env.Do(func(ctx context.Context, tx *sql.Tx) error {
		_, err := shop.Outbox.Stage(ctx, tx, OrderPlaced.Message(Order{ID: "bad"}))
		return err
	})
	if !errors.Is(err, shop.Fail) {
		t.Errorf("Do returns %v, not the handler's error", err)
	}
	var waits []time.Duration
	for _, s := range env.Sent("orders.placed") {
		waits = append(waits, s.DueIn)
	}
	if len(waits) != 4 || waits[0] != time.Hour || waits[1] != 2*time.Hour || waits[2] != 0 || waits[3] != time.Minute {
		t.Errorf("the attempts would have waited %v", waits)
	}
}

// A scheduled message waits for the clock, and the producer's own transaction is drained.
func TestKeepScheduled(t *testing.T) {
	shop, env := newShop(t, waybilltest.Options{AllowUnhandled: true, KeepScheduled: true})
	tx, err := env.DB.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := shop.Outbox.Stage(t.Context(), tx, OrderPlaced.Message(Order{ID: "o-1"}, waybill.Delay(time.Hour))); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := env.Drain(); err != nil || len(env.Waiting()) != 1 || env.Waiting()[0].DueIn != time.Hour {
		t.Fatalf("%v; waiting: %+v", err, env.Waiting())
	}
	if err := env.Advance(time.Hour); err != nil || bills(t, env) != 1 || len(env.Waiting()) != 0 {
		t.Errorf("after an hour: %v, %d bills, waiting: %+v", err, bills(t, env), env.Waiting())
	}
}
