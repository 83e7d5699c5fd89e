package nats

import (
	"maps"
	"testing"

	"github.com/nats-io/nats.go"
)

// FuzzDecode reads anything that a producer can send. A copy of it is read as the same message.
func FuzzDecode(f *testing.F) { // SE-08
	f.Add("orders.placed", "ce-id", "1", []byte("body"))
	f.Add("", "ce-topic", "a%2", []byte("body"))
	f.Add("a%zz", "waybill-header-a%20b", "%", []byte(nil))
	f.Add("a", "waybill-priority", "300", []byte(nil))
	f.Add("a", "Nats-Msg-Id", "x", []byte(nil))
	f.Add("a", "ce-expirytime", "9999-12-31T23:59:59Z", []byte(nil))
	f.Fuzz(func(t *testing.T, topic, name, value string, body []byte) {
		h := nats.Header{name: {value, value}}
		e := decode(topic, h, body)
		if e.Priority > 9 || len(e.Headers) > 1 || len(e.Topic) > len(topic)+len(value)*2+2 {
			t.Errorf("priority %d, %d headers, a topic of %d bytes", e.Priority, len(e.Headers), len(e.Topic))
		}
		m := copyOf("subject", &e, h, body)
		again := decode("", m.Header, m.Data)
		if e.ID != again.ID || e.Topic != again.Topic || string(e.Body) != string(again.Body) || !maps.Equal(e.Headers, again.Headers) {
			t.Errorf("a copy differs: %+v\n%+v", e, again)
		}
	})
}
