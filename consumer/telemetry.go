package consumer

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/obs"
)

// status is how the handling of a delivery ended, as metrics name it.
type status uint8

const (
	statusSuccess   status = iota // the handler had its effect
	statusDuplicate               // it had had its effect before
	statusRetried                 // comes again later
	statusParked                  // parked, handled or not
	statusFailed                  // gave up at an outage or a stop; released
	statusDropped                 // without a handler, and settled as done, as Options.Unknown says
	statuses
)

var statusNames = [statuses]string{"success", "duplicate", "retried", "parked", "failed", "dropped"}

// buckets of durations in seconds, 1 ms to 1 day.
var buckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 14400, 86400}

// telemetry holds the instruments of a consumer.
type telemetry struct {
	tracer                              trace.Tracer
	traits                              core.SubscriberTraits
	received, processed, retries, drift metric.Int64Counter
	failures, repeats, lost             metric.Int64Counter
	parked                              metric.Int64Gauge
	active                              metric.Int64UpDownCounter
	duration                            metric.Float64Histogram
}

func newTelemetry(o *Options) (*telemetry, error) {
	mp, tp := o.MeterProvider, o.TracerProvider
	if mp == nil {
		mp = otel.GetMeterProvider()
	}
	if tp == nil {
		tp = otel.GetTracerProvider()
	}
	m := mp.Meter(obs.Scope)
	t := &telemetry{tracer: tp.Tracer(obs.Scope)}
	var errs [10]error
	t.received, errs[0] = m.Int64Counter("waybill.consumer.received", metric.WithUnit("{message}"),
		metric.WithDescription("Deliveries received."))
	t.processed, errs[1] = m.Int64Counter("waybill.consumer.processed", metric.WithUnit("{message}"),
		metric.WithDescription("Deliveries by how their handling ended: success, duplicate, retried, parked, failed (given back at an outage or a stop), dropped."))
	t.retries, errs[2] = m.Int64Counter("waybill.consumer.retries", metric.WithUnit("{message}"),
		metric.WithDescription("Retries by the declared delay they wait for."))
	t.drift, errs[3] = m.Int64Counter("waybill.consumer.hlc.rejected", metric.WithUnit("{message}"),
		metric.WithDescription("Messages whose clock stamp was too far ahead and was not merged."))
	t.failures, errs[4] = m.Int64Counter("waybill.consumer.publish.failures", metric.WithUnit("{failure}"),
		metric.WithDescription("Failed calls of the transport by step: subscribe, receive, ack, retry, park, give_back."))
	t.active, errs[5] = m.Int64UpDownCounter("waybill.consumer.active", metric.WithUnit("{handler}"),
		metric.WithDescription("Handlers that run."))
	t.duration, errs[6] = m.Float64Histogram("waybill.consumer.handler.duration", metric.WithUnit("s"),
		metric.WithDescription("Time in handlers."), metric.WithExplicitBucketBoundaries(buckets...))
	t.repeats, errs[7] = m.Int64Counter("waybill.consumer.repeats", metric.WithUnit("{message}"),
		metric.WithDescription("Retries in the process, before the broker saw the failure."))
	t.lost, errs[8] = m.Int64Counter("waybill.consumer.lease.lost", metric.WithUnit("{message}"),
		metric.WithDescription("Deliveries that were no longer the consumer's when it settled them: they are or will be handled again."))
	t.parked, errs[9] = m.Int64Gauge("waybill.consumer.parked.depth", metric.WithUnit("{message}"),
		metric.WithDescription("Parked messages, read every 30 s where the transport can tell."))
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
	plainRecord []metric.RecordOption
	byStatus    [statuses][]metric.AddOption
	delays      []time.Duration
	byDelay     [][]metric.AddOption // one for each of delays
	spanOptions []trace.SpanStartOption
}

func (t *telemetry) forQueue(sub *core.Subscription) *queueTelemetry {
	queue := attribute.String("queue", sub.Queue)
	set := metric.WithAttributeSet(attribute.NewSet(queue))
	q := &queueTelemetry{
		telemetry: t, queue: queue, plain: []metric.AddOption{set}, plainRecord: []metric.RecordOption{set}, delays: sub.RetryDelays,
		spanOptions: []trace.SpanStartOption{
			trace.WithSpanKind(trace.SpanKindConsumer),
			trace.WithAttributes(attribute.String("messaging.operation.type", "process"), attribute.String("messaging.consumer.group.name", sub.Queue)),
		},
	}
	for s, name := range statusNames {
		q.byStatus[s] = []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(queue, attribute.String("status", name)))}
	}
	for _, d := range sub.RetryDelays {
		q.byDelay = append(q.byDelay, []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(queue, attribute.String("delay", d.String())))})
	}
	return q
}

