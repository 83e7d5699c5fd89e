package sqs

import (
	"maps"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// handle is a Delivery's Handle: the received message, and its outcome.
type handle struct {
	r       *receiver
	raw     types.Message
	dec     decoded
	attempt int
	counted int // redeliveries, as far as SQS and the copies before counted
	copied  bool
	early   bool  // it came before it was due
	lost    bool  // a renewal found that; guarded by r.mu
	state   state // guarded by r.mu
}

// Native returns the message as SQS delivered it, but for its receipt handle; see [waybill.Native].
func (h *handle) Native() types.Message {
	m := h.raw
	m.ReceiptHandle = nil
	return m
}

type state uint8

const (
	held state = iota
	settlingNow
	gone
)

// receives returns SQS's count of deliveries, from 1.
func receives(m *types.Message) int {
	n := 0
	for _, c := range m.Attributes[string(types.MessageSystemAttributeNameApproximateReceiveCount)] {
		if c < '0' || c > '9' || n > 1<<20 {
			break
		}
		n = 10*n + int(c-'0')
	}
	return max(n, 1)
}

// delivery returns the delivery of m.
func (r *receiver) delivery(m *types.Message) (*waybill.Delivery, *handle) {
	h := &handle{r: r, raw: *m, dec: decode(m, r.sub.Queue), attempt: 1}
	n := receives(m)
	w := &h.dec.rest
	replayed := w.Queue != "" // it was in a dead-letter queue, and was moved back
	switch {
	case r.t.opts.FIFO:
		h.attempt, h.counted = n, n-1
	case replayed:
		h.counted = n - 1
	default:
		h.attempt, h.counted = max(w.Attempt, 1), max(w.Redeliveries, 0)+n-1
	}
	d := &waybill.Delivery{
		Envelope: h.dec.env, Queue: r.sub.Queue, Attempt: h.attempt, Redeliveries: h.counted, Err: h.dec.err, Handle: h,
	}
	if w.Due > 0 && !replayed {
		d.NotBefore = time.UnixMilli(w.Due)
		h.early = time.Now().Before(d.NotBefore)
	}
	return d, h
}

// copyOf returns the copy of h for which change has set Waybill's own fields. Everything else stays as it came. The id
// and the topic of a foreign message are SQS's, which a copy does not inherit, so they are written down.
func (h *handle) copyOf(change func(*rest)) (wire, error) {
	w := wire{body: value(h.raw.Body), attributes: maps.Clone(h.raw.MessageAttributes)}
	if w.attributes == nil {
		w.attributes = map[string]types.MessageAttributeValue{}
	}
	r := h.dec.rest
	r.Attributes, r.Headers = maps.Clone(r.Attributes), maps.Clone(r.Headers)
	r.Attempt, r.Redeliveries, r.Due, r.Error, r.Reason, r.Queue, r.ParkedAt = 0, 0, 0, "", "", "", ""
	for name, v := range map[string]string{core.AttrID: h.dec.env.ID, core.AttrTopic: h.dec.env.Topic} {
		if _, ok := w.attributes[own[name]]; !ok && r.Attributes[name] == "" {
			r.setAttribute(name, v)
		}
	}
	change(&r)
	delete(w.attributes, attrRest)
	for _, name := range slices.Sorted(maps.Keys(w.attributes)) {
		if len(w.attributes) < maxAttributes {
			break
		}
		if r.Headers == nil { // one more than SQS allows: it becomes a header, as handlers see it
			r.Headers = map[string]string{}
		}
		if e := (waybill.Envelope{}); name != attrContentType {
			a := w.attributes[name]
			readAttribute(&e, name, attributeText(&a), func(name, v string) {
				r.Headers[name] = v
				delete(w.attributes, name)
			})
		}
	}
	s, err := r.text()
	if err != nil {
		return w, err
	}
	if s != "" {
		w.set(attrRest, s)
	}
	return w, nil
}

// retryCopy makes the copy for a retry, which waits for delay seconds in SQS. A copy that must wait longer comes early,
// with the time when it is due.
func (h *handle) retryCopy(a *core.Ack, now time.Time) (w wire, delay int32, err error) {
	attempt, text := h.attempt+1, a.Err
	// A message that came early goes on waiting as the same attempt. Its time may have come since.
	if due := h.dec.rest.Due; a.SameAttempt || due > now.UnixMilli() || h.early && text == "" {
		attempt = h.attempt
		if text == "" {
			text = h.dec.rest.Error
		}
	}
	w, err = h.copyOf(func(r *rest) {
		r.Attempt, r.Error = attempt, text
		if a.Delay > maxDelay {
			r.Due = now.Add(a.Delay).UnixMilli()
		}
	})
	return w, seconds(min(a.Delay, maxDelay)), err
}

// releaseCopy makes the copy for a release, which SQS would count as any delivery.
func (h *handle) releaseCopy() (wire, error) {
	return h.copyOf(func(r *rest) {
		if h.attempt > 1 {
			r.Attempt = h.attempt
		}
		r.Redeliveries, r.Error, r.Due = h.counted, h.dec.rest.Error, h.dec.rest.Due
	})
}

// parkedCopy makes the copy for the dead-letter queue.
func (h *handle) parkedCopy(a *core.Ack, now time.Time) (wire, error) {
	return h.copyOf(func(r *rest) {
		r.Attempt = max(h.attempt, a.Delivery.Attempt) // retries in place count, too
		r.Error, r.Reason, r.Queue = a.Err, string(a.Reason), h.r.sub.Queue
		r.ParkedAt = now.UTC().Format(time.RFC3339Nano)
	})
}

// seconds rounds up.
func seconds(d time.Duration) int32 { return int32((max(d, 0) + time.Second - 1) / time.Second) }
