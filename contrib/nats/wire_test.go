package nats_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	natsgo "github.com/nats-io/nats.go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/nats"
	"github.com/waybill-go/waybill/internal/sharedtest"
)

// TR-13: the names on the wire are a contract: this test fails when one changes, and when the documentation's example
// is another.
func TestWireGolden(t *testing.T) {
	t.Parallel()
	e := sharedtest.Envelope()
	e.Headers["Größe"] = "50 %"
	m := nats.Encode("waybill.t."+e.Topic, &e)
	var b strings.Builder
	fmt.Fprintf(&b, "subject: %s\n\n", m.Subject)
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		fmt.Fprintf(&b, "%s: %s\n", name, strings.Join(m.Header[name], ", "))
	}
	fmt.Fprintf(&b, "\n%s\n", m.Data)
	sharedtest.Golden(t, "testdata/wire.golden", b.String(), "../../docs/wire-format.md")
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
