package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
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
	body    []byte
	tally   *tally
	undo    []func(context.Context) error // removes what was made, the latest first
}

func newBench(c *command, o benchOptions, s *Store, counter admin.Counter) *bench {
	b := &bench{c: c, o: o, store: s, counter: counter, body: make([]byte, o.size)}
	_, _ = rand.Read(b.body) // it never fails
	b.tally = newTally(rand.Text()+"-", o.messages+o.paced, o.messages)
	return b
}

// run stages, drains, and stages at a steady rate.
func (b *bench) run(ctx context.Context) (*benchResult, error) {
	relays, consumers, err := b.connect(ctx)
	if err != nil {
		return nil, err
	}
	result := newBenchResult(b.c, &b.o)
	if err := b.stage(ctx, &result.Stage); err != nil {
		return nil, err
	}
	consuming, stopConsumers := start(ctx, consumers)
	defer stopConsumers() //nolint:errcheck // told below, unless another error was first
	if err := b.ready(consuming, consumers); err != nil {
		return nil, err
	}
	began := begin()
	relaying, stopRelays := start(consuming, relays)
	defer stopRelays() //nolint:errcheck // as above
	if err := b.await(relaying, b.o.messages, b.c.newProgress()); err != nil {
		return nil, err
	}
	result.Drain = began.phase(b.o.messages, b.tally.takeCalls())
	if err := b.paced(relaying, &result.Paced); err != nil {
		return nil, err
	}
	if err := stopRelays(); err != nil {
		return nil, err
	}
	if len(consumers) > 0 {
		if err := b.awaitCopies(consuming); err != nil {
			return nil, err
		}
	}
	distinct, counts, _ := b.tally.soFar()
	result.Again = counts - distinct
	return &result, stopConsumers()
}

// beginning is when a phase began, and the CPU time until then.
type beginning struct {
	at  time.Time
	cpu time.Duration
}

func begin() beginning { return beginning{time.Now(), cpuTime()} }

// phase sums up what n messages took.
func (s beginning) phase(n int, took []time.Duration) phase {
	cpu := (cpuTime() - s.cpu) * 1000 / time.Duration(n)
	return phase{float64(n) / max(time.Since(s.at), time.Microsecond).Seconds(), cpu, latencyOf(took)}
}

// message returns the i-th message.
func (b *bench) message(i int) waybill.Message {
	opts := []waybill.MessageOption{waybill.ID(b.tally.id(i)), waybill.Routes(benchName)}
	if b.o.keys > 0 {
		opts = append(opts, waybill.Key(fmt.Sprintf("key-%d", i%b.o.keys)))
	}
	return waybill.RawMessage(b.o.topic, "application/octet-stream", b.body, opts...)
}

func (b *bench) staged(ctx context.Context, msgs ...waybill.Message) error {
	ctx, cancel := b.c.limited(ctx)
	defer cancel()
	return b.store.Producer.Stage(ctx, msgs...)
}

func (b *bench) stage(ctx context.Context, result *phase) error {
	show := b.c.newProgress()
	defer show.end()
	began := begin()
	var took []time.Duration
	for done := 0; done < b.o.messages; {
		msgs := make([]waybill.Message, min(b.o.perTransaction, b.o.messages-done))
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
	*result = began.phase(b.o.messages, took)
	return nil
}

// paced stages messages one by one at a steady rate, and waits until they have counted.
func (b *bench) paced(ctx context.Context, result *phase) error {
	if b.o.paced == 0 {
		return nil
	}
	began := begin()
	pace := time.NewTicker(time.Second / time.Duration(b.o.rate))
	defer pace.Stop()
	var committed []time.Time
	for i := range b.o.paced {
		if err := b.staged(ctx, b.message(b.o.messages+i)); err != nil {
			return err
		}
		committed = append(committed, time.Now())
		<-pace.C
	}
	if err := b.await(ctx, b.o.messages+b.o.paced, nil); err != nil {
		return err
	}
	*result = began.phase(b.o.paced, b.tally.since(committed))
	return nil
}

// await waits until so many messages have counted.
func (b *bench) await(ctx context.Context, want int, show *progress) error {
	defer show.end()
	reached := b.tally.reach(want)
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	before, moved := 0, time.Now()
	for {
		select {
		case <-reached:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-look.C:
		}
		n, _, confirmed := b.tally.soFar()
		show.at("drained", int64(n), int64(want))
		if n+confirmed > before {
			before, moved = n+confirmed, time.Now()
		}
		if time.Since(moved) > b.c.timeout {
			return withCode(ExitFailed, "nothing went on for %s; of %d messages %d were confirmed and %d counted: %w", b.c.timeout, want, confirmed, n, b.tally.lastError())
		}
	}
}

// awaitCopies waits, once the relays have ended, until the consumers have concluded every copy that was confirmed.
func (b *bench) awaitCopies(ctx context.Context) error {
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(b.c.timeout); ; {
		_, counts, confirmed := b.tally.soFar()
		if counts >= confirmed {
			return nil
		}
		if time.Now().After(end) {
			return withCode(ExitFailed, "%d deliveries were confirmed and %d came within %s: %w", confirmed, counts, b.c.timeout, b.tally.lastError())
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// start runs runners, and returns a function that stops them and waits for their end. The context that it returns ends
// with them.
func start[R waybill.Runner](ctx context.Context, runners []R) (running context.Context, stop func() error) {
	if len(runners) == 0 {
		return ctx, func() error { return nil }
	}
	ctx, cancel := context.WithCancel(ctx)
	running, ended := context.WithCancelCause(ctx)
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		all := make([]waybill.Runner, len(runners))
		for i := range runners {
			all[i] = runners[i]
		}
		err = waybill.Run(ctx, all...)
		ended(err)
	}()
	return running, func() error {
		cancel()
		<-done
		return err
	}
}

// relay makes a relay of the bench's route alone.
func (b *bench) relay(outbox core.OutboxStore, to core.Publisher) (*relay.Relay, error) {
	env := b.c.quiet()
	return relay.New(outbox, to, relay.Options{
		Name: benchName, Routes: []relay.Route{{Name: benchName}}, CleanInterval: -1, StaleAfter: -1,
		BatchSize: b.o.batchSize, Window: b.o.window,
		Logger: env.Logger, MeterProvider: env.MeterProvider, TracerProvider: env.TracerProvider,
	})
}

// clean removes the records and queues of the benchmark. Records that were not sent yet are sent to nowhere.
func (b *bench) clean(ctx context.Context) error {
	err := b.cleanRecords(ctx)
	for _, undo := range slices.Backward(b.undo) {
		if lost := undo(ctx); err == nil {
			err = lost
		}
	}
	return err
}

func (b *bench) cleanRecords(ctx context.Context) error {
	routes := []string{benchName}
	counts, err := b.c.counts(ctx, b.counter, routes)
	if n, _, _ := waiting(counts); n > 0 && err == nil {
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

// drain sends the waiting records to nowhere.
func (b *bench) drain(ctx context.Context, routes []string, counts []admin.Count) error {
	r, err := b.relay(b.store.Outbox, &benchPublisher{tally: b.tally})
	if err != nil {
		return err
	}
	ctx, stop := start(ctx, []*relay.Relay{r})
	_, err = b.c.waitEmpty(ctx, b.counter, routes, time.Minute, counts)
	if ended := stop(); err == nil {
		err = ended
	}
	return err
}
