package kafka_test

import (
	"context"
	"os"
	"testing"

	"github.com/waybill-go/waybill/contrib/kafka"
	"github.com/waybill-go/waybill/internal/killtest"
	"github.com/waybill-go/waybill/internal/tier"
)

const brokerEnv, busEnv = "WAYBILL_KAFKA_BROKER", "WAYBILL_KAFKA_BUS"

// runRole is a process of the test, until it is killed.
func runRole(ctx context.Context, role, dir string) error {
	opts := options()
	opts.Bus = os.Getenv(busEnv)
	bus, err := kafka.Dial(ctx, os.Getenv(brokerEnv), opts)
	if err != nil {
		return err
	}
	return killtest.Serve(ctx, role, dir, bus, true)
}

// TR-11: relay and consumer are killed in turn, while messages are staged and travel over a real broker. Every message
// has its effect once, and the messages of a key have theirs in order.
func TestKilledProcesses(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "kills processes again and again: a minute")
	(&killtest.Test{
		Dir: t.TempDir(), Roles: []string{killtest.Consumer, killtest.Relay}, Env: []string{brokerEnv + "=" + node(t), busEnv + "=" + busName()},
		Messages: 2000, Kills: 6, InOrder: true,
	}).Run(t)
}
