package sqs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// SQS has one counter of deliveries and no reasons for a message, so in standard queues a retry, a release and a
// parking send a copy, with counters and reason of their own, and then delete the original. FIFO queues keep the order
// of a group only for the message itself. There a retry and a release change its visibility, and SQS counts them.
//
//   verdict   | standard queue                          | FIFO queue
//   ----------|-----------------------------------------|----------------------------------
//   done      | delete                                  | delete
//   retry     | copy with a delay, then delete          | visible again after the delay
//   release   | copy, then delete                       | visible again at once
//   reject    | copy to the dead-letter queue, delete   | the same

// maxFIFODelay bounds a retry in a FIFO queue, where a message that is held can be hidden for 12 hours in all. It
// leaves an hour to handlers.
const maxFIFODelay = 11 * time.Hour

// change is a new visibility timeout of one message.
type change struct {
	slot    int
	receipt *string
	seconds int32
}

// settling is one Settle.
type settling struct {
	r       *receiver
	handles []*handle // of the acks; nil where it is not ours to settle
	mu      sync.Mutex
	results core.Results
	back    []entry // copies for the queue itself
	parked  []entry
	deletes []int
	changes []change
}

// Settle ends deliveries; see core.Receiver. A copy is confirmed before its original is deleted.
func (r *receiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	ctx, end, ok := r.t.begin(ctx)
	defer end()
	if !ok {
		return core.AllFailed(len(acks), closed(opSettle))
	}
	s := &settling{r: r, handles: make([]*handle, len(acks)), results: make(core.Results, len(acks))}
	now := time.Now()
	s.takeDeliveries(acks)
	for i := range acks {
		if s.handles[i] != nil {
			if err := s.plan(i, &acks[i], now); err != nil {
				s.fail(i, err)
			}
		}
	}
	aside := s.aside(acks)
	s.send(ctx)
	s.carryOut(ctx)
	r.giveBack(ctx, aside)
	s.finish()
	return s.results
}

// takeDeliveries takes the deliveries of acks, each for one Settle only.
func (s *settling) takeDeliveries(acks []core.Ack) {
	r := s.r
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range acks {
		var h *handle
		if acks[i].Delivery != nil {
			h, _ = acks[i].Delivery.Handle.(*handle)
		}
		switch {
		case r.closed:
			s.results[i] = closed(opSettle)
		case h == nil || h.r != r:
			s.results[i] = rejected(opSettle, fmt.Errorf("%w: the delivery is not of this receiver", waybill.ErrInvalid))
		case acks[i].Verdict == core.VerdictNone || acks[i].Verdict > core.VerdictRelease:
			s.results[i] = rejected(opSettle, fmt.Errorf("%w: verdict %d is none: build the ack with core.AckDone and the like", waybill.ErrInvalid, acks[i].Verdict))
		case h.state != held, h.lost && acks[i].Verdict != core.VerdictDone:
			// A copy of a lost delivery would be one beside another's message.
			s.results[i] = outage(opSettle, waybill.ErrLeaseLost)
		default:
			h.state, s.handles[i] = settlingNow, h
		}
	}
}

// plan chooses the requests for an ack.
func (s *settling) plan(i int, a *core.Ack, now time.Time) error {
	r, h := s.r, s.handles[i]
	fifo := r.t.opts.FIFO
	switch a.Verdict {
	case core.VerdictDone:
		s.deletes = append(s.deletes, i)
		return nil
	case core.VerdictReject:
		if r.sub.DropFailed {
			s.deletes = append(s.deletes, i)
			return nil
		}
		w, err := h.parkedCopy(a, now)
		return s.copy(i, &s.parked, w, 0, a.Delay, err)
	case core.VerdictRetry:
		if !fifo {
			w, delay, err := h.retryCopy(a, now)
			return s.copy(i, &s.back, w, delay, a.Delay, err)
		}
		s.changes = append(s.changes, change{i, h.raw.ReceiptHandle, seconds(min(a.Delay, maxFIFODelay))})
	case core.VerdictRelease:
		if !fifo {
			w, err := h.releaseCopy()
			return s.copy(i, &s.back, w, 0, 0, err)
		}
		s.changes = append(s.changes, change{i, h.raw.ReceiptHandle, 0})
	case core.VerdictNone:
	}
	return nil
}

