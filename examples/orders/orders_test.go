package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestChaos runs the example as its README says, for a short time, with everything breaking. It proves, end to end and
// counted from business rows: nothing lost, nothing doubled, order per key kept.
//
// ST-01 DB-02 DB-04 RL-01 RL-03 RL-10 OR-02 TR-03 CO-10 CO-17 IN-01
func TestChaos(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	bin := filepath.Join(t.TempDir(), "orders")
	build := exec.CommandContext(ctx, "go", "build", "-o", bin, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	run := exec.CommandContext(ctx, bin, "-chaos", "10s")
	run.Cancel = func() error { return run.Process.Signal(os.Interrupt) }
	run.WaitDelay = 30 * time.Second
	out, err := run.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}
