package cli

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/relay"
)

// bench is one measurement.
type bench struct {
	c       *command
	o       benchOptions
	store   *Store
	counter admin.Counter
	out     *benchPublisher
}

// latency sums up how long calls took.
type latency struct {
	Count int           `json:"count"`
	P50   time.Duration `json:"p50_ns"`
	P99   time.Duration `json:"p99_ns"`
	Max   time.Duration `json:"max_ns"`
}

func latencyOf(took []time.Duration) latency {
	if len(took) == 0 {
		return latency{}
	}
	slices.Sort(took)
	at := func(percent int) time.Duration { return took[(len(took)-1)*percent/100] }
	return latency{len(took), at(50), at(99), took[len(took)-1]}
}

func (l latency) text(d time.Duration) string {
	if l.Count == 0 {
		return ""
	}
	return d.Round(time.Microsecond).String()
}

// run stages, drains, and sends single messages.
func (b *bench) run(ctx context.Context) (*benchResult, error) {
	result := b.label()
	if err := b.stage(ctx, &result.Stage); err != nil {
		return nil, err
	}
	r, err := b.relay()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	ctx, stop := b.start(ctx, r)
	err = b.await(ctx, b.o.messages, b.c.newProgress())
	result.Drain.PerSecond = rate(b.o.messages, began)
	result.Drain.Calls = latencyOf(b.out.takeCalls())
	var took []time.Duration
	for i := 0; i < b.o.alone && err == nil; i++ {
		if err = b.staged(ctx, b.message(i)); err == nil {
			committed := time.Now()
			err = b.await(ctx, b.o.messages+i+1, nil)
			took = append(took, time.Since(committed))
		}
	}
	result.Alone = latencyOf(took)
	if ended := stop(); err == nil {
		err = ended
	}
	return &result, err
}

func rate(n int, began time.Time) float64 {
	return float64(n) / max(time.Since(began), time.Microsecond).Seconds()
}

func (b *bench) staged(ctx context.Context, msgs ...waybill.Message) error {
	ctx, cancel := b.c.limited(ctx)
	defer cancel()
	return b.store.Unit.Stage(ctx, msgs...)
}

func (b *bench) stage(ctx context.Context, result *phase) error {
	show := b.c.newProgress()
	defer show.end()
	began := time.Now()
	var took []time.Duration
	for done := 0; done < b.o.messages; {
		msgs := make([]waybill.Message, min(b.o.batch, b.o.messages-done))
		for i := range msgs {
			msgs[i] = b.message(done + i)
		}
		call := time.Now()
		if err := b.staged(ctx, msgs...); err != nil {
			return err
		}
		took = append(took, time.Since(call))
		done += len(msgs)
		show.at("staged", int64(done), int64(b.o.messages))
	}
	result.PerSecond, result.Calls = rate(b.o.messages, began), latencyOf(took)
	return nil
}

// relay makes a relay of the bench's route alone.
func (b *bench) relay() (*relay.Relay, error) {
	env := b.c.quiet()
	return relay.New(b.store.Outbox, b.out, relay.Options{
		Name: benchName, Routes: []relay.Route{{Name: benchName}}, CleanInterval: -1, StaleAfter: -1,
		Logger: env.Logger, MeterProvider: env.MeterProvider, TracerProvider: env.TracerProvider,
	})
}

// start runs r, and returns what stops it and waits for it. The context that it returns ends with r.
func (b *bench) start(ctx context.Context, r *relay.Relay) (running context.Context, stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	running, ended := context.WithCancelCause(ctx)
	done := make(chan error, 1)
	go func() {
		err := r.Run(ctx)
		ended(err)
		done <- err
	}()
	return running, func() error {
		cancel()
		return <-done
	}
}

// await waits until so many messages are confirmed.
func (b *bench) await(ctx context.Context, want int, show *progress) error {
	defer show.end()
	stuck := time.NewTimer(b.c.timeout)
	defer stuck.Stop()
	for {
		n, changed := b.out.confirmed()
		if n >= want {
			return nil
		}
		show.at("drained", int64(n), int64(want))
		select {
		case <-changed:
			stuck.Reset(b.c.timeout)
		case <-stuck.C:
			return withCode(ExitFailed, "no message was confirmed for %s; %d of %d were before: %w", b.c.timeout, n, want, b.out.lastError())
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// clean removes the records of the bench's route: what was not sent yet is sent to nowhere.
func (b *bench) clean(ctx context.Context) error {
	routes := []string{benchName}
	counts, err := b.c.counts(ctx, b.counter, routes)
	if n, _ := waiting(counts); n > 0 && err == nil {
		err = b.drain(ctx, routes, counts)
	}
	purger, ok := core.As[admin.Purger](b.store.Outbox)
	if err != nil || !ok {
		return err
	}
	req := admin.PurgeRequest{Filter: admin.Filter{Routes: routes}, Page: admin.PageRequest{Limit: admin.MaxPageLimit}}
	return b.c.eachStep(ctx, func(ctx context.Context, after int64) (int64, error) {
		req.Page.After = after
		step, err := purger.PurgeRecords(ctx, req)
		return step.Next, err
	})
}

// drain sends what waits to nowhere.
func (b *bench) drain(ctx context.Context, routes []string, counts []admin.Count) error {
	b.out.to = nil
	r, err := b.relay()
	if err != nil {
		return err
	}
	ctx, stop := b.start(ctx, r)
	_, err = b.c.waitEmpty(ctx, b.counter, routes, time.Minute, counts)
	if ended := stop(); err == nil {
		err = ended
	}
	return err
}

// benchPublisher counts what was confirmed, and times the calls.
type benchPublisher struct {
	to core.Publisher // nil = nowhere: everything is confirmed at once

	mu      sync.Mutex
	n       int
	changed chan struct{} // closed when n changes; nil = nobody waits
	calls   []time.Duration
	last    error
}

// Traits are those of the transport.
func (p *benchPublisher) Traits() core.PublisherTraits {
	if p.to != nil {
		return p.to.Traits()
	}
	return core.PublisherTraits{KeyOrder: core.KeyOrderSerial, Confirmed: true}
}

// Publish passes the messages on.
func (p *benchPublisher) Publish(ctx context.Context, envelopes []waybill.Envelope) core.Results {
	began := time.Now()
	results := make(core.Results, len(envelopes))
	if p.to != nil {
		results = p.to.Publish(ctx, envelopes)
	}
	took := time.Since(began)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, took)
	confirmed := len(envelopes) - results.Failed()
	p.n += confirmed
	if err := results.FirstErr(); err != nil {
		p.last = err
	}
	if confirmed > 0 && p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
	return results
}

// confirmed returns how many were, and what is closed when that changes.
func (p *benchPublisher) confirmed() (int, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.n, p.changed
}

func (p *benchPublisher) takeCalls() []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	calls := p.calls
	p.calls = nil
	return calls
}

// lastError is the latest refusal.
func (p *benchPublisher) lastError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		return context.DeadlineExceeded
	}
	return p.last
}
