package rabbitmq_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

var wireTime = sharedtest.Envelope().Time

// TR-10, OR-01: the names on the wire are a contract: this test fails when one changes, and when the documentation's
// example is another.
func TestWireGolden(t *testing.T) {
	t.Parallel()
	e := sharedtest.Envelope()
	table := amqp.Table{}
	p, err := rabbitmq.Encode(&e, wireTime, table)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range [][2]any{
		{"exchange", "waybill"},
		{"routing-key", e.Topic},
		{"mandatory", true},
		{"", ""},
		{"content-type", p.ContentType},
		{"delivery-mode", p.DeliveryMode},
		{"priority", p.Priority},
		{"correlation-id", p.CorrelationId},
		{"expiration", p.Expiration},
		{"message-id", p.MessageId},
		{"timestamp", p.Timestamp.Unix()},
		{"type", p.Type},
		{"app-id", p.AppId},
		{"", ""},
	} {
		b.WriteString(strings.TrimRight(fmt.Sprintf("%-17v %v", f[0], f[1]), " ") + "\n")
	}
	for _, k := range slices.Sorted(maps.Keys(p.Headers)) {
		fmt.Fprintf(&b, "%-26s %-7T %v\n", k, p.Headers[k], p.Headers[k])
	}
	fmt.Fprintf(&b, "\n%s\n", p.Body)
	sharedtest.Golden(t, "testdata/wire.golden", b.String(), "../../docs/wire-format.md")
}

