package core_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

func TestTopicCarriesDefaultRoutes(t *testing.T) { // ST-17 ST-06
	t.Parallel()
	routes := []string{"audit", "default"}
	topic := waybill.NewTopic("orders.placed", waybill.JSON[int]()).On(routes...)
	routes[0] = "changed"
	s := newStamper(t, nil)
	for name, tc := range map[string]struct {
		m    waybill.Message
		want []string
	}{
		"none named":          {topic.Message(1), []string{"audit", "default"}},
		"the message says":    {topic.Message(1, waybill.Routes("other")), []string{"other"}},
		"in a lane":           {topic.Message(1, waybill.InLane(waybill.LaneHigh)), []string{"audit/high", "default/high"}},
		"without a default":   {waybill.NewTopic("orders.placed", waybill.JSON[int]()).Message(1), []string{"default"}},
		"taken back":          {topic.On().Message(1), []string{"default"}},
		"the last On is used": {topic.On("x").Message(1), []string{"x"}},
	} {
		rows, err := s.Stamp(t.Context(), []waybill.Message{tc.m})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range rows {
			got = append(got, r.Route)
			if r.Envelope.ID != rows[0].Envelope.ID {
				t.Errorf("%s: the routes have different ids", name)
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: routes %v, want %v", name, got, tc.want)
		}
	}
	if _, err := s.Stamp(t.Context(), []waybill.Message{topic.On("").Message(1)}); !errors.Is(err, waybill.ErrInvalid) ||
		!strings.Contains(err.Error(), "Routes[0]") {
		t.Errorf("an empty default route: %v", err)
	}
}

func TestTopicDeclaredTwice(t *testing.T) { // ST-17
	t.Parallel()
	s := newStamper(t, nil)
	stamp := func(m ...waybill.Message) error { _, err := s.Stamp(t.Context(), m); return err }
	asInt := waybill.NewTopic("a", waybill.JSON[int]())
	if err := stamp(asInt.Message(1), waybill.NewTopic("a", waybill.JSON[int]()).On("r").Message(2),
		waybill.RawMessage("a", "", nil), waybill.NewTopic("b", waybill.JSON[string]()).Message("")); err != nil {
		t.Fatalf("the same declaration, a raw message, another topic: %v", err)
	}
	for name, m := range map[string]waybill.Message{
		"another type":  waybill.NewTopic("a", waybill.JSON[string]()).Message("1"),
		"another codec": waybill.NewTopic("a", intCodec{}).Message(1),
	} {
		err := stamp(asInt.Message(1), m)
		if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(),
			"messages[1].Topic: \"a\" is declared twice") || !strings.Contains(err.Error(), "int") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := stamp(asInt.Message(1)); err != nil {
		t.Errorf("the first declaration is refused afterwards: %v", err)
	}
	// Within one call, and from many goroutines: one of the two is refused.
	if err := stamp(waybill.NewTopic("c", waybill.JSON[int]()).Message(1),
		waybill.NewTopic("c", waybill.JSON[bool]()).Message(true)); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("within one call: %v", err)
	}
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() {
			if i%2 == 0 {
				errs[i] = stamp(waybill.NewTopic("d", waybill.JSON[int]()).Message(1))
			} else {
				errs[i] = stamp(waybill.NewTopic("d", waybill.JSON[bool]()).Message(true))
			}
		})
	}
	wg.Wait()
	if even := errs[0] == nil; even == (errs[1] == nil) {
		t.Errorf("of two declarations, %v and %v", errs[0], errs[1])
	}
	if err := newStamperErr(t, waybill.NewTopic("a", waybill.JSON[string]()).Message("1")); err != nil {
		t.Errorf("in another outbox: %v", err)
	}
}

func newStamperErr(tb testing.TB, m waybill.Message) error {
	tb.Helper()
	_, err := newStamper(tb, nil).Stamp(tb.Context(), []waybill.Message{m})
	return err
}

type intCodec struct{}

func (intCodec) ContentType() string        { return "application/x-int" }
func (intCodec) Encode(int) ([]byte, error) { return nil, nil }
func (intCodec) Decode([]byte) (int, error) { return 0, nil }

