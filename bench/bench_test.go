package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/internal/tier"
)

// TestBrief runs every benchmark once, shortly, so that none of them can rot. Each checks its own counts: nothing lost,
// nothing doubled. The figures mean nothing at this size.
func TestBrief(t *testing.T) {
	tier.Nightly(t, "runs every benchmark over real servers: a minute of computing")
	if err := run(t.Context(), "", briefScale(), filepath.Join(t.TempDir(), "table.md")); err != nil {
		t.Fatal(err)
	}
}

// TestSizingBrief measures the last cell of the first and of the last axis of the sizing guide, shortly, and writes a
// page.
//
// OP-09
func TestSizingBrief(t *testing.T) {
	tier.Nightly(t, "measures and fills disks over real servers: half a minute")
	page := filepath.Join(t.TempDir(), "sizing.md")
	if err := os.WriteFile(page, []byte("above\n"+beginMark+"old\n"+endMark+"below\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := size(t.Context(), page, 1, true); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	if !strings.HasPrefix(text, "above\n"+beginMark) || !strings.HasSuffix(text, endMark+"below\n") || strings.Contains(text, "old") {
		t.Errorf("the page around the tables changed:\n%s", text)
	}
	if !strings.Contains(text, "\n### A night's backlog\n") || !strings.Contains(text, "\n### Disk while the broker is down\n") {
		t.Errorf("no disk or no backlog in\n%s", text)
	}
	all := axes()
	for i, a := range all {
		row := "\n| " + a.cells[len(a.cells)-1].name + " | "
		if !strings.Contains(text, "\n### "+a.title+"\n") || (i == 0 || i == len(all)-1) && !strings.Contains(text, row) {
			t.Errorf("no table for %s in\n%s", a.title, text)
		}
	}
}
