package main

import (
	"path/filepath"
	"testing"
)

// TestBrief runs every benchmark once, shortly, so that none of them can rot. Each checks its own counts: nothing lost,
// nothing doubled. The figures mean nothing at this size.
func TestBrief(t *testing.T) {
	if err := run(t.Context(), "", briefScale(), filepath.Join(t.TempDir(), "table.md")); err != nil {
		t.Fatal(err)
	}
}
