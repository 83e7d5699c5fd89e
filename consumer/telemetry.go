package consumer

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/obs"
)

// status is the end of a delivery's handling, as metrics name it.
type status uint8

const (
	statusSuccess   status = iota // the handler had its effect
	statusDuplicate               // it had its effect before
	statusRetried                 // comes again later
	statusParked                  // parked, whether a handler ran or not
	statusFailed                  // gave up at an outage or a stop; released
	statusDropped                 // without a handler, and settled as done, as Options.Unknown says
	statuses
)

var statusNames = [statuses]string{"success", "duplicate", "retried", "parked", "failed", "dropped"}

// telemetry holds the instruments of a consumer.
type telemetry struct {
	system                              core.Description
	tracer                              trace.Tracer
	traits                              core.SubscriberTraits
	received, processed, retries, drift metric.Int64Counter
	failures, repeats, lost, givenBack  metric.Int64Counter
	parked, held, prefetch, connected   metric.Int64Gauge
	active                              metric.Int64UpDownCounter
	duration                            metric.Float64Histogram
	limited                             metric.Float64Counter
}

func newTelemetry(o *Options, bus core.Subscriber) (*telemetry, error) {
	m := obs.Meter(o.MeterProvider)
	t := &telemetry{tracer: obs.Tracer(o.TracerProvider), system: core.DescriptionOf(bus)}
	var errs [15]error
	t.received, errs[0] = m.Int64Counter("waybill.consumer.received", metric.WithUnit("{message}"),
		metric.WithDescription("Deliveries received."))
	t.processed, errs[1] = m.Int64Counter("waybill.consumer.processed", metric.WithUnit("{message}"),
		metric.WithDescription("Deliveries by how their handling ended: success, duplicate, retried, parked, failed (released at an outage or a stop), dropped."))
	t.retries, errs[2] = m.Int64Counter("waybill.consumer.retries", metric.WithUnit("{message}"),
		metric.WithDescription("Retries by the declared delay they wait for."))
	t.drift, errs[3] = m.Int64Counter("waybill.consumer.hlc.rejected", metric.WithUnit("{message}"),
		metric.WithDescription("Messages whose clock stamp was too far ahead and was not merged."))
	t.failures, errs[4] = m.Int64Counter("waybill.consumer.transport.failures", metric.WithUnit("{failure}"),
		metric.WithDescription("Failed calls of the transport by step: subscribe, receive, ack, retry, park, release."))
	t.active, errs[5] = m.Int64UpDownCounter("waybill.consumer.active", metric.WithUnit("{handler}"),
		metric.WithDescription("Handlers that run."))
	t.duration, errs[6] = m.Float64Histogram("messaging.process.duration", metric.WithUnit("s"),
		metric.WithDescription("Time in handlers."), obs.Buckets())
	t.repeats, errs[7] = m.Int64Counter("waybill.consumer.repeats", metric.WithUnit("{message}"),
		metric.WithDescription("Retries in the process, before the broker saw the failure."))
	t.lost, errs[8] = m.Int64Counter("waybill.consumer.lease.lost", metric.WithUnit("{message}"),
		metric.WithDescription("Deliveries that were no longer the consumer's when it settled them: they are or will be handled again."))
	t.parked, errs[9] = m.Int64Gauge("waybill.consumer.parked.depth", metric.WithUnit("{message}"),
		metric.WithDescription("Parked messages, read every 30 s where the transport can tell."))
	t.limited, errs[10] = m.Float64Counter("waybill.consumer.limited", metric.WithUnit("s"),
		metric.WithDescription("Time in which messages and handlers were ready, and waited for the limit over all processes."))
	t.held, errs[11] = m.Int64Gauge("waybill.consumer.held", metric.WithUnit("{message}"),
		metric.WithDescription("Deliveries that are held and not settled."))
	t.prefetch, errs[12] = m.Int64Gauge("waybill.consumer.prefetch", metric.WithUnit("{message}"),
		metric.WithDescription("Deliveries that may be held; without a Prefetch the number adapts."))
	t.givenBack, errs[13] = m.Int64Counter("waybill.consumer.returned", metric.WithUnit("{message}"),
		metric.WithDescription("Deliveries given back since handlers had become slow."))
	t.connected, errs[14] = m.Int64Gauge("waybill.consumer.connected", metric.WithUnit("{subscription}"),
		metric.WithDescription("1 while the subscription is open and receives, 0 while it does not."))
	return t, errors.Join(errs[:]...)
}

