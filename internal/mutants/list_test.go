package main

import (
	"go/parser"
	"go/token"
	"testing"
)

// TestMutantsAreThere: the text of each mutant stands once in its file, and what replaces it parses.
func TestMutantsAreThere(t *testing.T) {
	t.Parallel()
	l := &lab{root: "../.."}
	seen := map[string]bool{}
	for _, m := range list() {
		if seen[m.id] || m.id == "" || m.fault == "" {
			t.Errorf("%q: an id is missing or there twice, or nothing says what is broken", m.id)
		}
		seen[m.id] = true
		text, err := l.apply(&m)
		if err != nil {
			t.Errorf("%s: %v", m.id, err)
			continue
		}
		if _, err := parser.ParseFile(token.NewFileSet(), m.file, text, parser.SkipObjectResolution); err != nil {
			t.Errorf("%s: %v", m.id, err)
		}
	}
	if len(seen) < 100 {
		t.Errorf("only %d mutants", len(seen))
	}
}
