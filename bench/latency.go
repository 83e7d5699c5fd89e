package main

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
)

const pacedRate = 200 // messages a second

// latency measures at a paced rate: from the return of the commit to the arrival at a consumer, against a direct
// confirmed publish from its start to the arrival at the same kind of consumer. It does so for a relay that the
// database wakes, and for one in the producer's process that the producer wakes after its commit.
func latency(ctx context.Context, env *servers, s scale) ([]row, error) {
	p50 := row{name: "commit to arrival at 200 msg/s, p50, against a direct confirmed publish", unit: "ms", target: "≤ 1.6"}
	p99 := row{name: "commit to arrival at 200 msg/s, p99, against a direct confirmed publish", unit: "ms", target: "≤ 3 ms more"}
	cores := row{name: "cores of producers, relay and Postgres at 200 msg/s", unit: "cores", target: "≤ 0.35"}
	woken := row{name: "commit to arrival at 200 msg/s, woken by the producer, p50", unit: "ms", target: "≤ 1.2"}
	woken99 := row{name: "commit to arrival at 200 msg/s, woken by the producer, p99", unit: "ms", target: "reported"}
	saving99 := row{name: "commit to arrival at 200 msg/s, pacing saving, p99", unit: "ms", target: "≤ 50 ms"}
	savingCores := row{name: "cores of producers, relay and Postgres at 200 msg/s, pacing saving, against staging with no relay", unit: "cores", target: "≤ 0.15"}
	for range s.pairs {
		direct, one, err := measureLatency(ctx, env, s, directLatency)
		if err != nil {
			return nil, err
		}
		ours, two, err := measureLatency(ctx, env, s, outboxLatency(false, relay.PacingPrompt))
		if err != nil {
			return nil, err
		}
		waked, _, err := measureLatency(ctx, env, s, outboxLatency(true, relay.PacingPrompt))
		if err != nil {
			return nil, err
		}
		saved, three, err := measureLatency(ctx, env, s, outboxLatency(false, relay.PacingSaving))
		if err != nil {
			return nil, err
		}
		_, none, err := measureLatency(ctx, env, s, stagedAlone)
		if err != nil {
			return nil, err
		}
		for _, r := range []struct {
			to   *row
			ours []time.Duration
			p    float64
		}{{&p50, ours, 0.5}, {&p99, ours, 0.99}, {&woken, waked, 0.5}, {&woken99, waked, 0.99}, {&saving99, saved, 0.99}} {
			r.to.raw = append(r.to.raw, sample{value: percentile(direct, r.p).Seconds()})
			r.to.ours = append(r.to.ours, sample{value: percentile(r.ours, r.p).Seconds()})
		}
		cores.raw, cores.ours = append(cores.raw, sample{value: one}), append(cores.ours, sample{value: two})
		savingCores.raw, savingCores.ours = append(savingCores.raw, sample{value: none}), append(savingCores.ours, sample{value: three})
	}
	return []row{p50, p99, cores, woken, woken99, saving99, savingCores}, nil
}

// measureLatency also returns how many cores this process and Postgres used, the consumer that measures among them. A
// busy machine does not keep the pace: the cores are those of the pace.
func measureLatency(ctx context.Context, env *servers, s scale,
	run func(context.Context, *servers, scale) ([]time.Duration, error),
) ([]time.Duration, float64, error) {
	before := readCPU()
	ds, err := run(ctx, env, s)
	used := readCPU().since(before)
	return ds, (used.self + used.postgres).Seconds() / s.paced.Seconds(), err
}

// clocks holds when each message was sent and when it arrived.
type clocks struct {
	mu            sync.Mutex
	sent, arrived map[uint64]time.Time
	want          int
	all           chan struct{}
}

func newClocks(n int) *clocks {
	return &clocks{sent: make(map[uint64]time.Time, n), arrived: make(map[uint64]time.Time, n), want: n, all: make(chan struct{})}
}

func (c *clocks) note(m map[uint64]time.Time, i uint64, t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m[i] = t; len(c.sent) == c.want && len(c.arrived) == c.want {
		close(c.all)
	}
}

func (c *clocks) latencies() []time.Duration {
	var out []time.Duration
	for i, t := range c.arrived {
		if i >= uint64(c.want)/10 { // the first tenth warms up
			out = append(out, max(t.Sub(c.sent[i]), 0))
		}
	}
	return out
}

// arrivals consumes queue bench by amqp091-go and notes when messages arrive.
func arrivals(url string, c *clocks) (stop func() error, err error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, err
	}
	ch, err := conn.Channel()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	in, err := ch.Consume("bench", "", true, false, false, false, nil)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	go func() {
		for d := range in {
			c.note(c.arrived, binary.BigEndian.Uint64(d.Body), time.Now())
		}
	}()
	return conn.Close, nil
}

