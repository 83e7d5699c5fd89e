package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
)

func main() {
	pattern := flag.String("run", "", "only the mutants whose id matches this regular expression")
	part := flag.String("part", "1/1", "only part k of n, as k/n: every n-th mutant")
	jobs := flag.Int("j", 2, "how many run at a time")
	out := flag.String("out", "", "write the table to this file; mutants that do not run keep their lines")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx, os.Stdout, *pattern, *part, *jobs, *out)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if err != nil || !ok {
		stop()
		os.Exit(1)
	}
}

// run runs the selected mutants, prints what became of each, and writes the page. It reports whether the tests noticed
// all of them.
func run(ctx context.Context, w io.Writer, pattern, part string, jobs int, out string) (bool, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return false, fmt.Errorf("waybill/mutants: -run: %w", err)
	}
	var k, n int
	if _, err := fmt.Sscanf(part, "%d/%d", &k, &n); err != nil || k < 1 || k > n {
		return false, fmt.Errorf("waybill/mutants: -part %q: want k/n, with k from 1 to n", part)
	}
	var some []mutant
	for i, m := range list() {
		if re.MatchString(m.id) && i%n == k-1 {
			some = append(some, m)
		}
	}
	if len(some) == 0 {
		return false, errors.New("waybill/mutants: no such mutant")
	}
	root, err := filepath.Abs(".")
	if err != nil {
		return false, fmt.Errorf("waybill/mutants: %w", err)
	}
	rows := map[string]row{}
	if out != "" {
		page, err := os.ReadFile(out)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, fmt.Errorf("waybill/mutants: -out: %w", err)
		}
		rows = read(string(page))
	}
	ok, text := true, ""
	try(ctx, &lab{root: root, some: some}, max(jobs, 1), func(r result) {
		if ctx.Err() != nil {
			return
		}
		_, _ = fmt.Fprintln(w, r)
		ok = add(rows, []result{r}) && ok
		if text = write(list(), rows); out != "" { // after each, since all take long
			err = errors.Join(err, os.WriteFile(out, []byte(text), 0o600))
		}
	})
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("waybill/mutants: %w", err)
	}
	_, _ = fmt.Fprint(w, "\n", text[strings.LastIndex(strings.TrimSpace(text), "\n")+1:])
	return ok, err
}

// try runs mutants, some at a time, and says what became of each, one after the other. Those that need a server run one
// after the other.
func try(ctx context.Context, l *lab, jobs int, say func(result)) {
	some := l.some
	var mu sync.Mutex
	one := func(i int) {
		r := l.run(ctx, &some[i])
		mu.Lock()
		defer mu.Unlock()
		say(r)
	}
	var all sync.WaitGroup
	turn := make(chan struct{}, jobs)
	for i := range some {
		if some[i].server {
			continue
		}
		turn <- struct{}{}
		all.Go(func() {
			defer func() { <-turn }()
			one(i)
		})
	}
	all.Wait()
	for i := range some {
		if some[i].server {
			one(i)
		}
	}
}
