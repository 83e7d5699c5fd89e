package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/obs"
	"github.com/waybill-go/waybill/internal/upkeep"
)

// telemetry is the relay's instruments. Names and labels are public; docs/operating.md explains them.
type telemetry struct {
	common                             []attribute.KeyValue // of every instrument
	plain                              []metric.RecordOption
	meter                              metric.Meter
	tracer                             trace.Tracer
	sent, failures, abandons           metric.Int64Counter
	lost, wakeups, cleans              metric.Int64Counter
	breakers                           metric.Int64UpDownCounter
	ages, reads, publishes, settleTime metric.Float64Histogram
	causes                             map[core.WakeCause][]metric.AddOption
}

func newTelemetry(o *Options) (*telemetry, error) {
	m := obs.Meter(o.MeterProvider)
	t := &telemetry{meter: m, tracer: obs.Tracer(o.TracerProvider), causes: map[core.WakeCause][]metric.AddOption{}}
	if o.Name != "" {
		t.common = []attribute.KeyValue{attribute.String("relay", o.Name)}
		t.plain = []metric.RecordOption{t.label()}
	}
	for _, c := range [...]core.WakeCause{core.WakeNotify, core.WakeLimit, core.WakePoll, core.WakeStop} {
		t.causes[c] = []metric.AddOption{t.label(attribute.String("cause", string(c)))}
	}
	var errs [11]error
	t.sent, errs[0] = m.Int64Counter("waybill.relay.published", metric.WithUnit("{message}"), metric.WithDescription("Messages confirmed and routed by the broker"))
	t.failures, errs[1] = m.Int64Counter("waybill.relay.failures", metric.WithUnit("{message}"), metric.WithDescription("Publish errors"))
	t.abandons, errs[2] = m.Int64Counter("waybill.relay.abandoned", metric.WithUnit("{message}"), metric.WithDescription("Messages given up"))
	t.lost, errs[3] = m.Int64Counter("waybill.relay.lease.lost", metric.WithDescription("Sessions and records that were found to be lost"))
	t.wakeups, errs[4] = m.Int64Counter("waybill.relay.wakeups", metric.WithDescription("Wake-ups of an idle relay"))
	t.breakers, errs[5] = m.Int64UpDownCounter("waybill.relay.breaker.state", metric.WithDescription("Open breakers: the route's and those of its topics"))
	t.cleans, errs[10] = m.Int64Counter("waybill.relay.cleaned", metric.WithUnit("{record}"), metric.WithDescription("Settled records deleted when their retention was over"))
	histogram := func(name, text string) (metric.Float64Histogram, error) {
		return m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(text), obs.Buckets())
	}
	t.ages, errs[6] = histogram("waybill.relay.message.age", "Time from when a message was due to its confirm")
	t.reads, errs[7] = histogram("waybill.relay.read.duration", "Time of a read of the store")
	t.publishes, errs[8] = histogram("messaging.client.operation.duration", "Time of a publish call")
	t.settleTime, errs[9] = histogram("waybill.relay.settle.duration", "Time of a settle")
	return t, errors.Join(errs[:]...)
}

// routeLabels are the attribute sets of a route. They are made once.
type routeLabels struct {
	set     attribute.Set
	add     []metric.AddOption
	record  []metric.RecordOption
	publish []metric.RecordOption // of a publish call, by the messaging conventions
	spans   core.Description
	span    []attribute.KeyValue // of every span
}

// routeLabels makes the attribute sets of a route, and begins its counters at 0: a counter that begins with its first
// event never shows that event to an alert on its increase.
func (t *telemetry) routeLabels(ctx context.Context, route, transport string, d core.Description) routeLabels {
	set := t.set(attribute.String("route", route), attribute.String("transport", transport))
	call := t.set(describe(&d, "publish", semconv.MessagingOperationTypeSend, attribute.String("route", route))...)
	l := routeLabels{
		set: set, add: []metric.AddOption{metric.WithAttributeSet(set)}, record: []metric.RecordOption{metric.WithAttributeSet(set)},
		publish: []metric.RecordOption{metric.WithAttributeSet(call)},
		spans:   d, span: describe(&d, "publish", semconv.MessagingOperationTypeSend, attribute.String("waybill.route", route)),
	}
	t.sent.Add(ctx, 0, l.add...)
	t.lost.Add(ctx, 0, l.add...)
	t.breakers.Add(ctx, 0, l.add...)
	for _, reason := range abandonReasons {
		t.abandons.Add(ctx, 0, t.abandonLabels(route, reason))
	}
	for _, f := range failureKinds {
		t.failures.Add(ctx, 0, t.failureLabels(route, transport, f.class, f.name))
	}
	return l
}

