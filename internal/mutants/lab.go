package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/waybill-go/waybill/internal/patience"
)

// verdict is what became of a mutant.
type verdict string

const (
	killed   verdict = "killed"
	survived verdict = "survived"
	hung     verdict = "hung"           // a test did not end: it has noticed, or the machine is slow
	unbuilt  verdict = "does not build" // the mutant is no Go
	invalid  verdict = "invalid"        // its text is not there once, or its tests fail or run nothing without it
)

// result is a line of the table.
type result struct {
	mutant
	verdict verdict
	by      string // the tests that failed, or why there is no verdict
	took    time.Duration
}

func (r result) String() string {
	return fmt.Sprintf("%-28s %-14s %5.1fs  %s", r.id, r.verdict, r.took.Seconds(), r.by)
}

const (
	hangs     = 2 * time.Minute // of tests that are not slow: they wait for a minute at most
	hangsSlow = 20 * time.Minute
	grace     = 5 * time.Minute // for the compiler, beside those
)

// lab runs tests on mutated files. It is safe for concurrent use.
type lab struct {
	root string
	some []mutant // all that are to run
	mu   sync.Mutex
	// sound are the packages whose tests ran without a mutant, and the faults of those runs.
	sound map[string]func() string
}

// apply returns the mutated text of m's file.
func (l *lab) apply(m *mutant) ([]byte, error) {
	src, err := os.ReadFile(filepath.Join(l.root, filepath.FromSlash(m.file)))
	if err != nil {
		return nil, err
	}
	if n := bytes.Count(src, []byte(m.old)); n != 1 {
		return nil, fmt.Errorf("%s has the text %d times: %s", m.file, n, m.old)
	}
	return bytes.Replace(src, []byte(m.old), []byte(m.new), 1), nil
}

// run returns the verdict of the tests on m.
func (l *lab) run(ctx context.Context, m *mutant) (r result) {
	began := time.Now()
	defer func() { r.took = time.Since(began) }()
	text, err := l.apply(m)
	if err != nil {
		return result{mutant: *m, verdict: invalid, by: err.Error()}
	}
	if problem := l.baseline(ctx, m); problem != "" {
		return result{mutant: *m, verdict: invalid, by: problem}
	}
	dir, err := os.MkdirTemp("", "waybill-mutant-")
	if err != nil {
		return result{mutant: *m, verdict: invalid, by: err.Error()}
	}
	defer func() { _ = os.RemoveAll(dir) }()
	overlay, err := writeOverlay(dir, filepath.Join(l.root, filepath.FromSlash(m.file)), text)
	if err != nil {
		return result{mutant: *m, verdict: invalid, by: err.Error()}
	}
	v, by := judge(l.test(ctx, m, "-overlay="+overlay))
	if err := ctx.Err(); err != nil { // the command was ended
		v, by = invalid, err.Error()
	}
	return result{mutant: *m, verdict: v, by: by}
}

// writeOverlay writes what has the compiler take text for a file.
func writeOverlay(dir, file string, text []byte) (string, error) {
	mutated, overlay := filepath.Join(dir, "mutated.go"), filepath.Join(dir, "overlay.json")
	b, err := json.Marshal(map[string]any{"Replace": map[string]string{file: mutated}})
	if err != nil {
		return "", err
	}
	return overlay, errors.Join(os.WriteFile(mutated, text, 0o600), os.WriteFile(overlay, b, 0o600))
}

// baseline runs the tests of all of m's package's mutants without them, once, and returns the fault of that run, if
// any.
func (l *lab) baseline(ctx context.Context, m *mutant) string {
	if m.gated {
		return ""
	}
	l.mu.Lock()
	if l.sound == nil {
		l.sound = map[string]func() string{}
	}
	once := l.sound[m.pkg]
	if once == nil {
		once = sync.OnceValue(func() string {
			all := *m
			all.tests, all.slow = l.testsOf(m), true
			if out, err := l.test(ctx, &all); err != nil {
				_, by := judge(out, err)
				return "the tests fail without it: " + by
			}
			return ""
		})
		l.sound[m.pkg] = once
	}
	l.mu.Unlock()
	return once()
}

// testsOf returns a pattern for the tests of all mutants that run tests of m's package.
func (l *lab) testsOf(m *mutant) string {
	all := []string{m.tests}
	for i := range l.some {
		if l.some[i].pkg == m.pkg {
			all = append(all, l.some[i].tests)
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), "|")
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// test runs m's tests.
func (l *lab) test(ctx context.Context, m *mutant, flags ...string) ([]byte, error) {
	limit := hangs
	if m.slow {
		limit = hangsSlow
	}
	dir, pkg := l.root, m.pkg
	// A module of its own is tested in its folder.
	if sub := filepath.Join(dir, filepath.FromSlash(pkg)); exists(filepath.Join(sub, "go.mod")) {
		dir, pkg = sub, "."
	}
	args := append([]string{"test", "-vet=off", "-failfast", "-timeout", limit.String(), "-run", m.tests}, flags...)
	args = append(append(args, pkg), m.args...)
	ctx, cancel := context.WithTimeout(ctx, limit+grace)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	// A test that waits in vain waits as long as on an idle machine, unless the command was told otherwise.
	cmd.Env = append([]string{patience.Variable + "=1"}, os.Environ()...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return append(out, "\npanic: test timed out\n"...), ctx.Err()
	}
	return out, err
}

var (
	failed   = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)
	running  = regexp.MustCompile(`(?m)^\s+(Test\S+) \(`)
	panicked = regexp.MustCompile(`(?m)^(?:panic|fatal error): (.+)$`)
)

// judge reads the output of tests.
func judge(out []byte, err error) (v verdict, by string) {
	names := map[string]bool{}
	for _, found := range failed.FindAllSubmatch(out, -1) {
		names[string(found[1])] = true
	}
	for name := range names { // a subtest says more than what it is part of
		for parent := range names {
			if strings.HasPrefix(name, parent+"/") {
				delete(names, parent)
			}
		}
	}
	by = first(names)
	switch {
	case err == nil && bytes.Contains(out, []byte("[no tests to run]")):
		return invalid, "no test matches"
	case err == nil:
		return survived, ""
	case by != "":
		return killed, by
	case bytes.Contains(out, []byte("[build failed]")), bytes.Contains(out, []byte("[setup failed]")):
		return unbuilt, lines(out, 3)
	case bytes.Contains(out, []byte("panic: test timed out")):
		for _, found := range running.FindAllSubmatch(out, -1) {
			names[string(found[1])] = true
		}
		return hung, first(names)
	}
	if found := panicked.FindSubmatch(out); found != nil {
		return killed, "panic: " + string(found[1])
	}
	return killed, lines(out, 1)
}

// first returns the first of names, and how many there are besides.
func first(names map[string]bool) string {
	all := make([]string, 0, len(names))
	for name := range names {
		all = append(all, name)
	}
	slices.Sort(all)
	switch len(all) {
	case 0:
		return ""
	case 1:
		return all[0]
	default:
		return fmt.Sprintf("%s and %d more", all[0], len(all)-1)
	}
}

// lines returns the last n lines of out.
func lines(out []byte, n int) string {
	all := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(all[max(len(all)-n, 0):], " | ")
}
