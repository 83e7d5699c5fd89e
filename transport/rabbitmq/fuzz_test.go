package rabbitmq

import (
	"maps"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

// FuzzDecode reads anything that a producer can send as a message. A copy of it, as for a retry, is read as the same
// message. A message that came through the exchange sets neither its attempt nor its topic.
func FuzzDecode(f *testing.F) { // SE-08
	f.Add(uint8(0), "cloudEvents_id", "1", int64(0), "2", "orders.placed", []byte("body"))
	f.Add(uint8(0), "cloudEvents:partitionkey", "k", int64(0), "", "", []byte(nil))
	f.Add(uint8(1), "waybill-attempt", "", int64(1<<40), "1", "a", []byte("body"))
	f.Add(uint8(2), "waybill-header-x", "\xff", int64(0), "1", "a", []byte("body"))
	f.Add(uint8(3), "x-delivery-count", "x", int64(-1), "1", "a", []byte("body"))
	f.Add(uint8(4), "x-death", "x", int64(7), "1", "a", []byte("body"))
	f.Add(uint8(5), "cloudEvents_expirytime", "2262-04-11T23:47:16.854775807Z", int64(7), "1", "a", []byte("body"))
	f.Add(uint8(0), "cloudEvents_expirytime", "9999-12-31T23:59:59.999999999Z", int64(7), "1", "a", []byte("body"))
	f.Add(uint8(0), "cloudEvents_hlc", "7fffffffffffffff", int64(7), "1", "a", []byte("body"))
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f.Fuzz(func(t *testing.T, kind uint8, name, text string, number int64, id, key string, body []byte) {
		values := []any{
			text, number, []byte(text),
			amqp.Table{text: number, "b": []any{text, nil}},
			[]any{amqp.Table{"queue": text, "count": number}},
			time.Unix(number, 0), number > 0, float64(number),
			amqp.Decimal{Scale: uint8(number), Value: int32(number)},
			nil,
		}
		d := amqp.Delivery{
			Headers: amqp.Table{name: values[int(kind)%len(values)], "cloudEvents_source": "/x"}, MessageId: id, RoutingKey: key, Exchange: "shop",
			Expiration: text, Body: body,
		}
		var first, again waybill.Delivery
		decode(&first, &d, "q", "shop.dlx.q", now)
		if first.Attempt != 1 || !first.NotBefore.IsZero() || first.Envelope.Topic != key || first.Redeliveries != 0 {
			t.Errorf("a producer set attempt %d, due %s, topic %q, redeliveries %d", first.Attempt, first.NotBefore, first.Envelope.Topic, first.Redeliveries)
		}
		p := copyOf(&d, first.Envelope.Topic, first.Envelope.Expires)
		back := amqp.Delivery{
			Headers: p.Headers, MessageId: p.MessageId, RoutingKey: "q.return", Exchange: "shop.dlx.q", Body: p.Body, ContentType: p.ContentType,
			Type: p.Type, AppId: p.AppId, CorrelationId: p.CorrelationId, Timestamp: p.Timestamp,
		}
		decode(&again, &back, "q", "shop.dlx.q", now)
		a, b := &first.Envelope, &again.Envelope
		if again.Attempt != 1 || a.ID != b.ID || a.Key != b.Key || a.Source != b.Source || a.Topic != b.Topic && a.Topic != "" || !a.Expires.Equal(b.Expires) ||
			string(a.Body) != string(b.Body) || !maps.Equal(a.Headers, b.Headers) || waybill.ReasonOf(first.Err) != waybill.ReasonOf(again.Err) {
			t.Errorf("a copy differs: %+v, %v\n%+v, %v", a, first.Err, b, again.Err)
		}
		if err := again.Err; err != nil && !utf8.ValidString(strings.ToValidUTF8(err.Error(), "")) {
			t.Error(err)
		}
	})
}
