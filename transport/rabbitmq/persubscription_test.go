package rabbitmq_test

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// connectionNamed returns the broker's name of the connection that calls itself by a name, or "". The broker lists a
// new one within about a second.
func connectionNamed(t *testing.T, mq *testenv.MQ, name string) string {
	t.Helper()
	var list []struct {
		Name       string `json:"name"`
		Properties struct {
			Name string `json:"connection_name"`
		} `json:"client_properties"`
	}
	if err := mq.Do(t.Context(), http.MethodGet, "/api/vhosts/"+url.PathEscape(mq.VHost)+"/connections", nil, &list); err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		if c.Properties.Name == name {
			return c.Name
		}
	}
	return ""
}

// With a connection for each subscription, an operator that closes one of them leaves the deliveries of the others
// alone. It ends with its receiver.
func TestConnectionPerSubscription(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{
		Connection: rabbitmq.ConnectionOptions{PerSubscription: true}, ReconnectMax: 50 * time.Millisecond,
	})
	one := subscribe(t, bus, core.Subscription{Queue: "one", Bindings: []string{"#"}})
	two := subscribe(t, bus, core.Subscription{Queue: "two", Bindings: []string{"#"}})
	if err := bus.Publish(t.Context(), envelopes(2, "a")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	held, before := receive(t, two, 2), rabbitmq.ChannelOf(two)
	for _, d := range receive(t, one, 2) {
		settle(t, one, core.AckDone(d))
	}
	var name string
	patience.Until(t, "its connection is listed", func() bool { name = connectionNamed(t, mq, "waybill consume one"); return name != "" })
	if err := mq.Do(t.Context(), http.MethodDelete, "/api/connections/"+url.PathEscape(name), nil, nil); err != nil {
		t.Fatal(err)
	}
	settle(t, two, core.AckDone(held[0]))
	if err := bus.Publish(t.Context(), envelopes(1, "b")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	settle(t, one, core.AckDone(receive(t, one, 1)[0])) // it is back

	settle(t, two, core.AckDone(held[1]), core.AckDone(receive(t, two, 1)[0]))
	if rabbitmq.ChannelOf(two) != before || before.IsClosed() {
		t.Error("the other subscription lost its channel")
	}
	if _, err := testenv.Channel(t, mq.URL).QueueDelete("one", false, false, false); err != nil {
		t.Fatal(err)
	}
	settle(t, one, core.AckDone(comesBack(t, bus, one, "a")))
	back := rabbitmq.ConnectionOf(one)
	if err := one.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if !back.IsClosed() || rabbitmq.ConnectionOf(two) == nil {
		t.Errorf("closed with its receiver: %t; the other one is open: %t", back.IsClosed(), rabbitmq.ConnectionOf(two) != nil)
	}
	if n, err := bus.ParkedDepth(t.Context(), "two"); err != nil || n != 0 {
		t.Errorf("%d are parked: %v", n, err)
	}
	conn, err := amqp.Dial(mq.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_, err = rabbitmq.New(conn, rabbitmq.Options{Connection: rabbitmq.ConnectionOptions{PerSubscription: true, Hosts: []string{"h"}}})
	if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), "Connection.PerSubscription: ") ||
		!strings.Contains(err.Error(), "Connection.Hosts: ") {
		t.Errorf("New: %v", err)
	}
}
