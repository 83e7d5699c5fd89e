package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/table"
)

const timersPerSecond = 100

// timers measures how late scheduled messages reach their handler when the table is the queue, against timers of the
// process.
func timers(ctx context.Context, env *servers, s scale) ([]row, error) {
	n := int(s.timers.Seconds() * timersPerSecond)
	p50 := row{name: fmt.Sprintf("lateness of %d timers over %s, the table as queue, p50, against time.AfterFunc", n, s.timers), unit: "ms", target: "-"}
	p99 := row{name: fmt.Sprintf("lateness of %d timers over %s, the table as queue, p99, against time.AfterFunc", n, s.timers), unit: "ms", target: "≤ 100 ms"}
	for range s.pairs {
		raw, err := processTimers(ctx, n)
		if err != nil {
			return nil, err
		}
		ours, err := tableTimers(ctx, env, n)
		if err != nil {
			return nil, err
		}
		p50.raw, p50.ours = append(p50.raw, sample{value: percentile(raw, 0.5).Seconds()}), append(p50.ours, sample{value: percentile(ours, 0.5).Seconds()})
		p99.raw, p99.ours = append(p99.raw, sample{value: percentile(raw, 0.99).Seconds()}), append(p99.ours, sample{value: percentile(ours, 0.99).Seconds()})
	}
	return []row{p50, p99}, nil
}

// punctual notes how late each timer fired.
type punctual struct {
	begin time.Time
	mu    sync.Mutex
	late  map[int]time.Duration
	want  int
	all   chan struct{}
}

func newPunctual(n int, begin time.Time) *punctual {
	return &punctual{begin: begin, late: make(map[int]time.Duration, n), want: n, all: make(chan struct{})}
}

func (p *punctual) due(i int) time.Time {
	return p.begin.Add(time.Duration(i) * time.Second / timersPerSecond)
}

func (p *punctual) fired(i int) error {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, again := p.late[i]; again {
		return fmt.Errorf("timer %d fired twice", i)
	}
	if p.late[i] = now.Sub(p.due(i)); len(p.late) == p.want {
		close(p.all)
	}
	return nil
}

func (p *punctual) wait(ctx context.Context) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	select {
	case <-p.all:
	case <-ctx.Done():
		return nil, fmt.Errorf("timers did not fire: %w", ctx.Err())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]time.Duration, 0, p.want)
	for i, d := range p.late {
		if d < 0 {
			return nil, fmt.Errorf("timer %d fired %s early", i, -d)
		}
		out = append(out, d)
	}
	return out, nil
}

func processTimers(ctx context.Context, n int) ([]time.Duration, error) {
	p := newPunctual(n, time.Now().Add(100*time.Millisecond))
	for i := range n {
		time.AfterFunc(time.Until(p.due(i)), func() { _ = p.fired(i) }) // it fires once
	}
	return p.wait(ctx)
}

func tableTimers(ctx context.Context, env *servers, n int) (_ []time.Duration, err error) {
	db, err := env.database(ctx, postgres.Options{})
	if err != nil {
		return nil, err
	}
	defer db.close(ctx)
	queue, err := table.New(db.outbox, table.Options{})
	if err != nil {
		return nil, err
	}
	c, err := consumer.New(queue, consumer.Options{})
	if err != nil {
		return nil, err
	}
	p := newPunctual(n, time.Now().Add(time.Second).Truncate(time.Microsecond))
	err = c.Handle(waybill.Subscription{Queue: "timers"}, waybill.Handler{Name: "timer", Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		return 0, p.fired(int(binary.BigEndian.Uint64(d.Envelope.Body)))
	}})
	if err != nil {
		return nil, err
	}
	msgs := make([]waybill.Message, n)
	for i := range msgs {
		body := binary.BigEndian.AppendUint64(nil, uint64(i))
		msgs[i] = waybill.RawMessage("timer", "application/octet-stream", body, waybill.Routes("timers"), waybill.DeliverAt(p.due(i)))
	}
	tx, err := db.pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // nothing is left after a commit
	if _, err := db.outbox.Stage(ctx, tx, msgs...); err != nil {
		return nil, err
	}
	if err := tx.Commit(ctx); err != nil {
		return nil, err
	}
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(run) }()
	defer func() {
		stop()
		err = errors.Join(err, <-ended, queue.Close(ctx))
	}()
	return p.wait(ctx)
}
