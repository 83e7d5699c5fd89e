package kafka_test

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/kafka"
	"github.com/waybill-go/waybill/hlc"
)

func fullEnvelope() waybill.Envelope {
	at := time.Date(2026, 3, 4, 5, 6, 7, 8000, time.UTC)
	return waybill.Envelope{
		ID: "0190d3f2-7b1c-7000-8000-000000000001", Topic: "orders.placed", Type: "com.example.order.placed", Source: "/orders",
		Subject: "order/42", Time: at, ContentType: "application/json", Key: "order-42", Tenant: "acme",
		CorrelationID: "conversation-7", CausationID: "0190d3f2-7b1c-7000-8000-000000000000", RunID: "run-9",
		Lineage: []string{"root", "0190d3f2-7b1c-7000-8000-000000000000"}, HLC: hlc.Timestamp(at.UnixMilli()<<16 | 7),
		Expires: at.Add(time.Minute), Priority: 5, TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		TraceState: "vendor=1", Headers: map[string]string{"region": "eu", "content-type": "no type"}, Body: []byte(`{"order":42}`),
	}
}

// TR-13: the names on the wire are a contract: this test fails when one changes, and when the documentation's example
// is another.
func TestWireGolden(t *testing.T) {
	t.Parallel()
	e := fullEnvelope()
	rec := kafka.Encode("waybill", &e)
	var lines []string
	for _, h := range rec.Headers {
		lines = append(lines, fmt.Sprintf("%s: %s\n", h.Key, h.Value))
	}
	slices.Sort(lines)
	text := fmt.Sprintf("topic: %s\nkey: %s\n\n%s\n%s\n", rec.Topic, rec.Key, strings.Join(lines, ""), rec.Value)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile("testdata/wire.golden", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/wire.golden")
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("a contract changed; UPDATE_GOLDEN=1 accepts it:\n%s", text)
	}
	page, err := os.ReadFile("../../docs/wire-format.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```\n"+string(want)+"```\n") {
		t.Error("docs/wire-format.md has another message")
	}
	if got := kafka.Decode(rec); !reflect.DeepEqual(got, e) {
		t.Errorf("decoded as %+v", got)
	}
}

// A record of another program comes with the attributes that it has.
func TestForeignRecord(t *testing.T) {
	t.Parallel()
	got := kafka.Decode(&kgo.Record{Key: []byte("k"), Value: []byte("v"), Headers: []kgo.RecordHeader{
		{Key: "region", Value: []byte("eu")},
		{Key: "ce_time", Value: []byte("noon")},
		{Key: "waybill-priority", Value: []byte("99")},
		{Key: "content-type", Value: []byte("text/plain")},
		{Key: "waybill-unheard-of", Value: []byte("x")},
	}})
	want := waybill.Envelope{Key: "k", Body: []byte("v"), ContentType: "text/plain", Headers: map[string]string{"region": "eu", "ce_time": "noon"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("decoded as %+v, want %+v", got, want)
	}
}

// FuzzDecode gives decode any header: none stops it.
func FuzzDecode(f *testing.F) {
	f.Add("ce_id", "1", "k", "v")
	f.Add("ce_lineage", "a,%2C", "", "")
	f.Add("waybill-header-content-type", "x", "k", "")
	f.Fuzz(func(t *testing.T, name, value, key, body string) {
		e := kafka.Decode(&kgo.Record{Key: []byte(key), Value: []byte(body), Headers: []kgo.RecordHeader{{Key: name, Value: []byte(value)}}})
		rec := kafka.Encode("bus", &e)
		if again := kafka.Decode(rec); string(again.Body) != body || again.Key != e.Key {
			t.Errorf("%q: %q came back as %+v", name, value, again)
		}
	})
}