// abandonReasons are the reasons with which a relay abandons records. What an operator ends does not count, also if the
// relay carries it out.
var abandonReasons = [...]waybill.Reason{
	waybill.ReasonRejected, waybill.ReasonAttempts, waybill.ReasonUndecodable, waybill.ReasonTooLarge, waybill.ReasonForbidden,
	waybill.ReasonUnroutable, waybill.ReasonExpired, waybill.ReasonCrashed,
}

// failureKinds are the failures that every transport has.
var failureKinds = [...]struct {
	class waybill.Class
	name  string
}{
	{waybill.ClassOutage, "outage"},
	{waybill.ClassOutage, "timeout"},
	{waybill.ClassOutage, "misconfigured"},
	{waybill.ClassRejected, "rejected"},
	{waybill.ClassRejected, "unroutable"},
	{waybill.ClassPermanent, "permanent"},
	{waybill.ClassUnknown, "unknown"},
}

func (t *telemetry) abandonLabels(route string, reason waybill.Reason) metric.MeasurementOption {
	return t.label(attribute.String("route", route), attribute.String("reason", string(reason)))
}

func (t *telemetry) failureLabels(route, transport string, class waybill.Class, kind string) metric.MeasurementOption {
	return t.label(attribute.String("route", route), attribute.String("transport", transport),
		attribute.String("class", class.String()), semconv.ErrorTypeKey.String(kind))
}

func (t *telemetry) set(kv ...attribute.KeyValue) attribute.Set {
	return attribute.NewSet(append(kv, t.common...)...)
}

func (t *telemetry) label(kv ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(t.set(kv...))
}

// transportName is the package name of the publisher p, or of the one that p decorates.
func transportName(p any) string {
	for {
		u, ok := p.(interface{ Unwrap() any })
		if !ok {
			break
		}
		inner := u.Unwrap()
		if inner == nil {
			break
		}
		p = inner
	}
	name, _, _ := strings.Cut(strings.TrimLeft(fmt.Sprintf("%T", p), "*"), ".")
	return name
}

func (t *telemetry) published(ctx context.Context, rt *route, n int, took time.Duration) {
	t.publishes.Record(ctx, took.Seconds(), rt.labels.publish...)
	if n > 0 {
		t.sent.Add(ctx, int64(n), rt.labels.add...)
	}
}

func (t *telemetry) age(ctx context.Context, rt *route, d time.Duration) {
	t.ages.Record(ctx, d.Seconds(), rt.labels.record...)
}

func (t *telemetry) failed(ctx context.Context, rt *route, class waybill.Class, err error) {
	if !t.failures.Enabled(ctx) {
		return
	}
	t.failures.Add(ctx, 1, t.failureLabels(rt.Name, rt.transport, class, errorType(err)))
}

// errorType is a name for err from a bounded set: the sentinel that it matches, its reason, or its class; never its
// text.
func errorType(err error) string {
	for _, s := range [...]struct {
		err  error
		name string
	}{
		{waybill.ErrUnroutable, "unroutable"},
		{waybill.ErrMisconfigured, "misconfigured"},
		{context.DeadlineExceeded, "timeout"},
		{context.Canceled, "cancelled"},
		{waybill.ErrClosed, "closed"},
	} {
		if errors.Is(err, s.err) {
			return s.name
		}
	}
	if r := waybill.ReasonOf(err); r != waybill.ReasonNone {
		return string(r)
	}
	return waybill.ClassOf(err).String()
}

func (t *telemetry) abandoned(ctx context.Context, rt *route, reason waybill.Reason) {
	if !t.abandons.Enabled(ctx) {
		return
	}
	t.abandons.Add(ctx, 1, t.abandonLabels(rt.Name, reason))
}

func (t *telemetry) leaseLost(ctx context.Context, rt *route) { t.lost.Add(ctx, 1, rt.labels.add...) }

func (t *telemetry) breaker(ctx context.Context, rt *route, change int) {
	t.breakers.Add(ctx, int64(change), rt.labels.add...)
}

func (t *telemetry) woke(ctx context.Context, cause core.WakeCause) {
	t.wakeups.Add(ctx, 1, t.causes[cause]...)
}

func (t *telemetry) read(ctx context.Context, took time.Duration) {
	t.reads.Record(ctx, took.Seconds(), t.plain...)
}

func (t *telemetry) settled(ctx context.Context, took time.Duration) {
	t.settleTime.Record(ctx, took.Seconds(), t.plain...)
}

// cleaned counts the results of one call of Clean. Expired records count as abandoned; the store does not say on which
// routes.
func (t *telemetry) cleaned(ctx context.Context, done *core.Cleaned) {
	for k, n := range done.Deleted {
		t.cleans.Add(ctx, int64(n), t.label(attribute.String("state", k.State.String()), attribute.String("reason", string(k.Reason))))
	}
	if done.Expired > 0 {
		t.abandons.Add(ctx, int64(done.Expired), t.label(attribute.String("reason", string(waybill.ReasonExpired))))
	}
}

