package sqs_test

// A user who sets no option has the messages of a killed process again within ten seconds. The visibility timeout of
// the requests bounds that on a machine of any speed.

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/waybill-go/waybill/internal/killtest"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/tier"
	sqstransport "github.com/waybill-go/waybill/transport/sqs"
)

const (
	endpointEnv = "WAYBILL_SQS_ENDPOINT"
	deadKey     = "killed" // signs the requests of the process
)

// mostMissed is how long the messages of a killed process may wait. The rest of ten seconds is for round trips, and
// for a clock of SQS that counts whole seconds.
const mostMissed = 9 * time.Second

// holdRole is the process that is killed.
func holdRole(ctx context.Context, _, _ string) error {
	endpoint := os.Getenv(endpointEnv)
	client := awssqs.New(awssqs.Options{
		Region: "us-east-1", BaseEndpoint: &endpoint, Credentials: credentials.NewStaticCredentialsProvider(deadKey, "test", ""),
		Retryer: aws.NopRetryer{}, HTTPClient: clientOf(newHTTP()),
	})
	bus, err := sqstransport.New(client, sqstransport.Options{})
	if err != nil {
		return err
	}
	return killtest.Hold(ctx, bus)
}

// TestKilledProcessIsMissed: with no option set, the messages of a killed process come to another consumer. SQS is told
// to hide them for less than ten seconds, by a receive and by a renewal. Its clock does not wait for that. At night the
// process has renewed before it is killed.
//
// TR-05.
func TestKilledProcessIsMissed(t *testing.T) {
	t.Parallel()
	fake := startFake(t)
	queue := sqstransport.Options{}.QueueName(killtest.HeldQueue)
	m := killtest.Missed{
		Bus: newBus(t, newClient(t, fake.URL()), sqstransport.Options{Logger: slog.New(slog.DiscardHandler)}), Env: []string{endpointEnv + "=" + fake.URL()},
		Held: func() {
			if tier.IsNightly() {
				patience.Until(t, "the process renews", func() bool { return fake.Calls("ChangeMessageVisibilityBatch") > 0 })
			}
		},
		Killed: func() {
			for _, held := range fake.Messages(queue) {
				if held.Hidden > mostMissed {
					t.Errorf("%s is hidden for %s after its process was killed, want %s at most", held.ID, held.Hidden, mostMissed)
				}
			}
			patience.Until(t, "the server has noticed", func() bool { return fake.Polls(deadKey) == 0 })
			fake.Advance(mostMissed)
		},
	}
	m.Run(t)
}