// copy plans a copy, and that the original is deleted. A foreign message that is so large that nothing can be added to
// it comes again without one, and SQS counts that.
func (s *settling) copy(i int, to *[]entry, w wire, delay int32, wait time.Duration, err error) error {
	h := s.handles[i]
	switch {
	case err != nil:
		return outage(opSettle, err)
	case w.size() > maxBytes:
		s.changes = append(s.changes, change{i, h.raw.ReceiptHandle, seconds(min(wait, maxFIFODelay))})
		return nil
	}
	s.deletes = append(s.deletes, i)
	if h.copied {
		return nil // by an earlier Settle, whose delete failed
	}
	e := entry{slot: i, w: w, delay: delay}
	if s.r.t.opts.FIFO {
		e.dedup = waybill.NewID()
		e.group = h.raw.Attributes[string(types.MessageSystemAttributeNameMessageGroupId)]
	}
	*to = append(*to, e)
	return nil
}

// aside takes from the messages received ahead those behind the ones that go back to a FIFO queue: they must not come
// before them.
func (s *settling) aside(acks []core.Ack) (ms []types.Message) {
	r := s.r
	if !r.t.opts.FIFO {
		return nil
	}
	const name = string(types.MessageSystemAttributeNameMessageGroupId)
	groups := map[string]bool{}
	for i, h := range s.handles {
		if h != nil && (acks[i].Verdict == core.VerdictRetry || acks[i].Verdict == core.VerdictRelease) {
			groups[h.raw.Attributes[name]] = true
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ahead = slices.DeleteFunc(r.ahead, func(f fetched) bool {
		if !groups[f.m.Attributes[name]] {
			return false
		}
		ms = append(ms, f.m)
		return true
	})
	return ms
}

func (s *settling) fail(i int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.results[i] = err
}

func (s *settling) failed(i int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.results[i] != nil
}

// send sends the copies.
func (s *settling) send(ctx context.Context) {
	t := s.r.t
	fail := func(e *entry, err error) { s.fail(e.slot, settleError(err)) }
	var wg sync.WaitGroup
	wg.Go(func() { t.send(ctx, opSettle, s.r.name, s.back, fail) })
	wg.Go(func() { t.send(ctx, opSettle, t.opts.ParkedName(s.r.sub.Queue), s.parked, fail) })
	wg.Wait()
	for _, e := range slices.Concat(s.back, s.parked) {
		if !s.failed(e.slot) {
			s.handles[e.slot].copied = true
		}
	}
}

// settleError makes every failure of a copy one after which the delivery is still held.
func settleError(err error) error {
	if errors.Is(err, waybill.ErrLeaseLost) || errors.Is(err, waybill.ErrInvalid) {
		return outage(opSettle, fmt.Errorf("the copy was not sent: %s", err.Error()))
	}
	return err
}

// carryOut deletes messages that are done or copied, and makes others visible. A message whose copy failed stays held,
// so that it can be settled again.
func (s *settling) carryOut(ctx context.Context) {
	s.deletes = slices.DeleteFunc(s.deletes, s.failed)
	var wg sync.WaitGroup
	for part := range slices.Chunk(s.deletes, maxEntries) {
		wg.Go(func() { s.remove(ctx, part) })
	}
	wg.Go(func() { s.r.changeVisibility(ctx, opSettle, s.changes, s.fail) })
	wg.Wait()
}

// remove deletes a part of the messages. SQS answers for each of them, and a message without an answer counts as an
// outage.
func (s *settling) remove(ctx context.Context, part []int) {
	r := s.r
	in := &awssqs.DeleteMessageBatchInput{QueueUrl: &r.url, Entries: make([]types.DeleteMessageBatchRequestEntry, len(part))}
	for i, slot := range part {
		in.Entries[i] = types.DeleteMessageBatchRequestEntry{Id: id(i), ReceiptHandle: s.handles[slot].raw.ReceiptHandle}
	}
	limited, cancel := context.WithTimeout(ctx, r.t.opts.Timeout)
	defer cancel()
	out, err := r.t.client.DeleteMessageBatch(limited, in)
	if err != nil {
		for _, slot := range part {
			s.fail(slot, callError(opSettle, r.name, err))
		}
		return
	}
	done := map[string]bool{}
	for i := range out.Successful {
		done[value(out.Successful[i].Id)] = true
	}
	for i, err := range unsettled(opSettle, r.name, len(part), done, out.Failed) {
		s.fail(part[i], err)
	}
}

// changeVisibility makes changes, in requests side by side; in a FIFO queue one after the other, in the order of the
// messages. It calls fail for each that SQS did not confirm.
func (r *receiver) changeVisibility(ctx context.Context, op string, changes []change, fail func(slot int, err error)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for part := range slices.Chunk(changes, maxEntries) {
		if r.t.opts.FIFO {
			r.changePart(ctx, op, part, fail)
			continue
		}
		wg.Go(func() { r.changePart(ctx, op, part, fail) })
	}
}

func (r *receiver) changePart(ctx context.Context, op string, part []change, fail func(slot int, err error)) {
	in := &awssqs.ChangeMessageVisibilityBatchInput{QueueUrl: &r.url, Entries: make([]types.ChangeMessageVisibilityBatchRequestEntry, len(part))}
	for i, c := range part {
		in.Entries[i] = types.ChangeMessageVisibilityBatchRequestEntry{Id: id(i), ReceiptHandle: c.receipt, VisibilityTimeout: c.seconds}
	}
	limited, cancel := context.WithTimeout(ctx, r.t.opts.Timeout)
	defer cancel()
	out, err := r.t.client.ChangeMessageVisibilityBatch(limited, in)
	if err != nil {
		for _, c := range part {
			fail(c.slot, callError(op, r.name, err))
		}
		return
	}
	done := map[string]bool{}
	for i := range out.Successful {
		done[value(out.Successful[i].Id)] = true
	}
	for i, err := range unsettled(op, r.name, len(part), done, out.Failed) {
		fail(part[i].slot, err)
	}
}

// finish forgets the messages that were settled, or lost, and takes back the rest.
func (s *settling) finish() {
	r := s.r
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, h := range s.handles {
		switch err := s.results[i]; {
		case h == nil:
		case err == nil || r.closed || errors.Is(err, waybill.ErrLeaseLost):
			h.state = gone
			delete(r.out, h)
		default:
			h.state = held
		}
	}
}

// RenewDeliveries extends the visibility timeout; see core.DeliveryRenewer. SQS keeps a message for a receiver for 12
// hours at most; after that a slot matches waybill.ErrLeaseLost.
func (r *receiver) RenewDeliveries(ctx context.Context, deliveries []*waybill.Delivery, d time.Duration) core.Results {
	results := make(core.Results, len(deliveries))
	ctx, end, ok := r.t.begin(ctx)
	defer end()
	if !ok {
		return core.AllFailed(len(deliveries), closed(opRenew))
	}
	var changes []change
	r.mu.Lock()
	for i, x := range deliveries {
		var h *handle
		if x != nil {
			h, _ = x.Handle.(*handle)
		}
		switch {
		case r.closed:
			results[i] = closed(opRenew)
		case h == nil || h.r != r || h.state == gone:
			results[i] = outage(opRenew, waybill.ErrLeaseLost)
		case h.state == held:
			changes = append(changes, change{i, h.raw.ReceiptHandle, seconds(min(d, maxHold))})
		}
	}
	r.mu.Unlock()
	var mu sync.Mutex
	r.changeVisibility(ctx, opRenew, changes, func(slot int, err error) {
		mu.Lock()
		defer mu.Unlock()
		results[slot] = err
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range changes {
		h, _ := deliveries[c.slot].Handle.(*handle)
		h.lost = h.lost || errors.Is(results[c.slot], waybill.ErrLeaseLost)
	}
	return results
}