// gauges reports the store's counts and the partitions that e owns at each collection, until the returned function is
// called.
func (r *Relay) gauges(c admin.Counter, e *engine) (stop func(), err error) {
	t := r.tel
	stored, err1 := upkeep.NewGauges(t.meter)
	lost, err2 := t.meter.Int64ObservableGauge("waybill.relay.unserved", metric.WithUnit("{record}"), metric.WithDescription("Due records on routes that the relay does not serve"))
	partitions, err3 := t.meter.Int64ObservableGauge("waybill.relay.partitions", metric.WithUnit("{partition}"), metric.WithDescription("Partitions that the relay owns"))
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	reg, err := t.meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		e.ask(ctx.Done(), func() {
			for _, rt := range e.order {
				o.ObserveInt64(partitions, int64(e.d.Status(rt.Name).Owned), metric.WithAttributeSet(rt.labels.set))
			}
		})
		if c == nil || !obs.AsksStores(ctx) {
			return nil
		}
		return r.observe(ctx, c, o, stored, lost)
	}, append(stored.Observables(), lost, partitions)...)
	if err != nil {
		return nil, err
	}
	return func() { _ = reg.Unregister() }, nil
}

// observe reports the store's counts.
func (r *Relay) observe(ctx context.Context, c admin.Counter, o metric.Observer, stored *upkeep.Gauges, lost metric.Int64Observable) error {
	t := r.tel
	counts, err := upkeep.Count(ctx, c)
	if err != nil {
		return err
	}
	routes := make([]string, len(r.routes))
	for i := range r.routes {
		routes[i] = r.routes[i].Name
	}
	stored.Observe(o, counts, routes, func(route string, state core.State) metric.ObserveOption {
		return t.label(attribute.String("route", route), attribute.String("state", state.String()))
	})
	if r.opts.StaleAfter > 0 {
		for _, n := range r.unserved(counts) {
			o.ObserveInt64(lost, n.waiting, t.label(attribute.String("route", n.route)))
		}
	}
	return nil
}

// publishSpans are the spans of the messages of one Publish call, by index; nil where there is none.
type publishSpans []trace.Span

// startPublish begins a span for each message of c that was staged in a sampled trace. The span is a child of the
// message's create span, and linked to it. The message carries the context of the create span, which no process changes
// on the way.
func (t *telemetry) startPublish(ctx context.Context, c *call) (spans publishSpans) {
	l := &c.route.labels
	for i := range c.envs {
		env := &c.envs[i]
		if env.TraceParent == "" {
			continue
		}
		created := core.SpanContextOf(env)
		if !created.IsSampled() {
			continue
		}
		destination := l.spans.Destination(env.Topic, "")
		attrs := append(slices.Clip(l.span), semconv.MessagingDestinationName(destination), semconv.MessagingMessageID(env.ID),
			semconv.MessagingMessageBodySize(len(env.Body)), attribute.Int("waybill.attempt", attempt(c.items[i])))
		if l.spans.System == semconv.MessagingSystemRabbitMQ.Value.AsString() {
			attrs = append(attrs, semconv.MessagingRabbitMQDestinationRoutingKey(env.Topic))
		}
		_, span := t.tracer.Start(trace.ContextWithRemoteSpanContext(ctx, created), "publish "+destination,
			trace.WithSpanKind(trace.SpanKindClient), trace.WithLinks(trace.Link{SpanContext: created}), trace.WithAttributes(attrs...))
		if span.SpanContext().SpanID() == created.SpanID() {
			return nil // there is no provider: the span is that of the message
		}
		if spans == nil {
			spans = make(publishSpans, len(c.envs))
		}
		spans[i] = span
	}
	return spans
}

// describe returns the attributes that every span of an operation has.
func describe(d *core.Description, operation string, kind attribute.KeyValue, more ...attribute.KeyValue) []attribute.KeyValue {
	all := append(more, semconv.MessagingSystemKey.String(d.System), semconv.MessagingOperationName(operation), kind)
	if d.Address != "" {
		all = append(all, semconv.ServerAddress(d.Address), semconv.ServerPort(d.Port))
	}
	return all
}

// end ends the spans with their results.
func (s publishSpans) end(res core.Results) {
	for i, span := range s {
		if span == nil {
			continue
		}
		if res[i] != nil {
			span.SetAttributes(semconv.ErrorTypeKey.String(errorType(res[i])))
		}
		core.EndSpan(span, res[i])
	}
}
