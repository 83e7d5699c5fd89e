package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// drainCase is a backlog and how to drain it.
type drainCase struct {
	name, target string
	backlog      int
	body         int    // bytes
	keys         int    // 0 = unkeyed
	route        string // empty = the default route
	hot          bool   // half of the backlog has one key
	pipelined    bool   // keys are, and the raw limit does not wait for confirms either
	relays       int
	oldSnapshot  bool
	nowhere      bool           // the publisher does nothing
	bus          core.Publisher // if not nil: instead of RabbitMQ
	prefix       string         // of keys; default key
	sampled      int            // one message in so many is in a sampled trace; 0 = none has a trace
	telemetry    *providers     // nil: the global ones
	curve        *[]float64     // if not nil: the rate of each tenth
}

func drainDefault(ctx context.Context, env *servers, s scale) ([]row, error) {
	return drainRow(ctx, env, s, drainCase{name: "drain, 256-byte bodies", target: "≥ 0.92", backlog: s.backlog, body: 256, relays: 1})
}

func drainKeyed(ctx context.Context, env *servers, s scale) ([]row, error) {
	return drainRow(ctx, env, s, drainCase{name: "drain, 1,000 keys", target: "≥ 0.85", backlog: s.backlog, body: 256, keys: 1000, relays: 1})
}

// drainHotKey drains a backlog in which half of the messages have one key. These go one by one, as in the raw
// limit here.
func drainHotKey(ctx context.Context, env *servers, s scale) ([]row, error) {
	return drainRow(ctx, env, s, drainCase{name: "drain, one hot key holds half", target: "reported", backlog: s.backlog, body: 256, keys: 1000, hot: true, relays: 1})
}

// drainHotKeyPipelined is drainHotKey with Options.PipelineKeys.
func drainHotKeyPipelined(ctx context.Context, env *servers, s scale) ([]row, error) {
	c := drainCase{name: "drain, one hot key holds half, PipelineKeys", target: "reported", backlog: s.backlog, body: 256, keys: 1000, hot: true, pipelined: true, relays: 1}
	return drainRow(ctx, env, s, c)
}

func drainLarge(ctx context.Context, env *servers, s scale) ([]row, error) {
	return drainRow(ctx, env, s, drainCase{name: "drain, 1.5 kB bodies", target: "reported", backlog: s.backlog, body: 1500, relays: 1})
}

func drainTwoRelays(ctx context.Context, env *servers, s scale) ([]row, error) {
	return drainRow(ctx, env, s, drainCase{name: "drain, two relays", target: "reported", backlog: s.backlog, body: 256, relays: 2})
}

func drainRow(ctx context.Context, env *servers, s scale, c drainCase) ([]row, error) {
	r, err := pairs(ctx, s.pairs,
		func(ctx context.Context) (sample, error) {
			raw := rawPublish
			if c.hot && !c.pipelined {
				raw = rawHotKey
			}
			return withQueue(ctx, env, c.backlog, func() (sample, error) { return raw(ctx, env.url, c.backlog, make([]byte, c.body)) })
		},
		func(ctx context.Context) (sample, error) { return drain(ctx, env, c) })
	r.name, r.unit, r.target = c.name, "msg/s", c.target
	return []row{r}, err
}

// drainOldSnapshot compares the drain of 200,000 rows with and without a session that holds an old snapshot open: here
// the raw limit is the drain without it.
func drainOldSnapshot(ctx context.Context, env *servers, s scale) ([]row, error) {
	var curve []float64
	with := drainCase{backlog: 2 * s.backlog, body: 256, relays: 1, oldSnapshot: true, curve: &curve}
	without := drainCase{backlog: 2 * s.backlog, body: 256, relays: 1}
	r, err := pairs(ctx, s.pairs,
		func(ctx context.Context) (sample, error) { return drain(ctx, env, without) },
		func(ctx context.Context) (sample, error) { return drain(ctx, env, with) })
	r.name, r.unit, r.target = "drain with an old snapshot held, against without", "msg/s", "≥ 0.95, no downward curve"
	r.note = fmt.Sprintf("msg/s of each tenth of the last run: %.0f", curve)
	return []row{r}, err
}

func withQueue(ctx context.Context, env *servers, n int, f func() (sample, error)) (s sample, err error) {
	drop, err := env.queue(ctx, "bench")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, drop()) }()
	if s, err = f(); err != nil {
		return s, err
	}
	return s, env.expect("bench", n)
}

