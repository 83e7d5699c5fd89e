package sqs

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/parked"
)

// SQS cannot list a queue. A walk over a dead-letter queue receives its messages, which hides them from other walks,
// and makes them visible again at its end. That counts as a delivery, which nothing looks at in a dead-letter queue.

const (
	// hideFor is how long a message on a walk is hidden. After a crash it is visible again when that has passed.
	hideFor = 2 * time.Minute
	// maxHidden bounds the messages that a walk hides at a time: SQS has a limit of 20,000 for a FIFO queue.
	maxHidden = 10_000
	// maxPage and maxPageBytes bound the messages that are put into their order: SQS has none, once it was asked.
	maxPage, maxPageBytes = 1000, 32 << 20

	sentAt  = types.MessageSystemAttributeNameSentTimestamp
	ofGroup = types.MessageSystemAttributeNameMessageGroupId
)

// parkedQueue makes the operations on parked messages methods of a Transport.
type parkedQueue = admin.ParkedQueue

func (t *Transport) walks() parked.Walks {
	return parked.Walks{Adapter: "waybill/sqs", Open: t.openWalk, Batch: maxEntries, MaxListed: maxHidden}
}

// parkedWalk is over the dead-letter queue of a queue.
type parkedWalk struct {
	*receiver // of which it has no more than the queue
	op, queue string
	total     int
	begun     time.Time // by the clock of SQS; zero if that is unknown
	page      []*hidden
	all       map[string]*hidden // those that came, by SQS's id; nil = removed
	replayed  map[string]bool    // by id and source
	position  int
	passed    int // messages that are left hidden
	most      int // of them
}

// hidden is a message on a walk.
type hidden struct {
	raw types.Message
	dec decoded
	at  time.Time // it was parked
}

