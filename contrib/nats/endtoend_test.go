package nats_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/nats"
	"github.com/waybill-go/waybill/internal/killtest"
	"github.com/waybill-go/waybill/internal/tier"
)

const portEnv = "WAYBILL_NATS_PORT"

func TestMain(m *testing.M) {
	killtest.Main(runRole)
	m.Run()
}

// runRole is a process of the test, until it is killed.
func runRole(ctx context.Context, role, dir string) error {
	port, err := strconv.Atoi(os.Getenv(portEnv))
	if err != nil {
		return err
	}
	if role == "server" {
		srv, err := server.NewServer(&server.Options{
			Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: filepath.Join(dir, "server"), NoSigs: true, NoLog: true,
		})
		if err != nil {
			return err
		}
		srv.Start()
		<-ctx.Done()
		return nil
	}
	opts := nats.Options{HoldFor: 2 * time.Second}
	if role == killtest.Holder {
		opts = nats.Options{}
	}
	for { // the server may be away
		bus, err := nats.Dial(ctx, "nats://127.0.0.1:"+strconv.Itoa(port), opts)
		if err == nil && role == killtest.Holder {
			return killtest.Hold(ctx, bus)
		}
		if err == nil {
			return killtest.Serve(ctx, role, dir, bus, false)
		}
		if waybill.ClassOf(err) != waybill.ClassOutage {
			return err
		}
	}
}

// TR-11: relay, consumer and server are killed in turn, while messages are staged and travel. Every message has its
// effect once.
func TestKilledProcesses(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "kills processes again and again: 40 s")
	spare := startServer(t, nil) // for a port that is free
	spare.stop()
	(&killtest.Test{
		Dir: t.TempDir(), Roles: []string{"server", killtest.Consumer, killtest.Relay}, Env: []string{portEnv + "=" + strconv.Itoa(spare.port)},
		Messages: 3000, Kills: 12,
	}).Run(t)
}
