package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill/core"
)

// work handles it and then what comes next, and ends when there is nothing to handle.
func (r *runner) work(it *item) {
	defer func() {
		if it != nil { // a handler ended its goroutine
			if next := r.goexited(it); next != nil {
				go r.work(next)
			}
		}
	}()
	for it != nil {
		if it.batch != nil {
			it = r.workBatch(it)
		} else {
			it = r.finish(it, r.process(it))
		}
	}
}

// goexited decides about it, or about what is left of its batch, after its handler ended the goroutine.
func (r *runner) goexited(it *item) *item {
	if it.batch == nil {
		v := r.decide(it.d, core.HandlerProcessed, errGoexit)
		r.report(r.handlerCtx, it.d, &v)
		return r.finish(it, v)
	}
	held := map[string]*item{}
	for _, m := range it.batch {
		if m.decided {
			continue
		}
		v := r.decide(m.d, core.HandlerProcessed, errGoexit)
		r.report(r.handlerCtx, m.d, &v)
		if key := m.d.Envelope.Key; v.inPlace && held[key] != nil {
			v.inPlace, v.ack = false, core.AckGiveBack(m.d)
		}
		r.mu.Lock()
		r.apply(m, &v, held)
		r.mu.Unlock()
	}
	return r.finishBatch(it, held)
}

// finish settles it by v, and returns what to handle next.
func (r *runner) finish(it *item, v verdict) *item {
	var held map[string]*item
	if v.inPlace {
		held = map[string]*item{}
	}
	r.mu.Lock()
	changed := r.apply(it, &v, held)
	next := r.proceed(it, held)
	delay, state := r.pause.delay, r.pause.state
	r.mu.Unlock()
	if changed {
		r.changed(state, delay, v.err)
	}
	return next
}

// apply settles it by v, or holds it, and lets the pause follow; it reports whether that changed. What is held goes into
// held by its key. mu is held.
func (r *runner) apply(it *item, v *verdict, held map[string]*item) bool {
	it.decided = true
	switch {
	case v.inPlace && r.stopping:
		r.settle(it, core.AckGiveBack(it.d))
	case v.inPlace:
		delay := v.ack.Delay
		if v.outage {
			delay = max(r.pauseDelay(r.pause.n+1), time.Until(r.pause.until))
		} else {
			it.d.Attempt++
		}
		r.holdFor(it, delay)
		if key := it.d.Envelope.Key; key != "" {
			held[key] = it
		}
	default:
		r.settle(it, v.ack)
	}
	changed := r.observe(it, v)
	if changed {
		r.wakeReceiver()
	}
	return changed
}

// holdFor keeps it, with its lane behind it, for d. mu is held.
func (r *runner) holdFor(it *item, d time.Duration) {
	r.hold(it)
	it.retry = time.AfterFunc(d, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.schedule.wake(it) {
			it.decided = false
			r.kick()
		}
	})
}

// proceed ends it, or its batch, and returns what to handle next. mu is held.
func (r *runner) proceed(it *item, held map[string]*item) *item {
	r.done(it, held)
	if r.stopping {
		r.giveBackWaiting() // what was behind it, if the order is kept
	}
	next := r.next()
	r.kick()
	if r.stopping && r.running == 0 {
		r.idle.set()
	}
	return next
}

func (r *runner) changed(state pauseState, delay time.Duration, err error) {
	r.logPause(state, delay, err)
	if state == paused && r.trouble != nil {
		r.trouble(err)
	}
}

// workBatch handles lead's batch, at once if that works, else one by one, and returns what to handle next.
func (r *runner) workBatch(lead *item) *item {
	verdicts := r.processBatch(lead.batch)
	held, behind := map[string]*item{}, map[*item][]*item{}
	r.mu.Lock()
	paused0 := false
	for i, m := range lead.batch {
		if v := &verdicts[i]; v.ack.Verdict != core.VerdictNone {
			if key := m.d.Envelope.Key; v.inPlace && held[key] != nil { // an outage of all
				behind[held[key]] = append(behind[held[key]], m)
				m.decided = true
				continue
			}
			paused0 = r.apply(m, v, held) || paused0
		}
	}
	delay, state := r.pause.delay, r.pause.state
	r.mu.Unlock()
	if paused0 {
		r.changed(state, delay, verdicts[0].err)
	}
	for _, m := range lead.batch {
		if m.decided {
			continue
		}
		if first := held[m.d.Envelope.Key]; first != nil {
			m.decided = true
			behind[first] = append(behind[first], m)
			continue
		}
		if r.startAlone(m, held) {
			v := r.process(m)
			r.mu.Lock()
			changed := r.apply(m, &v, held)
			delay, state := r.pause.delay, r.pause.state
			r.mu.Unlock()
			if changed {
				r.changed(state, delay, v.err)
			}
		}
	}
	r.mu.Lock()
	for first, list := range behind {
		for _, m := range list {
			m.decided = false
		}
		r.putBack(first, list)
	}
	r.mu.Unlock()
	return r.finishBatch(lead, held)
}

