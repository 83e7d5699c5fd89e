package consumer

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/obs"
)

// runner runs one subscription during one Run. Its goroutines are the one of run, which receives; up to sub.Concurrency
// workers, which begin when there is work; and one or two that settle. All share one lock, mu, which guards the fields
// below it. No call of a handler or of the transport is made under it.
//
// A delivery goes this way:
//
//  1. receive.go: the loop asks for as many as prefetch.go lets it hold, and takes them in (accept).
//  2. judge.go (refuse): a delivery that must not reach a handler gets its verdict at once.
//  3. schedule.go: the others are ready, or wait behind one of their key.
//  4. batching.go, group.go, gate.go: a ready message becomes a job, alone or in a batch, when the limits let it
//     begin.
//  5. work.go, workbatch.go, process.go: a worker runs the handler.
//  6. judge.go (decide): the result becomes a verdict. blame.go and pause.go act on outages.
//  7. settle.go: the verdict is stored, with others. unstored.go repeats those that failed.
type runner struct {
	opts    *Options
	sub     *waybill.Subscription
	log     *obs.Logger
	tel     *queueTelemetry
	judge   judge
	source  source
	trouble func(error) // called when an outage begins; nil if nobody wants to know
	counts  counts
	contexts

	mu        sync.Mutex
	batching  // waiting and running messages
	workers   workers
	alarm     alarm
	settling  settling
	pause     pause
	unstored  unstored
	bell      bell
	flow      flow
	condition // for Health
	ending
}

// contexts bound the steps of a run. They end one after the other, from the top: first nothing begins any more, then
// handlers are cut off, and last the settles.
type contexts struct {
	stopCtx      context.Context //nolint:containedctx // ends when the run must stop: nothing begins any more
	handlerCtx   context.Context //nolint:containedctx // the parent of handlers' contexts; lives as long as the run
	limits       *limits         // of handlers that have the default timeout
	cutHandlers  context.CancelFunc
	settleCtx    context.Context //nolint:containedctx // outlives the handlers, so that their results are settled
	abortSettles context.CancelFunc
	ended        chan struct{} // closed when the run is over
}

func newContexts(ctx context.Context) contexts {
	c := contexts{stopCtx: ctx, limits: &limits{}, ended: make(chan struct{})}
	detached := context.WithoutCancel(ctx)
	c.handlerCtx, c.cutHandlers = context.WithCancel(detached)
	c.settleCtx, c.abortSettles = context.WithCancel(detached)
	return c
}

// ending is the progress of a stop. The runner's mu guards it.
type ending struct {
	stopping bool   // nothing new is started
	idle     signal // stopping, and nothing runs
	settled  signal // stopping, nothing runs, and everything is settled
}

// signal is a channel that is closed once.
type signal struct {
	ch   chan struct{}
	done bool
}

func newSignal() signal { return signal{ch: make(chan struct{})} }

func (s *signal) set() {
	if !s.done {
		s.done = true
		close(s.ch)
	}
}

func newRunner(ctx context.Context, c *Consumer, reg *registration) *runner {
	sub := &reg.sub
	r := &runner{
		opts:     &c.opts,
		sub:      sub,
		log:      obs.NewLogger(c.opts.Logger.With(slog.String("queue", sub.Queue))),
		tel:      c.tel.forQueue(ctx, &reg.asked),
		judge:    judge{sub: sub, handlers: newHandlers(sub, reg.handlers), unknown: c.opts.Unknown, traits: c.tel.traits, text: c.opts.StoredError},
		source:   source{bus: c.bus, asked: &reg.asked, checks: reg.checks},
		contexts: newContexts(ctx),
		workers:  workers{jobs: make(chan job, sub.Concurrency)},
		settling: settling{workers: make(chan *settleWorker, 1)},
		bell:     bell{ch: make(chan struct{}, 1)},
		ending:   ending{idle: newSignal(), settled: newSignal()},
	}
	r.active = time.Now()
	r.batching = batching{limit: sub.Concurrency, gate: newGate(&sub.Limit), schedule: schedule{
		keys: map[string]keyQueue{}, inOrder: sub.InOrder, groups: newGroups(&sub.PerGroup),
	}}
	r.load.begin(reg, &c.tel.traits)
	r.tellPrefetch()
	return r
}

// run opens the subscription, receives until ctx ends, and drains. The result of the first attempt to open goes to
// first; nothing is received before begin is closed.
func (r *runner) run(ctx context.Context, first chan<- error, begin <-chan struct{}) error {
	defer r.abortSettles()
	defer r.cutHandlers()
	defer close(r.ended)
	defer r.keepPermits()()
	if r.load.kept != nil {
		go r.keepHeld()
	}
	defer r.tellConnected(false)
	s, err := r.open(ctx, first)
	if s == nil {
		return err
	}
	select {
	case <-begin:
		prefetch, adapts := r.sub.Prefetch, r.load.most > 0
		if adapts {
			prefetch = r.load.least // the first number; Prefetch is the greatest one
		}
		r.log.LogAttrs(ctx, slog.LevelInfo, "subscription started", slog.String("event", "consumer.start"),
			slog.Int("concurrency", r.sub.Concurrency), slog.Int("prefetch", prefetch), slog.Bool("adapts", adapts))
		s = r.receive(ctx, s)
	case <-ctx.Done():
	}
	r.drain(ctx, s)
	return nil
}
