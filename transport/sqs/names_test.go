package sqs_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	sqstransport "github.com/waybill-go/waybill/transport/sqs"
)

// TR-13: every name becomes one that SQS takes, and no two become the same.
func TestQueueNames(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, o := range []sqstransport.Options{{}, {FIFO: true}, {Prefix: strings.Repeat("p", 30), FIFO: true}} {
		clear(seen)
		for _, queue := range []string{
			"billing", "billing-orders", "billing.orders", "billing_orders", "billing/orders", "größe", "GRÖSSE", "a", "A", "orders.fifo",
			strings.Repeat("x", 255), strings.Repeat("x", 254), strings.Repeat("日", 80),
		} {
			for _, name := range []string{o.QueueName(queue), o.ParkedName(queue)} {
				if other, ok := seen[name]; ok {
					t.Errorf("%q and %q are both %s", queue, other, name)
				}
				seen[name] = queue
				stem := strings.TrimSuffix(name, ".fifo")
				if len(name) > 80 || o.FIFO == (stem == name) || strings.Trim(stem, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
					t.Errorf("%q is %q, which SQS refuses", queue, name)
				}
			}
		}
	}
	if got := (sqstransport.Options{}).QueueName("billing-orders"); got != "billing-orders" {
		t.Errorf("a plain name became %q", got)
	}
}

// TR-08: bad options are all named at once, and so is a missing client.
func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	_, err := sqstransport.New(newClient(t, "http://127.0.0.1:1"), sqstransport.Options{
		Prefix: "a.", HoldFor: 1500 * time.Millisecond, Wait: time.Minute, Retention: time.Second, DeliveryLimit: -1, Requests: -1,
		Timeout: 1, Bindings: map[string][]string{"": nil, "q-dlq": nil, "q": {""}},
	})
	if !errors.Is(err, waybill.ErrInvalid) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"Prefix", "HoldFor", "Wait", "Retention", "DeliveryLimit", "Requests", "Timeout", "empty", "q-dlq", `Bindings["q"][0]`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	if _, err := sqstransport.New(nil, sqstransport.Options{}); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("without a client: %v", err)
	}
}
