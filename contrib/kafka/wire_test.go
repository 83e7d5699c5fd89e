package kafka_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/kafka"
	"github.com/waybill-go/waybill/internal/sharedtest"
)

// TR-13: the names on the wire are a contract: this test fails when one changes, and when the documentation's example
// is another.
func TestWireGolden(t *testing.T) {
	t.Parallel()
	e := sharedtest.Envelope()
	e.Headers["content-type"] = "no type"
	rec := kafka.Encode("waybill", &e)
	var lines []string
	for _, h := range rec.Headers {
		lines = append(lines, fmt.Sprintf("%s: %s\n", h.Key, h.Value))
	}
	slices.Sort(lines)
	text := fmt.Sprintf("topic: %s\nkey: %s\n\n%s\n%s\n", rec.Topic, rec.Key, strings.Join(lines, ""), rec.Value)
	sharedtest.Golden(t, "testdata/wire.golden", text, "../../docs/wire-format.md")
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
