package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Kafka knows one offset for each partition, and queues settle in any order. So a commit stores the lowest offset that
// is not done, and beside it, in the commit's metadata, what above it is done or handed out (position.go).
//
// A verdict other than done needs a record first: a retry's copy goes to the queue's retry log, a rejection's to the
// log of parked messages. The original is done when its copy is stored, never before. A crash between the two has the
// original come again, and the inbox knows it by its id.
//
// Each settle ends with a commit. Commits of many callers share one request: while one is on its way, the next collects
// everybody who waits.

// commit is a call that waits until the present state is committed.
type commit struct {
	done   chan struct{}
	errs   map[*position]error // of those that could not be committed
	failed error               // the first of errs
}

// commit waits until what has changed is committed. Calls at the same time share a request. of is the result for each
// position, if not nil. The commit goes on if ctx ends.
func (r *receiver) commit(ctx context.Context, of func(map[*position]error)) error {
	c := &commit{done: make(chan struct{})}
	r.mu.Lock()
	dirty := false
	for _, p := range r.positions {
		dirty = dirty || p.dirty
	}
	if !dirty && !r.inflight {
		r.mu.Unlock()
		return nil
	}
	r.waiters = append(r.waiters, c)
	r.mu.Unlock()
	select {
	case r.committing <- struct{}{}:
	default:
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		return r.link.because("commit", context.Cause(ctx))
	case <-r.life.Done():
		return closed("commit")
	}
	if of != nil {
		of(c.errs)
	}
	return c.failed
}

// commits makes the commits, one at a time, until the receiver is closed.
func (r *receiver) commits() {
	for {
		select {
		case <-r.committing:
		case <-r.life.Done():
			return
		}
		r.mu.Lock()
		waiters := r.waiters
		r.waiters, r.inflight = nil, len(waiters) > 0
		r.mu.Unlock()
		if len(waiters) == 0 {
			continue
		}
		errs := r.commitNow()
		var first error
		for _, err := range errs {
			first = err
		}
		r.mu.Lock()
		r.inflight = false
		r.mu.Unlock()
		for _, c := range waiters {
			c.errs, c.failed = errs, first
			close(c.done)
		}
	}
}

// commitNow commits what has changed, and returns the errors of the partitions that could not be committed. While the
// group makes up its mind about its members, it asks again.
func (r *receiver) commitNow() map[*position]error {
	ctx, cancel := context.WithTimeout(r.life, r.t.opts.Timeout)
	defer cancel()
	for {
		errs := r.commitOnce(ctx)
		again := false
		for p, err := range errs {
			r.mu.Lock()
			again = again || moved(err) && !p.gone
			r.mu.Unlock()
		}
		if !again || pause(ctx, 50*time.Millisecond) != nil {
			for p, err := range errs {
				r.mu.Lock()
				if p.gone {
					errs[p] = lost()
				} else {
					errs[p] = r.link.because("commit", err)
				}
				r.mu.Unlock()
			}
			return errs
		}
	}
}

