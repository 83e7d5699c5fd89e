package sqs_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/transporttest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	sqstransport "github.com/waybill-go/waybill/transport/sqs"
)

// notFaithful are the checks that fauxqs 2.4.1 fails where SQS differs, by its documentation: it refuses characters
// beyond the basic plane in a body.
var notFaithful = map[string]bool{"round-trip-unicode": true}

// The suite on a server of another project.
//
// TR-05
func TestConformanceOnEmulator(t *testing.T) {
	tier.Nightly(t, "the suite again, on a server that somebody else wrote: 40 s to 2 minutes of waiting")
	t.Parallel()
	url := testenv.SQS(t)
	for name, fifo := range map[string]bool{"standard": false, "fifo": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEmulator(t, func(t *testing.T) transporttest.Harness {
				t.Helper()
				return emulated(t, url, quick(fifo))
			})
		})
	}
}

// onEmulator runs the checks of the suite, each with a harness of its own.
func onEmulator(t *testing.T, harness func(t *testing.T) transporttest.Harness, without ...string) {
	t.Helper()
	checks := make(chan transporttest.Check)
	var wg sync.WaitGroup
	for range 4 { // they mostly wait
		wg.Go(func() {
			for c := range checks {
				err := c.Run(t.Context(), harness(t))
				if err != nil && !errors.Is(err, transporttest.ErrNotDeclared) {
					t.Error(err)
				}
			}
		})
	}
	for _, c := range transporttest.Checks() {
		if !notFaithful[c.Name] && !slices.Contains(without, c.Name) {
			checks <- c
		}
	}
	close(checks)
	wg.Wait()
}

func emulated(t *testing.T, url string, opts sqstransport.Options) transporttest.Harness {
	t.Helper()
	client := newClient(t, url)
	h := transporttest.Of(newBus(t, client, opts))
	h.Reopen = func(context.Context) (core.Subscriber, error) { return newBus(t, newClient(t, url), opts), nil }
	h.Unreadable = func(ctx context.Context, queue string) error {
		return sendRaw(ctx, client, opts, queue, map[string]types.MessageAttributeValue{"waybill": text("{")})
	}
	h.Parked = func(ctx context.Context, queue string) ([]transporttest.Parked, error) {
		return peek(ctx, client, opts, queue)
	}
	return h
}

// peek looks into a dead-letter queue. The messages that it sees are hidden for a second.
func peek(ctx context.Context, client *awssqs.Client, opts sqstransport.Options, queue string) ([]transporttest.Parked, error) {
	name := opts.ParkedName(queue)
	url, err := client.GetQueueUrl(ctx, &awssqs.GetQueueUrlInput{QueueName: &name})
	if _, ok := errors.AsType[*types.QueueDoesNotExist](err); ok {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out, err := client.ReceiveMessage(ctx, &awssqs.ReceiveMessageInput{
		QueueUrl: url.QueueUrl, MaxNumberOfMessages: 10, VisibilityTimeout: 1, MessageAttributeNames: []string{"All"},
	})
	if err != nil {
		return nil, err
	}
	var list []transporttest.Parked
	for i := range out.Messages {
		env, reason, cause := sqstransport.Decode(&out.Messages[i], queue)
		list = append(list, transporttest.Parked{Envelope: env, Reason: waybill.Reason(reason), Err: cause})
	}
	return list, nil
}
