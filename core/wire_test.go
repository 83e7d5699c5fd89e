package core_test

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

// These fields travel beside the attributes: transports place them themselves.
var beside = cmpopts.IgnoreFields(waybill.Envelope{}, "Topic", "ContentType", "Headers", "Body", "Priority")

func TestAttributesRoundTrip(t *testing.T) { // ST-12
	t.Parallel()
	text := rapid.StringOfN(rapid.Rune(), 0, 20, -1)
	when := rapid.Custom(func(t *rapid.T) time.Time {
		if rapid.Bool().Draw(t, "none") {
			return time.Time{}
		}
		at := time.UnixMicro(rapid.Int64Range(-1e15, 2e17).Draw(t, "µs"))
		return at.In(time.FixedZone("", 60*rapid.IntRange(-700, 700).Draw(t, "zone")))
	})
	rapid.Check(t, func(t *rapid.T) {
		want := waybill.Envelope{
			ID: text.Draw(t, "id"), Type: text.Draw(t, "type"), Source: text.Draw(t, "source"), Subject: text.Draw(t, "subject"),
			Time: when.Draw(t, "time"), Key: text.Draw(t, "key"), Tenant: text.Draw(t, "tenant"), CorrelationID: text.Draw(t, "corr"),
			CausationID: text.Draw(t, "cause"), RunID: text.Draw(t, "run"), Expires: when.Draw(t, "expires"),
			Lineage:     rapid.SliceOfN(text, 0, waybill.MaxLineage).Draw(t, "lineage"),
			HLC:         hlc.Timestamp(rapid.Int64Min(0).Draw(t, "hlc")),
			TraceParent: text.Draw(t, "traceparent"), TraceState: text.Draw(t, "tracestate"),
		}
		if len(want.Lineage) == 1 && want.Lineage[0] == "" {
			want.Lineage = nil // one empty id is no lineage
		}
		attrs := core.AppendAttributes(nil, &want)
		if attrs[0] != (core.Attribute{Name: core.AttrSpecVersion, Value: core.SpecVersion}) {
			t.Fatalf("the first attribute is %v", attrs[0])
		}
		var got waybill.Envelope
		for _, a := range attrs {
			if known, err := core.SetAttribute(&got, a.Name, a.Value); !known || err != nil {
				t.Fatalf("attribute %s: known %v, %v", a.Name, known, err)
			}
		}
		if d := cmp.Diff(want, got, beside, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("(-want +got):\n%s", d)
		}
	})
}

func TestEmptyFieldsDoNotTravel(t *testing.T) { // ST-12
	t.Parallel()
	var e waybill.Envelope
	if attrs := core.AppendAttributes(nil, &e); len(attrs) != 1 {
		t.Errorf("an empty envelope has the attributes %v", attrs)
	}
}

func TestForeignAttributes(t *testing.T) {
	t.Parallel()
	e := waybill.Envelope{Time: time.Unix(1, 0), HLC: 5}
	before := e.Clone()
	for _, name := range []string{"unknown", "", "ID", "data", "priority"} {
		if known, err := core.SetAttribute(&e, name, "x"); known || err != nil {
			t.Errorf("%q: known %v, %v", name, known, err)
		}
	}
	for _, name := range []string{core.AttrTime, core.AttrExpires, core.AttrHLC} {
		for _, value := range []string{"", "yesterday", "\xff", strings.Repeat("9", 100), "-000000000000001"} {
			known, err := core.SetAttribute(&e, name, value)
			if !known || err == nil {
				t.Errorf("%s = %q: known %v, %v", name, value, known, err)
			} else if value != "" && strings.Contains(err.Error(), value) {
				t.Errorf("%s: the error repeats the value: %v", name, err)
			}
		}
	}
	if d := cmp.Diff(before, e); d != "" {
		t.Errorf("bad attributes changed the envelope:\n%s", d)
	}
}

func TestLongLineageIsCutInTheMiddle(t *testing.T) { // ST-13
	t.Parallel()
	var ids []string
	for i := range 100 {
		ids = append(ids, string(rune('A'+i%26))+strings.Repeat("x", i))
	}
	var e waybill.Envelope
	if _, err := core.SetAttribute(&e, core.AttrLineage, strings.Join(ids, ",")); err != nil {
		t.Fatal(err)
	}
	n := len(e.Lineage)
	if n != waybill.MaxLineage || e.Lineage[0] != ids[0] || e.Lineage[n-1] != ids[99] || !slices.Contains(e.Lineage, waybill.LineageCut) {
		t.Errorf("got %d ids: %v", n, e.Lineage)
	}
}

// FuzzSetAttribute feeds random input to the reader of foreign attributes. Every accepted attribute must survive
// another trip.
func FuzzSetAttribute(f *testing.F) { // ST-12
	names := []string{
		core.AttrSpecVersion, core.AttrID, core.AttrSource, core.AttrType, core.AttrSubject, core.AttrTime, core.AttrContentType, core.AttrTopic,
		core.AttrKey, core.AttrCorrelationID, core.AttrCausationID, core.AttrTenant, core.AttrRunID, core.AttrLineage, core.AttrHLC, core.AttrExpires,
		core.AttrTraceParent, core.AttrTraceState,
	}
	for _, n := range names {
		f.Add(n, "2024-02-29T23:59:59.123456+02:00")
		f.Add(n, "0123456789abcdef")
		f.Add(n, "a%2Cb,,...,%zz,+")
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		var e waybill.Envelope
		known, err := core.SetAttribute(&e, name, value)
		if known != slices.Contains(names, name) {
			t.Fatalf("%q: known %v", name, known)
		}
		if err != nil {
			if d := cmp.Diff(waybill.Envelope{}, e); d != "" {
				t.Fatalf("an error changed the envelope:\n%s", d)
			}
			return
		}
		if len(e.Lineage) > waybill.MaxLineage {
			t.Fatalf("%d ids", len(e.Lineage))
		}
		if len(e.Lineage) == 1 && e.Lineage[0] == "" {
			return
		}
		if y := e.Time.Year(); y > 9999 || e.Expires.Year() > 9999 || y < 0 {
			return
		}
		var again waybill.Envelope
		for _, a := range core.AppendAttributes(nil, &e) {
			if _, err := core.SetAttribute(&again, a.Name, a.Value); err != nil {
				t.Fatalf("%s: %v", a.Name, err)
			}
		}
		if d := cmp.Diff(e, again, beside, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("(-first +again):\n%s", d)
		}
	})
}

// FuzzTraceParent reads anything as a trace context.
func FuzzTraceParent(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1,b=2")
	f.Add("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff-future", "")
	f.Add("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "=")
	f.Fuzz(func(t *testing.T, parent, state string) {
		e := waybill.Envelope{TraceParent: parent, TraceState: state}
		sc := core.SpanContextOf(&e)
		if sc.IsValid() && (!strings.Contains(parent, sc.TraceID().String()) ||
			!strings.Contains(parent, sc.SpanID().String()) || !sc.IsRemote()) {
			t.Errorf("%q gave %v", parent, sc)
		}
		if !utf8.ValidString(sc.TraceState().String()) && utf8.ValidString(state) {
			t.Errorf("%q gave %q", state, sc.TraceState())
		}
	})
}
