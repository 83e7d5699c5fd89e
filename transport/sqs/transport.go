package sqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/repeats"
	"github.com/waybill-go/waybill/internal/check"
)

// Client is what a transport calls of *sqs.Client of aws-sdk-go-v2. A Transport calls it concurrently.
type Client interface {
	GetQueueUrl(ctx context.Context, in *awssqs.GetQueueUrlInput, fns ...func(*awssqs.Options)) (*awssqs.GetQueueUrlOutput, error)
	GetQueueAttributes(ctx context.Context, in *awssqs.GetQueueAttributesInput, fns ...func(*awssqs.Options)) (*awssqs.GetQueueAttributesOutput, error)
	CreateQueue(ctx context.Context, in *awssqs.CreateQueueInput, fns ...func(*awssqs.Options)) (*awssqs.CreateQueueOutput, error)
	SendMessageBatch(ctx context.Context, in *awssqs.SendMessageBatchInput, fns ...func(*awssqs.Options)) (*awssqs.SendMessageBatchOutput, error)
	ReceiveMessage(ctx context.Context, in *awssqs.ReceiveMessageInput, fns ...func(*awssqs.Options)) (*awssqs.ReceiveMessageOutput, error)
	DeleteMessageBatch(ctx context.Context, in *awssqs.DeleteMessageBatchInput, fns ...func(*awssqs.Options)) (*awssqs.DeleteMessageBatchOutput, error)
	ChangeMessageVisibilityBatch(ctx context.Context, in *awssqs.ChangeMessageVisibilityBatchInput, fns ...func(*awssqs.Options)) (*awssqs.ChangeMessageVisibilityBatchOutput, error)
}

var (
	_ Client         = (*awssqs.Client)(nil)
	_ core.Transport = (*Transport)(nil)
	_ core.Describer = (*Transport)(nil)
	_ core.Checker   = (*Transport)(nil)
)

// The operations, as errors name them.
const (
	opPublish   = "publish"
	opSubscribe = "subscribe"
	opReceive   = "receive"
	opSettle    = "settle"
	opRenew     = "renew"
)

// Transport publishes to and consumes from SQS. It is safe for concurrent use.
//
// It is an [admin.ParkedQueue]. SQS counts approximately for ParkedDepth. A look at parked messages takes 10,000 at
// most, and hides them meanwhile: a list, a replay or a purge at the same time sees the others only. Of up to 1,000
// messages the oldest come first; of more, SQS chooses. Of a FIFO queue SQS shows no more than ten messages of a key: a
// replay or a purge does not see what lies behind ten that it does not select. One that passes 10,000 messages that it
// does not select ends with an error. A queue that does not exist is waybill.ErrNotFound.
type Transport struct {
	parkedQueue

	client Client
	opts   Options
	slots  chan struct{} // one for each request to send in progress

	mu        sync.Mutex
	closed    bool
	bindings  map[string][][]string // queue → bindings, split into words
	urls      map[string]string     // name in SQS → URL
	calls     map[*call]struct{}    // what Close ends
	receivers map[*receiver]struct{}
	verified  atomic.Bool // the subscriptions of the topic of SNS were right at the last look
	repeats   repeats.Memory
}

// call is a call in progress.
type call struct{ cancel context.CancelCauseFunc }

// New returns a transport on client, which stays the caller's: region, credentials, endpoint, TLS and retries are its
// business. It makes no request. An error lists all problems of the options.
func New(client Client, opts Options) (*Transport, error) {
	if client == nil {
		return nil, waybill.Invalid("waybill/sqs: new", "client: is nil; make one with sqs.NewFromConfig of aws-sdk-go-v2")
	}
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	t := &Transport{
		client: client, opts: opts, slots: make(chan struct{}, opts.Requests), bindings: map[string][][]string{}, urls: map[string]string{},
		calls: map[*call]struct{}{}, receivers: map[*receiver]struct{}{},
	}
	t.parkedQueue = t.walks()
	for queue, bindings := range opts.Bindings {
		t.bind(queue, bindings)
	}
	return t, nil
}

// Traits declares the publisher's promises.
func (t *Transport) Traits() core.PublisherTraits {
	size, _ := t.maxMessageBytes()
	tr := core.PublisherTraits{Confirmed: true, Durable: true, Synced: true, DetectsUnroutable: t.opts.TopicARN == "", MaxMessageBytes: size}
	if t.opts.FIFO {
		tr.KeyOrder, tr.TwoCopiesAtMost = core.KeyOrderSerial, true
	}
	return tr
}

