package core

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/internal/check"
	"github.com/waybill-go/waybill/internal/obs"
)

// StamperOptions configures a Stamper.
type StamperOptions struct {
	// Source is the CloudEvents source of messages that name none, such as "/orders". Required.
	Source string
	// Clock gives the HLC stamps; nil means a clock of its own.
	Clock *hlc.Clock
	// Limits bounds what can be staged.
	Limits waybill.Limits
	// TTL is the total time of messages that set neither TTL nor Expires; 0 = none. It counts from the time when
	// they are due, so that a message that is scheduled for a later time does not expire before it can be sent.
	TTL time.Duration
	// RouteTTL is TTL for the messages on a route, instead of it; negative = none. The lanes and sub-routes of a
	// route have its time.
	RouteTTL map[string]time.Duration
	// Cancellable are routes. Every message on them is cancellable.
	Cancellable []string
	// Now is the producer's clock; nil means time.Now.
	Now func() time.Time
	// NewID makes message ids; nil means NewID.
	NewID func() string
	// TracerProvider makes the spans of staging; nil means the global one.
	TracerProvider trace.TracerProvider
}

// Stamper completes messages when they are staged. It checks them, fills in ids, times, stamps and the values of the
// context, and spreads them over their routes. Every store's Stage uses one. It is safe for concurrent use.
type Stamper struct {
	opts   StamperOptions
	tracer trace.Tracer
	fresh  bool     // the ids that it makes are those of NewID
	kinds  sync.Map // what was staged on a topic: name → the type and codec of its declaration
}

// NewStamper returns a stamper, or an error that lists all problems of opts.
func NewStamper(opts StamperOptions) (*Stamper, error) {
	var p []string
	if opts.Source == "" {
		p = append(p, "Source: is empty; name the producing service, such as \"/orders\"")
	} else if s := check.Source(opts.Source); s != "" {
		p = append(p, "Source: "+s)
	}
	p = append(p, check.TTL(opts.TTL, opts.RouteTTL)...)
	p = append(p, opts.Limits.Validate("Limits")...)
	if err := waybill.Invalid("waybill: outbox options", p...); err != nil {
		return nil, err
	}
	opts.Limits, opts.RouteTTL = opts.Limits.WithDefaults(), maps.Clone(opts.RouteTTL)
	if opts.Clock == nil {
		clock, err := hlc.NewClock(hlc.Options{Wall: opts.Now})
		if err != nil {
			return nil, err
		}
		opts.Clock = clock
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	fresh := opts.NewID == nil
	if fresh {
		opts.NewID = waybill.NewID
	}
	return &Stamper{opts: opts, tracer: obs.Tracer(opts.TracerProvider), fresh: fresh}, nil
}

// Clock returns the clock of the stamps.
func (s *Stamper) Clock() *hlc.Clock { return s.opts.Clock }

// StagedRow is one row to write: a stamped message on one route.
type StagedRow struct {
	Envelope waybill.Envelope
	Route    string
	// GeneratedID reports that the stamper made the id with NewID, so that no other row has it on this route.
	GeneratedID bool
	// DeliverAt, or else Delay from now by the store's clock, is when the message is due; both zero = at once.
	DeliverAt time.Time
	Delay     time.Duration
	// DedupeKey is the message's, and its tenant's: it is compared and stored as it is. admin.Stored.SetDedupeKey
	// leaves the tenant out. Replace is the message's.
	DedupeKey string
	Replace   bool
	// Cancellable allows cancelling and replacing the message although it is due.
	Cancellable bool
}

// IDTakenError is the error of a Stage whose row has the id of a record of its route with another source. As a
// duplicate it would be lost without a word. Op is the operation, such as "waybill/postgres: stage".
func (r *StagedRow) IDTakenError(op string) error {
	return &waybill.Error{
		Op: op, Class: waybill.ClassPermanent, Reason: waybill.ReasonIDConflict,
		Err: fmt.Errorf("the id %.80q on route %q is that of a message of another source: put the name of the service into ids that it chooses, "+
			"or give each service a route of its own", r.Envelope.ID, r.Route),
	}
}

// DedupeKeyTakenError is the error of a Stage whose row has the dedupe key of a live record of its route and topic with
// another source. As a duplicate it would be lost without a word. Op is the operation, such as "waybill/postgres:
// stage".
func (r *StagedRow) DedupeKeyTakenError(op string) error {
	key := r.DedupeKey
	if _, own, ok := strings.Cut(key, check.TenantEnd); ok {
		key = own
	}
	return &waybill.Error{
		Op: op, Class: waybill.ClassPermanent, Reason: waybill.ReasonIDConflict,
		Err: fmt.Errorf("the dedupe key %.80q of topic %q on route %q is that of a live message of another source: put the name of the service "+
			"into its dedupe keys, or give each service a route of its own", key, r.Envelope.Topic, r.Route),
	}
}

// StartSpan begins the span of a Stage call. The messages are stamped under it. The caller ends it with [EndSpan].
// Without a configured tracer it costs next to nothing.
func (s *Stamper) StartSpan(ctx context.Context, messages int) (context.Context, trace.Span) {
	ctx, span := s.tracer.Start(ctx, "waybill stage", trace.WithSpanKind(trace.SpanKindInternal))
	if span.IsRecording() {
		span.SetAttributes(semconv.MessagingBatchMessageCount(messages))
	}
	return ctx, span
}

// create gives e its creation context, as OpenTelemetry's conventions for messaging call it: the context of a span of
// its own, or the one that the message has already. ctx is the context under which the message was staged.
func (s *Stamper) create(ctx context.Context, e *waybill.Envelope) {
	if e.TraceParent != "" {
		return // the caller's own
	}
	if trace.SpanFromContext(ctx).IsRecording() {
		var span trace.Span
		ctx, span = s.tracer.Start(ctx, "create "+e.Topic, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
			semconv.MessagingSystemKey.String(MessagingSystem), semconv.MessagingOperationName("create"),
			semconv.MessagingOperationTypeCreate, semconv.MessagingDestinationName(e.Topic), semconv.MessagingMessageID(e.ID)))
		defer span.End()
	}
	c := obs.Carried{Headers: e.Headers}
	c.Inject(ctx)
	e.TraceParent, e.TraceState, e.Headers = c.Parent, c.State, c.Headers
}

