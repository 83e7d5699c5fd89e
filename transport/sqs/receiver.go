package sqs

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// maxPolls bounds the requests for messages that one receiver has in progress. One waits alone while the queue is
// empty.
const maxPolls = 16

var _ core.DeliveryRenewer = (*receiver)(nil)

// receiver asks SQS for messages in the background, as long as a Receive wants some. A Receive that is cancelled leaves
// the request in progress alone: its messages wait for the next Receive, or go back after a while.
type receiver struct {
	t    *Transport
	sub  core.Subscription
	name string // in SQS
	url  string

	life context.Context //nolint:containedctx // of the requests in the background: it ends with the receiver
	end  context.CancelFunc
	stop func() bool   // ends the watch over the context of the subscription
	gone chan struct{} // closed when Close is done
	wg   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	ahead   []fetched            // received and not asked for yet
	asked   int                  // messages that the requests in progress may bring
	polls   int                  // requests in progress
	width   int                  // how many there may be
	waiting int                  // what the Receive in progress still wants; 0 = there is none
	failed  error                // of a request, for the next Receive
	changed chan struct{}        // closed at the next change
	out     map[*handle]struct{} // deliveries that Receive returned and that are not settled
}

// fetched is a message with the time until which it can be handed out.
type fetched struct {
	m     types.Message
	until time.Time
}

// Subscribe opens the queue of sub; see core.Subscriber. Without Options.Passive it makes the queue and its dead-letter
// queue if they are missing.
func (t *Transport) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	if problem := checkQueue(sub.Queue); problem != "" {
		return nil, waybill.Invalid("waybill/sqs: subscribe", problem)
	}
	if i := slices.Index(sub.Bindings, ""); i >= 0 {
		return nil, waybill.Invalid("waybill/sqs: subscribe", fmt.Sprintf("Bindings[%d]: is empty", i))
	}
	if len(sub.Bindings) > 0 && t.opts.TopicARN != "" {
		return nil, waybill.Invalid("waybill/sqs: subscribe", fmt.Sprintf("queue %q: Bindings: the filter policy of its subscription to SNS says which messages come: "+
			"leave out the bindings", sub.Queue))
	}
	if sub.MaxDeliveries >= t.opts.DeliveryLimit && !sub.DropFailed {
		return nil, waybill.Invalid("waybill/sqs: subscribe", fmt.Sprintf("queue %q: MaxDeliveries %d is not less than Options.DeliveryLimit %d: raise the latter",
			sub.Queue, sub.MaxDeliveries, t.opts.DeliveryLimit))
	}
	call, end, ok := t.begin(ctx)
	defer end()
	if !ok {
		return nil, closed(opSubscribe)
	}
	if err := call.Err(); err != nil {
		return nil, outage(opSubscribe, err)
	}
	if err := t.declare(call, &sub); err != nil {
		return nil, err
	}
	url, err := t.url(call, opSubscribe, t.opts.QueueName(sub.Queue))
	if err != nil {
		return nil, err
	}
	t.warnOfBindings(ctx, &sub)
	t.bind(sub.Queue, sub.Bindings)
	r := &receiver{t: t, sub: sub, name: t.opts.QueueName(sub.Queue), url: url, width: 1, changed: make(chan struct{}), gone: make(chan struct{}), out: map[*handle]struct{}{}}
	detached := context.WithoutCancel(ctx)
	r.life, r.end = context.WithCancel(detached)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		r.end()
		return nil, closed(opSubscribe)
	}
	t.receivers[r] = struct{}{}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stop = context.AfterFunc(ctx, func() {
		limited, cancel := context.WithTimeout(detached, t.opts.Timeout)
		defer cancel()
		_ = r.Close(limited) // it always returns nil
	})
	return r, nil
}

// warnOfBindings tells of bindings that only this transport knows.
func (t *Transport) warnOfBindings(ctx context.Context, sub *core.Subscription) {
	var local []string
	for _, b := range sub.Bindings {
		if !slices.Contains(t.opts.Bindings[sub.Queue], b) {
			local = append(local, b)
		}
	}
	if len(local) > 0 {
		t.opts.Logger.LogAttrs(ctx, slog.LevelInfo, "only this transport knows these bindings: add them to Options.Bindings, which producers share, or to the subscription of SNS",
			slog.String("event", "sqs.bindings_local"), slog.String("queue", sub.Queue), slog.String("bindings", strings.Join(local, " ")))
	}
}

// wake tells the Receive in progress of a change. r.mu is held.
func (r *receiver) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// Receive waits for deliveries; see core.Receiver.
func (r *receiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	if limit < 1 {
		return nil, waybill.Invalid("waybill/sqs: receive", fmt.Sprintf("limit: %d is less than 1", limit))
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, outage(opReceive, err)
		}
		ds, changed, err := r.take(limit)
		if err != nil || len(ds) > 0 {
			return ds, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
		r.mu.Lock()
		r.waiting = 0
		r.mu.Unlock()
	}
}