// SubscriberTraits declares the subscriber's promises.
func (t *Transport) SubscriberTraits() core.SubscriberTraits {
	tr := core.SubscriberTraits{
		DelaysRetries: true, Parks: true, BrokerParks: true, HoldFor: t.opts.HoldFor, Wildcards: core.WildcardsAll, CountsRedeliveries: true,
	}
	if t.opts.TopicARN != "" {
		tr.Wildcards = core.WildcardsNone // the filter policies of SNS are not ours
	}
	if t.opts.FIFO {
		tr.KeyOrder, tr.SingleActive, tr.AttemptsAreDeliveries, tr.MaxRetryDelay = true, true, true, maxFIFODelay
	}
	return tr
}

// Describe names the system for telemetry.
func (*Transport) Describe() core.Description { return core.Description{System: "aws_sqs"} }

// Close ends receivers and calls in progress. The client stays open. It is idempotent.
func (t *Transport) Close(ctx context.Context) error {
	t.mu.Lock()
	t.closed = true
	for c := range t.calls {
		c.cancel(waybill.ErrClosed)
	}
	receivers := slices.Collect(maps.Keys(t.receivers))
	t.mu.Unlock()
	var wg sync.WaitGroup
	errs := make([]error, len(receivers))
	for i, r := range receivers {
		wg.Go(func() { errs[i] = r.Close(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Check implements core.Checker: SQS answers, and the credentials find a queue of the bindings. A queue that is
// missing beside others is no failure: its topics wait, and the others go on. Without bindings there is nothing to ask.
// With a topic of SNS each queue of the bindings must be subscribed as Options.TopicARN says.
func (t *Transport) Check(ctx context.Context) error {
	const op = "check"
	ctx, end, ok := t.begin(ctx)
	if !ok {
		return closed(op)
	}
	defer end()
	if t.opts.TopicARN != "" && t.opts.SNS != nil {
		return t.verifySubscriptions(ctx, op)
	}
	t.mu.Lock()
	queues := slices.Sorted(maps.Keys(t.bindings))
	t.mu.Unlock()
	var missing, refused error
	for _, queue := range queues {
		name := t.opts.QueueName(queue)
		limited, cancel := context.WithTimeout(ctx, t.opts.Timeout)
		_, err := t.client.GetQueueUrl(limited, &awssqs.GetQueueUrlInput{QueueName: &name})
		cancel()
		switch {
		case err == nil:
			return nil
		case isMissingQueue(err):
			missing = cmp.Or(missing, err)
		default:
			if err = callError(op, name, err); !errors.Is(err, waybill.ErrMisconfigured) {
				return err
			}
			refused = cmp.Or(refused, err)
		}
	}
	if refused == nil && missing != nil { // not ErrMisconfigured: a relay may start before the first consumer
		return outage(op, fmt.Errorf("no queue of Options.Bindings exists: start a consumer, which makes its queue, or compare region, account, "+
			"Prefix and FIFO (%w)", missing))
	}
	return refused
}

// begin returns the context of a call that Close ends, or false after Close.
func (t *Transport) begin(ctx context.Context) (_ context.Context, end func(), ok bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	c := &call{cancel}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		cancel(nil)
		return ctx, func() {}, false
	}
	t.calls[c] = struct{}{}
	return ctx, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.calls, c)
		cancel(nil)
	}, true
}

func closed(op string) error { return outage(op, waybill.ErrClosed) }

// bind adds bindings of queue.
func (t *Transport) bind(queue string, bindings []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	have := t.bindings[queue]
	for _, b := range bindings {
		words := strings.Split(b, ".")
		if !slices.ContainsFunc(have, func(h []string) bool { return slices.Equal(h, words) }) {
			have = append(have, words)
		}
	}
	t.bindings[queue] = have
}

// queuesFor returns the queues that are bound for topic, in the order of their names.
func (t *Transport) queuesFor(topic string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	words := strings.Split(topic, ".")
	var queues []string
	for queue, bindings := range t.bindings {
		if slices.ContainsFunc(bindings, func(b []string) bool { return check.Matches(b, words) }) {
			queues = append(queues, queue)
		}
	}
	slices.Sort(queues)
	return queues
}

// url returns the URL of a queue by its name in SQS.
func (t *Transport) url(ctx context.Context, op, name string) (string, error) {
	t.mu.Lock()
	url, ok := t.urls[name]
	t.mu.Unlock()
	if ok {
		return url, nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.opts.Timeout)
	defer cancel()
	out, err := t.client.GetQueueUrl(ctx, &awssqs.GetQueueUrlInput{QueueName: &name})
	if err != nil {
		return "", callError(op, name, err)
	}
	t.know(name, value(out.QueueUrl))
	return value(out.QueueUrl), nil
}

func (t *Transport) know(name, url string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.urls[name] = url
}

// forget drops what is known of a queue that does not exist any more.
func (t *Transport) forget(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.urls, name)
}
