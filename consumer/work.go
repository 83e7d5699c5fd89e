package consumer

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// start has it handled by a worker that is free, or by a new one. mu is held.
func (r *runner) start(it *item) {
	if r.spare == 0 {
		go r.work(it)
		return
	}
	r.spare--
	r.jobs <- it
}

// work handles it and then what comes next. It ends with the run: a goroutine that is new grows its stack again.
func (r *runner) work(it *item) {
	defer func() {
		if it != nil { // a handler ended its goroutine
			go r.work(r.goexited(it))
		}
	}()
	for {
		for it != nil {
			if it.batch != nil {
				it = r.workBatch(it)
			} else {
				it = r.finish(it, r.process(it))
			}
		}
		select {
		case it = <-r.jobs:
		case <-r.ended:
			return
		}
	}
}

// goexited decides about it, or about what is left of its batch, after its handler ended the goroutine.
func (r *runner) goexited(it *item) *item {
	if it.batch == nil {
		v := r.decide(it.d, waybill.HandlerProcessed, errGoexit)
		r.report(r.handlerCtx, it.d, &v)
		return r.finish(it, v)
	}
	run := it.run
	if run == nil {
		run = newBatchRun(it.batch)
	}
	for i, m := range run.members {
		if !run.open[i] {
			continue
		}
		v := r.decide(m.d, waybill.HandlerProcessed, errGoexit)
		r.report(r.handlerCtx, m.d, &v)
		r.mu.Lock()
		r.applyIn(run, i, &v)
		r.mu.Unlock()
	}
	return r.finishBatch(it, run)
}

// batchRun is a batch while it is handled. It belongs to its worker.
type batchRun struct {
	members []*item
	open    []bool           // not decided yet
	held    map[string]*item // by key, what is held; what came behind it in the batch is in its lane again
}

func newBatchRun(members []*item) *batchRun {
	run := &batchRun{members: members, open: make([]bool, len(members)), held: map[string]*item{}}
	for i := range run.open {
		run.open[i] = true
	}
	return run
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

// apply settles it by v, or holds it, and lets the pause follow; it reports whether that changed. What is held goes
// into held by its key. mu is held.
func (r *runner) apply(it *item, v *verdict, held map[string]*item) bool {
	switch {
	case v.inPlace && r.stopping:
		r.settle(it, core.AckRelease(it.d))
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
	if next == nil {
		r.spare++
	}
	r.kick()
	if len(held) > 0 {
		r.wakeReceiver() // nothing is settled, but somebody is free
	}
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

// applyIn is apply for member i of a batch. If it is held, those behind it go back to its lane. mu is held.
func (r *runner) applyIn(run *batchRun, i int, v *verdict) bool {
	run.open[i] = false
	changed := r.apply(run.members[i], v, run.held)
	r.putBackBehind(run, i)
	return changed
}

// putBackBehind puts what is behind member i back to its lane, if i is held. mu is held.
func (r *runner) putBackBehind(run *batchRun, i int) {
	key := run.members[i].d.Envelope.Key
	if key == "" || run.held[key] != run.members[i] {
		return
	}
	var behind []*item
	for j := i + 1; j < len(run.members); j++ {
		if run.open[j] && run.members[j].d.Envelope.Key == key {
			run.open[j] = false
			behind = append(behind, run.members[j])
		}
	}
	r.putBack(run.members[i], behind)
}

// workBatch handles lead's batch, at once if that works, else one by one, and returns what to handle next.
func (r *runner) workBatch(lead *item) *item {
	run := newBatchRun(lead.batch)
	lead.run = run
	verdicts := r.processBatch(lead.batch)
	changed := false
	r.mu.Lock()
	for i := range verdicts {
		if run.open[i] && verdicts[i].ack.Verdict != core.VerdictNone {
			changed = r.applyIn(run, i, &verdicts[i]) || changed
		}
	}
	delay, state := r.pause.delay, r.pause.state
	r.mu.Unlock()
	if changed {
		r.changed(state, delay, verdicts[0].err)
	}
	for i, m := range run.members {
		if !run.open[i] || !r.startAlone(run, i) {
			continue
		}
		v := r.process(m)
		r.mu.Lock()
		changed := r.applyIn(run, i, &v)
		delay, state := r.pause.delay, r.pause.state
		r.mu.Unlock()
		if changed {
			r.changed(state, delay, v.err)
		}
	}
	return r.finishBatch(lead, run)
}

func (r *runner) finishBatch(lead *item, run *batchRun) *item {
	r.mu.Lock()
	defer r.mu.Unlock()
	lead.run = nil
	return r.proceed(lead, run.held)
}

// startAlone reports whether member i, which was left over of a batch, may be handled now. If not, it goes back or is
// held.
func (r *runner) startAlone(run *batchRun, i int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := run.members[i]
	switch {
	case r.stopping, r.pause.state == paused && !r.sub.InOrder:
		r.settle(m, core.AckRelease(m.d))
	case r.pause.state == paused:
		r.holdFor(m, time.Until(r.pause.until))
		if key := m.d.Envelope.Key; key != "" {
			run.held[key] = m
		}
		r.putBackBehind(run, i)
	default:
		return true
	}
	run.open[i] = false
	return false
}

// processBatch runs the batch handler of ms and returns a verdict for each; none for those that must go one by one.
func (r *runner) processBatch(ms []*item) []verdict {
	verdicts := make([]verdict, len(ms))
	ds := make([]*waybill.Delivery, len(ms))
	for i, m := range ms {
		ds[i] = m.d
		r.merge(m)
	}
	ctx, span := r.tel.tracer.Start(r.handlerCtx, "waybill process", r.tel.spanOptions...)
	if span.IsRecording() {
		span.SetAttributes(attribute.Int("messaging.batch.message_count", len(ms)), attribute.String("messaging.destination.name", ds[0].Envelope.Topic))
		for _, d := range ds {
			if sc := core.SpanContextOf(&d.Envelope); sc.IsValid() {
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
		switch v := r.decide(ds[0], waybill.HandlerProcessed, err); {
		case v.outage, v.ack.Verdict == core.VerdictRelease: // something is down, or it is the end: not a message's fault
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
		if statuses[i] != waybill.HandlerLeftOut {
			verdicts[i] = r.decide(d, statuses[i], nil)
		}
	}
	r.reportAll(ds, verdicts)
	return verdicts
}

// callBatch runs the batch handler; a panic is an error.
func callBatch(ctx context.Context, h *entry, ds []*waybill.Delivery) (st []waybill.HandlerStatus, err error) {
	defer recovered(&err)
	st, err = h.batch(ctx, ds)
	probe(err)
	return st, err
}

// attempts runs it's handler, and again while the policy for retries in the process says so: each time through the
// inbox, if it has one, in a transaction of its own.
func (r *runner) attempts(ctx context.Context, it *item) (st waybill.HandlerStatus, err error) {
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
	if _, asked := after(err); asked {
		return false
	}
	class := waybill.ClassOf(err)
	return class == waybill.ClassUnknown || class == waybill.ClassRejected
}