// commitOnce sends one request for all positions that have changed. A position counts as clean from here on, so what
// changes meanwhile makes it dirty for the next request. One that fails becomes dirty again.
func (r *receiver) commitOnce(ctx context.Context) map[*position]error {
	offsets := map[string]map[int32]kgo.EpochOffset{}
	metadata := map[at]string{}
	var sent []*position
	r.mu.Lock()
	for _, p := range r.positions {
		if !p.dirty || p.next < 0 {
			continue
		}
		p.dirty = false
		offset, meta := p.commit()
		if offsets[p.topic] == nil {
			offsets[p.topic] = map[int32]kgo.EpochOffset{}
		}
		offsets[p.topic][p.number] = kgo.EpochOffset{Epoch: -1, Offset: offset}
		metadata[at{p.topic, p.number}] = meta
		sent = append(sent, p)
	}
	r.mu.Unlock()
	if len(sent) == 0 {
		return nil
	}
	result := map[at]error{}
	var failed error
	// The client has no field for metadata: it can be set in the request that is about to leave.
	ctx = kgo.PreCommitFnContext(ctx, func(req *kmsg.OffsetCommitRequest) error {
		for i := range req.Topics {
			x := &req.Topics[i]
			name := cmp.Or(x.Topic, r.topics[x.TopicID])
			for j := range x.Partitions {
				x.Partitions[j].Metadata = new(metadata[at{name, x.Partitions[j].Partition}])
			}
		}
		return nil
	})
	r.client.CommitOffsetsSync(ctx, offsets, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if failed = err; err != nil {
			return
		}
		for _, x := range resp.Topics {
			name := cmp.Or(x.Topic, r.topics[x.TopicID])
			for _, y := range x.Partitions {
				if err := kerr.ErrorForCode(y.ErrorCode); err != nil {
					result[at{name, y.Partition}] = err
				} else if _, ok := result[at{name, y.Partition}]; !ok {
					result[at{name, y.Partition}] = nil
				}
			}
		}
	})
	errs := map[*position]error{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range sent {
		err, answered := result[at{p.topic, p.number}]
		switch {
		case failed != nil:
			err = failed
		case !answered:
			err = errors.New("the group's coordinator has not answered for the partition")
		}
		if err != nil {
			p.dirty = true
			errs[p] = err
		}
	}
	return errs
}

// job is an ack of a delivery that no other call settles meanwhile.
type job struct {
	h    *handle
	ack  *core.Ack
	slot int
}

// Settle implements core.Receiver.
func (r *receiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	ctx, cancel := r.t.bounded(ctx)
	defer cancel()
	res := make(core.Results, len(acks))
	var jobs []job
	for i := range acks {
		h, err := r.deliveryOf(&acks[i])
		if err != nil {
			res[i] = err
			continue
		}
		jobs = append(jobs, job{h, &acks[i], i})
	}
	if len(jobs) == 0 {
		return res
	}
	r.copies(ctx, jobs, res)
	r.mark(jobs, res)
	var errs map[*position]error
	err := r.commit(ctx, func(e map[*position]error) { errs = e })
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range jobs {
		failed := res[j.slot]
		if failed == nil && err != nil && errs == nil {
			failed = err
		} else if failed == nil && errs[j.h.p] != nil {
			failed = errs[j.h.p]
		}
		if failed == nil && j.h.p.gone && j.h.p.dirty { // it went before it was committed
			failed = lost()
		}
		r.finish(&j, failed, res[j.slot] == nil)
		res[j.slot] = failed
	}
	if r.drained != nil {
		close(r.drained)
		r.drained = nil
	}
	r.signal()
	return res
}

// deliveryOf returns the delivery of a, if it can be settled.
func (r *receiver) deliveryOf(a *core.Ack) (*handle, error) {
	const op = "settle"
	if a.Delivery == nil {
		return nil, waybill.Invalid("waybill/kafka: settle", "Delivery: is nil")
	}
	h, ok := a.Delivery.Handle.(*handle)
	if !ok || h.r != r {
		return nil, waybill.Invalid("waybill/kafka: settle", "Delivery: is not of this receiver")
	}
	if a.Verdict < core.VerdictDone || a.Verdict > core.VerdictRelease {
		return nil, waybill.Invalid("waybill/kafka: settle", fmt.Sprintf("Verdict: %d is none", a.Verdict))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	settling, held := r.held[h]
	switch {
	case r.closed:
		return nil, closed(op)
	case !held || h.p.gone:
		delete(r.held, h)
		return nil, lost()
	case settling:
		return nil, fail(op, waybill.ClassRejected, waybill.ReasonNone, errors.New("another call settles the delivery"))
	}
	r.held[h] = true
	return h, nil
}

// mark applies the verdicts whose copies are stored.
func (r *receiver) mark(jobs []job, res core.Results) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range jobs {
		switch h := j.h; {
		case res[j.slot] != nil:
		case h.p.gone:
			res[j.slot] = lost()
		case j.ack.Verdict == core.VerdictRelease:
			r.unready(h.p) // what is behind it comes after it
			h.p.putBack(h.e)
			h.e.out = true // until it is committed
		default:
			h.p.done(h.e)
		}
	}
}

