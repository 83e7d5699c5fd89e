package rabbitmq_test

// The driver ends its connection at a header frame that it cannot read: one above frame_max, or with tables that nest
// too deeply or have too many elements. A producer, or the broker's own headers, can make such a frame.

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// deep returns headers with a table that nests too deeply for the driver.
func deep() amqp.Table {
	in := any("x")
	for range 40 {
		in = amqp.Table{"in": in}
	}
	return amqp.Table{"deep": in, "cloudEvents_tenant": "acme"}
}

// CO-24: a message that the driver cannot read is delivered without the headers concerned, and cannot be decoded. It
// ends no connection, neither a transport's nor one that the application shares. In the dead-letter queue it is whole,
// and operators can list and delete it.
func TestHeadersThatTheDriverCannotRead(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T, *testenv.MQ, rabbitmq.Options) *rabbitmq.Transport{
		"dialled": func(t *testing.T, mq *testenv.MQ, opts rabbitmq.Options) *rabbitmq.Transport {
			t.Helper()
			return dial(t, mq.URL, opts)
		},
		"shared": own,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mq := testenv.RabbitMQ(t)
			testUnreadable(t, mq, open(t, mq, rabbitmq.Options{}))
		})
	}
}

func testUnreadable(t *testing.T, mq *testenv.MQ, bus *rabbitmq.Transport) {
	t.Helper()
	p := subscribe(t, bus, core.Subscription{Queue: "p", Bindings: []string{"p"}})
	q := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"q"}})
	connection := rabbitmq.ConnectionOf(p)
	if err := bus.Publish(t.Context(), envelopes(2, "q")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	held := receive(t, q, 2)
	wide := make([]any, 9000)
	many := amqp.Table{}
	for i := range wide {
		many[strconv.Itoa(i)] = nil
	}
	ch := testenv.Channel(t, mq.URL)
	for id, headers := range map[string]amqp.Table{"deep": deep(), "wide": {"wide": wide}, "many": many, "fine": {"a": amqp.Table{"b": "c"}}} {
		m := amqp.Publishing{MessageId: id, Headers: headers, Body: []byte(id), ContentType: "text/plain"}
		if err := ch.PublishWithContext(t.Context(), "waybill", "p", true, false, m); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range receive(t, p, 4) {
		e := &d.Envelope
		if string(e.Body) != e.ID || e.Topic != "p" || e.ContentType != "text/plain" {
			t.Errorf("%+v", e)
		}
		if e.ID == "fine" {
			settle(t, p, core.AckDone(d))
			continue
		}
		settle(t, p, core.AckRelease(d))
		d = receive(t, p, 1)[0]
		if waybill.ReasonOf(d.Err) != waybill.ReasonUndecodable {
			t.Fatalf("%s: %v", e.ID, d.Err)
		}
		if named := e.ID == "many" || strings.Contains(d.Err.Error(), `"`+e.ID+`"`); !named || e.ID == "deep" && e.Tenant != "acme" {
			t.Errorf("%s, tenant %q: %v", e.ID, e.Tenant, d.Err)
		}
		settle(t, p, core.AckReject(d, waybill.ReasonUndecodable, d.Err))
	}
	if err := bus.Publish(t.Context(), []waybill.Envelope{envelope("failed", "p")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	settle(t, p, core.AckReject(receive(t, p, 1)[0], waybill.ReasonRejected, errors.New("no")))

	parkedCount(t, bus, "p", 4)
	counts, err := bus.CountParked(t.Context(), "p")
	if err != nil || counts[waybill.ReasonUndecodable] != 3 || counts[waybill.ReasonRejected] != 1 {
		t.Errorf("parked %v: %v", counts, err)
	}
	one, err := bus.InspectParked(t.Context(), "p", admin.ParkedFilter{IDs: []string{"deep"}})
	if err != nil || string(one.Envelope.Body) != "deep" || one.Envelope.Topic != "p" || one.At.IsZero() ||
		!strings.Contains(one.Error, `"deep"`) {
		t.Errorf("%+v: %v", one, err)
	}
	var refused []string
	n, err := bus.ReplayParked(t.Context(), admin.ParkedRequest{Queue: "p", All: true, Result: func(_ admin.Parked, err error) {
		if err != nil {
			refused = append(refused, err.Error())
		}
	}})
	if err != nil || n != 1 || len(refused) != 3 || !strings.Contains(strings.Join(refused, ""), "purge") {
		t.Fatalf("%d replayed, refused %q: %v", n, refused, err)
	}
	settle(t, p, core.AckDone(receive(t, p, 1)[0]))

	// They are whole: every header of the producer is in the queue.
	var raw json.RawMessage
	look := map[string]any{"count": 10, "ackmode": "ack_requeue_true", "encoding": "auto"}
	if err := mq.Do(t.Context(), http.MethodPost, "/api/queues/"+url.PathEscape(mq.VHost)+"/p.dlq/get", look, &raw); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"in", "wide", "8999"} {
		if !strings.Contains(string(raw), `"`+name+`"`) {
			t.Errorf("header %q is lost", name)
		}
	}
	parkedCount(t, bus, "p", 3) // they are back
	if n, err := bus.PurgeParked(t.Context(), admin.ParkedRequest{Queue: "p", All: true}); err != nil || n != 3 {
		t.Errorf("%d purged: %v", n, err)
	}
	// It fits into a frame until the broker adds its count.
	full := amqp.Publishing{MessageId: "full", Headers: amqp.Table{"full": strings.Repeat("x", connection.Config.FrameSize-50)}}
	if err := ch.PublishWithContext(t.Context(), "waybill", "p", true, false, full); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		settle(t, p, core.AckRelease(receive(t, p, 1)[0]))
	}
	settle(t, p, core.AckDone(receive(t, p, 1)[0]))
	settle(t, q, core.AckDone(held[0]), core.AckDone(held[1]))
	if rabbitmq.ConnectionOf(p) != connection {
		t.Error("the connection was lost")
	}
}
