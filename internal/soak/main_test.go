package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// A failed step fails the run, does not end it, and leaves its output; steps go on until the time is over; what cannot
// run is said.
func TestRun(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	sh := func(name, script string) step { return step{name: name, command: []string{"sh", "-c", script}} }
	counted := t.TempDir() + "/count"
	all := []step{
		sh("bad", "echo because; exit 3"),
		sh("good", "echo x >> "+counted),
		sh("new", "exit 1").onNewer(),
	}
	var out bytes.Buffer
	ok, err := run(t.Context(), &out, all, "", time.Now().Add(-time.Second))
	if ok || err != nil {
		t.Fatalf("%t, %v: one failed", ok, err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 5 {
		t.Fatalf("not a line for the failure and a table of three:\n%s", &out)
	}
	bad, good, newer := strings.Fields(lines[2]), strings.Fields(lines[3]), lines[4]
	if bad[3] != "1" || bad[4] != "1" || good[3] != "1" || good[4] != "0" || !strings.Contains(newer, "did not run") {
		t.Errorf("table:\n%s", &out)
	}
	if text, err := os.ReadFile(bad[len(bad)-1]); err != nil || string(text) != "because\n" {
		t.Errorf("output of the failed run: %q, %v", text, err)
	}

	ok, err = run(t.Context(), &out, all[1:2], "", time.Now().Add(time.Hour/3600))
	if text, _ := os.ReadFile(counted); !ok || err != nil || len(text) <= 4 {
		t.Errorf("%t, %v, %d runs in all, want more than two", ok, err, len(text)/2)
	}
	if ok, err := run(t.Context(), &out, nil, "", time.Now()); ok || err == nil {
		t.Error("nothing to run is no success")
	}
}

// Ctrl-C ends the step that runs, and the table is still printed.
func TestInterrupted(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	ready := t.TempDir() + "/ready"
	go func() {
		for {
			if _, err := os.Stat(ready); err == nil {
				cancel()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	var out bytes.Buffer
	if ok, err := run(ctx, &out, []step{{name: "long", command: []string{"sh", "-c", "touch " + ready + "; sleep 1000; true"}}}, "", time.Now().Add(time.Hour)); ok || err != nil {
		t.Errorf("%t, %v", ok, err)
	}
	if !strings.Contains(out.String(), "step ") {
		t.Errorf("no table:\n%s", &out)
	}
}

// The names of the steps are the names of their files.
func TestNamesDiffer(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range steps {
		if seen[s.name] {
			t.Errorf("two steps are named %q", s.name)
		}
		seen[s.name] = true
	}
	if n := len(selected(steps, "histories")); n < 4 || n == len(steps) {
		t.Errorf("-only histories selects %d of %d", n, len(steps))
	}
}

// Each test of a bad day is in a step.
func TestEveryBadDayIsRepeated(t *testing.T) {
	files, err := filepath.Glob("../badday/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(t `).FindAllSubmatch(text, -1) {
			found++
			if !slices.ContainsFunc(steps, func(s step) bool {
				at := slices.Index(s.command, "-run")
				return slices.Contains(s.command, "./internal/badday") && regexp.MustCompile(s.command[at+1]).Match(m[1])
			}) {
				t.Errorf("no step repeats %s", m[1])
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d tests were found", found)
	}
}
