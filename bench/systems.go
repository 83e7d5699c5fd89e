package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/redisstreams"
	"github.com/waybill-go/waybill/transport/table"
)

// Three outboxes for Python, each draining a backlog from its own tables by its own code (systems/drain.py), in turns
// with Waybill on the same servers. The comparison page shows the table.

// system is one of them.
type system struct {
	name, version, settings string
	backlog                 int // messages: some need minutes for what others do in a second
	toRedis                 bool
	ours                    func(context.Context, *servers) (sample, error)
	oursSays                string
}

const systemsBacklog = 20_000 // of Waybill, and of the systems that drain it within a minute

func systems() []system {
	return []system{
		{
			name: "faststream", version: "faststream-outbox 0.19.0", settings: "its table as the queue; 8 workers, batches of 100", backlog: systemsBacklog,
			ours: func(ctx context.Context, env *servers) (sample, error) {
				return drainQueue(ctx, env, systemsBacklog, 8)
			}, oursSays: "table queue, 8 handlers",
		},
		{
			name: "forze", version: "forze 0.16.2", settings: "relay to RabbitMQ, pass after pass", backlog: 2000,
			ours: func(ctx context.Context, env *servers) (sample, error) {
				return drain(ctx, env, drainCase{backlog: systemsBacklog, body: 256, relays: 1})
			}, oursSays: "relay to RabbitMQ",
		},
		{
			name: "protean", version: "protean 0.18.0", settings: "server to Redis, with its start; 100 a tick, no pause", backlog: 1000, toRedis: true,
			oursSays: "relay to Redis",
		},
	}
}

// compare measures the systems with the Python interpreter, in whose environment they are, and rewrites the table of
// the page.
func compare(ctx context.Context, page, python string, s scale) (err error) {
	env, err := openServers(ctx)
	if err != nil {
		return err
	}
	defer env.close()
	var b strings.Builder
	fmt.Fprintf(&b, "Measured by `make systems` in %d interleaved pairs on %d processors; medians. Each system drains its own tables by its own\ncode. The processor seconds are those of the system and of Postgres, for 1,000 messages.\n\n", s.pairs, runtime.NumCPU())
	b.WriteString("| system | settings | messages/s | Waybill, no option set | messages/s | times | processor seconds: system, Waybill |\n|---|---|---|---|---|---|---|\n")
	for _, y := range systems() {
		r, err := y.measure(ctx, env, python, s)
		if err != nil {
			return fmt.Errorf("%s: %w", y.name, err)
		}
		ours, theirs := median(r.ours, value), median(r.raw, value)
		spent := func(all []sample) float64 {
			return median(all, func(one sample) float64 {
				return (one.cpu.self + one.cpu.postgres).Seconds() * 1000 / float64(one.msgs)
			})
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %.1f | %.2f, %.2f |\n", y.version, y.settings, rounded(theirs), y.oursSays, rounded(ours), ours/theirs, spent(r.raw), spent(r.ours))
	}
	return rewrite(page, b.String())
}

func (y system) measure(ctx context.Context, env *servers, python string, s scale) (r row, err error) {
	broker, ours, n := env.url, y.ours, y.backlog
	if y.toRedis {
		server, err := testenv.StartRedis(ctx, testenv.RedisOptions{Config: []string{"appendfsync everysec"}})
		if err != nil {
			return r, err
		}
		defer func() { err = errors.Join(err, server.Close()) }()
		bus, err := redisstreams.Dial(ctx, server.URL(), redisstreams.Options{})
		if err != nil {
			return r, err
		}
		defer bus.Close(ctx) //nolint:errcheck // everything is confirmed
		if _, err := bus.Subscribe(ctx, core.Subscription{Queue: redisQueue, Bindings: []string{"#"}}); err != nil {
			return r, err
		}
		broker = server.URL()
		ours = func(ctx context.Context, env *servers) (sample, error) {
			return drain(ctx, env, drainCase{backlog: systemsBacklog, body: 256, relays: 1, bus: bus})
		}
	}
	if s.pairs == 1 { // brief
		n = 100
	}
	return pairs(ctx, s.pairs,
		func(ctx context.Context) (sample, error) { return env.drainOf(ctx, y.name, python, broker, n) },
		func(ctx context.Context) (sample, error) { return ours(ctx, env) })
}

// drainOf lets a system drain n messages from a database of its own.
func (s *servers) drainOf(ctx context.Context, name, python, broker string, n int) (one sample, err error) {
	pg, err := s.pg.CreateDatabase(ctx)
	if err != nil {
		return one, err
	}
	defer func() { err = errors.Join(err, pg.Close(ctx)) }()
	runCtx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	url, _, _ := strings.Cut(pg.DSN, "?") // not every client knows the parameters
	cmd := exec.CommandContext(runCtx, python, "systems/drain.py", name, url, broker, strconv.Itoa(n))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return one, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return one, err
	}
	if err := cmd.Start(); err != nil {
		return one, err
	}
	lines := bufio.NewScanner(out)
	says := func(word string) bool {
		for lines.Scan() {
			if lines.Text() == word {
				return true
			}
		}
		return false
	}
	if !says("full") {
		return one, errors.Join(errors.New("it did not fill its tables"), cmd.Wait())
	}
	filling, before, started := usedBy(cmd.Process.Pid), readCPU(), time.Now()
	if _, err := fmt.Fprintln(in); err != nil {
		return one, errors.Join(err, cmd.Wait())
	}
	if !says("empty") {
		return one, errors.Join(errors.New("it did not drain its tables"), cmd.Wait())
	}
	took, spent := time.Since(started), readCPU().since(before)
	if err := cmd.Wait(); err != nil {
		return one, err
	}
	used := cmd.ProcessState.SysUsage().(*syscall.Rusage) //nolint:forcetypeassert // it is, on each Unix
	spent.self = time.Duration(used.Utime.Nano()+used.Stime.Nano()) - filling
	return sample{value: float64(n) / took.Seconds(), msgs: n, cpu: spent}, nil
}

