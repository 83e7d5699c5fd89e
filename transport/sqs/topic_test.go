package sqs_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/transporttest"
	"github.com/waybill-go/waybill/internal/testenv"
	sqstransport "github.com/waybill-go/waybill/transport/sqs"
)

const (
	ordersARN = "arn:aws:sns:us-east-1:000000000000:orders"
	queueARNs = "arn:aws:sqs:us-east-1:000000000000:"
)

// topic is a topic of SNS in the process, over a fake SQS. It implements sqstransport.SNS.
type topic struct {
	client *awssqs.Client

	mu            sync.Mutex
	subscriptions map[string]map[string]string // queue's ARN → attributes
	fail          error                        // of every call
	refuse        func(body string) *types.BatchResultErrorEntry
	calls         map[string]int
}

func newTopic(client *awssqs.Client) *topic {
	return &topic{client: client, subscriptions: map[string]map[string]string{}, calls: map[string]int{}}
}

func (s *topic) begin(call string) error {
	s.calls[call]++
	return s.fail
}

// PublishBatch has the bounds of SNS.
func (s *topic) PublishBatch(ctx context.Context, topicARN string, entries []types.SendMessageBatchRequestEntry) (*awssqs.SendMessageBatchOutput, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.begin("PublishBatch"); err != nil {
		return nil, err
	}
	size, out := 0, &awssqs.SendMessageBatchOutput{}
	var taken []types.SendMessageBatchRequestEntry
	for _, e := range entries {
		size += len(*e.MessageBody)
		for name, a := range e.MessageAttributes {
			size += len(name) + len(*a.DataType) + len(*a.StringValue)
		}
		if strings.HasSuffix(topicARN, ".fifo") != (e.MessageGroupId != nil && e.MessageDeduplicationId != nil) {
			return nil, clientFault("InvalidParameter", "Invalid parameter: MessageGroupId")
		}
		if s.refuse != nil {
			if failed := s.refuse(*e.MessageBody); failed != nil {
				failed.Id = e.Id
				out.Failed = append(out.Failed, *failed)
				continue
			}
		}
		taken = append(taken, e)
		out.Successful = append(out.Successful, types.SendMessageBatchResultEntry{Id: e.Id})
	}
	if len(entries) > 10 || size > 256<<10 {
		return nil, clientFault("BatchRequestTooLong", fmt.Sprintf("%d entries, %d bytes", len(entries), size))
	}
	for queueARN, a := range s.subscriptions {
		list := slices.DeleteFunc(slices.Clone(taken), func(e types.SendMessageBatchRequestEntry) bool { return !matches(a["FilterPolicy"], &e) })
		if len(list) == 0 {
			continue
		}
		url, err := s.client.GetQueueUrl(ctx, &awssqs.GetQueueUrlInput{QueueName: new(strings.TrimPrefix(queueARN, queueARNs))})
		if err == nil {
			_, err = s.client.SendMessageBatch(ctx, &awssqs.SendMessageBatchInput{QueueUrl: url.QueueUrl, Entries: list})
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// matches knows lists of topics.
func matches(policy string, e *types.SendMessageBatchRequestEntry) bool {
	var p map[string][]string
	return policy == "" || json.Unmarshal([]byte(policy), &p) == nil && slices.Contains(p["ce_topic"], *e.MessageAttributes["ce_topic"].StringValue)
}

func (s *topic) Subscriptions(context.Context, string) (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := map[string]string{}
	for queueARN := range s.subscriptions {
		list[queueARN] = ordersARN + ":" + queueARN
		if state := s.subscriptions[queueARN]["state"]; state != "" {
			list[queueARN] = state
		}
	}
	return list, s.begin("Subscriptions")
}

func (s *topic) SubscriptionAttributes(_ context.Context, arn string) (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.subscriptions[strings.TrimPrefix(arn, ordersARN+":")]), s.begin("SubscriptionAttributes")
}

// subscribe is what an operator does. The values of a filter policy add up.
func (s *topic) subscribe(_ context.Context, queue string, topics []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.subscriptions[queueARNs+queue]
	if a == nil {
		a = map[string]string{"RawMessageDelivery": "true"}
		s.subscriptions[queueARNs+queue] = a
	}
	var err error
	a["FilterPolicy"], err = filterOf(a["FilterPolicy"], topics)
	return err
}

// filterOf adds topics to a filter policy.
func filterOf(policy string, topics []string) (string, error) {
	p := map[string][]string{}
	if policy != "" {
		if err := json.Unmarshal([]byte(policy), &p); err != nil {
			return "", err
		}
	}
	p["ce_topic"] = append(p["ce_topic"], topics...)
	text, err := json.Marshal(p)
	return string(text), err
}

func clientFault(code, text string) error {
	return &smithy.GenericAPIError{Code: code, Message: text, Fault: smithy.FaultClient}
}

// operated subscribes each queue to the topic, as the infrastructure of an application does.
type operated struct {
	core.Subscriber
	opts      sqstransport.Options
	subscribe func(ctx context.Context, queue string, topics []string) error
}

func (o operated) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	bindings := sub.Bindings
	sub.Bindings = nil
	r, err := o.Subscriber.Subscribe(ctx, sub)
	if err == nil && len(bindings) > 0 {
		err = o.subscribe(ctx, o.opts.QueueName(sub.Queue), bindings)
	}
	return r, err
}

// overTopic returns opts with a topic of SNS.
func overTopic(opts sqstransport.Options, sns sqstransport.SNS) sqstransport.Options {
	opts.TopicARN, opts.SNS = ordersARN, sns
	if opts.FIFO {
		opts.TopicARN += ".fifo"
	}
	return opts
}

// The publisher's part of the suite over a topic of SNS, to which queues are subscribed with raw delivery. Receivers
// are the same as without SNS; at night the whole suite runs on an emulator.
//
// TR-15
func TestConformanceOverSNS(t *testing.T) {
	t.Parallel()
	for name, fifo := range map[string]bool{"standard": false, "fifo": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var harnesses []func(*testing.T) transporttest.Harness
			for range 4 {
				harnesses = append(harnesses, func(t *testing.T) transporttest.Harness {
					t.Helper()
					return topicHarness(t, quick(fifo))
				})
			}
			transporttest.RunSpread(t, harnesses...)
		})
	}
}

