package sqs_test

import (
	"context"
	"flag"
	"log/slog"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/killtest"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/testenv/fakesqs"
	sqstransport "github.com/waybill-go/waybill/transport/sqs"
)

var (
	publish = sharedtest.Publish
	settle  = sharedtest.Settle
)

func TestMain(m *testing.M) {
	killtest.Main(holdRole)
	_ = flag.Set("test.parallel", "8") // they wait for the server; a flag of the command line wins
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background))
}

// startFake starts a fake SQS for the test.
func startFake(tb testing.TB) *fakesqs.Server {
	tb.Helper()
	s := fakesqs.Start()
	tb.Cleanup(s.Close)
	return s
}

// newClient returns a client of the endpoint with one attempt a call, and connections of its own.
func newClient(tb testing.TB, endpoint string, change ...func(*awssqs.Options)) *awssqs.Client {
	tb.Helper()
	transport := newHTTP()
	tb.Cleanup(transport.CloseIdleConnections)
	o := awssqs.Options{
		Region: "us-east-1", BaseEndpoint: &endpoint, Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
		Retryer: aws.NopRetryer{}, HTTPClient: clientOf(transport),
	}
	return awssqs.New(o, change...)
}

// newBus returns a transport on client that is closed at the end of the test.
func newBus(tb testing.TB, client sqstransport.Client, opts sqstransport.Options) *sqstransport.Transport {
	tb.Helper()
	bus, err := sqstransport.New(client, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = bus.Close(context.Background()) })
	return bus
}

// quick are options for tests with short waits.
func quick(fifo bool) sqstransport.Options {
	return sqstransport.Options{FIFO: fifo, HoldFor: patience.For(5 * time.Second).Round(time.Second), Wait: time.Second, DeliveryLimit: 25, Logger: slog.New(slog.DiscardHandler)}
}

func subscribe(tb testing.TB, bus *sqstransport.Transport, sub core.Subscription) core.Receiver {
	tb.Helper()
	r, err := bus.Subscribe(tb.Context(), sub)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// receive returns the next delivery.
func receive(tb testing.TB, r core.Receiver) *waybill.Delivery {
	tb.Helper()
	ctx, _ := patience.Context(tb.Context(), patience.Limit)
	ds, err := r.Receive(ctx, 1)
	if err != nil {
		tb.Fatal(err)
	}
	return ds[0]
}

// withBindings returns opts as a producer has them.
func withBindings(opts sqstransport.Options, queue string, bindings ...string) sqstransport.Options {
	opts.Bindings = map[string][]string{queue: bindings}
	return opts
}