func (q *queueTelemetry) count(ctx context.Context, c metric.Int64Counter, n int) {
	c.Add(ctx, int64(n), q.plain...)
}

func (q *queueTelemetry) failed(ctx context.Context, step string, err error) {
	q.failures.Add(ctx, 1, metric.WithAttributeSet(attribute.NewSet(q.queue, attribute.String("step", step),
		attribute.String("error.type", waybill.ClassOf(err).String()))))
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

// report counts and logs what was decided about d.
func (r *runner) report(ctx context.Context, d *waybill.Delivery, v *verdict) {
	r.tel.processed.Add(ctx, 1, r.tel.byStatus[v.status]...)
	r.counts.by[v.status].Add(1)
	r.logVerdict(ctx, d, v)
}

// reportAll is report for what was decided about a batch.
func (r *runner) reportAll(ds []*waybill.Delivery, vs []verdict) {
	var n [statuses]int64
	debug := r.log.Enabled(r.handlerCtx, slog.LevelDebug)
	for i := range vs {
		if vs[i].ack.Verdict == core.VerdictNone {
			continue
		}
		n[vs[i].status]++
		if debug || vs[i].err != nil {
			r.logVerdict(r.handlerCtx, ds[i], &vs[i])
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
		level, event, text = slog.LevelWarn, "consumer.given_back", "handler gave up at an outage or a stop; the message goes back"
		if v.inPlace {
			event, text = "consumer.held", "handler met an outage; the message waits in its place"
		}
	case statusDropped:
		level, event, text = slog.LevelWarn, "consumer.dropped", "message without a handler dropped, as Options.Unknown says"
	case statuses:
	}
	if !r.log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("id", d.Envelope.ID), slog.String("topic", d.Envelope.Topic), slog.Int("attempt", d.Attempt),
	}
	if v.ack.Verdict == core.VerdictRetry {
		attrs = append(attrs, slog.Duration("retry_in", v.ack.Delay))
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
	r.log.limited(ctx, level, event, text, attrs...)
}

func errAttr(err error) slog.Attr { return slog.String("error", core.ErrorText(err)) }

// At most logBurst lines of one event are written in logWindow; the next line after that says how many were left out.
const (
	logBurst  = 10
	logWindow = 10 * time.Second
)

// logs is a logger that limits repeated warnings.
type logs struct {
	*slog.Logger
	mu     sync.Mutex
	events map[string]*logCount
}

type logCount struct {
	begin          time.Time
	lines, dropped int
}

// repeated logs a retry in the process.
func (l *logs) repeated(ctx context.Context, d *waybill.Delivery, n int, delay time.Duration, err error) {
	l.warn(ctx, "consumer.repeat", "handler failed; it is tried again in this process", slog.String("id", d.Envelope.ID),
		slog.Int("attempt", d.Attempt), slog.Int("try", n), slog.Duration("retry_in", delay), errAttr(err))
}

// batchFailed logs that a batch goes one by one.
func (l *logs) batchFailed(ctx context.Context, n int, err error) {
	attrs := []slog.Attr{slog.Int("messages", n), errAttr(err)}
	if p, ok := errors.AsType[*panicError](err); ok {
		attrs = append(attrs, slog.String("stack", string(p.stack)))
	}
	l.warn(ctx, "consumer.batch", "batch failed; its messages are handled one by one", attrs...)
}

func (l *logs) warn(ctx context.Context, event, text string, attrs ...slog.Attr) {
	l.limited(ctx, slog.LevelWarn, event, text, attrs...)
}

// limited writes a line unless there were too many of its event. Debug lines are not limited.
func (l *logs) limited(ctx context.Context, level slog.Level, event, text string, attrs ...slog.Attr) {
	if !l.Enabled(ctx, level) {
		return
	}
	attrs = append(attrs, slog.String("event", event))
	if level > slog.LevelDebug {
		dropped, ok := l.allow(event)
		if !ok {
			return
		}
		if dropped > 0 {
			attrs = append(attrs, slog.Int("left_out", dropped))
		}
	}
	l.LogAttrs(ctx, level, text, attrs...)
}

func (l *logs) allow(event string) (dropped int, ok bool) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.events[event]
	if c == nil {
		if l.events == nil {
			l.events = map[string]*logCount{}
		}
		c = &logCount{begin: now}
		l.events[event] = c
	}
	if now.Sub(c.begin) >= logWindow {
		dropped = c.dropped
		*c = logCount{begin: now}
	}
	if c.lines >= logBurst {
		c.dropped++
		return 0, false
	}
	c.lines++
	return dropped, true
}