func topicHarness(t *testing.T, opts sqstransport.Options) transporttest.Harness {
	t.Helper()
	fake := startFake(t)
	proxy := testenv.NewProxy(t, strings.TrimPrefix(fake.URL(), "http://"))
	client := newClient(t, proxy.URL(fake.URL()))
	sns := newTopic(client)
	opts = overTopic(opts, sns)
	bus := newBus(t, client, opts)
	return transporttest.Harness{
		Publisher: bus, Reader: operated{newBus(t, newClient(t, fake.URL()), opts), opts, sns.subscribe}, Close: bus.Close,
		Restart: func(context.Context) error {
			proxy.Cut()
			return nil
		},
	}
}

// A relay sends a message once, however many queues are subscribed, and looks at the subscriptions once, unless a Check
// finds fault with them.
//
// TR-15
func TestPublishToTopic(t *testing.T) {
	t.Parallel()
	fake := startFake(t)
	client := newClient(t, fake.URL())
	sns := newTopic(client)
	opts := overTopic(quick(false), sns)
	opts.Bindings = map[string][]string{"a": {"orders.*"}, "b": {"orders.placed"}}
	bus := newBus(t, client, opts)
	consumers := newBus(t, client, overTopic(quick(false), nil))
	var receivers []core.Receiver
	for _, queue := range []string{"a", "b"} {
		receivers = append(receivers, subscribe(t, consumers, core.Subscription{Queue: queue}))
		if err := sns.subscribe(t.Context(), queue, []string{"orders.placed", "orders.x"}); err != nil {
			t.Fatal(err)
		}
	}
	sent := fake.Calls("SendMessageBatch")
	for range 2 {
		batch := batchOf("orders.placed", 3)
		batch = append(batch, waybill.Envelope{ID: "astray", Topic: "users.created"})
		results := bus.Publish(t.Context(), batch)
		if err := results[:3].FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := results[3]; !errors.Is(err, waybill.ErrUnroutable) || waybill.ClassOf(err) != waybill.ClassRejected {
			t.Errorf("a topic that no queue of Bindings expects: %v", err)
		}
		for _, r := range receivers {
			for range 3 {
				d := receive(t, r)
				if d.Envelope.Topic != "orders.placed" || d.Err != nil {
					t.Errorf("got %q, %v", d.Envelope.Topic, d.Err)
				}
				settle(t, r, core.AckDone(d))
			}
		}
	}
	if n := sns.calls["Subscriptions"]; n != 1 {
		t.Errorf("the subscriptions were listed %d times, want once", n)
	}
	// A Check that finds a subscription gone stops the publisher, until it is there again.
	gone := sns.subscriptions[queueARNs+"b"]
	delete(sns.subscriptions, queueARNs+"b")
	if err := bus.Check(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("a subscription is gone: %v", err)
	}
	if err := bus.Publish(t.Context(), batchOf("orders.placed", 1))[0]; !errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("published although a subscription is gone: %v", err)
	}
	sns.subscriptions[queueARNs+"b"] = gone
	publish(t, bus, batchOf("orders.placed", 1)...)
	if n := sns.calls["PublishBatch"]; n != 3 {
		t.Errorf("three batches were sent in %d calls, want 3", n)
	}
	if n := fake.Calls("SendMessageBatch") - sent; n != 6 {
		t.Errorf("%d copies came, want one a batch and queue: 6", n)
	}
}