// paced sends messages at a rate, and returns how long each took to its arrival at queue bench.
func paced(ctx context.Context, env *servers, s scale, rate int, send func(i uint64, body []byte, c *clocks) error) (_ []time.Duration, err error) {
	drop, err := env.queue(ctx, "bench")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, drop()) }()
	return pacedTo(s, rate, func(c *clocks) (func() error, error) { return arrivals(env.url, c) }, send)
}

// pacedTo is paced for any broker: arrive notes what arrives, until it is stopped.
func pacedTo(s scale, rate int, arrive func(*clocks) (stop func() error, err error), send func(i uint64, body []byte, c *clocks) error) (_ []time.Duration, err error) {
	n := int(s.paced.Seconds() * float64(rate))
	c := newClocks(n)
	stop, err := arrive(c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	pace := time.NewTicker(time.Second / time.Duration(rate))
	defer pace.Stop()
	for i := range n {
		<-pace.C
		body := binary.BigEndian.AppendUint64(make([]byte, 0, stageBody), uint64(i))
		if err := send(uint64(i), body[:stageBody], c); err != nil {
			return nil, err
		}
	}
	select {
	case <-c.all:
		return c.latencies(), nil
	case <-time.After(30 * time.Second):
		return nil, errors.New("messages did not arrive within 30 s")
	}
}

func directLatency(ctx context.Context, env *servers, s scale) (_ []time.Duration, err error) {
	conn, err := amqp.Dial(env.url)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		return nil, err
	}
	return paced(ctx, env, s, pacedRate, func(i uint64, body []byte, c *clocks) error {
		c.note(c.sent, i, time.Now())
		d, err := ch.PublishWithDeferredConfirm("bench", "bench.topic", true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body})
		if err != nil {
			return err
		}
		if ok, err := d.WaitContext(ctx); err != nil || !ok {
			return errors.Join(err, errors.New("not confirmed"))
		}
		return nil
	})
}

// stagedAlone stages at the same pace, and has no relay.
func stagedAlone(ctx context.Context, env *servers, s scale) (_ []time.Duration, err error) {
	db, err := env.database(ctx, postgres.Options{})
	if err != nil {
		return nil, err
	}
	defer db.close(ctx)
	send := stageBy(ctx, db)
	return paced(ctx, env, s, pacedRate, func(i uint64, body []byte, c *clocks) error {
		c.note(c.arrived, i, time.Now())
		return send(i, body, c)
	})
}

func outboxLatency(wake bool, pacing relay.Pacing) func(context.Context, *servers, scale) ([]time.Duration, error) {
	return func(ctx context.Context, env *servers, s scale) ([]time.Duration, error) {
		bus, err := env.bus(ctx)
		if err != nil {
			return nil, err
		}
		defer bus.Close(ctx) //nolint:errcheck // everything has arrived
		return staged(ctx, env, bus, wake, pacing, func(send sender) ([]time.Duration, error) { return paced(ctx, env, s, pacedRate, send) })
	}
}

// sender sends a message, and notes when.
type sender func(i uint64, body []byte, c *clocks) error

// staged runs a relay to bus while run sends messages by Stage.
func staged(ctx context.Context, env *servers, bus core.Publisher, wake bool, pacing relay.Pacing, run func(sender) ([]time.Duration, error)) (_ []time.Duration, err error) {
	db, err := env.database(ctx, postgres.Options{DisableNotify: wake})
	if err != nil {
		return nil, err
	}
	defer db.close(ctx)
	outbox, err := db.open(postgres.Options{DisableNotify: wake})
	if err != nil {
		return nil, err
	}
	r, err := relay.New(outbox, bus, relay.Options{Pacing: pacing})
	if err != nil {
		return nil, err
	}
	runCtx, stop := context.WithCancel(ctx)
	g, runCtx := errgroup.WithContext(runCtx)
	g.Go(func() error { return r.Run(runCtx) })
	defer func() { stop(); err = errors.Join(err, g.Wait()) }()
	send := stageBy(ctx, db)
	return run(func(i uint64, body []byte, c *clocks) error {
		err := send(i, body, c)
		if wake {
			r.Wake()
		}
		return err
	})
}

// stageBy returns a sender that stages in a transaction with a business insert.
func stageBy(ctx context.Context, db *database) sender {
	return func(i uint64, body []byte, c *clocks) error {
		err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
			if err := business(ctx, tx); err != nil {
				return err
			}
			_, err := db.outbox.Stage(ctx, tx, waybill.RawMessage("bench.topic", "application/octet-stream", body))
			return err
		})
		c.note(c.sent, i, time.Now())
		return err
	}
}
