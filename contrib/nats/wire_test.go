package nats_test

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/nats"
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
		TraceState: "vendor=1", Headers: map[string]string{"region": "eu", "Größe": "50 %"}, Body: []byte(`{"order":42}`),
	}
}

// TR-13: the names on the wire are a contract: this test fails when one changes, and when the documentation's example
// is another.
func TestWireGolden(t *testing.T) {
	t.Parallel()
	e := fullEnvelope()
	m := nats.Encode("waybill.t."+e.Topic, &e)
	var b strings.Builder
	fmt.Fprintf(&b, "subject: %s\n\n", m.Subject)
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		fmt.Fprintf(&b, "%s: %s\n", name, strings.Join(m.Header[name], ", "))
	}
	fmt.Fprintf(&b, "\n%s\n", m.Data)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile("testdata/wire.golden", []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/wire.golden")
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("a contract changed; UPDATE_GOLDEN=1 accepts it:\n%s", b.String())
	}
	page, err := os.ReadFile("../../docs/wire-format.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```\n"+string(want)+"```\n") {
		t.Error("docs/wire-format.md does not hold the content of testdata/wire.golden")
	}
	if got := nats.Decode(e.Topic, m.Header, m.Data); !reflect.DeepEqual(got, e) {
		t.Errorf("decoded %+v, want %+v", got, e)
	}
}

// TR-13: a message that Waybill has not made comes with the attributes that it has.
func TestDecodeForeign(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		topic  string
		header natsgo.Header
		want   waybill.Envelope
	}{
		"bare":             {"a.b", nil, waybill.Envelope{Topic: "a.b"}},
		"deduplication id": {"a", natsgo.Header{"Nats-Msg-Id": {"7"}}, waybill.Envelope{Topic: "a", ID: "7"}},
		"two ids":          {"a", natsgo.Header{"Nats-Msg-Id": {"7"}, "ce-id": {"8"}}, waybill.Envelope{Topic: "a", ID: "8"}},
		"escaped":          {"a.%3E", natsgo.Header{"ce-subject": {"Gr%C3%B6%C3%9Fe%20x"}, "ce-tenant": {"50%"}}, waybill.Envelope{Topic: "a.>", Subject: "Größe x", Tenant: "50%"}},
		"several values":   {"a", natsgo.Header{"x": {"1", "2"}}, waybill.Envelope{Topic: "a", Headers: map[string]string{"x": "1, 2"}}},
		"odd attributes": {
			"a",
			natsgo.Header{"ce-time": {"yesterday"}, "ce-foo": {"bar"}, "waybill-priority": {"99"}, "waybill-attempt": {"7"}},
			waybill.Envelope{Topic: "a", Headers: map[string]string{"ce-time": "yesterday", "ce-foo": "bar"}},
		},
		"a copy": {"", natsgo.Header{"ce-topic": {"a.%3E"}}, waybill.Envelope{Topic: "a.>"}},
	} {
		if got := nats.Decode(c.topic, c.header, nil); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TR-13: the filters of a queue never overlap, and fit each topic that a binding fits.
func TestFilters(t *testing.T) {
	t.Parallel()
	if got := nats.Patterns("bus.t.", "a.>.% x.*.#"); !slices.Equal(got, []string{"bus.t.a.%3E.%25%20x.*", "bus.t.a.%3E.%25%20x.*.>"}) {
		t.Errorf("patterns %v", got)
	}
	topics := []string{"a", "a.b", "a.b.c", "a.x.c", "x.b.c", "b", "b.a", "a.b.c.d"}
	for _, bindings := range [][]string{
		{"a"},
		{"a.#"},
		{"#"},
		{"*"},
		{"a.*", "*.b"},
		{"a.*.c", "*.b.c"},
		{"a.#", "a.b", "*.b.#"},
		{"#", "a"},
		{"a.b.c", "a.*"},
		{"a", "a.#", "a.*.#", "*.#"},
		{"*.*", "b", "*"},
	} {
		var list []string
		for _, b := range bindings {
			list = append(list, nats.Patterns("bus.t.", b)...)
		}
		filters := nats.Disjoint(list)
		for _, topic := range topics {
			n := 0
			for _, f := range filters {
				if nats.Fits(f, "bus.t."+topic) {
					n++
				}
			}
			wanted := slices.ContainsFunc(list, func(p string) bool { return nats.Fits(p, "bus.t."+topic) })
			if n > 1 || wanted && n == 0 {
				t.Errorf("bindings %v, topic %s: %d of the filters %v fit", bindings, topic, n, filters)
			}
		}
	}
}