// Each entry of a batch has its own result. A batch that is refused as a whole is sent again one by one.
//
// TR-15
func TestTopicResults(t *testing.T) {
	t.Parallel()
	client := newClient(t, startFake(t).URL())
	sns := newTopic(client)
	bus := newBus(t, client, overTopic(quick(false), sns))
	batch := batchOf("a", 4)
	bodies := map[string]*types.BatchResultErrorEntry{
		string(batch[1].Body): {Code: new("InternalError")}, string(batch[2].Body): {Code: new("InvalidParameter"), Message: new("Message too long"), SenderFault: true},
	}
	sns.refuse = func(body string) *types.BatchResultErrorEntry { return bodies[body] }
	results := bus.Publish(t.Context(), batch)
	if results[0] != nil || results[3] != nil || waybill.ClassOf(results[1]) != waybill.ClassOutage || waybill.ReasonOf(results[2]) != waybill.ReasonTooLarge {
		t.Errorf("got %v", results)
	}
	large := waybill.Envelope{ID: "large", Topic: "a", Body: make([]byte, sqstransport.MaxTopicMessageBytes)}
	if err := bus.Publish(t.Context(), []waybill.Envelope{large})[0]; waybill.ReasonOf(err) != waybill.ReasonTooLarge {
		t.Errorf("a message larger than SNS takes: %v", err)
	}
	large.Body = []byte(strings.Repeat("x", 150<<10)) // two of them are more than SNS takes a call
	other := large
	other.ID = "other"
	before := sns.calls["PublishBatch"]
	publish(t, bus, large, other)
	if n := sns.calls["PublishBatch"] - before; n != 2 {
		t.Errorf("two messages of 150 KiB took %d calls, want 2", n)
	}
}

