package main

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/patience"
)

// TestQuickstart runs the program as the README says; it checks its own table and fails if a figure is wrong.
//
// ST-01 DB-16 TR-06 RL-01 IN-01 IN-07
func TestQuickstart(t *testing.T) {
	ctx, _ := patience.Context(t.Context(), 3*time.Minute)
	bin := filepath.Join(t.TempDir(), "quickstart")
	build := exec.CommandContext(ctx, "go", "build", "-o", bin, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	out, err := exec.CommandContext(ctx, bin).CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}