func (t *Transport) openWalk(ctx context.Context, op, queue string) (parked.Walk, error) {
	w := &parkedWalk{op: op, queue: queue, all: map[string]*hidden{}, replayed: map[string]bool{}, most: maxHidden}
	w.receiver = &receiver{t: t, name: t.opts.ParkedName(queue)}
	if problem := checkQueue(queue); problem != "" {
		return nil, waybill.Invalid("waybill/sqs: "+op, problem)
	}
	err := w.call(ctx, func(ctx context.Context) (err error) {
		if w.url, err = t.url(ctx, op, w.name); err != nil {
			return err
		}
		out, err := t.client.GetQueueAttributes(ctx, &awssqs.GetQueueAttributesInput{QueueUrl: &w.url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
		if err != nil {
			if isMissingQueue(err) {
				t.forget(w.name)
			}
			return callError(op, w.name, err)
		}
		for _, which := range []string{"", "NotVisible", "Delayed"} {
			n, _ := strconv.Atoi(out.Attributes[string(types.QueueAttributeNameApproximateNumberOfMessages)+which])
			w.total += n
		}
		if out.Attributes[string(types.QueueAttributeNameRedrivePolicy)] != "" {
			return misconfigured(op, "dead-letter queue %q has a RedrivePolicy of its own: a look at its messages could move them; remove it", w.name)
		}
		w.begun, _ = awsmiddleware.GetServerTime(out.ResultMetadata)
		return nil
	})
	return w, err
}

// call makes calls that Close of the transport ends. A queue that does not exist is waybill.ErrNotFound.
func (w *parkedWalk) call(ctx context.Context, fn func(ctx context.Context) error) error {
	ctx, end, ok := w.t.begin(ctx)
	defer end()
	if !ok {
		return closed(w.op)
	}
	limited, cancel := context.WithTimeout(ctx, w.t.opts.Timeout)
	defer cancel()
	err := fn(limited)
	if isMissingQueue(err) {
		return &waybill.Error{Op: "waybill/sqs: " + w.op, Class: waybill.ClassPermanent, Err: fmt.Errorf(
			"%w: queue %q has no dead-letter queue %q: check the names, region, account, Prefix and FIFO", waybill.ErrNotFound, w.queue, w.name)}
	}
	return err
}

// Total implements parked.Walk.
func (w *parkedWalk) Total(context.Context) (int, error) { return w.total, nil }

// Next implements parked.Walk.
func (w *parkedWalk) Next(ctx context.Context, _ int) (*parked.Item, error) {
	for len(w.page) == 0 {
		if w.passed >= w.most {
			return nil, permanent(w.op, waybill.ReasonNone, fmt.Errorf("dead-letter queue %q: the first %d messages are not selected, and SQS shows no others: "+
				"replay or purge some of them first", w.name, w.most))
		}
		if more, err := w.read(ctx); err != nil || !more {
			return nil, err
		}
	}
	m := w.page[0]
	w.page = w.page[1:]
	w.position++
	w.passed++
	r := &m.dec.rest
	p := admin.Parked{
		Envelope: m.dec.env, Position: w.position, Queue: w.queue, Reason: waybill.Reason(r.Reason), Error: r.Error, Attempts: max(r.Attempt, 1), At: m.at,
	}
	if r.Queue != "" {
		p.Queue = r.Queue
	}
	if p.Reason == "" { // SQS itself has moved it
		p.Reason = waybill.ReasonDeliveries
	}
	return &parked.Item{Parked: p, Raw: m}, nil
}

// sent is when the message came to its queue, by the clock of SQS; zero if that is unknown.
func (m *hidden) sent() time.Time {
	ms, err := strconv.ParseInt(m.raw.Attributes[string(sentAt)], 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// read reads the next page, in the order in which its messages were parked. It returns false if SQS has no more.
func (w *parkedWalk) read(ctx context.Context) (more bool, err error) {
	for size := 0; len(w.page) < maxPage && size < maxPageBytes; {
		n, err := w.receive(ctx)
		if err != nil {
			return false, err
		}
		size, more = size+n, more || n > 0
		if n == 0 || len(w.all) >= w.total { // the next page asks again whether there are more
			break
		}
	}
	slices.SortStableFunc(w.page, func(a, b *hidden) int { return a.at.Compare(b.at) })
	return more, nil
}

// receive adds some messages to the page, and returns their size; 0 = there was none. A message can come a second time
// on a long walk. Messages that were parked after the walk began are left alone.
func (w *parkedWalk) receive(ctx context.Context) (size int, err error) {
	err = w.call(ctx, func(ctx context.Context) error {
		// a shorter wait can miss messages
		out, err := w.t.client.ReceiveMessage(ctx, &awssqs.ReceiveMessageInput{
			QueueUrl: &w.url, MaxNumberOfMessages: maxEntries, VisibilityTimeout: seconds(hideFor), WaitTimeSeconds: 1,
			MessageAttributeNames: []string{"All"}, MessageSystemAttributeNames: []types.MessageSystemAttributeName{sentAt, ofGroup},
		})
		if err != nil {
			return callError(w.op, w.name, err)
		}
		for i := range out.Messages {
			m := &hidden{raw: out.Messages[i]}
			id := value(m.raw.MessageId)
			size += 1 + len(value(m.raw.Body))
			if old := w.all[id]; old != nil {
				old.raw.ReceiptHandle = m.raw.ReceiptHandle
				continue
			}
			_, removed := w.all[id]
			w.all[id], m.dec = m, decode(&m.raw, w.queue)
			if m.at, _ = time.Parse(time.RFC3339Nano, m.dec.rest.ParkedAt); m.at.IsZero() {
				m.at = m.sent().UTC()
			}
			if late := !w.begun.IsZero() && m.sent().After(w.begun.Add(time.Second)); !late && !removed && !w.replayed[identity(&m.dec.env)] {
				w.page = append(w.page, m)
			}
		}
		return nil
	})
	return size, err
}

func identity(e *waybill.Envelope) string { return e.ID + "\x00" + e.Source }

// Replay implements parked.Walk. A replay that was begun ends also when ctx has ended, so that each result is known.
func (w *parkedWalk) Replay(ctx context.Context, items []*parked.Item) error {
	ctx = context.WithoutCancel(ctx)
	items = w.keep(ctx, items)
	var entries []entry
	for i, m := range items {
		e, err := w.entry(m)
		if e.slot, m.Err = i, err; err == nil {
			entries = append(entries, e)
		}
	}
	w.t.send(ctx, w.op, w.t.opts.QueueName(w.queue), entries, func(e *entry, err error) { items[e.slot].Err = err })
	var sent []*parked.Item
	for _, m := range items {
		if m.Err == nil {
			sent = append(sent, m)
			w.replayed[identity(&m.Envelope)] = true
		}
	}
	w.remove(ctx, sent)
	return firstOutage(items)
}

// entry is the message as it is sent to its queue.
func (w *parkedWalk) entry(m *parked.Item) (e entry, err error) {
	h := m.Raw.(*hidden)
	if m.Edited {
		e.w, err = encode(&m.Envelope)
	} else {
		e.w, err = (&handle{raw: h.raw, dec: h.dec}).copyOf(func(*rest) {})
	}
	switch {
	case err != nil:
		return e, permanent(w.op, waybill.ReasonNone, err)
	case e.w.size() > maxBytes:
		return e, permanent(w.op, waybill.ReasonTooLarge, fmt.Errorf("the message has %d bytes, more than %d", e.w.size(), maxBytes))
	case w.t.opts.FIFO:
		e.group, e.dedup = h.raw.Attributes[string(ofGroup)], waybill.NewID()
	}
	return e, nil
}

// Remove implements parked.Walk, as Replay does.
func (w *parkedWalk) Remove(ctx context.Context, items []*parked.Item) error {
	ctx = context.WithoutCancel(ctx)
	items = w.keep(ctx, items)
	w.remove(ctx, items)
	return firstOutage(items)
}

func firstOutage(items []*parked.Item) error {
	for _, m := range items {
		if m.Err != nil && waybill.ClassOf(m.Err) == waybill.ClassOutage {
			return m.Err
		}
	}
	return nil
}

// keep hides messages anew, and returns those that are still hidden. The others may have gone to another walk. If not,
// they come again.
func (w *parkedWalk) keep(ctx context.Context, items []*parked.Item) (held []*parked.Item) {
	changes, lost := make([]change, len(items)), make([]bool, len(items))
	for i, m := range items {
		changes[i] = change{i, m.Raw.(*hidden).raw.ReceiptHandle, seconds(hideFor)}
	}
	var mu sync.Mutex
	w.changeVisibility(ctx, w.op, changes, func(slot int, _ error) {
		mu.Lock()
		defer mu.Unlock()
		lost[slot] = true
	})
	for i, m := range items {
		if !lost[i] {
			held = append(held, m)
			continue
		}
		w.passed--
		delete(w.all, value(m.Raw.(*hidden).raw.MessageId))
	}
	return held
}

// remove deletes messages, and sets Changed or Err of each. After an error it can come again.
func (w *parkedWalk) remove(ctx context.Context, items []*parked.Item) {
	s := &settling{r: w.receiver, handles: make([]*handle, len(items)), results: make(core.Results, len(items))}
	slots := make([]int, len(items))
	for i, m := range items {
		s.handles[i], slots[i] = &handle{raw: m.Raw.(*hidden).raw}, i
	}
	for part := range slices.Chunk(slots, maxEntries) {
		s.remove(ctx, part)
	}
	for i, m := range items {
		if m.Changed, m.Err = s.results[i] == nil, s.results[i]; m.Changed {
			w.all[value(m.Raw.(*hidden).raw.MessageId)] = nil
			w.passed--
		}
	}
}

// Close implements parked.Walk: the messages that are left are visible again.
func (w *parkedWalk) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.t.opts.Timeout)
	defer cancel()
	var changes []change
	for _, m := range w.all {
		if m != nil {
			changes = append(changes, change{0, m.raw.ReceiptHandle, 0})
		}
	}
	w.changeVisibility(ctx, w.op, changes, func(int, error) {}) // it is visible again after hideFor
}
