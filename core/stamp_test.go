package core_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

func stampOne(tb testing.TB, s *core.Stamper, ctx context.Context, m waybill.Message) core.StagedRow { //nolint:revive // tb first
	tb.Helper()
	rows, err := s.Stamp(ctx, []waybill.Message{m})
	if err != nil {
		tb.Fatal(err)
	}
	if len(rows) != 1 {
		tb.Fatalf("got %d rows", len(rows))
	}
	return rows[0]
}

func TestStampFillsWhatIsEmpty(t *testing.T) { // ST-12
	t.Parallel()
	now := time.Date(2030, 1, 1, 12, 0, 0, 123456789, time.FixedZone("", 3600))
	s := newStamper(t, func(o *core.StamperOptions) { o.Now = func() time.Time { return now } })
	row := stampOne(t, s, t.Context(), waybill.RawMessage("orders.placed", "", nil))
	e := row.Envelope
	if id, err := uuid.Parse(e.ID); err != nil || id.Version() != 7 {
		t.Errorf("the id %q is no UUIDv7", e.ID)
	}
	if e.HLC.IsZero() || !e.HLC.After(0) || e.HLC.Time().Sub(now).Abs() > time.Second {
		t.Errorf("the stamp is %s", e.HLC.Time())
	}
	e.ID, e.HLC = "", 0
	want := waybill.Envelope{
		Topic: "orders.placed", Type: "orders.placed", Source: "/test", ContentType: "application/octet-stream",
		Time: now.UTC().Truncate(time.Microsecond),
	}
	if d := cmp.Diff(want, e); d != "" || row.Route != waybill.DefaultRoute {
		t.Errorf("route %q (-want +got):\n%s", row.Route, d)
	}
}