// EndSpan ends span, recording err if there is one.
func EndSpan(span trace.Span, err error) {
	if err != nil && span.IsRecording() {
		span.RecordError(err)
		span.SetStatus(codes.Error, ErrorText(err))
	}
	span.End()
}

// Stamp checks msgs and returns the rows to write, or an [*waybill.InvalidError] that lists every problem of every
// message. The rows share bodies, headers and lineage with msgs.
func (s *Stamper) Stamp(ctx context.Context, msgs []waybill.Message) ([]StagedRow, error) {
	now := s.opts.Now()
	scope := waybill.ScopeFrom(ctx)
	if err := s.checkAll(msgs, now, &scope); err != nil {
		return nil, err
	}
	rows := make([]StagedRow, 0, len(msgs))
	for i := range msgs {
		row := StagedRow{
			Envelope: msgs[i].Envelope, DeliverAt: msgs[i].DeliverAt, Delay: msgs[i].Delay,
			DedupeKey: msgs[i].DedupeKey, Replace: msgs[i].Replace,
			Cancellable: msgs[i].Cancellable || msgs[i].DedupeKey != "", GeneratedID: s.fresh && msgs[i].ID == "",
		}
		s.fill(&row.Envelope, now, &scope)
		row.DedupeKey = storedDedupeKey(row.Envelope.Tenant, row.DedupeKey)
		s.create(under(&msgs[i], ctx), &row.Envelope)
		if t := tooLarge(&s.opts.Limits, &row.Envelope); t != "" {
			return nil, waybill.Invalid("waybill: stage", place(i, len(msgs))+"Body: "+t)
		}
		routes := msgs[i].Routes
		if len(routes) == 0 {
			routes = noRoutes
		}
		cancellable := row.Cancellable
		for j, r := range routes {
			row.Route = waybill.LaneRoute(r, msgs[i].Lane)
			row.Envelope.Expires = s.expires(&msgs[i], r, now)
			row.GeneratedID = row.GeneratedID && !slices.Contains(routes[:j], r)
			row.Cancellable = cancellable || slices.Contains(s.opts.Cancellable, r)
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// noRoutes are the routes of a message that names none.
var noRoutes = []string{waybill.DefaultRoute}

func (s *Stamper) checkAll(msgs []waybill.Message, now time.Time, scope *waybill.Scope) error {
	if len(msgs) > waybill.MaxMessages {
		return waybill.Invalid("waybill: stage", fmt.Sprintf(
			"%d messages in one call; at most %d are allowed: split the call", len(msgs), waybill.MaxMessages))
	}
	p := checkScope(nil, scope)
	for i := range msgs {
		where := place(i, len(msgs))
		p = s.checkKind(p, where, &msgs[i])
		if p = checkMessage(p, where, &s.opts.Limits, &msgs[i], now); len(p) >= 20 {
			p = append(p, "and maybe more")
			break
		}
	}
	return waybill.Invalid("waybill: stage", p...)
}

// place names message i of n in problems.
func place(i, n int) string {
	if n == 1 {
		return ""
	}
	return fmt.Sprintf("messages[%d].", i)
}

// checkKind refuses a topic that was declared twice, with different types or codecs. Raw messages have no declaration.
func (s *Stamper) checkKind(p []string, where string, m *waybill.Message) []string {
	kind := m.Declaration()
	if kind == "" {
		return p
	}
	first, ok := s.kinds.Load(m.Topic)
	if !ok {
		first, ok = s.kinds.LoadOrStore(m.Topic, kind)
	}
	if ok && first != kind {
		p = append(p, fmt.Sprintf("%sTopic: %q is declared twice, as %s and as %s: "+
			"declare it once and share the declaration", where, m.Topic, first, kind))
	}
	return p
}

func (s *Stamper) fill(e *waybill.Envelope, now time.Time, scope *waybill.Scope) {
	def := func(p *string, v string) {
		if *p == "" {
			*p = v
		}
	}
	if e.ID == "" {
		e.ID = s.opts.NewID()
	}
	def(&e.Type, e.Topic)
	def(&e.Source, s.opts.Source)
	def(&e.ContentType, "application/octet-stream")
	def(&e.CorrelationID, scope.CorrelationID)
	def(&e.CausationID, scope.CausationID)
	def(&e.Tenant, scope.Tenant)
	def(&e.RunID, scope.RunID)
	if e.Lineage == nil {
		e.Lineage = scope.Lineage
	}
	if e.Time.IsZero() {
		e.Time = now
	}
	e.Time = e.Time.UTC().Truncate(time.Microsecond)
	if e.HLC.IsZero() {
		e.HLC = s.opts.Clock.Now()
	}
}

// expires returns when m expires on route: as it says itself, or else as the route says, or else as the store says. A
// default counts from the time when m is due.
func (s *Stamper) expires(m *waybill.Message, route string, now time.Time) time.Time {
	at := m.Expires
	switch ttl := m.TTL; {
	case ttl > 0:
		at = now.Add(ttl)
	case ttl == 0 && at.IsZero():
		ttl, ok := s.opts.RouteTTL[waybill.BaseRoute(route)]
		if !ok {
			ttl = s.opts.TTL
		}
		if ttl <= 0 {
			return at
		}
		due := now.Add(m.Delay)
		if m.DeliverAt.After(due) {
			due = m.DeliverAt
		}
		at = due.Add(ttl)
	}
	if at.IsZero() {
		return at
	}
	return at.UTC().Truncate(time.Microsecond)
}

// ContextWithTrace returns ctx with the context that e carries: the span that created the message, and the values, such
// as baggage, that the application's global propagator reads from its headers.
func ContextWithTrace(ctx context.Context, e *waybill.Envelope) context.Context {
	c := obs.Carried{Parent: e.TraceParent, State: e.TraceState, Headers: e.Headers}
	return c.Extract(ctx)
}

// SpanContextOf returns the context of the span that created e; invalid if it carries none.
func SpanContextOf(e *waybill.Envelope) trace.SpanContext {
	c := obs.Carried{Parent: e.TraceParent, State: e.TraceState, Headers: e.Headers}
	return c.SpanContext()
}

// TracerProvider is OpenTelemetry's type, named here so that adapters need not import OpenTelemetry.
type TracerProvider = trace.TracerProvider

// under returns the context whose trace m belongs to.
func under(m *waybill.Message, ctx context.Context) context.Context { //nolint:revive // the message is what it is about
	if own := m.Context(); own != nil {
		return own
	}
	return ctx
}
