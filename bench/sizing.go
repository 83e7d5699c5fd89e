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
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill/store/postgres"
)

// cell is one run of waybill bench.
type cell struct {
	name     string
	consumed bool     // by a consumer with inbox; else the messages stay in a quorum queue
	messages int      // 0 = as usual
	args     []string // beside the usual ones; the last one of a flag wins
	settings []string // as path=value

	// the measured figures
	got     benchOutput
	servers time.Duration // CPU time of Postgres and RabbitMQ for 1,000 messages, staging included
	raw     float64       // the limit that it is compared with; 0 = that of the run
}

// benchOutput is what waybill bench --json shows, as far as it is used here.
type benchOutput struct {
	Staged, Again int
	Drain, Paced  struct {
		PerSecond float64       `json:"per_second"`
		CPU       time.Duration `json:"cpu_ns_per_1000"`
		Took      struct {
			P50  time.Duration `json:"p50_ns"`
			P99  time.Duration `json:"p99_ns"`
			P999 time.Duration `json:"p999_ns"`
		}
	}
}

// sizer runs cells against servers of its own.
type sizer struct {
	env     *servers
	waybill string // the command
	brief   bool
	part    int    // a part-th of the messages
	load    string // of the machine before it began, over the last minute
}

// size measures the tables of the sizing guide and writes them between the marks of page.
func size(ctx context.Context, page string, part int, brief bool) error {
	dir, err := os.MkdirTemp("", "waybill-sizing-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	z := &sizer{waybill: filepath.Join(dir, "waybill"), brief: brief, part: max(part, 1), load: "unknown"}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		z.load, _, _ = strings.Cut(string(b), " ")
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", z.waybill, "./cmd/waybill")
	build.Dir, build.Stderr = "..", os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("go build ./cmd/waybill: %w", err)
	}
	if z.env, err = openServers(ctx); err != nil {
		return err
	}
	defer z.env.close()
	text, err := z.tables(ctx)
	if err != nil {
		return err
	}
	return rewrite(page, text)
}

// The messages of a cell, unless it says otherwise: with consumers, without, and those at a steady rate.
const (
	consumedMessages  = 8000
	confirmedMessages = 30_000
	pacedMessages     = 1000
)

// some is the part of n messages that this run takes; a brief run takes next to none.
func (z *sizer) some(n int) int {
	if z.brief {
		return min(n, 100)
	}
	return max(n/z.part, min(n, 200))
}

// run measures c on a fresh database, and checks that each message is there exactly as often as the command says.
func (z *sizer) run(ctx context.Context, c *cell) (err error) {
	db, err := z.env.database(ctx, postgres.Options{})
	if err != nil {
		return err
	}
	defer db.close(ctx)
	messages := c.messages
	args := []string{"bench", "--json", "--transport", "bus", "--per-transaction", "1000", "--rate", "400", "--paced", strconv.Itoa(z.some(pacedMessages))}
	if c.consumed {
		if messages == 0 {
			messages = consumedMessages
		}
		args = append(args, "--consumers", "1", "--inbox")
	} else {
		if messages == 0 {
			messages = confirmedMessages
		}
		args = append(args, "--topic", "sizing")
		drop, err := z.env.queue(ctx, "sizing")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, drop()) }()
	}
	args = append(append(args, "--messages", strconv.Itoa(z.some(messages))), c.args...)
	for _, s := range append([]string{"stores.shop.kind=postgres", "transports.bus.kind=rabbitmq", "transports.bus.exchange=bench"}, c.settings...) {
		args = append(args, "--set", s)
	}
	and := "?"
	if strings.Contains(db.pg.DSN, "?") {
		and = "&"
	}
	cmd := exec.CommandContext(ctx, z.waybill, args...)
	cmd.Env = append(os.Environ(), "WAYBILL_STORES__SHOP__URL="+db.pg.DSN+and+"pool_max_conns=64", "WAYBILL_TRANSPORTS__BUS__URL="+z.env.url)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	before := readCPU()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("waybill %s: %w\n%s", strings.Join(args, " "), err, errs.String())
	}
	used := readCPU().since(before)
	if err := json.Unmarshal(out.Bytes(), &c.got); err != nil {
		return err
	}
	c.servers = (used.postgres + used.rabbitmq) * 1000 / time.Duration(c.got.Staged)
	fmt.Fprintf(os.Stderr, "%-40s %8.0f msg/s\n", c.name+" "+strings.Join(c.args, " "), c.got.Drain.PerSecond)
	if c.consumed {
		return nil
	}
	return z.env.expect("sizing", c.got.Staged+c.got.Again)
}