// The errors of SNS name the topic, the cause and the cure.
//
// TR-15
func TestTopicErrors(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]struct {
		text  string
		class waybill.Class
		match error
	}{
		"NotFound":           {"correct Options.TopicARN", waybill.ClassOutage, waybill.ErrMisconfigured},
		"AuthorizationError": {"IAM policy", waybill.ClassOutage, waybill.ErrMisconfigured},
		"KMSAccessDenied":    {"encryption key", waybill.ClassOutage, waybill.ErrMisconfigured},
		"KMSDisabled":        {"encryption key", waybill.ClassOutage, waybill.ErrMisconfigured},
		"InvalidParameter":   {"region", waybill.ClassOutage, waybill.ErrMisconfigured},
		"Throttled":          {"", waybill.ClassOutage, nil},
		"KMSThrottling":      {"", waybill.ClassOutage, nil},
		"InternalError":      {"", waybill.ClassOutage, nil},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			sns := newTopic(nil)
			sns.fail = clientFault(code, "Invalid parameter: TopicArn")
			bus := newBus(t, newClient(t, "http://127.0.0.1:1"), overTopic(quick(false), sns))
			for _, err := range []error{bus.Check(t.Context()), bus.Publish(t.Context(), batchOf("a", 2))[1]} {
				if waybill.ClassOf(err) != want.class || errors.Is(err, waybill.ErrMisconfigured) != (want.match != nil) ||
					!strings.Contains(err.Error(), `topic of SNS "`+ordersARN+`"`) || !strings.Contains(err.Error(), want.text) {
					t.Errorf("got %v", err)
				}
				if e, ok := errors.AsType[*waybill.Error](err); !ok || e.TopicOnly {
					t.Errorf("%v is about one topic of Waybill, and the topic of SNS has all", err)
				}
			}
		})
	}
	// without a client
	bus := newBus(t, newClient(t, "http://127.0.0.1:1"), overTopic(quick(false), nil))
	if err := bus.Publish(t.Context(), batchOf("a", 1))[0]; !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "Options.SNS") {
		t.Errorf("got %v", err)
	}
}

// SNS confirms what no queue gets. So Check, and the first Publish, refuse a subscription that is missing, that wraps
// messages, or that filters all of them out.
//
// TR-15
func TestSubscriptionsAreVerified(t *testing.T) {
	t.Parallel()
	client := newClient(t, startFake(t).URL())
	for name, c := range map[string]struct {
		attributes map[string]string // nil = there is no subscription
		want       string            // "" = it is right
	}{
		"missing":          {nil, "not subscribed"},
		"pending":          {map[string]string{"state": "PendingConfirmation"}, "PendingConfirmation: confirm it"},
		"wrapped":          {map[string]string{"RawMessageDelivery": "false"}, "RawMessageDelivery"},
		"all":              {map[string]string{"RawMessageDelivery": "true"}, ""},
		"empty policy":     {filter(`{}`), ""},
		"exact":            {filter(`{"ce_topic": ["users.created", {"prefix": "orders."}]}`), ""},
		"suffix":           {filter(`{"ce_topic": [{"suffix": ".created"}, {"suffix": ".x"}]}`), ""},
		"case":             {filter(`{"ce_topic": [{"equals-ignore-case": "USERS.created"}, {"equals-ignore-case": "Orders.x"}]}`), ""},
		"but":              {filter(`{"ce_topic": [{"anything-but": ["a", {"prefix": "b."}]}]}`), ""},
		"exists":           {filter(`{"ce_topic": [{"exists": true}], "region": [{"exists": false}]}`), ""},
		"type":             {filter(`{"ce_type": ["anything"]}`), ""},
		"unknown operator": {filter(`{"ce_topic": [{"later": "x"}]}`), ""},
		"or":               {filter(`{"$or": [{"region": ["eu"]}, {"ce_topic": ["a"]}]}`), ""},
		"body":             {map[string]string{"RawMessageDelivery": "true", "FilterPolicy": `{"region": ["eu"]}`, "FilterPolicyScope": "MessageBody"}, ""},
		"other topics":     {filter(`{"ce_topic": ["users.created"]}`), `"orders.*"`},
		"other prefix":     {filter(`{"ce_topic": [{"prefix": "orders."}]}`), `"users.created"`},
		"excluded":         {filter(`{"ce_topic": [{"anything-but": {"prefix": "users."}}]}`), `"users.created"`},
		"absent":           {filter(`{"ce_topic": [{"exists": false}]}`), "ce_topic"},
		"header":           {filter(`{"region": ["eu"]}`), `"region"`},
		"broken":           {filter(`{`), "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sns := newTopic(client)
			if c.attributes != nil {
				sns.subscriptions[queueARNs+"q"] = c.attributes
			}
			opts := overTopic(quick(false), sns)
			opts.Bindings = map[string][]string{"q": {"users.created", "orders.*"}}
			bus := newBus(t, client, opts)
			check := bus.Check(t.Context())
			sent := newBus(t, client, opts).Publish(t.Context(), []waybill.Envelope{{ID: "1", Topic: "none"}})[0]
			if c.want == "" {
				if check != nil || !errors.Is(sent, waybill.ErrUnroutable) {
					t.Errorf("got %v, %v", check, sent)
				}
				return
			}
			for _, err := range []error{check, sent} {
				if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `queue "q"`) {
					t.Errorf("want an error about %s, got %v", c.want, err)
				}
			}
		})
	}
}