func TestLanes(t *testing.T) { // ST-19
	t.Parallel()
	s := newStamper(t, nil)
	for l, want := range map[waybill.Lane]string{waybill.LaneHigh: "r/high", waybill.LaneNormal: "r", waybill.LaneLow: "r/low"} {
		row := stampOne(t, s, t.Context(), waybill.RawMessage("t", "", nil, waybill.Routes("r"), waybill.InLane(l)))
		if row.Route != want || waybill.LaneRoute("r", l) != want {
			t.Errorf("lane %q: route %q, want %q", l, row.Route, want)
		}
	}
	for name, m := range map[string]waybill.Message{
		"Lane":      waybill.RawMessage("t", "", nil, waybill.InLane("urgent")),
		"Routes[0]": waybill.RawMessage("t", "", nil, waybill.Routes("r/high")), // could be taken for a lane
	} {
		if _, err := s.Stamp(t.Context(), []waybill.Message{m}); !errors.Is(err, waybill.ErrInvalid) ||
			!strings.Contains(err.Error(), name+": ") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestLineageOfSiblings(t *testing.T) { // ST-13
	t.Parallel()
	s := newStamper(t, nil)
	root := stampOne(t, s, waybill.WithLineageRoot(t.Context(), "request-1"), waybill.RawMessage("t", "", nil)).Envelope
	if !slices.Equal(root.Lineage, []string{"request-1"}) {
		t.Errorf("a message under a root has the lineage %v", root.Lineage)
	}
	handling := waybill.WithDelivery(t.Context(), &waybill.Delivery{Envelope: root})
	a, b := stampOne(t, s, handling, waybill.RawMessage("t", "", nil)).Envelope, stampOne(t, s, handling,
		waybill.RawMessage("t", "", nil)).Envelope
	want := []string{"request-1", root.ID}
	if !slices.Equal(a.Lineage, want) || !slices.Equal(b.Lineage, want) || a.CausationID != root.ID {
		t.Errorf("siblings have the lineages %v and %v, want %v", a.Lineage, b.Lineage, want)
	}
	child := stampOne(t, s, waybill.WithDelivery(t.Context(), &waybill.Delivery{Envelope: a}), waybill.RawMessage("t", "", nil)).Envelope
	if !slices.Equal(child.Lineage, append(want, a.ID)) || len(a.Lineage) != 2 {
		t.Errorf("a child has the lineage %v", child.Lineage)
	}
	own := waybill.RawMessage("t", "", nil)
	own.Lineage = []string{}
	if e := stampOne(t, s, handling, own).Envelope; len(e.Lineage) != 0 {
		t.Errorf("a message that wants no lineage has %v", e.Lineage)
	}
}

func TestDedupeKeyReachesTheRow(t *testing.T) { // ST-08 ST-10 ST-15
	t.Parallel()
	s := newStamper(t, nil)
	row := stampOne(t, s, t.Context(), waybill.RawMessage("t", "", nil, waybill.DedupeKey("k")))
	if row.DedupeKey != "k" || row.Replace {
		t.Errorf("%+v", row)
	}
	row = stampOne(t, s, t.Context(), waybill.RawMessage("t", "", nil, waybill.Replace("k")))
	if row.DedupeKey != "k" || !row.Replace {
		t.Errorf("%+v", row)
	}
	for name, tc := range map[string]struct {
		m     waybill.Message
		field string
	}{
		"replace without key": {waybill.RawMessage("t", "", nil, waybill.Replace("")), "Replace: needs a DedupeKey"},
		"too long": {waybill.RawMessage("t", "", nil,
			waybill.DedupeKey(strings.Repeat("k", waybill.MaxNameBytes+1))), "DedupeKey: has 256 bytes"},
		"not UTF-8": {waybill.RawMessage("t", "", nil, waybill.DedupeKey("a\xff")), "DedupeKey: "},
		"NUL":       {waybill.RawMessage("t", "", nil, waybill.DedupeKey("a\x00")), "DedupeKey: "},
	} {
		if _, err := s.Stamp(t.Context(), []waybill.Message{tc.m}); !errors.Is(err, waybill.ErrInvalid) ||
			!strings.Contains(err.Error(), tc.field) {
			t.Errorf("%s: got %v, want %q", name, err, tc.field)
		}
	}
}

func TestExpiryOverrides(t *testing.T) { // ST-11
	t.Parallel()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	s := newStamper(t, func(o *core.StamperOptions) { o.TTL, o.Now = time.Hour, func() time.Time { return now } })
	at := waybill.RawMessage("t", "", nil)
	at.Expires = now.Add(time.Second)
	for name, tc := range map[string]struct {
		m    waybill.Message
		want time.Time
	}{
		"the store's default":  {waybill.RawMessage("t", "", nil), now.Add(time.Hour)},
		"shorter":              {waybill.RawMessage("t", "", nil, waybill.TTL(time.Minute)), now.Add(time.Minute)},
		"longer":               {waybill.RawMessage("t", "", nil, waybill.TTL(48*time.Hour)), now.Add(48 * time.Hour)},
		"a time":               {at, now.Add(time.Second)},
		"none":                 {waybill.RawMessage("t", "", nil, waybill.TTL(-1)), time.Time{}},
		"the default, later":   {waybill.RawMessage("t", "", nil, waybill.Delay(30*time.Hour)), now.Add(31 * time.Hour)},
		"the default, at":      {waybill.RawMessage("t", "", nil, waybill.DeliverAt(now.Add(2*time.Hour))), now.Add(3 * time.Hour)},
		"the default, was due": {waybill.RawMessage("t", "", nil, waybill.DeliverAt(now.Add(-time.Hour))), now.Add(time.Hour)},
		"its own, later": {
			waybill.RawMessage("t", "", nil, waybill.Delay(30*time.Minute), waybill.TTL(time.Hour)),
			now.Add(time.Hour),
		},
	} {
		if e := stampOne(t, s, t.Context(), tc.m).Envelope; !e.Expires.Equal(tc.want) {
			t.Errorf("%s: expires at %s, want %s", name, e.Expires, tc.want)
		}
	}
}

// A route has a time to live of its own, in all its lanes and sub-routes; a message on several routes has that of each.
func TestExpiryOfRoutes(t *testing.T) { // ST-11
	t.Parallel()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	s := newStamper(t, func(o *core.StamperOptions) {
		o.TTL, o.Now = time.Hour, func() time.Time { return now }
		o.RouteTTL = map[string]time.Duration{"mails": 10 * time.Minute, "audit": -1}
	})
	sub := waybill.SubRoute("mails", "acme", 8)
	for name, tc := range map[string]struct {
		m    waybill.Message
		want []time.Duration // by route; 0 = never
	}{
		"three routes":    {waybill.RawMessage("t", "", nil, waybill.Routes("mails", "audit", "other")), []time.Duration{10 * time.Minute, 0, time.Hour}},
		"the default one": {waybill.RawMessage("t", "", nil), []time.Duration{time.Hour}},
		"a lane":          {waybill.RawMessage("t", "", nil, waybill.Routes("mails"), waybill.InLane(waybill.LaneHigh)), []time.Duration{10 * time.Minute}},
		"a sub-route":     {waybill.RawMessage("t", "", nil, waybill.Routes(sub)), []time.Duration{10 * time.Minute}},
		"scheduled":       {waybill.RawMessage("t", "", nil, waybill.Routes("mails"), waybill.Delay(time.Hour)), []time.Duration{70 * time.Minute}},
		"its own":         {waybill.RawMessage("t", "", nil, waybill.Routes("mails", "audit"), waybill.TTL(time.Second)), []time.Duration{time.Second, time.Second}},
		"never":           {waybill.RawMessage("t", "", nil, waybill.Routes("mails"), waybill.TTL(-1)), []time.Duration{0}},
	} {
		rows, err := s.Stamp(t.Context(), []waybill.Message{tc.m})
		if err != nil || len(rows) != len(tc.want) {
			t.Fatalf("%s: %d rows, %v", name, len(rows), err)
		}
		for i, in := range tc.want {
			want := time.Time{}
			if in > 0 {
				want = now.Add(in)
			}
			if got := rows[i].Envelope.Expires; !got.Equal(want) {
				t.Errorf("%s: on route %s it expires at %s, want %s", name, rows[i].Route, got, want)
			}
		}
	}
	_, err := core.NewStamper(core.StamperOptions{Source: "/s", TTL: -1, RouteTTL: map[string]time.Duration{"": 1, "x": 0}})
	for _, want := range []string{"TTL: -1ns", "RouteTTL: a route has no name", `RouteTTL: "x" has 0`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