// finish ends a settle. The caller holds mu. A delivery whose settle has failed stays held, so that the caller can
// settle it again; marked says that its verdict was applied, which is taken back.
func (r *receiver) finish(j *job, failed error, marked bool) {
	h := j.h
	release := j.ack.Verdict == core.VerdictRelease
	switch {
	case h.p.gone && (failed != nil || !marked):
		delete(r.held, h)
		return
	case failed == nil:
		delete(r.held, h)
		h.settled = true
		if release {
			h.e.out = false
		}
		return
	case marked && release:
		h.e.count++
		h.p.outs++
		h.p.dirty = true
	case marked:
		h.p.undo(h.e)
	}
	r.held[h] = false
}

// copies stores the copies of retries and rejections, and fills res with the errors.
func (r *receiver) copies(ctx context.Context, jobs []job, res core.Results) {
	c := newCall()
	now := time.Now()
	flights := make([]*flight, len(jobs))
	slots := make(core.Results, len(jobs))
	for i, j := range jobs {
		h := j.h
		rec := r.copy(h, j.ack, now)
		if rec == nil {
			continue
		}
		// A settle that failed is made again by the same verdict: its copy is still on its way, or stored.
		if old := h.copied; old != nil && h.verdict == j.ack.Verdict && (!old.ended.Load() || old.err == nil) {
			flights[i] = old
			r.t.join(old)
			continue
		}
		h.copied, h.verdict = r.t.send(ctx, "", &flight{call: c, record: rec}), j.ack.Verdict
		flights[i] = h.copied
	}
	c.sent()
	r.t.await(ctx, c, flights, slots)
	r.t.again(ctx, func(int) string { return "" }, flights, slots)
	for i, j := range jobs {
		if flights[i] != nil {
			j.h.copied = flights[i]
		}
		if slots[i] != nil {
			res[j.slot] = slots[i]
		}
	}
}

// copy returns the record that is stored before the original is done; nil = none.
func (r *receiver) copy(h *handle, a *core.Ack, now time.Time) *kgo.Record {
	old, d := h.e.record, h.delivery
	failure := a.Err
	if failure == "" && a.Verdict == core.VerdictRetry {
		failure = get(old, headerError)
	}
	var rec *kgo.Record
	attempt := h.attempt
	switch {
	case a.Verdict == core.VerdictRetry:
		rec = copyOf(r.retry, old)
		if !a.SameAttempt {
			attempt++
		}
		if a.Delay > 0 {
			setNumber(rec, headerDue, now.Add(a.Delay).Add(time.Millisecond-1).UnixMilli())
		}
		setNumber(rec, headerRedeliveries, int64(d.Redeliveries))
	case a.Verdict == core.VerdictReject && !r.sub.DropFailed:
		rec = copyOf(r.parked, old)
		if key := string(old.Key); key != "" && get(old, prefixCE+core.AttrKey) == "" {
			set(rec, prefixCE+core.AttrKey, key)
		}
		// The log is compacted, so each message has a key of its own.
		rec.Key = fmt.Appendf(nil, "%s/%d/%d", old.Topic, old.Partition, old.Offset)
		if rec.Value == nil {
			rec.Value = []byte{} // none would delete the key
		}
		attempt = max(attempt, d.Attempt) // retries in place count, too
		set(rec, headerReason, string(a.Reason))
		set(rec, headerQueue, r.sub.Queue)
		set(rec, headerParkedAt, now.UTC().Format(time.RFC3339Nano))
	default:
		return nil
	}
	set(rec, headerAttempt, strconv.Itoa(attempt))
	set(rec, headerError, failure)
	return rec
}