func filter(policy string) map[string]string {
	return map[string]string{"RawMessageDelivery": "true", "FilterPolicy": policy}
}

// A queue that Subscribe makes lets the topic send. One that keeps SNS out is refused, with the statement to add.
//
// TR-15
func TestTopicMaySend(t *testing.T) {
	t.Parallel()
	fake := startFake(t)
	bus := newBus(t, newClient(t, fake.URL()), overTopic(quick(false), nil))
	subscribe(t, bus, core.Subscription{Queue: "q"})
	made := fake.Attributes("q")["Policy"]
	if !strings.Contains(made, ordersARN) || fake.Attributes("q-dlq")["Policy"] != "" {
		t.Errorf("made with the policy %s", made)
	}
	for policy, want := range map[string]bool{
		made: true,
		"":   false,
		"{":  false,
		strings.Replace(made, ordersARN, "arn:aws:sns:us-east-1:000000000000:others", 1):                                            false,
		strings.Replace(made, ordersARN, "arn:aws:sns:*:000000000000:o*", 1):                                                        true,
		strings.Replace(made, "sqs:SendMessage", "sqs:ReceiveMessage", 1):                                                           false,
		strings.Replace(made, "sqs:SendMessage", "SQS:*", 1):                                                                        true,
		strings.Replace(made, "Allow", "Deny", 1):                                                                                   false,
		`{"Statement": {"Effect": "Allow", "Principal": "*", "Action": ["sqs:DeleteMessage", "sqs:SendMessage"], "Resource": "*"}}`: true,
	} {
		fake.SetAttribute("q", "Policy", policy)
		_, err := bus.Subscribe(t.Context(), core.Subscription{Queue: "q"})
		if (err == nil) != want {
			t.Errorf("policy %s: %v", policy, err)
		}
		if err != nil && (!errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), `"aws:SourceArn":"`+ordersARN)) {
			t.Errorf("the error has no statement to add: %v", err)
		}
	}
	_, err := bus.Subscribe(t.Context(), core.Subscription{Queue: "q", Bindings: []string{"orders.placed"}})
	if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), "filter policy") {
		t.Errorf("bindings that nothing would make true: %v", err)
	}
}

// TR-15: the options of a topic are checked together.
func TestTopicOptions(t *testing.T) {
	t.Parallel()
	for want, opts := range map[string]sqstransport.Options{
		"no TopicARN":       {SNS: newTopic(nil)},
		"is not such as":    {TopicARN: "orders"},
		"FIFO is false":     {TopicARN: ordersARN + ".fifo"},
		"FIFO is true":      {TopicARN: ordersARN, FIFO: true},
		"SNS may not use":   {TopicARN: ordersARN, KMSKey: "alias/aws/sqs"},
		"arn:aws:sns:x:1:o": {TopicARN: "arn:aws:sns:x:1:o"},
	} {
		if err := opts.Validate(); !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s, got %v", want, err)
		}
	}
	good := sqstransport.Options{TopicARN: "arn:aws-us-gov:sns:us-gov-west-1:000000000000:orders.fifo", FIFO: true}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	bus := newBus(t, newClient(t, "http://127.0.0.1:1"), sqstransport.Options{TopicARN: ordersARN})
	if tr := bus.Traits(); tr.MaxMessageBytes != sqstransport.MaxTopicMessageBytes || tr.DetectsUnroutable {
		t.Errorf("got %+v", tr)
	}
}
