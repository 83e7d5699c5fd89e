package sqs_test

import (
	"context"
	"strings"
	"testing"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/transporttest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/testenv/fakesqs"
	sqstransport "github.com/waybill-go/waybill/transport/sqs"
)

// TR-05, TR-08, CO-14, CO-17, RM-04.
func TestConformance(t *testing.T) {
	t.Parallel()
	for name, fifo := range map[string]bool{"standard": false, "fifo": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var harnesses []func(*testing.T) transporttest.Harness
			for range 4 {
				harnesses = append(harnesses, func(t *testing.T) transporttest.Harness {
					t.Helper()
					return harness(t, quick(fifo))
				})
			}
			transporttest.RunSpread(t, harnesses...)
		})
	}
}

func harness(t *testing.T, opts sqstransport.Options) transporttest.Harness {
	t.Helper()
	fake := startFake(t)
	proxy := testenv.NewProxy(t, strings.TrimPrefix(fake.URL(), "http://"))
	bus := newBus(t, newClient(t, proxy.URL(fake.URL())), opts)
	h := transporttest.Of(bus)
	h.Parked = func(_ context.Context, queue string) ([]transporttest.Parked, error) {
		return parked(fake, opts, queue), nil
	}
	h.Restart = func(context.Context) error {
		proxy.Cut()
		return nil
	}
	h.Cut = func(context.Context) (func() error, error) {
		proxy.Blackhole(testenv.Up | testenv.Down)
		return func() error {
			proxy.Cut()
			proxy.Heal()
			return nil
		}, nil
	}
	h.Deafen = func(context.Context) (func() error, error) {
		proxy.Blackhole(testenv.Down)
		return func() error {
			proxy.Cut()
			proxy.Heal()
			return nil
		}, nil
	}
	h.Reopen = func(context.Context) (core.Subscriber, error) { return newBus(t, newClient(t, fake.URL()), opts), nil }
	h.Refuse, h.SizeLimit = func(_ context.Context, what transporttest.Refused) (func() error, error) {
		if what != transporttest.RefuseLarge {
			return nil, transporttest.ErrNotDeclared
		}
		set := func(bytes string) {
			for _, queue := range fake.Queues() {
				fake.SetAttribute(queue, "MaximumMessageSize", bytes)
			}
		}
		set("4096")
		return func() error { set("1048576"); return nil }, nil
	}, "MaximumMessageSize"
	h.Unreadable = func(ctx context.Context, queue string) error {
		return sendRaw(ctx, newClient(t, fake.URL()), opts, queue, map[string]types.MessageAttributeValue{"waybill": text("{")})
	}
	h.ReservedNames = []string{"waybill", "AWS.x", "Amazon.y", "AWSTraceHeader", "content-type", "MessageGroupId"}
	return h
}

func text(s string) types.MessageAttributeValue {
	kind := "String"
	return types.MessageAttributeValue{DataType: &kind, StringValue: &s}
}

// sendRaw sends as a foreign producer does.
func sendRaw(ctx context.Context, client *awssqs.Client, opts sqstransport.Options, queue string, attributes map[string]types.MessageAttributeValue) error {
	name, id, body := opts.QueueName(queue), "0", "foreign"
	url, err := client.GetQueueUrl(ctx, &awssqs.GetQueueUrlInput{QueueName: &name})
	if err != nil {
		return err
	}
	e := types.SendMessageBatchRequestEntry{Id: &id, MessageBody: &body, MessageAttributes: attributes}
	if opts.FIFO {
		unique := waybill.NewID()
		e.MessageGroupId, e.MessageDeduplicationId = &unique, &unique
	}
	_, err = client.SendMessageBatch(ctx, &awssqs.SendMessageBatchInput{QueueUrl: url.QueueUrl, Entries: []types.SendMessageBatchRequestEntry{e}})
	return err
}

// parked looks into a dead-letter queue.
func parked(fake *fakesqs.Server, opts sqstransport.Options, queue string) []transporttest.Parked {
	var list []transporttest.Parked
	for _, m := range fake.Messages(opts.ParkedName(queue)) {
		env, reason, cause := sqstransport.Decode(&types.Message{MessageId: &m.ID, Body: &m.Body, MessageAttributes: sdk(m.Attributes)}, queue)
		list = append(list, transporttest.Parked{Envelope: env, Reason: waybill.Reason(reason), Err: cause})
	}
	return list
}

func sdk(in map[string]fakesqs.Attribute) map[string]types.MessageAttributeValue {
	out := map[string]types.MessageAttributeValue{}
	for name, a := range in {
		out[name] = types.MessageAttributeValue{DataType: &a.DataType, StringValue: a.StringValue, BinaryValue: a.BinaryValue}
	}
	return out
}
