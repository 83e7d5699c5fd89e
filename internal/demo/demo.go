package demo

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/sqlite"
	"github.com/waybill-go/waybill/transport/memory"
)

// The names of what there is.
const (
	Outbox       = "shop"
	Queue        = "billing.orders"
	TopicOrders  = "orders.placed"
	TopicPoison  = "orders.imported" // no broker takes it
	TopicNobody  = "invoices.sent"   // no queue is bound for it
	TopicLater   = "orders.reminded" // due in two hours
	BlockedKey   = "order-13"        // the broker refuses it again and again
	RouteMails   = "mails"
	RouteArchive = "archive" // nobody serves it
)

// Demo is the shop. The caller must Close it after Run has returned.
type Demo struct {
	Store *sqlite.Store
	Bus   *memory.Transport
	Relay *relay.Relay
	// Metrics reads what relay and consumer count; for one dashboard.
	Metrics  *sdkmetric.ManualReader
	provider *sdkmetric.MeterProvider
	consumer *consumer.Consumer
}

// New makes a shop whose outbox is a file in the folder dir.
func New(ctx context.Context, dir string, logger *slog.Logger) (*Demo, error) {
	store, err := sqlite.Open(ctx, filepath.Join(dir, "demo.db"), sqlite.Options{Source: "/shop", AutoMigrate: true, Logger: logger})
	if err != nil {
		return nil, err
	}
	d := &Demo{Store: store, Metrics: sdkmetric.NewManualReader()}
	d.provider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(d.Metrics))
	if err := d.connect(logger); err != nil {
		return nil, errors.Join(err, store.Close(ctx))
	}
	return d, nil
}

// connect makes what works on the outbox.
func (d *Demo) connect(logger *slog.Logger) (err error) {
	if d.Bus, err = memory.New(memory.Options{}); err != nil {
		return err
	}
	// Before the consumer comes: a message that no queue is bound for is given up at once.
	if err := errors.Join(d.Bus.Declare("mails", "mails.#"), d.Bus.Declare(Queue, "orders.#")); err != nil {
		return err
	}
	d.Relay, err = relay.New(d.Store, &moody{d.Bus}, relay.Options{
		Name: "shop relay", MeterProvider: d.provider, Logger: logger, UnroutableTimeout: -1,
		Routes: []relay.Route{{Backoff: &waybill.Backoff{Kind: waybill.BackoffConstant, Base: time.Hour, Cap: time.Hour}}, {Name: RouteMails}},
	})
	if err != nil {
		return err
	}
	if d.consumer, err = consumer.New(d.Bus, consumer.Options{MeterProvider: d.provider, Logger: logger}); err != nil {
		return err
	}
	sub := waybill.Subscription{Queue: Queue, Bindings: []string{"orders.#"}, Retry: waybill.RetryDelays()}
	if err := d.consumer.Handle(sub, waybill.Handler{Name: TopicOrders, NameIsTopic: true, Handle: bill}); err != nil {
		return err
	}
	return d.consumer.Handle(waybill.Subscription{Queue: "mails"}, waybill.Handler{
		Name: "mails.welcome", NameIsTopic: true, Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) {
			return waybill.HandlerProcessed, nil
		},
	})
}

// bill is the handler of orders. An order without a total cannot be billed.
func bill(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
	if !strings.Contains(string(d.Envelope.Body), `"total"`) {
		return waybill.HandlerProcessed, waybill.Reject(errors.New("the order has no total"))
	}
	return waybill.HandlerProcessed, nil
}

// moody is a broker with troubles.
type moody struct{ core.Publisher }

// Unwrap returns the broker behind it.
func (m *moody) Unwrap() any { return m.Publisher }

func (m *moody) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	out := make(core.Results, len(batch))
	var good []waybill.Envelope
	var at []int
	blocked := map[string]bool{}
	for i := range batch {
		switch e := &batch[i]; {
		case e.Topic == TopicPoison:
			out[i] = &waybill.Error{Op: "demo: publish", Class: waybill.ClassPermanent, Reason: waybill.ReasonTooLarge, Err: errors.New("frame of 135266304 bytes is over the broker's limit")}
		case e.Key == BlockedKey && blocked[e.Key]:
			out[i] = waybill.ErrPredecessorFailed
		case e.Key == BlockedKey:
			blocked[e.Key] = true
			out[i] = &waybill.Error{Op: "demo: publish", Class: waybill.ClassRejected, Err: errors.New("queue billing.orders is full")}
		default:
			good, at = append(good, *e), append(at, i)
		}
	}
	if len(good) > 0 {
		for i, err := range m.Publisher.Publish(ctx, good) {
			out[at[i]] = err
		}
	}
	return out
}

// Options returns the options of a dashboard for the shop.
func (d *Demo) Options() dashboard.Options {
	return dashboard.Options{
		Title: "Waybill demo", Outboxes: []dashboard.Outbox{{Name: Outbox, Store: d.Store, Relay: d.Relay}},
		Queues: []dashboard.Queue{{Name: Queue, Parked: d.Bus}}, Metrics: d.Metrics, ShowBodies: true,
	}
}

// Run relays and handles until ctx ends.
func (d *Demo) Run(ctx context.Context) error { return waybill.Run(ctx, d.Relay, d.consumer) }

// Close closes the outbox and the broker.
func (d *Demo) Close(ctx context.Context) error {
	return errors.Join(d.Bus.Close(ctx), d.Store.Close(ctx), d.provider.Shutdown(ctx))
}

// Stage stages messages in one transaction.
func (d *Demo) Stage(ctx context.Context, messages ...waybill.Message) error {
	tx, err := d.Store.DB().BeginTx(ctx, &sql.TxOptions{})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	for i := range messages {
		if _, err := d.Store.Stage(ctx, tx, messages[i]); err != nil {
			return err
		}
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	d.Store.Wake()
	return nil
}
