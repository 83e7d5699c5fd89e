package obs

import (
	"context"
	"maps"
	"slices"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// The fields of W3C's trace context. They have fields of their own in an envelope. Other values that the application's
// propagator writes, such as baggage, travel in the headers.
const (
	traceParent = "traceparent"
	traceState  = "tracestate"
)

// Carried is the trace context in a message. It is a [propagation.TextMapCarrier]. It is not safe for concurrent use.
type Carried struct {
	Parent, State string
	// Headers are the application's. They are copied before the first change.
	Headers map[string]string

	own bool // Headers is a copy
}

// Get returns a field.
func (c *Carried) Get(key string) string {
	switch key {
	case traceParent:
		return c.Parent
	case traceState:
		return c.State
	}
	return c.Headers[key]
}

// Set sets a field, unless the application has set a header of that name.
func (c *Carried) Set(key, value string) {
	switch key {
	case traceParent:
		c.Parent = value
		return
	case traceState:
		c.State = value
		return
	}
	if _, taken := c.Headers[key]; taken || value == "" {
		return
	}
	if !c.own {
		c.Headers, c.own = maps.Clone(c.Headers), true
		if c.Headers == nil {
			c.Headers = map[string]string{}
		}
	}
	c.Headers[key] = value
}

// Keys returns the names of all set fields.
func (c *Carried) Keys() []string {
	keys := slices.Collect(maps.Keys(c.Headers))
	if c.Parent != "" {
		keys = append(keys, traceParent)
	}
	if c.State != "" {
		keys = append(keys, traceState)
	}
	return keys
}

// Inject writes the trace context of ctx into c, and the other values of the application's global propagator. The trace
// context travels even if the application has set no propagator.
func (c *Carried) Inject(ctx context.Context) {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		c.Parent, c.State = TraceParent(sc), sc.TraceState().String()
	}
	if p := otel.GetTextMapPropagator(); more(p) {
		parent, state := c.Parent, c.State
		p.Inject(ctx, c)
		c.Parent, c.State = parent, state
	}
}

// Extract returns ctx with the values of c: the trace context, and the values that the application's global propagator
// reads. If the propagator finds another span context, such as one of B3, that one wins.
func (c *Carried) Extract(ctx context.Context) context.Context {
	if sc := SpanContext(c.Parent, c.State); sc.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, sc)
	}
	if p := otel.GetTextMapPropagator(); more(p) {
		ctx = p.Extract(ctx, c)
	}
	return ctx
}

// SpanContext returns the span context that Extract finds. It costs less if the application's global propagator reads
// the trace context only.
func (c *Carried) SpanContext() trace.SpanContext {
	if !more(otel.GetTextMapPropagator()) {
		return SpanContext(c.Parent, c.State)
	}
	return trace.SpanContextFromContext(c.Extract(context.Background())) //nolint:forbidigo // nothing waits for it
}

// more reports whether p has fields other than those of the trace context.
func more(p propagation.TextMapPropagator) bool {
	return slices.ContainsFunc(p.Fields(), func(f string) bool { return f != traceParent && f != traceState })
}
