package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
)

// The program counts business rows, end to end: nothing lost, nothing doubled, order per key kept. It fails if a figure
// is wrong.
//
// ST-01 RL-01 OR-02 TR-03 CO-10 IN-01
func TestOrders(t *testing.T) { orders(t, "-for", "2s") }

// The same while processes, servers and the network are broken, as its README says.
//
// ST-01 DB-02 DB-04 RL-01 RL-03 RL-10 OR-02 TR-03 CO-10 CO-17 IN-01
func TestChaos(t *testing.T) {
	tier.Nightly(t, "kills processes and servers for ten seconds: half a minute")
	orders(t, "-chaos", "10s")
}

func orders(t *testing.T, args ...string) {
	t.Helper()
	ctx, _ := patience.Context(t.Context(), 3*time.Minute)
	bin := filepath.Join(t.TempDir(), "orders")
	build := exec.CommandContext(ctx, "go", "build", "-o", bin, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	run := exec.CommandContext(ctx, bin, args...)
	run.Cancel = func() error { return run.Process.Signal(os.Interrupt) }
	run.WaitDelay = patience.For(patience.Limit)
	out, err := run.CombinedOutput()
	t.Logf("%s", out)
	if err != nil && strings.Contains(string(out), testenv.ErrUnavailable.Error()) {
		tier.Missing(t, "PostgreSQL and RabbitMQ: run `make servers`")
	}
	if err != nil {
		t.Fatal(err)
	}
}