func TestStampKeepsWhatIsSet(t *testing.T) { // ST-12
	t.Parallel()
	ctx := waybill.WithScope(t.Context(), waybill.Scope{
		CorrelationID: "x", CausationID: "x", Tenant: "x", RunID: "x",
		Lineage: []string{"x"},
	})
	at := time.Date(2024, 1, 1, 0, 0, 0, 1000, time.UTC)
	want := waybill.Envelope{
		ID: "id", Topic: "t", Type: "type", Source: "/other", Subject: "s", Time: at, ContentType: "text/plain", Key: "k", Tenant: "tenant",
		CorrelationID: "corr", CausationID: "cause", RunID: "run", Lineage: []string{"a"}, HLC: 5, Expires: time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond),
		Priority: 3, TraceParent: "tp", TraceState: "ts", Headers: map[string]string{"h": "v"}, Body: []byte("b"),
	}
	row := stampOne(t, newStamper(t, func(o *core.StamperOptions) { o.TTL = time.Minute }), ctx, waybill.Message{Envelope: want})
	if d := cmp.Diff(want, row.Envelope); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestStampInheritsScope(t *testing.T) { // ST-12 ST-13
	t.Parallel()
	s := newStamper(t, nil)
	d := &waybill.Delivery{Envelope: waybill.Envelope{ID: "parent", Tenant: "tenant", RunID: "run", Lineage: []string{"root"}}}
	ctx := waybill.WithDelivery(t.Context(), d)
	first, second := stampOne(t, s, ctx, waybill.RawMessage("t", "", nil)).Envelope, stampOne(t, s, ctx,
		waybill.RawMessage("t", "", nil)).Envelope
	for _, e := range []waybill.Envelope{first, second} {
		got := waybill.Scope{
			CorrelationID: e.CorrelationID, CausationID: e.CausationID, Tenant: e.Tenant, RunID: e.RunID,
			Lineage: e.Lineage,
		}
		want := waybill.Scope{
			CorrelationID: "parent", CausationID: "parent", Tenant: "tenant", RunID: "run",
			Lineage: []string{"root", "parent"},
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
	if got, ok := waybill.DeliveryFrom(ctx); !ok || got != d {
		t.Error("the delivery is not in the context")
	}
	d.Envelope.CorrelationID = "corr"
	if e := stampOne(t, s, waybill.WithDelivery(t.Context(), d), waybill.RawMessage("t", "", nil)).Envelope; e.CorrelationID != "corr" {
		t.Errorf("the correlation is %q", e.CorrelationID)
	}
	own := waybill.WithRunID(waybill.WithTenant(waybill.WithCorrelationID(ctx, "c2"), "t2"), "r2")
	if e := stampOne(t, s, own, waybill.RawMessage("t", "", nil)).Envelope; e.CorrelationID != "c2" || e.Tenant != "t2" ||
		e.RunID != "r2" || e.CausationID != "parent" {
		t.Errorf("got %+v", e)
	}
}

// Only an id that no other message can have is fresh.
func TestStampFresh(t *testing.T) {
	t.Parallel()
	own := newStamper(t, func(o *core.StamperOptions) { o.NewID = func() string { return "always the same" } })
	for name, tc := range map[string]struct {
		stamper *core.Stamper
		m       waybill.Message
		want    bool
	}{
		"made here":          {newStamper(t, nil), waybill.RawMessage("t", "", nil), true},
		"given":              {newStamper(t, nil), waybill.RawMessage("t", "", nil, waybill.ID("order-1")), false},
		"the caller's NewID": {own, waybill.RawMessage("t", "", nil), false},
	} {
		if row := stampOne(t, tc.stamper, t.Context(), tc.m); row.GeneratedID != tc.want {
			t.Errorf("%s: GeneratedID is %v", name, row.GeneratedID)
		}
	}
}

func TestLineageStaysBounded(t *testing.T) { // ST-13
	t.Parallel()
	s := newStamper(t, nil)
	e := waybill.Envelope{ID: "root"}
	for range 100 {
		e = stampOne(t, s, waybill.WithDelivery(t.Context(), &waybill.Delivery{Envelope: e}), waybill.RawMessage("t", "", nil)).Envelope
	}
	n := len(e.Lineage)
	if n != waybill.MaxLineage || e.Lineage[0] != "root" || e.Lineage[n-1] != e.CausationID {
		t.Errorf("after 100 generations: %d ids, first %q, last %q, cause %q", n, e.Lineage[0], e.Lineage[n-1], e.CausationID)
	}
	cuts := 0
	for _, id := range e.Lineage {
		if id == waybill.LineageCut {
			cuts++
		}
	}
	if cuts != 1 {
		t.Errorf("%d cuts in %v", cuts, e.Lineage)
	}
}

func TestStampSpreadsRoutes(t *testing.T) { // ST-06 ST-07
	t.Parallel()
	s := newStamper(t, nil)
	at := time.Now().Add(time.Hour)
	rows, err := s.Stamp(t.Context(), []waybill.Message{
		waybill.RawMessage("t", "", nil, waybill.Routes("b", "a"), waybill.DeliverAt(at)),
		waybill.RawMessage("t", "", nil, waybill.Delay(time.Second)),
	})
	if err != nil || len(rows) != 3 {
		t.Fatalf("got %d rows and %v", len(rows), err)
	}
	if rows[0].Route != "b" || rows[1].Route != "a" || rows[2].Route != waybill.DefaultRoute || rows[0].Envelope.ID != rows[1].Envelope.ID {
		t.Errorf("got routes %q, %q, %q", rows[0].Route, rows[1].Route, rows[2].Route)
	}
	if !rows[0].DeliverAt.Equal(at) || !rows[1].DeliverAt.Equal(at) || rows[0].Delay != 0 || rows[2].Delay != time.Second {
		t.Errorf("due times are lost: %+v", rows)
	}
	if !rows[2].Envelope.HLC.After(rows[0].Envelope.HLC) {
		t.Error("stamps do not rise within a call")
	}
}

func TestStampExpiry(t *testing.T) { // ST-11
	t.Parallel()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	s := newStamper(t, func(o *core.StamperOptions) {
		o.TTL, o.Now = time.Hour, func() time.Time { return now }
	})
	for name, tc := range map[string]struct {
		set  func(m *waybill.Message)
		want time.Time
	}{
		"default":  {func(*waybill.Message) {}, now.Add(time.Hour)},
		"own TTL":  {func(m *waybill.Message) { m.TTL = time.Minute }, now.Add(time.Minute)},
		"own time": {func(m *waybill.Message) { m.Expires = now.Add(time.Second) }, now.Add(time.Second)},
		"never":    {func(m *waybill.Message) { m.TTL = -1 }, time.Time{}},
	} {
		m := waybill.RawMessage("t", "", nil)
		tc.set(&m)
		e := stampOne(t, s, t.Context(), m).Envelope
		if !e.Expires.Equal(tc.want) {
			t.Errorf("%s: expires at %s, want %s", name, e.Expires, tc.want)
		}
		if !tc.want.IsZero() && (e.Expired(tc.want.Add(-1)) || !e.Expired(tc.want)) {
			t.Errorf("%s: Expired does not turn at %s", name, tc.want)
		}
	}
}

func TestStampCarriesTraceContext(t *testing.T) { // ST-12
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	s := newStamper(t, func(o *core.StamperOptions) { o.TracerProvider = tp })
	ctx, span := s.StartSpan(t.Context(), 1)
	e := stampOne(t, s, ctx, waybill.RawMessage("t", "", nil)).Envelope
	core.EndSpan(span, waybill.ErrClosed)
	ended := spans.Ended()
	if len(ended) != 2 || ended[1].Status().Description == "" {
		t.Fatalf("spans: %v", ended)
	}
	created := ended[0]
	if created.Name() != "create t" || created.SpanKind() != trace.SpanKindProducer ||
		created.Parent().SpanID() != span.SpanContext().SpanID() {
		t.Errorf("the creation span is %s of kind %s, parent %s", created.Name(), created.SpanKind(), created.Parent().SpanID())
	}
	want := map[attribute.Key]string{
		"messaging.system": "waybill", "messaging.operation.name": "create", "messaging.operation.type": "create",
		"messaging.destination.name": "t", "messaging.message.id": e.ID,
	}
	for _, a := range created.Attributes() {
		if v, ok := want[a.Key]; !ok || v != a.Value.AsString() {
			t.Errorf("attribute %s = %q, want %q", a.Key, a.Value.AsString(), v)
		}
		delete(want, a.Key)
	}
	if len(want) > 0 {
		t.Errorf("no attributes %v", want)
	}
	sc := core.SpanContextOf(&e)
	if sc.TraceID() != span.SpanContext().TraceID() || sc.SpanID() != created.SpanContext().SpanID() || !sc.IsSampled() || !sc.IsRemote() {
		t.Errorf("%q is not the creation span's", e.TraceParent)
	}
	own := waybill.RawMessage("t", "", nil)
	own.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if got := stampOne(t, s, ctx, own).Envelope.TraceParent; got != own.TraceParent || len(spans.Ended()) != 2 {
		t.Errorf("the caller's own creation context %s became %s", own.TraceParent, got)
	}
	for _, bad := range []string{
		"", "00", strings.Repeat("0", 55), "00-00000000000000000000000000000000-b7ad6b7169203331-01",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-zz", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
	} {
		if sc := core.SpanContextOf(&waybill.Envelope{TraceParent: bad}); sc.IsValid() {
			t.Errorf("%q is taken as %v", bad, sc)
		}
	}
}

func TestEnvelopeCloneIsDeep(t *testing.T) {
	t.Parallel()
	e := waybill.Envelope{Lineage: []string{"a"}, Headers: map[string]string{"h": "v"}, Body: []byte("b")}
	c := e.Clone()
	if d := cmp.Diff(e, c); d != "" || e.Size() != c.Size() || e.Size() < 5 {
		t.Errorf("size %d and %d:\n%s", e.Size(), c.Size(), d)
	}
	c.Lineage[0], c.Headers["h"], c.Body[0] = "x", "x", 'x'
	if e.Lineage[0] != "a" || e.Headers["h"] != "v" || e.Body[0] != 'b' {
		t.Error("the clone shares memory")
	}
}

func BenchmarkStamp(b *testing.B) {
	s := newStamper(b, nil)
	msgs := []waybill.Message{waybill.RawMessage("orders.placed", "text/plain", []byte("body"), waybill.Key("key"))}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Stamp(b.Context(), msgs); err != nil {
			b.Fatal(err)
		}
	}
}

// ST-04: values from the context are checked like those of the message itself.
func TestScopeIsChecked(t *testing.T) {
	t.Parallel()
	s, err := core.NewStamper(core.StamperOptions{Source: "/s"})
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", waybill.MaxNameBytes+1)
	for name, scope := range map[string]waybill.Scope{
		"CorrelationID": {CorrelationID: long}, "CausationID": {CausationID: long}, "Tenant": {Tenant: "a\x00b"}, "RunID": {RunID: "\xff"}, "Lineage[1]": {Lineage: []string{"a", "\n"}},
	} {
		_, err := s.Stamp(waybill.WithScope(t.Context(), scope), []waybill.Message{waybill.RawMessage("a.b", "text/plain", nil)})
		if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), "context."+name) {
			t.Errorf("%s from the context: %v", name, err)
		}
	}
	m := waybill.RawMessage("a.b", "text/plain", nil)
	m.Lineage = []string{"a\x00", long}
	m.Expires = time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC)
	_, err = s.Stamp(t.Context(), []waybill.Message{m})
	for _, part := range []string{"Lineage[0]", "Lineage[1]", "Expires: year 12000"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v", part, err)
		}
	}
	// A handler of a foreign producer's message can stage nevertheless.
	d := &waybill.Delivery{Envelope: waybill.Envelope{
		ID: "id", CorrelationID: long, Tenant: "a\x00b", RunID: "r",
		Lineage: []string{"ok", "\xff"},
	}}
	rows, err := s.Stamp(waybill.WithDelivery(t.Context(), d), []waybill.Message{waybill.RawMessage("a.b", "text/plain", nil)})
	if err != nil {
		t.Fatal(err)
	}
	if e := &rows[0].Envelope; e.CorrelationID != "id" || e.CausationID != "id" || e.Tenant != "" || e.RunID != "r" ||
		!slices.Equal(e.Lineage, []string{"id"}) {
		t.Errorf("%+v", e)
	}
}
