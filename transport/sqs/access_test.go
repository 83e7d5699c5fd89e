package sqs_test

// Services with the policies that the package prints reach no queue of another. The fake server knows no IAM: the test
// decides about each call by the printed policy of the key that signed it.

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv/fakesqs"
	sqstransport "github.com/waybill-go/waybill/transport/sqs"
)

// policy is a printed policy: it denies all that it does not allow.
type policy struct {
	Statement []struct {
		Effect           string
		Action, Resource []string
	}
}

func (p *policy) allows(action, queue string) bool {
	for _, s := range p.Statement {
		if s.Effect == "Allow" && slices.Contains(s.Action, "sqs:"+strings.TrimSuffix(action, "Batch")) &&
			slices.Contains(s.Resource, "arn:aws:sqs:us-east-1:000000000000:"+queue) {
			return true
		}
	}
	return false
}

// With its policy the relay of a service publishes, and its passive consumer receives, retries and parks. The relay,
// the consumer and the operator of another one can do nothing with its queues, neither by the transport nor by hand.
// SE-03.
func TestServicesKeepApart(t *testing.T) {
	t.Parallel()
	server := startFake(t)
	opts := quick(false)
	opts.Bindings = map[string][]string{"pay": {"payments.#"}, "mail": {"mails.#"}}
	made := newBus(t, newClient(t, server.URL()), opts)
	for _, q := range []string{"pay", "mail"} {
		_ = subscribe(t, made, core.Subscription{Queue: q}).Close(t.Context())
	}
	opts.Passive = true
	policies := map[string]*policy{}
	for key, role := range map[string]sqstransport.Role{
		"pay-relay": sqstransport.RoleRelay, "pay-consumer": sqstransport.RoleConsumer,
		"mail-relay": sqstransport.RoleRelay, "mail-consumer": sqstransport.RoleConsumer, "mail-operator": sqstransport.RoleOperator,
	} {
		service, _, _ := strings.Cut(key, "-")
		text, err := opts.Policy(role, "us-east-1", "000000000000", service)
		policies[key] = &policy{}
		if err == nil {
			err = json.Unmarshal([]byte(text), policies[key])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	server.Fail(func(r fakesqs.Request) *fakesqs.Error {
		if r.Entry >= 0 || policies[r.Key] != nil && policies[r.Key].allows(r.Action, r.Queue) {
			return nil
		}
		return &fakesqs.Error{Code: "AccessDenied", Message: r.Key + " may not " + r.Action + " on " + r.Queue, Status: 403}
	})
	client := func(key string) *awssqs.Client {
		return newClient(t, server.URL(), func(o *awssqs.Options) { o.Credentials = credentials.NewStaticCredentialsProvider(key, "secret", "") })
	}
	bus := func(key, queue string) *sqstransport.Transport {
		o := opts
		o.Bindings = map[string][]string{queue: opts.Bindings[queue]}
		return newBus(t, client(key), o)
	}
	publish := func(b *sqstransport.Transport, topic, id string) error {
		return b.Publish(t.Context(), []waybill.Envelope{{ID: id, Source: "/s", Topic: topic, Type: topic, Time: time.Now()}}).FirstErr()
	}

	// The service itself.
	relay := bus("pay-relay", "pay")
	for _, id := range []string{"1", "2"} {
		if err := publish(relay, "payments.made", id); err != nil {
			t.Fatal(err)
		}
	}
	receiver := subscribe(t, bus("pay-consumer", "pay"), core.Subscription{Queue: "pay"})
	first, second := receive(t, receiver), receive(t, receiver)
	acks := []core.Ack{core.AckRetry(first, 0, errors.New("later")), core.AckReject(second, waybill.ReasonRejected, errors.New("no"))}
	if err := receiver.Settle(t.Context(), acks).FirstErr(); err != nil {
		t.Fatal(err)
	}
	again := receive(t, receiver)
	if again.Envelope.ID != first.Envelope.ID {
		t.Errorf("received %q, want %q again", again.Envelope.ID, first.Envelope.ID)
	}

	// The other one.
	denied := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "AccessDenied") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for key := range policies {
		if !strings.HasPrefix(key, "mail") {
			continue
		}
		denied(key+" publishes", publish(bus(key, "pay"), "payments.made", "forged"))
		if r, err := bus(key, "pay").Subscribe(t.Context(), core.Subscription{Queue: "pay"}); err == nil {
			_, err = r.Receive(t.Context(), 1)
			denied(key+" receives", err)
			_ = r.Close(t.Context())
		}
		c := client(key)
		for _, queue := range []string{"pay", "pay-dlq"} {
			url := aws.String(server.URL() + "/000000000000/" + queue)
			arn := aws.String("arn:aws:sqs:us-east-1:000000000000:" + queue)
			own := aws.String("arn:aws:sqs:us-east-1:000000000000:mail")
			for what, do := range map[string]func() error{
				"reads": func() error {
					_, err := c.ReceiveMessage(t.Context(), &awssqs.ReceiveMessageInput{QueueUrl: url})
					return err
				},
				"writes": func() error {
					_, err := c.SendMessage(t.Context(), &awssqs.SendMessageInput{QueueUrl: url, MessageBody: aws.String("x")})
					return err
				},
				"deletes": func() error {
					_, err := c.DeleteMessage(t.Context(), &awssqs.DeleteMessageInput{QueueUrl: url, ReceiptHandle: aws.String("1")})
					return err
				},
				"hides": func() error {
					_, err := c.ChangeMessageVisibility(t.Context(), &awssqs.ChangeMessageVisibilityInput{QueueUrl: url, ReceiptHandle: aws.String("1")})
					return err
				},
				"purges": func() error { _, err := c.PurgeQueue(t.Context(), &awssqs.PurgeQueueInput{QueueUrl: url}); return err },
				"drops": func() error {
					_, err := c.DeleteQueue(t.Context(), &awssqs.DeleteQueueInput{QueueUrl: url})
					return err
				},
				"looks": func() error {
					_, err := c.GetQueueAttributes(t.Context(), &awssqs.GetQueueAttributesInput{QueueUrl: url})
					return err
				},
				"changes": func() error {
					_, err := c.SetQueueAttributes(t.Context(), &awssqs.SetQueueAttributesInput{QueueUrl: url, Attributes: map[string]string{"DelaySeconds": "900"}})
					return err
				},
				"makes": func() error {
					_, err := c.CreateQueue(t.Context(), &awssqs.CreateQueueInput{QueueName: aws.String(queue)})
					return err
				},
				"moves": func() error {
					_, err := c.StartMessageMoveTask(t.Context(), &awssqs.StartMessageMoveTaskInput{SourceArn: arn, DestinationArn: own})
					return err
				},
				"redirect": func() error {
					_, err := c.SetQueueAttributes(t.Context(), &awssqs.SetQueueAttributesInput{
						QueueUrl:   aws.String(server.URL() + "/000000000000/mail"),
						Attributes: map[string]string{string(types.QueueAttributeNameRedrivePolicy): `{"deadLetterTargetArn":"` + *arn + `","maxReceiveCount":"1"}`},
					})
					return err
				},
			} {
				denied(key+" "+what+" "+queue, do())
			}
		}
	}
	if err := receiver.Settle(t.Context(), []core.Ack{core.AckDone(again)}).FirstErr(); err != nil {
		t.Error(err)
	}
}