func (r *runner) finishBatch(lead *item, held map[string]*item) *item {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proceed(lead, held)
}

// startAlone reports whether m, which was left over of a batch, may be handled now. If not, it goes back or is held.
func (r *runner) startAlone(m *item, held map[string]*item) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.stopping, r.pause.state == paused && !r.sub.InOrder:
		r.settle(m, core.AckGiveBack(m.d))
	case r.pause.state == paused:
		r.holdFor(m, time.Until(r.pause.until))
		if key := m.d.Envelope.Key; key != "" {
			held[key] = m
		}
	default:
		return true
	}
	m.decided = true
	return false
}

// processBatch runs the batch handler of ms and returns a verdict for each; none for those that must go one by one.
func (r *runner) processBatch(ms []*item) []verdict {
	verdicts := make([]verdict, len(ms))
	ds := make([]*core.Delivery, len(ms))
	for i, m := range ms {
		ds[i] = m.d
		r.merge(m)
	}
	ctx, span := r.tel.tracer.Start(r.handlerCtx, "waybill process", r.tel.spanOptions...)
	if span.IsRecording() {
		span.SetAttributes(attribute.Int("messaging.batch.message_count", len(ms)), attribute.String("messaging.destination.name", ds[0].Envelope.Topic))
		for _, d := range ds {
			if sc := d.Envelope.SpanContext(); sc.IsValid() {
				span.AddLink(trace.Link{SpanContext: sc, Attributes: []attribute.KeyValue{attribute.String("messaging.message.id", d.Envelope.ID)}})
			}
		}
	}
	r.tel.active.Add(ctx, 1, r.tel.plain...)
	begin := time.Now()
	statuses, err := callBatch(ctx, ms[0].h, ds)
	took := time.Since(begin)
	r.tel.active.Add(ctx, -1, r.tel.plain...)
	r.tel.duration.Record(ctx, took.Seconds(), r.tel.plainRecord...)
	if err == nil && len(statuses) != len(ds) {
		err = fmt.Errorf("the batch handler returned %d statuses for %d messages", len(statuses), len(ds))
	}
	core.EndSpan(span, err)
	if err != nil {
		switch v := r.decide(ds[0], core.HandlerProcessed, err); {
		case v.outage, v.ack.Verdict == core.VerdictGiveBack: // something is down, or it is the end: not a message's fault
			for i, d := range ds {
				verdicts[i] = v
				verdicts[i].ack.Delivery = d
				verdicts[i].inPlace = v.outage && r.sub.InOrder
			}
			r.reportAll(ds, verdicts)
		default:
			r.log.batchFailed(r.handlerCtx, len(ds), err)
		}
		return verdicts
	}
	for i, d := range ds {
		if statuses[i] != core.HandlerLeftOut {
			verdicts[i] = r.decide(d, statuses[i], nil)
		}
	}
	r.reportAll(ds, verdicts)
	return verdicts
}

// callBatch runs the batch handler; a panic is an error.
func callBatch(ctx context.Context, h *entry, ds []*core.Delivery) (st []core.HandlerStatus, err error) {
	defer recovered(&err)
	return h.batch(ctx, ds)
}

// attempts runs it's handler, and again while the policy for retries in the process says so: each time through the
// inbox, if it has one, in a transaction of its own.
func (r *runner) attempts(ctx context.Context, it *item) (st core.HandlerStatus, err error) {
	policy := r.sub.InProcess
	for n := 1; ; n++ {
		begin := time.Now()
		st, err = call(ctx, it)
		r.tel.duration.Record(ctx, time.Since(begin).Seconds(), r.tel.plainRecord...)
		if err == nil || policy == nil || !repeatable(err) || r.stopCtx.Err() != nil {
			return st, err
		}
		delay, again, errPolicy := policy.Next(n, err)
		if !again || errPolicy != nil {
			return st, err
		}
		r.tel.count(ctx, r.tel.repeats, 1)
		r.log.repeated(ctx, it.d, n, delay, err)
		if !sleep(r.stopCtx, delay) {
			return st, err
		}
	}
}

// repeatable reports whether a failure is left to the policy: neither the handler nor its store has decided.
func repeatable(err error) bool {
	if _, asked := after(err); asked || errors.Is(err, core.ErrMisconfigured) {
		return false
	}
	class := core.ClassOf(err)
	return class == core.ClassUnknown || class == core.ClassRejected
}
