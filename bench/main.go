// Command bench measures Waybill beside the raw limit of its servers, in interleaved pairs in one run, and writes a
// Markdown table. Absolute figures depend on the machine; the ratios hardly do. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strings"
	"time"
)

func main() {
	var (
		only  = flag.String("only", "", "run only the benchmarks of these names, separated by commas")
		brief = flag.Bool("brief", false, "run everything once, shortly: it shows that the benchmarks work, not how fast anything is")
		pairs = flag.Int("pairs", 5, "interleaved pairs a benchmark")
		out   = flag.String("out", "", "also write the table to this file")
		sizes = flag.String("sizing", "", "measure the tables of the sizing guide instead, and rewrite them in this file")
		page  = flag.String("systems", "", "measure outboxes for Python instead, and rewrite their table in this file; see -python")
		py    = flag.String("python", "python3", "for -systems: an interpreter with what systems/requirements.txt names")
		part  = flag.Int("part", 1, "for -sizing on a machine that is busy: so many times fewer messages")
		prof  = flag.String("cpuprofile", "", "write a CPU profile of this process to this file")
	)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})))
	s := fullScale(*pairs)
	if *brief {
		s = briefScale()
	}
	err := profiled(*prof, func() error {
		if *sizes != "" {
			return size(ctx, *sizes, *part, *brief)
		}
		if *page != "" {
			return compare(ctx, *page, *py, s)
		}
		return run(ctx, *only, s, *out)
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// profiled runs fn, under the profiler if file is not empty.
func profiled(file string, fn func() error) error {
	if file == "" {
		return fn()
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return err
	}
	err = fn()
	pprof.StopCPUProfile()
	return errors.Join(err, f.Close())
}

// scale is how much to measure.
type scale struct {
	pairs   int
	backlog int           // messages a drain
	paced   time.Duration // length of a latency run
	load    time.Duration // length of a run with concurrent producers
	txs     int           // transactions a stage measurement
	consume int           // messages a consume run
	timers  time.Duration // length of a run with 100 timers a second
	hot     time.Duration // length of a run behind a hot key
	passed  int           // messages that pass before a run under an old snapshot
	disk    time.Duration // length of a run that watches the size on disk
	many    int           // records of the larger outbox, where two sizes are compared
	timeout time.Duration // statement_timeout of the role, where one is set
}

func briefScale() scale {
	return scale{
		pairs: 1, backlog: 2000, paced: time.Second, load: 500 * time.Millisecond, txs: 20, consume: 500, timers: time.Second,
		hot: time.Second, passed: 2000, disk: time.Second, many: 20_000, timeout: 5 * time.Second,
	}
}

func fullScale(pairs int) scale {
	return scale{
		pairs: pairs, backlog: 100_000, paced: 15 * time.Second, load: 5 * time.Second, txs: 400, consume: 20_000, timers: 10 * time.Second,
		hot: 30 * time.Second, passed: 1_000_000, disk: 10 * time.Minute, many: 10_000_000, timeout: 250 * time.Millisecond,
	}
}

// benchmark measures one thing and returns rows of the table.
type benchmark struct {
	name string
	run  func(ctx context.Context, env *servers, s scale) ([]row, error)
}

func benchmarks() []benchmark {
	return []benchmark{
		{"drain", drainDefault},
		{"drain-keyed", drainKeyed},
		{"drain-hot-key", drainHotKey},
		{"drain-hot-key-pipelined", drainHotKeyPipelined},
		{"drain-1500", drainLarge},
		{"drain-two-relays", drainTwoRelays},
		{"drain-old-snapshot", drainOldSnapshot},
		{"drain-redis", drainRedis},
		{"drain-kafka", drainKafka},
		{"telemetry", telemetryCost},
		{"relays", withoutBroker},
		{"hot-front", hotFront},
		{"stage", stageCost},
		{"stage-concurrent", stageConcurrent},
		{"latency", latency},
		{"latency-kafka", latencyKafka},
		{"latency-old-snapshot", latencyOldSnapshot},
		{"latency-open-transaction", latencyOpenTransaction},
		{"queue-old-snapshot", queueOldSnapshot},
		{"disk", disk},
		{"disk-steady", diskSteady},
		{"buffers", buffers},
		{"consume", consume},
		{"consume-batch", consumeBatch},
		{"timers", timers},
		{"far-drain", from(farDrain)},
		{"far-latency", from(farLatency)},
		{"far-stage", from(farStage)},
	}
}

func run(ctx context.Context, only string, s scale, out string) error {
	env, err := openServers(ctx)
	if err != nil {
		return err
	}
	defer env.close()
	w := io.Writer(os.Stdout)
	if out != "" {
		f, err := os.Create(out)
		if err != nil {
			return err
		}
		defer f.Close() //nolint:errcheck // written through
		w = io.MultiWriter(w, f)
	}
	if _, err := fmt.Fprintf(w, "%d interleaved pairs; medians; CPU is user and system time per 1,000 messages.\n\n"+
		"| benchmark | Waybill | raw limit in the same run | ratio | target | CPU s / 1,000: Waybill (process + Postgres + RabbitMQ) | raw |\n|---|---|---|---|---|---|---|\n", s.pairs); err != nil {
		return err
	}
	for _, b := range benchmarks() {
		if !selected(only, b.name) {
			continue
		}
		rows, err := b.run(ctx, env, s)
		if err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
		for _, r := range rows {
			if _, err := fmt.Fprintln(w, r.markdown()); err != nil {
				return err
			}
		}
	}
	return nil
}

func selected(only, name string) bool {
	return only == "" || slices.Contains(strings.Split(only, ","), name)
}