// take returns up to limit of the received messages. If there is nothing, it asks SQS, and returns a channel that is
// closed at the next change.
func (r *receiver) take(limit int) (ds []*waybill.Delivery, changed <-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, nil, closed(opReceive)
	}
	if old := r.old(time.Now()); len(old) > 0 {
		r.wg.Go(func() { r.giveBack(r.life, old) })
	}
	bytes := 0
	for len(r.ahead) > 0 && len(ds) < limit && (r.sub.ReceiveBytes <= 0 || bytes < r.sub.ReceiveBytes) {
		d, h := r.delivery(&r.ahead[0].m)
		r.ahead = r.ahead[1:]
		r.out[h] = struct{}{}
		bytes += len(d.Envelope.Body)
		ds = append(ds, d)
	}
	if len(ds) > 0 {
		return ds, nil, nil
	}
	if err, r.failed = r.failed, nil; err != nil {
		return nil, nil, err
	}
	r.waiting = limit
	r.poll()
	return nil, r.changed, nil
}

// poll starts requests for the messages that the Receive in progress still wants. r.mu is held.
func (r *receiver) poll() {
	for r.waiting > r.asked && r.polls < r.width && !r.closed {
		n := min(r.waiting-r.asked, maxEntries)
		r.asked += n
		r.polls++
		r.wg.Go(func() { r.fetch(n) })
	}
}

// fetch makes one request for n messages.
func (r *receiver) fetch(n int) {
	opts := &r.t.opts
	ctx, cancel := context.WithTimeout(r.life, opts.Wait+opts.Timeout)
	defer cancel()
	out, err := r.t.client.ReceiveMessage(ctx, &awssqs.ReceiveMessageInput{
		QueueUrl: &r.url, MaxNumberOfMessages: int32(n), VisibilityTimeout: seconds(opts.HoldFor), WaitTimeSeconds: seconds(opts.Wait),
		MessageAttributeNames: []string{"All"}, MessageSystemAttributeNames: []types.MessageSystemAttributeName{
			types.MessageSystemAttributeNameApproximateReceiveCount, types.MessageSystemAttributeNameMessageGroupId,
		},
	})
	if isMissingQueue(err) {
		r.t.forget(r.name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked -= n
	r.polls--
	switch {
	case err != nil:
		r.width = 1
		if r.waiting > 0 { // else the next Receive asks anew
			r.failed = callError(opReceive, r.name, err)
		}
	case len(out.Messages) == 0:
		r.width = 1
		r.poll()
		return // SQS had nothing for as long as it waited; the Receive goes on waiting
	default:
		if len(out.Messages) == maxEntries {
			r.width = min(2*r.width, maxPolls)
		}
		until := time.Now().Add(opts.HoldFor / 3) // the consumer has the other two thirds to renew it
		for _, m := range out.Messages {
			r.ahead = append(r.ahead, fetched{m, until})
		}
		if len(r.ahead) > r.waiting {
			r.giveBackLater()
		}
	}
	r.wake()
}

// giveBackLater gives back the messages that no Receive has asked for when their time is over. r.mu is held.
func (r *receiver) giveBackLater() {
	r.wg.Go(func() {
		t := time.NewTimer(r.t.opts.HoldFor / 3)
		defer t.Stop()
		select {
		case <-t.C:
		case <-r.life.Done():
			return // Close gives all of it back
		}
		r.mu.Lock()
		old := r.old(time.Now())
		r.mu.Unlock()
		r.giveBack(r.life, old)
	})
}

// old takes the messages that were received ahead and cannot be handed out any more. r.mu is held.
func (r *receiver) old(now time.Time) (ms []types.Message) {
	for len(r.ahead) > 0 && !now.Before(r.ahead[0].until) {
		ms = append(ms, r.ahead[0].m)
		r.ahead = r.ahead[1:]
	}
	return ms
}

// giveBack makes messages visible at once. One for which that fails becomes visible after HoldFor.
func (r *receiver) giveBack(ctx context.Context, ms []types.Message) {
	changes := make([]change, len(ms))
	for i := range ms {
		changes[i] = change{i, ms[i].ReceiptHandle, 0}
	}
	r.changeVisibility(ctx, opReceive, changes, func(int, error) {})
}

// Close gives back the unsettled messages. Those of a request in progress become visible after HoldFor at the latest.
// It is idempotent.
func (r *receiver) Close(ctx context.Context) error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		select {
		case <-r.gone:
		case <-ctx.Done():
		}
		return nil
	}
	r.closed = true
	r.wake()
	stop := r.stop
	r.mu.Unlock()
	defer close(r.gone)
	stop()
	r.end()
	r.wg.Wait() // the requests end with their context
	r.mu.Lock()
	var ms []types.Message
	for _, f := range r.ahead {
		ms = append(ms, f.m)
	}
	for h := range r.out {
		if h.state == held {
			ms = append(ms, h.raw)
		}
		h.state = gone
	}
	r.ahead, r.out = nil, nil
	r.mu.Unlock()
	r.giveBack(ctx, ms)
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	delete(r.t.receivers, r)
	return nil
}
