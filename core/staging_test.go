package core_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
)

func TestTopicCarriesDefaultRoutes(t *testing.T) { // ST-17 ST-06
	t.Parallel()
	routes := []string{"audit", "default"}
	topic := core.NewTopic("orders.placed", core.JSON[int]()).On(routes...)
	routes[0] = "changed"
	s := newStamper(t, nil)
	for name, tc := range map[string]struct {
		m    core.Message
		want []string
	}{
		"none named":          {topic.Message(1), []string{"audit", "default"}},
		"the message says":    {topic.Message(1, core.Routes("other")), []string{"other"}},
		"in a lane":           {topic.Message(1, core.InLane(core.LaneHigh)), []string{"audit/high", "default/high"}},
		"without a default":   {core.NewTopic("orders.placed", core.JSON[int]()).Message(1), []string{"default"}},
		"taken back":          {topic.On().Message(1), []string{"default"}},
		"the last On is used": {topic.On("x").Message(1), []string{"x"}},
	} {
		rows, err := s.Stamp(t.Context(), []core.Message{tc.m})
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
	if _, err := s.Stamp(t.Context(), []core.Message{topic.On("").Message(1)}); !errors.Is(err, core.ErrInvalid) || !strings.Contains(err.Error(), "Routes[0]") {
		t.Errorf("an empty default route: %v", err)
	}
}

func TestTopicDeclaredTwice(t *testing.T) { // ST-17
	t.Parallel()
	s := newStamper(t, nil)
	stamp := func(m ...core.Message) error { _, err := s.Stamp(t.Context(), m); return err }
	asInt := core.NewTopic("a", core.JSON[int]())
	if err := stamp(asInt.Message(1), core.NewTopic("a", core.JSON[int]()).On("r").Message(2), core.RawMessage("a", "", nil), core.NewTopic("b", core.JSON[string]()).Message("")); err != nil {
		t.Fatalf("the same declaration, a raw message, another topic: %v", err)
	}
	for name, m := range map[string]core.Message{
		"another type":  core.NewTopic("a", core.JSON[string]()).Message("1"),
		"another codec": core.NewTopic("a", intCodec{}).Message(1),
	} {
		err := stamp(asInt.Message(1), m)
		if !errors.Is(err, core.ErrInvalid) || !strings.Contains(err.Error(), "messages[1].Topic: \"a\" is declared twice") || !strings.Contains(err.Error(), "int") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := stamp(asInt.Message(1)); err != nil {
		t.Errorf("the first declaration is refused afterwards: %v", err)
	}
	// Within one call, and from many goroutines: one of the two is refused.
	if err := stamp(core.NewTopic("c", core.JSON[int]()).Message(1), core.NewTopic("c", core.JSON[bool]()).Message(true)); !errors.Is(err, core.ErrInvalid) {
		t.Errorf("within one call: %v", err)
	}
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() {
			if i%2 == 0 {
				errs[i] = stamp(core.NewTopic("d", core.JSON[int]()).Message(1))
			} else {
				errs[i] = stamp(core.NewTopic("d", core.JSON[bool]()).Message(true))
			}
		})
	}
	wg.Wait()
	if even := errs[0] == nil; even == (errs[1] == nil) {
		t.Errorf("of two declarations, %v and %v", errs[0], errs[1])
	}
	if err := newStamperErr(t, core.NewTopic("a", core.JSON[string]()).Message("1")); err != nil {
		t.Errorf("in another outbox: %v", err)
	}
}

func newStamperErr(tb testing.TB, m core.Message) error {
	tb.Helper()
	_, err := newStamper(tb, nil).Stamp(tb.Context(), []core.Message{m})
	return err
}

type intCodec struct{}

func (intCodec) ContentType() string        { return "application/x-int" }
func (intCodec) Encode(int) ([]byte, error) { return nil, nil }
func (intCodec) Decode([]byte) (int, error) { return 0, nil }

