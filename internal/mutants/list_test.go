package main

import (
	"errors"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/internal/tier"
)

// TestMutantsAreThere: the text of each mutant stands once in its file, and its replacement parses, if it is Go.
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
		if filepath.Ext(m.file) != ".go" {
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

// TestSample: the tests notice a few mutants, others every day. make mutants runs them all.
func TestSample(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "builds and runs the tests of other packages: a minute")
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	day := time.Now().UTC().Unix() / int64(24*time.Hour/time.Second)
	l := &lab{root: root, some: sample(list(), results(t), int(day))}
	for _, m := range l.some {
		r := l.run(t.Context(), &m)
		if t.Log(r); r.verdict != killed {
			t.Errorf("%s: %s: %s", m.id, r.verdict, m.fault)
		}
	}
}

// results returns the rows of the page.
func results(t *testing.T) map[string]row {
	t.Helper()
	page, err := os.ReadFile("RESULTS.md")
	if err != nil {
		t.Fatal(err)
	}
	return read(string(page))
}

// sample returns the mutants of a day, out of those that rows says are killed: one that a named test kills, and one
// that histories find. None needs a server.
func sample(all []mutant, rows map[string]row, day int) []mutant {
	all = slices.DeleteFunc(all, func(m mutant) bool {
		// SQLite takes long to build
		return rows[m.id].verdict != string(killed) || m.server || m.slow || m.spare || m.tests == "" || m.pkg == "./store/sqlite"
	})
	var out []mutant
	for _, history := range []bool{false, true} {
		some := slices.DeleteFunc(slices.Clone(all), func(m mutant) bool { return strings.HasPrefix(m.id, "history-") != history })
		if len(some) > 0 {
			out = append(out, some[day*37%len(some)])
		}
	}
	return out
}

// TestSampleRotates: over the days every mutant that can be in the sample is.
func TestSampleRotates(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for day := range 1000 {
		some := sample(list(), results(t), day)
		if len(some) != 2 {
			t.Fatalf("%d mutants", len(some))
		}
		for _, m := range some {
			seen[m.id] = true
		}
	}
	if len(seen) < 50 {
		t.Errorf("only %d are ever in the sample", len(seen))
	}
}

// TestJudge: the verdict on each output of tests.
func TestJudge(t *testing.T) {
	t.Parallel()
	failure := errors.New("exit status 1")
	for _, tc := range []struct {
		out  string
		err  error
		want verdict
		by   string
	}{
		{"ok  \tx\t0.1s\n", nil, survived, ""},
		{"ok  \tx\t0.1s [no tests to run]\n", nil, invalid, "no test matches"},
		{"--- FAIL: TestA (0.0s)\n    --- FAIL: TestA/b (0.0s)\nFAIL\tx\t0.1s\n", failure, killed, "TestA/b"},
		{"--- FAIL: TestA (0.0s)\n--- FAIL: TestB (0.0s)\n", failure, killed, "TestA and 1 more"},
		{"# x\nx.go:1: undefined\nFAIL\tx [build failed]\n", failure, unbuilt, "# x | x.go:1: undefined | FAIL\tx [build failed]"},
		{"panic: test timed out after 1s\n\trunning tests:\n\t\tTestA (1s)\n", failure, hung, "TestA"},
		{"panic: boom\n\ngoroutine 1\nFAIL\tx\n", failure, killed, "panic: boom"},
	} {
		if v, by := judge([]byte(tc.out), tc.err); v != tc.want || by != tc.by {
			t.Errorf("%q: %s by %q, want %s by %q", tc.out, v, by, tc.want, tc.by)
		}
	}
}

// TestPage: a written page is read again, and a mutant that runs replaces its line.
func TestPage(t *testing.T) {
	t.Parallel()
	all := []mutant{{id: "a", fault: "x", file: "f.go"}, {id: "b"}, {id: "c", group: group{spare: true}}, {id: "d"}}
	rows := map[string]row{}
	if !add(rows, []result{{mutant: all[0], verdict: killed, by: "TestA | TestB"}, {mutant: all[2], verdict: survived}}) {
		t.Error("a spare one may survive")
	}
	again := read(write(all, rows))
	for _, v := range []verdict{hung, survived} {
		if add(again, []result{{mutant: all[1], verdict: v}}) {
			t.Errorf("no other may: %s", v)
		}
	}
	text := write(all, again)
	for _, want := range []string{
		"| a | x | f.go | killed | TestA / TestB |\n", "| d |  |  | not run |  |\n",
		"4 mutants: 1 killed, 0 hung, 1 survived, 0 do not build, 0 invalid, 1 not run; 1 that are spare survived.\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}
}

// A part that is none is refused, and names what is wrong.
func TestPart(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"", "0/6", "7/6", "x", "1"} {
		if ok, err := run(t.Context(), t.Output(), "^spare-", part, 1, ""); ok || err == nil || !strings.Contains(err.Error(), "-part") {
			t.Errorf("part %q: %t, %v", part, ok, err)
		}
	}
}
