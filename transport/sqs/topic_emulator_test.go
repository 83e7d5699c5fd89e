package sqs_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssns "github.com/aws/aws-sdk-go-v2/service/sns"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/transporttest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	sqstransport "github.com/waybill-go/waybill/transport/sqs"
	"github.com/waybill-go/waybill/transport/sqs/snsclient"
)

// realTopic is a topic of an emulator of SNS, with the subscriptions that a test makes.
type realTopic struct {
	client *awssns.Client
	arn    string

	mu            sync.Mutex
	subscriptions map[string]string // queue → ARN of its subscription
	policies      map[string]string // queue → filter policy
}

func newRealTopic(t *testing.T, url string, fifo bool) *realTopic {
	t.Helper()
	transport := newHTTP()
	t.Cleanup(transport.CloseIdleConnections)
	s := &realTopic{subscriptions: map[string]string{}, policies: map[string]string{}, client: awssns.New(awssns.Options{
		Region: "us-east-1", BaseEndpoint: &url, Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
		Retryer: aws.NopRetryer{}, HTTPClient: clientOf(transport),
	})}
	in := &awssns.CreateTopicInput{Name: new("t" + waybill.NewID())}
	if fifo {
		in.Name, in.Attributes = new(*in.Name+".fifo"), map[string]string{"FifoTopic": "true"}
	}
	out, err := s.client.CreateTopic(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	s.arn = *out.TopicArn
	return s
}

func (s *realTopic) options(opts sqstransport.Options) sqstransport.Options {
	opts.TopicARN, opts.SNS = s.arn, snsclient.New(s.client)
	return opts
}

// subscribe subscribes a queue in raw form to topics, besides those that it has.
func (s *realTopic) subscribe(ctx context.Context, queue string, topics []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	policy, err := filterOf(s.policies[queue], topics)
	if err != nil {
		return err
	}
	s.policies[queue] = policy
	if arn, ok := s.subscriptions[queue]; ok {
		return s.set(ctx, arn, "FilterPolicy", policy)
	}
	out, err := s.client.Subscribe(ctx, &awssns.SubscribeInput{
		TopicArn: &s.arn, Protocol: new("sqs"), Endpoint: new(queueARNs + queue), ReturnSubscriptionArn: true,
		Attributes: map[string]string{"RawMessageDelivery": "true", "FilterPolicy": policy},
	})
	if err == nil {
		s.subscriptions[queue] = *out.SubscriptionArn
	}
	return err
}

func (s *realTopic) set(ctx context.Context, arn, name, value string) error {
	_, err := s.client.SetSubscriptionAttributes(ctx, &awssns.SetSubscriptionAttributesInput{SubscriptionArn: &arn, AttributeName: &name, AttributeValue: &value})
	return err
}

// The suite over SNS on a server of another project.
//
// TR-15
func TestConformanceOverSNSOnEmulator(t *testing.T) {
	tier.Nightly(t, "the suite again, on a server that somebody else wrote: 40 s to 2 minutes of waiting")
	t.Parallel()
	url := testenv.SQS(t)
	for name, fifo := range map[string]bool{"standard": false, "fifo": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Of ten entries fauxqs takes the last after the first: it orders their numbers as text.
			onEmulator(t, func(t *testing.T) transporttest.Harness {
				t.Helper()
				s := newRealTopic(t, url, fifo)
				opts := s.options(quick(fifo))
				h := emulated(t, url, opts)
				h.Subscriber = operated{h.Subscriber, opts, s.subscribe}
				reopen := h.Reopen
				h.Reopen = func(ctx context.Context) (core.Subscriber, error) {
					second, err := reopen(ctx)
					return operated{second, opts, s.subscribe}, err
				}
				return h
			}, "key-order-batch")
		})
	}
}

// A message goes through SNS to the queue whose filter policy takes its topic, as it was, and in the order of its key.
// Without raw delivery Check refuses the subscription, and its queue tells of the wrapped message.
//
// TR-15
func TestSNSOnEmulator(t *testing.T) {
	t.Parallel()
	url := testenv.SQS(t)
	for name, fifo := range map[string]bool{"standard": false, "fifo": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newRealTopic(t, url, fifo)
			opts, queue := s.options(quick(fifo)), "q"+waybill.NewID()
			opts.Bindings = map[string][]string{queue: {"a"}}
			bus := newBus(t, newClient(t, url), opts)
			if err := bus.Publish(t.Context(), batchOf("a", 1))[0]; !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "not subscribed") {
				t.Fatalf("without a subscription: %v", err)
			}
			r := subscribe(t, bus, core.Subscription{Queue: queue})
			if err := s.subscribe(t.Context(), opts.QueueName(queue), []string{"a"}); err != nil {
				t.Fatal(err)
			}
			if err := bus.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			batch := batchOf("a", 9) // fauxqs reorders ten
			for i := range batch {
				batch[i].Key, batch[i].Headers = "k", map[string]string{"region": "eu"}
			}
			publish(t, bus, batch...)
			// Without bindings every topic is sent.
			other := newBus(t, newClient(t, url), s.options(quick(fifo)))
			publish(t, other, batchOf("b", 1)...)
			left := map[string]bool{}
			for i := range batch {
				left[batch[i].ID] = true
			}
			for i := range batch {
				d := receive(t, r)
				e := d.Envelope
				if d.Err != nil || !left[e.ID] || fifo && e.ID != batch[i].ID || e.Topic != "a" || e.Key != "k" || e.Headers["region"] != "eu" {
					t.Errorf("message %d: got %+v, %v", i, e, d.Err)
				}
				delete(left, e.ID)
				settle(t, r, core.AckDone(d))
			}
			if err := s.set(t.Context(), s.subscriptions[opts.QueueName(queue)], "RawMessageDelivery", "false"); err != nil {
				t.Fatal(err)
			}
			if err := bus.Check(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "RawMessageDelivery") {
				t.Errorf("without raw delivery: %v", err)
			}
			publish(t, other, batchOf("a", 1)...)
			if d := receive(t, r); d.Err == nil || !strings.Contains(d.Err.Error(), "raw message delivery") {
				t.Errorf("wrapped: %+v, %v", d.Envelope, d.Err)
			}
			gone := s.options(quick(fifo))
			gone.TopicARN = strings.Replace(gone.TopicARN, ":t", ":gone", 1)
			if err := newBus(t, newClient(t, url), gone).Publish(t.Context(), batchOf("a", 1))[0]; !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), gone.TopicARN) {
				t.Errorf("a missing topic: %v", err)
			}
		})
	}
}
