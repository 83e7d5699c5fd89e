package matrix_test

import (
	"context"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv/fakesqs"
	sqstransport "github.com/waybill-go/waybill/transport/sqs"
)

// startSQS starts a fake SQS in the test's own process, which is not killed.
func startSQS(t *testing.T) string {
	t.Helper()
	s := fakesqs.Start()
	t.Cleanup(s.Close)
	return s.URL()
}

func dialSQS(fifo bool) func(context.Context, string, *database) (core.Publisher, subscriber, error) {
	return func(_ context.Context, address string, _ *database) (core.Publisher, subscriber, error) {
		client := awssqs.New(awssqs.Options{
			Region: "us-east-1", BaseEndpoint: &address, Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
		})
		return whole(sqstransport.New(client, sqstransport.Options{
			Bindings: map[string][]string{subscription.Queue: subscription.Bindings}, FIFO: fifo, HoldFor: 2 * time.Second, Wait: time.Second,
		}))
	}
}