// usedBy is the CPU time of a process and of its ended children.
func usedBy(pid int) time.Duration {
	for _, p := range processes() {
		if p.pid == pid {
			return p.used + p.children
		}
	}
	return 0
}

// drainQueue lets handlers that do nothing take n messages from a table queue, with no option set.
func drainQueue(ctx context.Context, env *servers, n, handlers int) (one sample, err error) {
	db, err := env.database(ctx, postgres.Options{})
	if err != nil {
		return one, err
	}
	defer db.close(ctx)
	if err := stageBacklog(ctx, db, drainCase{backlog: n, body: 256, route: "orders"}); err != nil {
		return one, err
	}
	queue, err := table.New(db.outbox, table.Options{})
	if err != nil {
		return one, err
	}
	con, err := consumer.New(queue, consumer.Options{})
	if err != nil {
		return one, err
	}
	var handled atomic.Int64
	all := make(chan struct{})
	err = con.Handle(waybill.Subscription{Queue: "orders", Concurrency: handlers}, waybill.Handler{Name: "bench.topic", Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) {
		if handled.Add(1) == int64(n) {
			close(all)
		}
		return 0, nil
	}})
	if err != nil {
		return one, err
	}
	before, started := readCPU(), time.Now()
	runCtx, stop := context.WithCancel(ctx)
	g, runCtx := errgroup.WithContext(runCtx)
	g.Go(func() error { return con.Run(runCtx) })
	defer func() { stop(); err = errors.Join(err, g.Wait(), queue.Close(ctx)) }()
	select {
	case <-all:
	case <-runCtx.Done():
		return one, context.Cause(runCtx)
	case <-time.After(5 * time.Minute):
		return one, fmt.Errorf("%d of %d messages handled within five minutes", handled.Load(), n)
	}
	return sample{value: float64(n) / time.Since(started).Seconds(), msgs: n, cpu: readCPU().since(before)}, nil
}