// forDepth labels a gauge.
func (*telemetry) forDepth(queue string) metric.RecordOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String("queue", queue)))
}

// queueTelemetry is telemetry with the options of one queue made beforehand, so that counting allocates nothing.
type queueTelemetry struct {
	*telemetry
	queue       attribute.KeyValue
	plain       []metric.AddOption
	gauge       []metric.RecordOption
	plainRecord []metric.RecordOption
	byStatus    [statuses][]metric.AddOption
	delays      []time.Duration
	byDelay     [][]metric.AddOption // one for each of delays
	spanOptions []trace.SpanStartOption
	name        string // of spans
	queueName   string
}

// forQueue makes the options of a queue, and begins its counters at 0: a counter that begins with its first event never
// shows that event to an alert on its increase.
func (t *telemetry) forQueue(ctx context.Context, sub *core.Subscription) *queueTelemetry {
	queue := attribute.String("queue", sub.Queue)
	set := metric.WithAttributeSet(attribute.NewSet(queue))
	common := []attribute.KeyValue{
		semconv.MessagingSystemKey.String(t.system.System), semconv.MessagingOperationName("process"),
		semconv.MessagingOperationTypeProcess, semconv.MessagingConsumerGroupName(sub.Queue),
	}
	q := &queueTelemetry{
		telemetry: t, queue: queue, plain: []metric.AddOption{set}, gauge: []metric.RecordOption{set}, delays: sub.RetryDelays, name: "process " + sub.Queue, queueName: sub.Queue,
		plainRecord: []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(append(common, queue)...))},
		spanOptions: []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(common...)},
	}
	for s, name := range statusNames {
		q.byStatus[s] = []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(queue, attribute.String("status", name)))}
		t.processed.Add(ctx, 0, q.byStatus[s]...)
	}
	for _, d := range sub.RetryDelays {
		q.byDelay = append(q.byDelay, []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(queue, attribute.String("delay", d.String())))})
		t.retries.Add(ctx, 0, q.byDelay[len(q.byDelay)-1]...)
	}
	for _, c := range [...]metric.Int64Counter{t.received, t.drift, t.repeats, t.lost, t.givenBack} {
		c.Add(ctx, 0, q.plain...)
	}
	t.limited.Add(ctx, 0, q.plain...)
	for _, step := range [...]string{"subscribe", "receive", "ack", "retry", "park", "release"} {
		for _, class := range [...]waybill.Class{waybill.ClassUnknown, waybill.ClassOutage, waybill.ClassRejected} {
			t.failures.Add(ctx, 0, q.ofFailure(step, class))
		}
	}
	return q
}

// start begins the span of a handler, under what d carries: a child of the span that created the message, linked to it.
func (q *queueTelemetry) start(ctx context.Context, d *waybill.Delivery) (context.Context, trace.Span) {
	e := &d.Envelope
	ctx = q.under(ctx, d)
	options := q.spanOptions
	if created := trace.SpanContextFromContext(ctx); created.IsValid() {
		options = append(slices.Clip(options), trace.WithLinks(trace.Link{SpanContext: created}))
	}
	ctx, span := q.tracer.Start(ctx, q.name, options...)
	if span.IsRecording() {
		span.SetAttributes(semconv.MessagingMessageID(e.ID), semconv.MessagingDestinationName(q.system.Destination(e.Topic, q.queueName)),
			semconv.MessagingMessageBodySize(len(e.Body)), attribute.Int("waybill.attempt", d.Attempt))
		q.address(span)
		if e.CorrelationID != "" {
			span.SetAttributes(semconv.MessagingMessageConversationID(e.CorrelationID))
		}
	}
	return ctx, span
}

