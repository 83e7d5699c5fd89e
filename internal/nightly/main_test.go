package main

import (
	"bytes"
	"context"
	"fmt"
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
	sh := func(name, script string) step {
		return step{name: name, random: true, command: []string{"sh", "-c", script}}
	}
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
	if len(lines) != 6 {
		t.Fatalf("not a line for each run and a table of three:\n%s", &out)
	}
	bad, good, newer := strings.Fields(lines[3]), strings.Fields(lines[4]), lines[5]
	if bad[3] != "1" || bad[4] != "1" || good[3] != "1" || good[4] != "0" || !strings.Contains(newer, "did not run") {
		t.Errorf("table:\n%s", &out)
	}
	if !strings.HasSuffix(lines[3], ".log: sh -c 'echo because; exit 3'") {
		t.Errorf("no command that repeats it: %s", lines[3])
	}
	if text, err := os.ReadFile(strings.TrimSuffix(bad[6], ":")); err != nil || string(text) != "because\n" {
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
	for _, s := range steps("1/1") {
		if seen[s.name] {
			t.Errorf("two steps are named %q", s.name)
		}
		seen[s.name] = true
	}
	if n := len(selected(steps("1/1"), "histories")); n < 4 || n == len(steps("1/1")) {
		t.Errorf("-only histories selects %d of %d", n, len(steps("1/1")))
	}
}

// A night has a million keys wait in one way, another one each time, and a long run in all ways.
func TestMillionKeysTakeTurns(t *testing.T) {
	seen := map[string]bool{}
	for _, part := range []string{"1/6", "2/6", "3/6", "4/6", "5/6", "6/6", "1/1"} {
		seen[millionKeys(part).env[0]] = true
	}
	if len(seen) != 7 || !seen["WAYBILL_MILLION=all"] {
		t.Errorf("the ways of six nights and a long run are %v", seen)
	}
}

// Each test of a bad day is in a step.
func TestEveryBadDayIsRepeated(t *testing.T) {
	files, err := filepath.Glob("../tests/outages/*_test.go")
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
			if !slices.ContainsFunc(repeated, func(s step) bool {
				at := slices.Index(s.command, "-run")
				return slices.Contains(s.command, "./internal/tests/outages") && regexp.MustCompile(s.command[at+1]).Match(m[1])
			}) {
				t.Errorf("no step repeats %s", m[1])
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d tests were found", found)
	}
}

// A step that runs once does so although there is time, and each package that go test names has a line.
func TestOnce(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	s := step{name: "once", command: []string{"sh", "-c", `printf 'ok  \tgithub.com/waybill-go/waybill/relay\t1.5s\nFAIL\tx/y\t0.1s\n'`}}
	var out bytes.Buffer
	if ok, err := run(t.Context(), &out, []step{s}, "", time.Now().Add(time.Hour)); !ok || err != nil {
		t.Errorf("%t, %v", ok, err)
	}
	text := out.String()
	if n := strings.Count(text, "once: passed"); n != 1 {
		t.Errorf("it ran %d times:\n%s", n, text)
	}
	for _, line := range []string{`(?m)^  relay +0 +1\.5s`, `(?m)^  x/y +1 +0\.1s`} {
		if !regexp.MustCompile(line).MatchString(text) {
			t.Errorf("no line for %s:\n%s", line, text)
		}
	}
}

// The first part has every module, and six nights have every fuzz target.
func TestEveryModule(t *testing.T) {
	t.Chdir("../..")
	var dirs []string
	if found := fuzzing(); len(found) < 15 {
		t.Errorf("only %d fuzz targets are steps", len(found))
	} else {
		seen := map[string]bool{}
		for k := range 6 {
			for _, s := range share(found, fmt.Sprintf("%d/6", k+1)) {
				seen[s.name] = true
			}
		}
		if len(seen) != len(found) || len(share(found, "1/1")) != len(found) {
			t.Errorf("six nights have %d of %d fuzz targets, a long one %d", len(seen), len(found), len(share(found, "1/1")))
		}
	}
	for _, s := range once("1/1") {
		if dir, race := strings.CutPrefix(s.name, "race: "); race {
			dirs = append(dirs, dir)
		}
	}
	for _, dir := range []string{".", "contrib/kafka", "contrib/mysql", "contrib/nats", "contrib/gorm", "examples/orms", "bench"} {
		if !slices.Contains(dirs, dir) {
			t.Errorf("no step runs %s: %q", dir, dirs)
		}
	}
}

// Six nights run all parts of the mutants, and a long one runs all of them.
func TestPartOf(t *testing.T) {
	t.Parallel()
	day, parts := time.Date(2026, 12, 29, 0, 0, 0, 0, time.UTC), map[string]bool{}
	for i := range 6 {
		parts[partOf(day.AddDate(0, 0, i-4), 90*time.Minute)] = true
	}
	if len(parts) != 6 || !parts["1/6"] || !parts["6/6"] {
		t.Errorf("six nights have the parts %v", parts)
	}
	if p := partOf(day, 8*time.Hour); p != "1/1" {
		t.Errorf("a run of 8 hours has the part %s", p)
	}
}