func TestLanes(t *testing.T) { // ST-19
	t.Parallel()
	s := newStamper(t, nil)
	for l, want := range map[core.Lane]string{core.LaneHigh: "r/high", core.LaneNormal: "r", core.LaneLow: "r/low"} {
		row := stampOne(t, s, t.Context(), core.RawMessage("t", "", nil, core.Routes("r"), core.InLane(l)))
		if row.Route != want || core.LaneRoute("r", l) != want {
			t.Errorf("lane %q: route %q, want %q", l, row.Route, want)
		}
	}
	for name, m := range map[string]core.Message{
		"Lane":      core.RawMessage("t", "", nil, core.InLane("urgent")),
		"Routes[0]": core.RawMessage("t", "", nil, core.Routes("r/high")), // could be taken for a lane
	} {
		if _, err := s.Stamp(t.Context(), []core.Message{m}); !errors.Is(err, core.ErrInvalid) || !strings.Contains(err.Error(), name+": ") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestLineageOfSiblings(t *testing.T) { // ST-13
	t.Parallel()
	s := newStamper(t, nil)
	root := stampOne(t, s, core.WithLineageRoot(t.Context(), "request-1"), core.RawMessage("t", "", nil)).Envelope
	if !slices.Equal(root.Lineage, []string{"request-1"}) {
		t.Errorf("a message under a root has the lineage %v", root.Lineage)
	}
	handling := core.WithDelivery(t.Context(), &core.Delivery{Envelope: root})
	a, b := stampOne(t, s, handling, core.RawMessage("t", "", nil)).Envelope, stampOne(t, s, handling, core.RawMessage("t", "", nil)).Envelope
	want := []string{"request-1", root.ID}
	if !slices.Equal(a.Lineage, want) || !slices.Equal(b.Lineage, want) || a.CausationID != root.ID {
		t.Errorf("siblings have the lineages %v and %v, want %v", a.Lineage, b.Lineage, want)
	}
	child := stampOne(t, s, core.WithDelivery(t.Context(), &core.Delivery{Envelope: a}), core.RawMessage("t", "", nil)).Envelope
	if !slices.Equal(child.Lineage, append(want, a.ID)) || len(a.Lineage) != 2 {
		t.Errorf("a child has the lineage %v", child.Lineage)
	}
	own := core.RawMessage("t", "", nil)
	own.Lineage = []string{}
	if e := stampOne(t, s, handling, own).Envelope; len(e.Lineage) != 0 {
		t.Errorf("a message that wants no lineage has %v", e.Lineage)
	}
}

func TestDedupeKeyReachesTheRow(t *testing.T) { // ST-08 ST-10 ST-15
	t.Parallel()
	s := newStamper(t, nil)
	row := stampOne(t, s, t.Context(), core.RawMessage("t", "", nil, core.DedupeKey("k")))
	if row.DedupeKey != "k" || row.Replace {
		t.Errorf("%+v", row)
	}
	row = stampOne(t, s, t.Context(), core.RawMessage("t", "", nil, core.Replace("k")))
	if row.DedupeKey != "k" || !row.Replace {
		t.Errorf("%+v", row)
	}
	for name, tc := range map[string]struct {
		m     core.Message
		field string
	}{
		"replace without key": {core.RawMessage("t", "", nil, core.Replace("")), "Replace: needs a DedupeKey"},
		"too long":            {core.RawMessage("t", "", nil, core.DedupeKey(strings.Repeat("k", core.MaxNameBytes+1))), "DedupeKey: has 256 bytes"},
		"not UTF-8":           {core.RawMessage("t", "", nil, core.DedupeKey("a\xff")), "DedupeKey: "},
		"NUL":                 {core.RawMessage("t", "", nil, core.DedupeKey("a\x00")), "DedupeKey: "},
	} {
		if _, err := s.Stamp(t.Context(), []core.Message{tc.m}); !errors.Is(err, core.ErrInvalid) || !strings.Contains(err.Error(), tc.field) {
			t.Errorf("%s: got %v, want %q", name, err, tc.field)
		}
	}
}

func TestExpiryOverrides(t *testing.T) { // ST-11
	t.Parallel()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	s := newStamper(t, func(o *core.StamperOptions) { o.TTL, o.Now = time.Hour, func() time.Time { return now } })
	at := core.RawMessage("t", "", nil)
	at.Expires = now.Add(time.Second)
	for name, tc := range map[string]struct {
		m    core.Message
		want time.Time
	}{
		"the store's default":  {core.RawMessage("t", "", nil), now.Add(time.Hour)},
		"shorter":              {core.RawMessage("t", "", nil, core.TTL(time.Minute)), now.Add(time.Minute)},
		"longer":               {core.RawMessage("t", "", nil, core.TTL(48*time.Hour)), now.Add(48 * time.Hour)},
		"a time":               {at, now.Add(time.Second)},
		"none":                 {core.RawMessage("t", "", nil, core.TTL(-1)), time.Time{}},
		"the default, later":   {core.RawMessage("t", "", nil, core.Delay(30*time.Hour)), now.Add(31 * time.Hour)},
		"the default, at":      {core.RawMessage("t", "", nil, core.DeliverAt(now.Add(2*time.Hour))), now.Add(3 * time.Hour)},
		"the default, was due": {core.RawMessage("t", "", nil, core.DeliverAt(now.Add(-time.Hour))), now.Add(time.Hour)},
		"its own, later":       {core.RawMessage("t", "", nil, core.Delay(30*time.Minute), core.TTL(time.Hour)), now.Add(time.Hour)},
	} {
		if e := stampOne(t, s, t.Context(), tc.m).Envelope; !e.Expires.Equal(tc.want) {
			t.Errorf("%s: expires at %s, want %s", name, e.Expires, tc.want)
		}
	}
}
