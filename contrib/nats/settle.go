package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// JetStream counts deliveries only: a retry, a release and a crash look the same. So a retry and a release publish a
// copy for the queue alone, with counters in its headers, and then acknowledge the original. A copy with a delay comes
// at once, and is sent back with the rest of its delay by -NAK; that delivery does not count.

// The acknowledgements of JetStream.
var (
	ackDone     = []byte("+ACK")
	ackProgress = []byte("+WPI")
	ackNak      = []byte("-NAK")
)

// nak asks for a delivery again after delay.
func nak(delay time.Duration) []byte {
	return fmt.Appendf(nil, `-NAK {"delay":%d}`, delay.Nanoseconds())
}

// maxAnswers bounds the acknowledgements of one Settle that wait for an answer at a time.
const maxAnswers = 256

// handle is a delivery that the receiver has.
type handle struct {
	r         *receiver
	m         *nats.Msg
	delivery  *waybill.Delivery
	topic     string // as published
	id        string
	attempt   int
	delivered int       // times, this one included
	seq       uint64    // of the message in the stream
	stored    time.Time // by the server's clock
	due       time.Time
	early     bool // it came before it was due

	until    time.Time // the receiver's mu guards it and what follows
	settling bool
}

// Native returns the message as the driver delivered it, but for its subscription and its reply subject, to which
// acknowledgements go; see [waybill.Native].
func (h *handle) Native() *nats.Msg {
	return &nats.Msg{Subject: h.m.Subject, Header: h.m.Header, Data: h.m.Data}
}

// read makes the handle and the delivery of m.
func (r *receiver) read(m *nats.Msg) (*handle, error) {
	meta, err := m.Metadata()
	if err != nil {
		return nil, err
	}
	h := &handle{r: r, m: m, attempt: 1, delivered: int(meta.NumDelivered), seq: meta.Sequence.Stream, stored: meta.Timestamp, until: time.Now().Add(r.t.opts.HoldFor)}
	topic, published := strings.CutPrefix(m.Subject, r.t.topics)
	redeliveries := h.delivered - 1
	if !published { // a copy: the headers are our own
		topic = ""
		h.due = due(m.Header)
		h.attempt = int(max(number(m.Header, headerAttempt), 1))
		redeliveries += int(number(m.Header, headerRedeliveries))
		if !h.due.IsZero() && h.delivered >= 2 {
			redeliveries-- // the first delivery was the one that was too early
		}
	}
	d := &waybill.Delivery{
		Envelope: decode(topic, m.Header, slices.Clone(m.Data)), Queue: r.sub.Queue, Attempt: h.attempt, Redeliveries: redeliveries, Handle: h,
	}
	if time.Now().Before(h.due) {
		d.NotBefore, h.early = h.due, true
	}
	h.delivery, h.topic, h.id = d, d.Envelope.Topic, d.Envelope.ID
	return h, nil
}

// ask asks the server for n messages. The caller holds mu.
func (r *receiver) ask(n, bytes int) error {
	return r.session.nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+r.t.opts.Bus+"."+r.name, r.inbox,
		fmt.Appendf(nil, `{"batch":%d,"max_bytes":%d,"expires":%d}`, n, bytes, pullFor.Nanoseconds()))
}

// answer sends an acknowledgement and waits until the server has answered. A server that was killed can have forgotten
// its last deliveries. It does not answer then, and delivers again: so a delivery whose acknowledgement got no answer,
// although the connection is up, is not held any more.
func (r *receiver) answer(ctx context.Context, h *handle, ack []byte) error {
	nc := r.t.current.Load().nc
	before := nc.Stats().Reconnects
	if !nc.IsConnected() {
		return outage("settle", nats.ErrDisconnected)
	}
	c, cancel := context.WithTimeout(ctx, r.t.opts.AckTimeout)
	defer cancel()
	_, err := nc.RequestMsgWithContext(c, &nats.Msg{Subject: h.m.Reply, Data: ack})
	switch {
	case err == nil:
		return nil
	case ctx.Err() == nil && c.Err() != nil && nc.IsConnected() && nc.Stats().Reconnects == before:
		r.lose(h)
		return fail("settle", waybill.ClassRejected, waybill.ReasonNone, fmt.Errorf("%w: the server does not answer for it", waybill.ErrLeaseLost))
	}
	return classify("settle", err)
}

// lose forgets a delivery that is another's, or comes again.
func (r *receiver) lose(h *handle) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.held, h)
	h.until = time.Time{}
}

// job is an ack of a delivery that no other call settles meanwhile. Its verdict is none if the delivery just goes back.
type job struct {
	h   *handle
	ack core.Ack
}

// Settle implements core.Receiver.
func (r *receiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	ctx, cancel := r.t.bounded(ctx)
	defer cancel()
	res := make(core.Results, len(acks))
	jobs := make([]job, 0, len(acks))
	slots := make([]int, 0, len(acks))
	for i := range acks {
		h, err := r.deliveryOf(&acks[i])
		if err != nil {
			res[i] = err
			continue
		}
		jobs, slots = append(jobs, job{h, acks[i]}), append(slots, i)
	}
	done := make(core.Results, len(jobs))
	r.settle(ctx, jobs, done)
	for j, i := range slots {
		res[i] = done[j]
	}
	return res
}

