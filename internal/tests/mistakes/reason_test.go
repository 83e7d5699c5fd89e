package mistakes_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/rabbitmq"
	"github.com/waybill-go/waybill/transport/table"
)

// RM-08 OP-15: an error with bytes that a database or a broker cannot store, or a very long one, parks its message all
// the same, and can be read.
func TestUnstorableReason(t *testing.T) {
	t.Parallel()
	pool := openPool(t, testenv.Postgres(t).DSN)
	migrate(t, pool)
	outbox := newOutbox(t, pool, postgres.Options{})
	tr, err := table.New(outbox, table.Options{})
	if err != nil {
		t.Fatal(err)
	}
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	sub := waybill.Subscription{Queue: "q", Bindings: []string{"a"}}
	declare(t, bus, sub)
	publish(t, bus, "", "bad")
	if _, err := stageOn(t, pool, outbox, waybill.RawMessage("a", "text/plain", nil, waybill.ID("bad"), waybill.Routes("q"))); err != nil {
		t.Fatal(err)
	}
	for name, sys := range map[string]interface {
		core.Subscriber
		admin.ParkedQueue
	}{"rabbitmq": bus, "table": tr} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newConsumer(t, sys, consumer.Options{})
			h := waybill.Handler{Name: waybill.AnyMessage, Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) {
				return waybill.HandlerProcessed, waybill.Reject(errors.New("no \x00 such \xff account " + strings.Repeat("!", 300_000)))
			}}
			if err := c.Handle(sub, h); err != nil {
				t.Fatal(err)
			}
			run := start(t, c)
			patience.Until(t, "it is parked", func() bool {
				n, err := sys.ParkedDepth(t.Context(), "q")
				return err == nil && n == 1
			})
			run.stop()
			p, err := sys.InspectParked(t.Context(), "q", admin.ParkedFilter{IDs: []string{"bad"}})
			readable := utf8.ValidString(p.Error) && !strings.Contains(p.Error, "\x00") && strings.Contains(p.Error, "account !!!")
			if err != nil || p.Reason != waybill.ReasonRejected || !readable || len(p.Error) > 10_000 {
				t.Errorf("%v: reason %q, error of %d bytes: %.100q", err, p.Reason, len(p.Error), p.Error)
			}
		})
	}
}