// TR-10: an encoded message is decoded, with the prefix in every form, beside any other headers.
func TestDecode(t *testing.T) {
	t.Parallel()
	now := wireTime
	full := sharedtest.Envelope()
	table := amqp.Table{}
	p, err := rabbitmq.Encode(&full, now, table)
	if err != nil {
		t.Fatal(err)
	}
	arrived := amqp.Delivery{
		Headers: p.Headers, ContentType: p.ContentType, Priority: p.Priority, CorrelationId: p.CorrelationId, Expiration: p.Expiration,
		MessageId: p.MessageId,
		Timestamp: time.Unix(p.Timestamp.Unix(), 0), Type: p.Type, AppId: p.AppId, Exchange: "waybill", RoutingKey: full.Topic,
		Body: p.Body,
	}
	colon := arrived
	colon.Headers = amqp.Table{}
	for k, v := range arrived.Headers {
		colon.Headers[strings.Replace(k, "cloudEvents_", "cloudEvents:", 1)] = v
	}
	for _, c := range []struct {
		name string
		in   amqp.Delivery
		want waybill.Delivery
	}{
		{"full", arrived, waybill.Delivery{Envelope: full, Attempt: 1}},
		{"colon", colon, waybill.Delivery{Envelope: full, Attempt: 1}},
		{
			"bare",
			amqp.Delivery{RoutingKey: "a.b", Exchange: "x", Body: []byte("hi")},
			waybill.Delivery{Envelope: waybill.Envelope{Topic: "a.b", Body: []byte("hi")}, Attempt: 1},
		},
		{
			"properties only",
			amqp.Delivery{
				RoutingKey: "a.b", Exchange: "x", MessageId: "1", Type: "t", AppId: "app", CorrelationId: "c",
				Timestamp: time.Unix(100, 0), ContentType: "text/plain", Expiration: "5000",
			},
			waybill.Delivery{Envelope: waybill.Envelope{
				ID: "1", Topic: "a.b", Type: "t", Source: "app", CorrelationID: "c",
				Time: time.Unix(100, 0).UTC(), ContentType: "text/plain", Expires: now.Add(5 * time.Second),
			}, Attempt: 1},
		},
		{"odd types", amqp.Delivery{RoutingKey: "a", Exchange: "x", Headers: amqp.Table{
			"int": int32(-5), "long": int64(1) << 60, "bool": true, "nil": nil, "bytes": []byte{0xff, 0xfe}, "text": []byte("text"),
			"time": time.Unix(100, 0), "float": 1.5,
			"decimal": amqp.Decimal{Scale: 2, Value: 12345}, "array": []any{int32(1), "two", nil, []any{}},
			"table": amqp.Table{"a": amqp.Table{"b": []byte("c")}}, "byte": byte(7),
			"cloudEvents_id": int64(42), "cloudEvents_time": "yesterday", "cloudEvents_unknown": "kept", "cloudEvents_hlc": nil,
			"waybill-attempt": "nonsense", "x-death": []any{"?"},
		}}, waybill.Delivery{Envelope: waybill.Envelope{ID: "42", Topic: "a", Headers: map[string]string{
			"int": "-5", "long": "1152921504606846976", "bool": "true", "nil": "", "bytes": "//4=", "text": "text",
			"time": "1970-01-01T00:01:40Z", "float": "1.5", "decimal": "123.45",
			"array": `[1,"two",null,[]]`, "table": `{"a":{"b":"c"}}`, "byte": "7", "cloudEvents_time": "yesterday",
			"cloudEvents_unknown": "kept", "cloudEvents_hlc": "",
		}}, Attempt: 1}},
		{"counted elsewhere", amqp.Delivery{RoutingKey: "a", Exchange: "x", Headers: amqp.Table{
			"waybill-attempt": int64(5), "waybill-redeliveries": int64(math.MaxInt32), "waybill-due": int64(math.MaxInt32) * 1000,
		}}, waybill.Delivery{Envelope: waybill.Envelope{Topic: "a"}, Attempt: 1}},
		{"parked elsewhere", amqp.Delivery{RoutingKey: "mails.x", Exchange: "x", Headers: amqp.Table{
			"waybill-queue": "q", "cloudEvents_topic": "payments.done",
		}}, waybill.Delivery{Envelope: waybill.Envelope{Topic: "mails.x"}, Attempt: 1}},
		{"retried", amqp.Delivery{RoutingKey: "q", Exchange: "", Headers: amqp.Table{
			"cloudEvents_topic": "a.b",
			"waybill-attempt":   int64(3),
		}}, waybill.Delivery{Envelope: waybill.Envelope{Topic: "a.b"}, Attempt: 3}},
		{"moved out of the dead-letter queue of another system", amqp.Delivery{RoutingKey: "q", Exchange: "", Headers: amqp.Table{
			"x-death": []any{
				amqp.Table{"queue": "old", "exchange": "", "routing-keys": []any{"old"}},
				amqp.Table{"queue": "old", "exchange": "outbox", "routing-keys": []any{"a.b"}},
			},
		}}, waybill.Delivery{Envelope: waybill.Envelope{Topic: "a.b"}, Attempt: 1}},
		{"parked by the broker", amqp.Delivery{RoutingKey: "q", Exchange: "dlx", Headers: amqp.Table{
			"x-death": []any{amqp.Table{"queue": "q", "exchange": "shop", "routing-keys": []any{"a.b"}}},
		}}, waybill.Delivery{Envelope: waybill.Envelope{Topic: "a.b"}, Attempt: 1}},
		{"dead elsewhere", amqp.Delivery{RoutingKey: "mails.x", Exchange: "x", Headers: amqp.Table{
			"x-death": []any{amqp.Table{"queue": "q", "exchange": "x", "routing-keys": []any{"payments.done"}}},
		}}, waybill.Delivery{Envelope: waybill.Envelope{Topic: "mails.x"}, Attempt: 1}},
		{
			"foreign attribute topic",
			amqp.Delivery{RoutingKey: "a.b", Exchange: "x", Headers: amqp.Table{"cloudEvents_topic": "other"}},
			waybill.Delivery{Envelope: waybill.Envelope{Topic: "a.b"}, Attempt: 1},
		},
		{"count of 3.10", amqp.Delivery{Redelivered: true, Headers: amqp.Table{
			"x-delivery-count":     int64(2),
			"waybill-redeliveries": int64(5),
		}}, waybill.Delivery{Attempt: 1, Redeliveries: 7}},
		{"count of another queue", amqp.Delivery{Headers: amqp.Table{"x-delivery-count": int64(50)}}, waybill.Delivery{Attempt: 1}},
		{
			"given back on 4.3",
			amqp.Delivery{Redelivered: true, Headers: amqp.Table{"x-acquired-count": int64(2)}},
			waybill.Delivery{Attempt: 1},
		},
		{"crashed on 4.3", amqp.Delivery{Redelivered: true, Headers: amqp.Table{
			"x-acquired-count": int64(3),
			"x-delivery-count": int64(2),
		}}, waybill.Delivery{Attempt: 1, Redeliveries: 2}},
		{"redelivered by a classic queue", amqp.Delivery{Redelivered: true}, waybill.Delivery{Attempt: 1, Redeliveries: -1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := rabbitmq.Decode(&c.in, "", "dlx", now)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	conflict := amqp.Delivery{MessageId: "1", Headers: amqp.Table{"cloudEvents_id": "2"}}
	if d := rabbitmq.Decode(&conflict, "", "dlx", now); waybill.ReasonOf(d.Err) != waybill.ReasonIDConflict ||
		waybill.ClassOf(d.Err) != waybill.ClassPermanent {
		t.Errorf("two ids: %v", d.Err)
	}
}

// CO-14: a copy keeps every property and header as it was, with its type, and goes on with its time.
func TestCopiesKeepEverything(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a.*"}, RetryDelays: []time.Duration{50 * time.Millisecond}})
	ch := testenv.Channel(t, mq.URL)
	headers := amqp.Table{
		"int": int32(-5), "long": int64(1) << 60, "bool": true, "nil": nil, "bytes": []byte{0xff, 0xfe}, "time": time.Unix(100, 0),
		"float": 1.5, "short": int16(3), "byte": byte(7),
		"array": []any{int32(1), "two", nil}, "table": amqp.Table{"a": amqp.Table{"b": []byte("c")}}, "cloudEvents_unknown": "kept",
		"decimal": amqp.Decimal{Scale: 1, Value: 5},
	}
	sent := amqp.Publishing{
		Headers: headers, ContentType: "text/plain", ContentEncoding: "gzip", DeliveryMode: 2, Priority: 4, CorrelationId: "c",
		ReplyTo: "r", Expiration: "3600000",
		MessageId: "m", Timestamp: time.Unix(1000, 0), Type: "t", AppId: "app", Body: []byte("body"),
	}
	if err := ch.PublishWithContext(t.Context(), "waybill", "a.b", true, false, sent); err != nil {
		t.Fatal(err)
	}
	d := receive(t, r, 1)[0]
	first := d.Envelope
	if left := time.Until(first.Expires); left < 30*time.Minute || left > time.Hour {
		t.Errorf("%s left", left)
	}
	for attempt := 1; attempt <= 3; attempt++ {
		if diff := cmp.Diff(first, d.Envelope); diff != "" || d.Attempt != attempt {
			t.Errorf("attempt %d (%d): -want +got:\n%s", attempt, d.Attempt, diff)
		}
		if attempt < 3 {
			// at once, then by the delay queue
			settle(t, r, core.AckRetry(d, time.Duration(attempt-1)*50*time.Millisecond, nil))
			d = receive(t, r, 1)[0]
		}
	}
	settle(t, r, core.AckReject(d, waybill.ReasonRejected, errors.New("no good")))
	var parked amqp.Delivery
	patience.Until(t, "parked", func() bool {
		m, ok, err := ch.Get("q.dlq", true)
		parked = m
		return ok && err == nil
	})
	for k, v := range headers {
		if diff := cmp.Diff(v, parked.Headers[k]); diff != "" {
			t.Errorf("header %s: -want +got:\n%s", k, diff)
		}
		delete(parked.Headers, k)
	}
	if at, err := time.Parse(time.RFC3339Nano, fmt.Sprint(parked.Headers["waybill-parked-at"])); err != nil || at.Before(first.Expires.Add(-time.Hour)) || at.After(time.Now()) {
		t.Errorf("parked at %v", parked.Headers["waybill-parked-at"])
	}
	for _, k := range []string{"waybill-parked-at", "cloudEvents_expirytime"} {
		if parked.Headers[k] == nil {
			t.Errorf("no header %s", k)
		}
		delete(parked.Headers, k)
	}
	delete(parked.Headers, "x-delivery-count") // the broker's
	want := amqp.Table{
		"waybill-reason": "rejected", "waybill-error": "no good", "waybill-queue": "q", "waybill-attempt": int64(3),
		"cloudEvents_topic": "a.b",
	}
	if diff := cmp.Diff(want, parked.Headers); diff != "" {
		t.Errorf("headers of the parked message: -want +got:\n%s", diff)
	}
	got := amqp.Publishing{
		ContentType: parked.ContentType, ContentEncoding: parked.ContentEncoding, DeliveryMode: parked.DeliveryMode,
		Priority:      parked.Priority,
		CorrelationId: parked.CorrelationId, ReplyTo: parked.ReplyTo, Expiration: parked.Expiration, MessageId: parked.MessageId,
		Timestamp: parked.Timestamp, Type: parked.Type,
		AppId: parked.AppId, Body: parked.Body,
	}
	sent.Headers, sent.Expiration = nil, ""
	if diff := cmp.Diff(sent, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