// deliveryOf returns the delivery of a, if it can be settled.
func (r *receiver) deliveryOf(a *core.Ack) (*handle, error) {
	const op = "settle"
	if a.Delivery == nil {
		return nil, waybill.Invalid("waybill/nats: settle", "Delivery: is nil")
	}
	h, ok := a.Delivery.Handle.(*handle)
	if !ok || h.r != r {
		return nil, waybill.Invalid("waybill/nats: settle", "Delivery: is not of this receiver")
	}
	if a.Verdict < core.VerdictDone || a.Verdict > core.VerdictRelease {
		return nil, waybill.Invalid("waybill/nats: settle", fmt.Sprintf("Verdict: %d is none", a.Verdict))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.done:
		return nil, closed(op)
	default:
	}
	if _, held := r.held[h]; !held {
		return nil, fail(op, waybill.ClassRejected, waybill.ReasonNone, waybill.ErrLeaseLost)
	}
	if h.settling {
		return nil, fail(op, waybill.ClassRejected, waybill.ReasonNone, errors.New("another call settles the delivery"))
	}
	if !time.Now().Before(h.until) {
		delete(r.held, h)
		return nil, fail(op, waybill.ClassRejected, waybill.ReasonNone, waybill.ErrLeaseLost)
	}
	h.settling = true
	return h, nil
}

// settle stores the copies, in order, and then acknowledges what has succeeded, side by side.
func (r *receiver) settle(ctx context.Context, jobs []job, res core.Results) {
	s := r.t.current.Load()
	sent := make([]jetstream.PubAckFuture, len(jobs))
	for i := range jobs {
		if m := r.copy(&jobs[i], time.Now()); m != nil {
			sent[i], res[i] = r.t.send(ctx, s, m)
		}
	}
	r.t.await(ctx, s, sent, res)
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxAnswers)
	for i := range jobs {
		if res[i] != nil {
			continue
		}
		ack := ackDone
		if jobs[i].ack.Verdict == core.VerdictNone {
			ack = ackNak
		}
		slots <- struct{}{}
		wg.Go(func() {
			res[i] = r.answer(ctx, jobs[i].h, ack)
			<-slots
		})
	}
	wg.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range jobs {
		jobs[i].h.settling = false
		if res[i] == nil {
			delete(r.held, jobs[i].h)
		}
	}
}

// copy returns the message that is stored before the original is acknowledged; nil = none.
func (r *receiver) copy(j *job, now time.Time) *nats.Msg {
	h, a := j.h, &j.ack
	subject := r.own
	switch a.Verdict {
	case core.VerdictReject:
		if r.sub.DropFailed {
			return nil
		}
		subject = r.t.parked + r.name
	case core.VerdictNone, core.VerdictDone:
		return nil
	case core.VerdictRetry, core.VerdictRelease:
	}
	m := copyOf(subject, &waybill.Envelope{ID: h.id, Topic: h.topic}, h.m.Header, h.m.Data)
	failure := escapeValue(a.Err)
	if failure == "" {
		failure = h.m.Header.Get(headerError)
	}
	attempt, waits := h.attempt, h.due.After(now)
	switch a.Verdict {
	case core.VerdictReject:
		attempt = max(attempt, h.delivery.Attempt) // retries in place count, too
		m.Header[headerReason] = []string{string(a.Reason)}
		m.Header[headerQueue] = []string{escapeValue(r.sub.Queue)}
		m.Header[headerParkedAt] = []string{now.UTC().Format(time.RFC3339Nano)}
		failure = escapeValue(a.Err)
	case core.VerdictRetry:
		// A message that came early goes on waiting as the same attempt. Its time may have come since.
		if same := a.SameAttempt || waits || h.early && a.Err == ""; !same {
			attempt++
		}
		if a.Delay > 0 {
			setNumber(m.Header, headerDue, now.Add(a.Delay).Add(time.Millisecond-1).UnixMilli())
		}
	case core.VerdictRelease:
		setNumber(m.Header, headerRedeliveries, int64(h.delivery.Redeliveries))
		if waits {
			setNumber(m.Header, headerDue, h.due.UnixMilli())
		}
	case core.VerdictNone, core.VerdictDone:
	}
	if attempt > 1 || a.Verdict == core.VerdictReject {
		m.Header[headerAttempt] = []string{strconv.Itoa(attempt)}
	}
	if failure != "" {
		m.Header[headerError] = []string{failure}
	}
	return m
}

// RenewDeliveries implements core.DeliveryRenewer. The server renews for HoldFor, with any d.
func (r *receiver) RenewDeliveries(ctx context.Context, deliveries []*waybill.Delivery, _ time.Duration) core.Results {
	ctx, cancel := r.t.bounded(ctx)
	defer cancel()
	res := make(core.Results, len(deliveries))
	var wg sync.WaitGroup
	for i, d := range deliveries {
		h, ok := d.Handle.(*handle)
		if !ok || h.r != r {
			res[i] = waybill.Invalid("waybill/nats: renew", "Delivery: is not of this receiver")
			continue
		}
		wg.Go(func() { res[i] = r.renew(ctx, h) })
	}
	wg.Wait()
	return res
}

// renew starts HoldFor again, from when it was asked for.
func (r *receiver) renew(ctx context.Context, h *handle) error {
	asked := time.Now()
	r.mu.Lock()
	until := h.until
	r.mu.Unlock()
	if !asked.Before(until) {
		return fail("renew", waybill.ClassRejected, waybill.ReasonNone, waybill.ErrLeaseLost)
	}
	if err := r.answer(ctx, h, ackProgress); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	h.until = asked.Add(r.t.opts.HoldFor)
	return nil
}