// startBatch begins the span of a batch handler, linked to the spans that created its messages.
func (q *queueTelemetry) startBatch(ctx context.Context, ds []*waybill.Delivery) (context.Context, trace.Span) {
	ctx, span := q.tracer.Start(ctx, q.name, q.spanOptions...)
	if !span.IsRecording() {
		return ctx, span
	}
	span.SetAttributes(semconv.MessagingBatchMessageCount(len(ds)), semconv.MessagingDestinationName(q.system.Destination(ds[0].Envelope.Topic, q.queueName)))
	q.address(span)
	for _, d := range ds {
		if created := core.SpanContextOf(&d.Envelope); created.IsValid() {
			span.AddLink(trace.Link{SpanContext: created, Attributes: []attribute.KeyValue{semconv.MessagingMessageID(d.Envelope.ID)}})
		}
	}
	return ctx, span
}

func (q *queueTelemetry) address(span trace.Span) {
	if q.system.Address != "" {
		span.SetAttributes(semconv.ServerAddress(q.system.Address), semconv.ServerPort(q.system.Port))
	}
}

// under returns ctx with the trace context of d, so that log lines about d belong to its trace.
func (*queueTelemetry) under(ctx context.Context, d *waybill.Delivery) context.Context {
	if d.Envelope.TraceParent == "" && len(d.Envelope.Headers) == 0 {
		return ctx
	}
	return core.ContextWithTrace(ctx, &d.Envelope)
}

// endSpan ends span with the result of a handler.
func endSpan(span trace.Span, err error) {
	if err != nil && span.IsRecording() {
		span.SetAttributes(semconv.ErrorTypeKey.String(waybill.ClassOf(err).String()))
	}
	core.EndSpan(span, err)
}

func (q *queueTelemetry) ofFailure(step string, class waybill.Class) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(q.queue, attribute.String("step", step), semconv.ErrorTypeKey.String(class.String())))
}

func (q *queueTelemetry) count(ctx context.Context, c metric.Int64Counter, n int) {
	c.Add(ctx, int64(n), q.plain...)
}

func (q *queueTelemetry) failed(ctx context.Context, step string, err error) {
	q.failures.Add(ctx, 1, q.ofFailure(step, waybill.ClassOf(err)))
}

// retried counts a retry by the declared delay that it is rounded to, so that the label stays bounded.
func (q *queueTelemetry) retried(ctx context.Context, delay time.Duration) {
	for i, d := range q.delays {
		if delay <= d || i == len(q.delays)-1 {
			q.retries.Add(ctx, 1, q.byDelay[i]...)
			return
		}
	}
	q.retries.Add(ctx, 1, q.plain...)
}

// report counts and logs the verdict about d.
func (r *runner) report(ctx context.Context, d *waybill.Delivery, v *verdict) {
	r.tel.processed.Add(ctx, 1, r.tel.byStatus[v.status]...)
	r.counts.by[v.status].Add(1)
	r.logVerdict(ctx, d, v)
}

// reportAll is report for the verdicts about a batch.
func (r *runner) reportAll(ds []*waybill.Delivery, vs []verdict) {
	var n [statuses]int64
	debug := r.log.Enabled(r.handlerCtx, slog.LevelDebug)
	for i := range vs {
		if vs[i].ack.Verdict == core.VerdictNone {
			continue
		}
		n[vs[i].status]++
		if debug || vs[i].err != nil {
			r.logVerdict(r.tel.under(r.handlerCtx, ds[i]), ds[i], &vs[i])
		}
	}
	for s, n := range n {
		if n > 0 {
			r.tel.processed.Add(r.handlerCtx, n, r.tel.byStatus[s]...)
			r.counts.by[s].Add(n)
		}
	}
}

