package asyncapi_test

import (
	"encoding/json"
	"errors"
	"math/big"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/google/uuid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/asyncapi"
	"github.com/waybill-go/waybill/internal/sharedtest"
)

type line struct {
	Article string `json:"article"`
	Count   uint8  `json:"count"`
}

type order struct {
	ID       string    `json:"id"`
	PlacedAt time.Time `json:"placed_at"`
	Lines    []line    `json:"lines"`
	Note     *string   `json:"note,omitempty"`
}

var (
	placed = waybill.NewTopic("orders.placed", waybill.JSON[order]())
	paid   = waybill.NewTopic("orders.paid", waybill.JSON[struct{ ID string }]())
	scan   = waybill.NewTopic("scans", waybill.Bytes("image/png"))
)

func billing() asyncapi.Application {
	described := asyncapi.Of(scan)
	described.Description = "A page, as it came from the scanner."
	return asyncapi.Application{
		Title: "billing", Version: "1.4.0", Description: "Writes invoices.",
		Sends: []asyncapi.Message{asyncapi.Of(paid), described},
		Receives: []asyncapi.Queue{
			{Subscription: waybill.Subscription{Queue: "billing", Bindings: []string{"orders.*"}}, Messages: []asyncapi.Message{asyncapi.Of(placed), asyncapi.Of(paid)}},
			{Subscription: waybill.Subscription{Queue: "audit", Bindings: []string{"#"}}, Messages: []asyncapi.Message{asyncapi.Of(placed)}},
		},
	}
}

// TR-12: the document of topics and subscriptions; the programs in examples/interop hold it against AsyncAPI's schema.
func TestDocument(t *testing.T) {
	t.Parallel()
	got, err := billing().Document()
	if err != nil {
		t.Fatal(err)
	}
	sharedtest.Golden(t, "testdata/billing.golden.json", string(got)+"\n", "")
}

// TR-12: everything that is wrong, at once, with what to do.
func TestProblems(t *testing.T) {
	t.Parallel()
	other := asyncapi.Of(placed)
	other.Payload = json.RawMessage(`{"type":"object"}`)
	notJSON := other
	notJSON.Payload = json.RawMessage(`{`)
	_, err := asyncapi.Application{
		Sends: []asyncapi.Message{
			{},
			{Topic: "a{b}"},
			{Topic: strings.Repeat("x", 300)},
			asyncapi.Of(waybill.NewTopic("calls", waybill.JSON[func()]())),
			asyncapi.Of(placed),
			other,
			notJSON,
		},
		Receives: []asyncapi.Queue{
			{Subscription: waybill.Subscription{Queue: "empty"}},
			{Subscription: waybill.Subscription{Queue: "q", Bindings: []string{"orders.paid"}}, Messages: []asyncapi.Message{asyncapi.Of(placed)}},
			{Messages: []asyncapi.Message{asyncapi.Of(paid)}},
		},
	}.Document()
	if !errors.Is(err, waybill.ErrInvalid) {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Title: is empty", "Version: is empty", "Sends[0]: the topic is empty", `Sends[1]: topic "a{b}" holds a brace`, "Sends[2]: topic has 300 bytes",
		`Sends[3]: topic "calls": type func() cannot be written as JSON; set Message.Payload`, `Sends[5]: topic "orders.placed" was declared before`,
		"Sends[6]: ", "Payload is not JSON", `Receives[0]: queue "empty" has no messages`,
		`Receives[1]: no binding of queue "q" matches topic "orders.placed"`, "Receives[2]: Queue is empty",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in\n%v", want, err)
		}
	}
}

type (
	base     struct{ Inherited, Hidden int }
	optional struct{ Perhaps string }
	tree     struct{ Children []tree }
	own      struct{}
	all      struct {
		base
		*optional
		Hidden   string
		Bool     bool
		Float    float64 `json:"float"`
		Quoted   int     `json:",string"`
		Bytes    []byte
		Digest   [2]byte
		Time     time.Time
		ID       uuid.UUID
		Address  netip.Addr
		Number   json.Number
		Big      *big.Int
		Raw      json.RawMessage
		Any      any
		Map      map[string]line
		ByNumber map[int]*bool
		Pointer  *line
		Tree     tree
		Own      own
		Left     string `json:"-"`
		Absent   string `json:",omitempty"`
		Zero     line   `json:",omitzero"`
		hidden   chan int
	}
)

func (own) MarshalJSON() ([]byte, error) { return []byte(`[1,"a"]`), nil }

// TR-12: what encoding/json writes fits the schema, whether everything is set or nothing.
func TestPayloadFits(t *testing.T) {
	t.Parallel()
	yes := true
	full := all{
		base: base{1, 2}, optional: &optional{"p"}, Hidden: "h", Bool: true, Float: 1.5, Quoted: 7, Bytes: []byte("b"), Digest: [2]byte{1, 2},
		Time: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), ID: uuid.Max, Address: netip.MustParseAddr("::1"), Number: "12.5", Big: big.NewInt(9),
		Raw: json.RawMessage(`{"a":1}`), Any: []int{1}, Map: map[string]line{"a": {"b", 1}}, ByNumber: map[int]*bool{1: nil, 2: &yes}, Pointer: &line{},
		Tree: tree{[]tree{{}}}, Left: "l", Absent: "a", Zero: line{"z", 1},
	}
	full.hidden = nil
	m := asyncapi.Of(waybill.NewTopic("all", waybill.JSON[all]()))
	var s jsonschema.Schema
	if err := json.Unmarshal(m.Payload, &s); err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	check := func(body []byte) error {
		var v any
		if err := json.Unmarshal(body, &v); err != nil {
			t.Fatal(err)
		}
		return resolved.Validate(v)
	}
	for name, v := range map[string]all{"full": full, "empty": {}} {
		body, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := check(body); err != nil {
			t.Errorf("%s: %v\n%s\n%s", name, err, body, m.Payload)
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(body, &fields); err != nil {
			t.Fatal(err)
		}
		for field := range fields {
			if s.Properties[field] == nil {
				t.Errorf("field %s is not in the schema", field)
			}
		}
		for _, field := range s.Required {
			was := fields[field]
			if delete(fields, field); name == "full" {
				if body, _ := json.Marshal(fields); check(body) == nil {
					t.Errorf("field %s may be missing", field)
				}
			}
			fields[field] = was
		}
	}
	if want := 19; len(s.Required) < want || s.Properties["Left"] != nil || s.Properties["hidden"] != nil {
		t.Errorf("%d fields are required: %v", len(s.Required), s.Required)
	}
	if check([]byte(`{"Bool":"yes"}`)) == nil {
		t.Error("a text fits a bool")
	}
}