// drain stages a backlog, then measures relays with default options from their start until the last confirm.
func drain(ctx context.Context, env *servers, c drainCase) (sample, error) {
	in := func(run func() (sample, error)) (sample, error) { return withQueue(ctx, env, c.backlog, run) }
	if c.nowhere || c.bus != nil {
		in = func(run func() (sample, error)) (sample, error) { return run() }
	}
	return in(func() (s sample, err error) {
		db, err := env.database(ctx, postgres.Options{})
		if err != nil {
			return s, err
		}
		defer db.close(ctx)
		if c.oldSnapshot {
			end, err := holdSnapshot(ctx, db)
			if err != nil {
				return s, err
			}
			defer end()
		}
		if err := stageBacklog(ctx, db, c); err != nil {
			return s, err
		}
		return runRelays(ctx, env, db, c)
	})
}

func stageBacklog(ctx context.Context, db *database, c drainCase) error {
	const batch = 1000
	msgs := make([]waybill.Message, 0, batch)
	var opts []waybill.MessageOption
	if c.route != "" {
		opts = append(opts, waybill.Routes(c.route))
	}
	for i := 0; i < c.backlog; i += len(msgs) {
		msgs = msgs[:0]
		for j := range min(batch, c.backlog-i) {
			m := waybill.RawMessage("bench.topic", "application/octet-stream", make([]byte, c.body), opts...)
			if c.keys > 0 {
				m.Key = fmt.Sprintf("%s-%d", cmp.Or(c.prefix, "key"), (i+j)%c.keys)
				if c.hot && (i+j)%2 == 0 {
					m.Key = "hot"
				}
			}
			if n := i + j + 1; c.sampled > 0 {
				m.TraceParent = traceParent(n, n%c.sampled == 0)
			}
			msgs = append(msgs, m)
		}
		err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
			_, err := db.outbox.Stage(ctx, tx, msgs...)
			return err
		})
		if err != nil {
			return err
		}
	}
	_, err := db.pool.Exec(ctx, `ANALYZE waybill.waybill_outbox`)
	if err == nil {
		_, err = db.pool.Exec(ctx, `CHECKPOINT`)
	}
	return err
}

func runRelays(ctx context.Context, env *servers, db *database, c drainCase) (s sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	count := &counter{backlog: c.backlog, each: max(c.backlog/10, 1), all: make(chan struct{})}
	before, started := readCPU(), time.Now()
	g, gctx := errgroup.WithContext(ctx)
	runCtx, stop := context.WithCancel(gctx)
	defer stop()
	for range c.relays {
		outbox, err := db.open(postgres.Options{})
		if err != nil {
			return s, err
		}
		var to core.Publisher = nowhere{}
		if c.bus != nil {
			to = c.bus
		} else if !c.nowhere {
			bus, err := rabbitmq.Dial(ctx, env.url, rabbitmq.Options{Exchange: "bench", PipelineKeys: c.pipelined})
			if err != nil {
				return s, err
			}
			defer bus.Close(ctx) //nolint:errcheck // everything is confirmed
			to = bus
		}
		opts := relay.Options{}
		if p := c.telemetry; p != nil {
			opts.MeterProvider, opts.TracerProvider = p.meter, p.tracer
		}
		r, err := relay.New(outbox, &counted{to, count}, opts)
		if err != nil {
			return s, err
		}
		g.Go(func() error { return r.Run(runCtx) })
	}
	select {
	case <-count.all:
	case <-gctx.Done():
		return s, errors.Join(fmt.Errorf("published %d of %d", count.total(), c.backlog), context.Cause(gctx))
	}
	took := time.Since(started)
	s = sample{value: float64(c.backlog) / took.Seconds(), msgs: c.backlog, cpu: readCPU().since(before)}
	if c.curve != nil {
		*c.curve = rates(started, count.marks, c.backlog/10)
	}
	stop()
	return s, g.Wait()
}

// counter counts confirmed messages over all relays, and notes when each tenth of them was there.
type counter struct {
	backlog, each int
	all           chan struct{}

	mu    sync.Mutex
	n     int
	marks []time.Time
}

func (c *counter) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range n {
		if c.n++; c.n%c.each == 0 {
			c.marks = append(c.marks, time.Now())
		}
		if c.n == c.backlog {
			close(c.all)
		}
	}
}

func (c *counter) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// counted is a publisher that counts.
type counted struct {
	core.Publisher
	count *counter
}

func (c *counted) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	res := c.Publisher.Publish(ctx, batch)
	c.count.add(len(res) - res.Failed())
	return res
}

// Unwrap lets the relay find the publisher's capabilities.
func (c *counted) Unwrap() any { return c.Publisher }

func rates(start time.Time, marks []time.Time, each int) []float64 {
	var out []float64
	for _, m := range marks {
		out = append(out, float64(each)/m.Sub(start).Seconds())
		start = m
	}
	return out
}
