package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	duration := flag.Duration("for", 90*time.Minute, "how long; every step runs at least once")
	newer := flag.String("newer", "", "root file system with newer servers (scripts/newer)")
	only := flag.String("only", "", "run only the steps whose name contains this")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx, os.Stdout, selected(steps(partOf(time.Now(), *duration)), *only), *newer, time.Now().Add(*duration))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if err != nil || !ok {
		stop()
		os.Exit(1)
	}
}

func selected(all []step, only string) []step {
	return slices.DeleteFunc(slices.Clone(all), func(s step) bool { return !strings.Contains(s.name, only) })
}

// result is a line of the table.
type result struct {
	runs, failed int
	took         time.Duration
	packages     []string // of the last run, as go test prints them
	logs         []string // of the failed runs
}

// run runs the steps, repeats the random ones until the time is over, and prints the table. It reports whether every
// run passed.
func run(ctx context.Context, out io.Writer, all []step, newer string, until time.Time) (bool, error) {
	if len(all) == 0 {
		return false, errors.New("waybill/nightly: no such step")
	}
	dir, err := os.MkdirTemp("", "waybill-nightly-")
	if err != nil {
		return false, fmt.Errorf("waybill/nightly: %w", err)
	}
	results := make([]result, len(all))
	for round := 1; ctx.Err() == nil && (round == 1 || time.Now().Before(until)); round++ {
		ran := false
		for i, s := range all {
			if ctx.Err() != nil || s.newer && newer == "" || round > 1 && (!s.random || !time.Now().Before(until)) {
				continue
			}
			ran = true
			log := filepath.Join(dir, fmt.Sprintf("%s-%d.log", strings.NewReplacer(" ", "-", ":", "", "/", "-").Replace(s.name), round))
			start := time.Now()
			err := s.run(ctx, newer, log)
			results[i].add(err, time.Since(start), log)
			if err != nil {
				_, _ = fmt.Fprintf(out, "%s: %v: see %s\n", s.name, err, log)
			} else {
				_, _ = fmt.Fprintf(out, "%s: passed after %s\n", s.name, time.Since(start).Round(time.Second))
				_ = os.Remove(log)
			}
		}
		if !ran {
			break
		}
	}
	_ = os.Remove(dir) // if it is empty
	return table(out, all, results), nil
}

// packageLine is what go test prints of a package that it ran.
var packageLine = regexp.MustCompile(`(?m)^(?:ok|FAIL)\s+\S+\s+[0-9.]+s`)

func (r *result) add(err error, took time.Duration, log string) {
	r.runs++
	r.took += took
	text, _ := os.ReadFile(log)
	if found := packageLine.FindAllString(string(text), -1); len(found) > 1 {
		r.packages = found
	}
	if err != nil {
		r.failed++
		r.logs = append(r.logs, log)
	}
}

// table prints a line for each step, and reports whether all that ran passed.
func table(out io.Writer, all []step, results []result) bool {
	ok := true
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "step\tservers\truns\tfailed\ttime\toutput of failed runs, and the command that repeats them")
	for i, s := range all {
		servers := "this machine's"
		if s.newer {
			servers = "newer"
		}
		r := results[i]
		if r.runs == 0 {
			_, _ = fmt.Fprintf(w, "%s\t%s\tdid not run\t\t\t\n", s.name, servers)
			continue
		}
		again := ""
		if r.failed > 0 {
			ok, again = false, strings.Join(r.logs, " ")+": "+s.String()
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\n", s.name, servers, r.runs, r.failed, r.took.Round(time.Second), again)
		for _, line := range r.packages {
			fields := strings.Fields(line)
			failed := map[string]string{"ok": "0", "FAIL": "1"}[fields[0]]
			_, _ = fmt.Fprintf(w, "  %s\t\t\t%s\t%s\t\n", strings.TrimPrefix(fields[1], "github.com/waybill-go/waybill/"), failed, fields[2])
		}
	}
	_ = w.Flush()
	return ok
}

// String is the command line that repeats the step.
func (s step) String() string {
	words := slices.Clone(s.env)
	if s.newer {
		words = append(words, "WAYBILL_TEST_ROOT=$(scripts/newer)")
	}
	for _, word := range s.command {
		if strings.ContainsAny(word, "^$|() ") {
			word = "'" + word + "'"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// run runs the step once. Its output goes to the file log.
func (s step) run(ctx context.Context, newer, log string) error {
	f, err := os.Create(log)
	if err != nil {
		return fmt.Errorf("waybill/nightly: %w", err)
	}
	defer func() { _ = f.Close() }()
	cmd := exec.CommandContext(ctx, s.command[0], s.command[1:]...)
	cmd.Stdout, cmd.Stderr = f, f
	cmd.Env = append(append(os.Environ(), "WAYBILL_TEST_NIGHTLY=1"), s.env...)
	if s.newer {
		// the machine's own servers, if variables name them, are the older ones
		cmd.Env = append(cmd.Env, "WAYBILL_TEST_ROOT="+newer, "WAYBILL_TEST_DIR=/dev/shm", "WAYBILL_TEST_POSTGRES=", "WAYBILL_TEST_RABBITMQ=", "WAYBILL_TEST_RABBITMQ_MANAGEMENT=", "WAYBILL_TEST_REDIS=")
	}
	// go test and go run do not pass a signal on: the group gets it
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("waybill/nightly: %w", err)
	}
	return nil
}