func (r *runner) logVerdict(ctx context.Context, d *waybill.Delivery, v *verdict) {
	level, event, text := slog.LevelDebug, "consumer.done", "message handled"
	switch v.status {
	case statusSuccess:
	case statusDuplicate:
		event, text = "consumer.duplicate", "message had been handled before"
	case statusRetried:
		r.tel.retried(ctx, v.ack.Delay)
		level, event, text = slog.LevelWarn, "consumer.retry", "handler failed; the message comes again later"
	case statusParked:
		level, event, text = slog.LevelWarn, "consumer.parked", "message parked"
		if v.ack.Reason == waybill.ReasonUndecodable {
			level = slog.LevelError
		}
		if r.sub.DropFailed {
			event, text = "consumer.dropped", "message dropped, since the subscription does not park"
		}
	case statusFailed:
		level, event, text = slog.LevelWarn, "consumer.released", "handler gave up at an outage, a stop or the loss of its message, which goes back"
		switch {
		case v.lost: // consumer.lease_lost tells it
			level = slog.LevelDebug
		case v.inPlace:
			event, text = "consumer.held", "handler met an outage; the message waits in its place"
		case v.of.alone > 0:
			event, text = "consumer.aside", "handler met an outage that other messages do not meet; the message comes again later, the others go on"
		}
	case statusDropped:
		level, event, text = slog.LevelWarn, "consumer.dropped", "message without a handler dropped, as Options.Unknown says"
	case statuses:
	}
	if !r.log.Enabled(ctx, level) {
		return
	}
	attrs := ofMessage(d)
	if v.took > 0 {
		attrs = append(attrs, slog.Duration("took", v.took.Round(time.Microsecond)))
	}
	if v.ack.Verdict == core.VerdictRetry {
		attrs = append(attrs, slog.Duration("retry_in", round(v.ack.Delay)))
	}
	if v.ack.Reason != "" {
		attrs = append(attrs, slog.String("reason", string(v.ack.Reason)))
	}
	if v.err != nil {
		attrs = append(attrs, errAttr(v.err))
	}
	if p, ok := errors.AsType[*panicError](v.err); ok {
		attrs = append(attrs, slog.String("stack", string(p.stack)))
	}
	r.log.Event(ctx, level, event, text, attrs...)
}

func errAttr(err error) slog.Attr { return slog.String("error", core.ErrorText(err)) }

// logRepeat logs a retry in the process.
func (r *runner) logRepeat(ctx context.Context, d *waybill.Delivery, n int, delay time.Duration, err error) {
	r.log.Event(ctx, slog.LevelWarn, "consumer.repeat", "handler failed; it is tried again in this process",
		append(ofMessage(d), slog.Int("try", n), slog.Duration("retry_in", round(delay)), errAttr(err))...)
}

// logBatch logs that a batch is handled one by one.
func (r *runner) logBatch(ctx context.Context, n int, err error) {
	attrs := []slog.Attr{slog.Int("messages", n), errAttr(err)}
	if p, ok := errors.AsType[*panicError](err); ok {
		attrs = append(attrs, slog.String("stack", string(p.stack)))
	}
	r.log.Event(ctx, slog.LevelWarn, "consumer.batch", "batch failed; its messages are handled one by one", attrs...)
}

// ofMessage names d in a log line.
func ofMessage(d *waybill.Delivery) []slog.Attr {
	e := &d.Envelope
	attrs := make([]slog.Attr, 0, 10)
	attrs = append(attrs, slog.String("id", e.ID), slog.String("topic", e.Topic), slog.Int("attempt", d.Attempt))
	if e.Key != "" {
		attrs = append(attrs, slog.String("key", e.Key))
	}
	if e.Tenant != "" {
		attrs = append(attrs, slog.String("tenant", e.Tenant))
	}
	return attrs
}

// round makes a duration readable in a log line.
func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
