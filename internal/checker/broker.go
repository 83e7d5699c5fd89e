package checker

import (
	"context"
	"errors"
	"sync"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sleep"
)

// Queue is a broker's queue in memory: its messages have one order.
type Queue struct {
	Route string
	// Traits are those of the publishers.
	Traits core.PublisherTraits
	// Deliver is told of every arrival, in order; it must not block.
	Deliver func(e waybill.Envelope)

	ledger *Ledger
	mu     sync.Mutex
}

// NewQueue returns the queue of a route.
func NewQueue(l *Ledger, route string, traits core.PublisherTraits, deliver func(waybill.Envelope)) *Queue {
	return &Queue{Route: route, Traits: traits, Deliver: deliver, ledger: l}
}

func (q *Queue) arrive(e *waybill.Envelope) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ledger.Arrived(q.Route, e)
	q.Deliver(*e)
}

// Publisher is the publisher of one process to a queue, with faults.
type Publisher struct {
	q    *Queue
	p    *Process
	f    *Faults
	dice *Dice
}

// NewPublisher returns a publisher of p.
func NewPublisher(q *Queue, p *Process, f *Faults, seed, actor uint64) *Publisher {
	return &Publisher{q: q, p: p, f: f, dice: NewDice(seed, actor<<8+99, p.dice[0].calm)}
}

// Traits returns those of the queue.
func (b *Publisher) Traits() core.PublisherTraits { return b.q.Traits }

// Publish lets the batch arrive, or some of it, and tells the truth, or nothing.
func (b *Publisher) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	b.p.stand()
	defer b.p.stand()
	if b.p.dead.Load() || ctx.Err() != nil {
		return core.AllFailed(len(batch), errDown)
	}
	b.q.ledger.sending(b.p, b.q.Route, batch)
	defer b.q.ledger.landed(b.p, b.q.Route, batch)
	return b.send(ctx, batch)
}

func (b *Publisher) send(ctx context.Context, batch []waybill.Envelope) core.Results {
	d, n := b.dice, len(batch)
	own := make([]waybill.Envelope, n)
	for i := range batch {
		own[i] = batch[i].Clone()
	}
	_ = sleep.For(ctx, d.Up(b.f.Latency))
	if d.Roll(b.f.Delay) {
		_ = sleep.For(ctx, d.Up(b.f.MaxDelay))
	}
	switch {
	case ctx.Err() != nil:
		return core.AllFailed(n, ctx.Err())
	case b.p.dead.Load() && d.N(2) == 0, d.Roll(b.f.Before):
		return core.AllFailed(n, errDown)
	case b.q.ledger.opts.Zombies && d.Roll(b.f.Late):
		in := d.Up(2 * b.f.MaxDelay)
		b.q.ledger.later(func() {
			_ = sleep.For(context.WithoutCancel(ctx), in)
			b.batch(own, n)
		})
		_ = sleep.For(ctx, d.Up(in))
		return core.AllFailed(n, errDown)
	case d.Roll(b.f.Panic):
		if n == 1 {
			// the message is to blame, as far as the broker can tell
			b.q.ledger.Refused(b.q.Route, own[0].ID, errors.New("a panic"))
		}
		panic("checker: a fault")
	case d.Roll(b.f.Panic):
		if n == 1 {
			b.q.ledger.Refused(b.q.Route, own[0].ID, errors.New("too many results"))
		}
		return make(core.Results, n+1)
	}
	arrive, answer := n, n // how many arrive, and of how many the answer does
	if d.Roll(b.f.Partial) {
		arrive = d.N(n + 1)
		answer = d.N(arrive + 1)
	}
	res := b.batch(own, arrive)
	if d.Roll(b.f.Delay) {
		_ = sleep.For(ctx, d.Up(b.f.MaxDelay))
	}
	switch {
	case ctx.Err() != nil:
		return core.AllFailed(n, ctx.Err())
	case b.p.dead.Load(), d.Roll(b.f.After):
		return core.AllFailed(n, errDown)
	}
	for i := answer; i < n; i++ {
		res[i] = errDown
	}
	return res
}

// batch lets the first messages of a batch arrive, those that are not refused.
func (b *Publisher) batch(batch []waybill.Envelope, arrive int) core.Results {
	res := make(core.Results, len(batch))
	failed := map[string]error{}
	for i := range batch[:arrive] {
		e := &batch[i]
		if err := failed[e.Key]; err != nil && b.q.Traits.KeyOrder == core.KeyOrderPipelinedPrefix {
			if res[i] = err; !b.q.ledger.opts.Routes[b.q.Route].PerKey { // there it stands for itself
				b.q.ledger.Refused(b.q.Route, e.ID, err)
			}
			continue
		}
		if res[i] = b.answer(e); res[i] == nil {
			b.q.arrive(e)
		} else if e.Key != "" {
			failed[e.Key] = res[i]
		}
	}
	return res
}

// answer returns the broker's verdict on a message.
func (b *Publisher) answer(e *waybill.Envelope) error {
	refuse := func(err error) error {
		b.q.ledger.Refused(b.q.Route, e.ID, err)
		return err
	}
	d := b.dice
	switch {
	case d.Roll(b.f.Reject):
		return refuse(&waybill.Error{Op: "checker", Class: waybill.ClassRejected, Err: errors.New("refused")})
	case d.Roll(b.f.Reject / 4):
		return refuse(errors.New("checker: of no known kind"))
	case d.Roll(b.f.Permanent):
		return refuse(&waybill.Error{Op: "checker", Class: waybill.ClassPermanent, Reason: waybill.ReasonTooLarge, Err: errors.New("refused for good")})
	case d.Roll(b.f.Unroutable):
		return refuse(&waybill.Error{Op: "checker", Class: waybill.ClassRejected, Err: waybill.ErrUnroutable})
	case d.Roll(b.f.TopicOnly):
		return &waybill.Error{Op: "checker", Class: waybill.ClassOutage, TopicOnly: true, Err: errors.New("the queue is full")}
	}
	return nil
}

// Refuser decorates a publisher to a real broker: it refuses some messages itself, and notes them in the ledger.
type Refuser struct {
	core.Publisher
	p        *Process
	dice     *Dice
	perMille int
	route    string
}

// NewRefuser returns next as p sees it. Of a thousand messages it refuses so many.
func NewRefuser(next core.Publisher, p *Process, route string, perMille int, seed, actor uint64) *Refuser {
	return &Refuser{Publisher: next, p: p, dice: NewDice(seed, actor<<8+98, p.dice[0].calm), perMille: perMille, route: route}
}

// Unwrap returns the publisher.
func (r *Refuser) Unwrap() any { return r.Publisher }

// Publish publishes what it does not refuse, and nothing behind a refused message of its key.
func (r *Refuser) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	r.p.stand()
	if r.p.dead.Load() {
		return core.AllFailed(len(batch), errDown)
	}
	r.p.ledger.sending(r.p, r.route, batch)
	defer r.p.ledger.landed(r.p, r.route, batch)
	res := make(core.Results, len(batch))
	var rest []waybill.Envelope
	var at []int
	refused := map[string]bool{}
	for i := range batch {
		if refused[batch[i].Key] {
			res[i] = waybill.ErrPredecessorFailed
			continue
		}
		if r.dice.Roll(r.perMille) {
			res[i] = &waybill.Error{Op: "checker", Class: waybill.ClassRejected, Err: errors.New("refused")}
			refused[batch[i].Key] = batch[i].Key != "" && r.Traits().KeyOrder == core.KeyOrderPipelinedPrefix
			continue
		}
		rest, at = append(rest, batch[i]), append(at, i)
	}
	if len(rest) > 0 {
		for i, err := range r.Publisher.Publish(ctx, rest) {
			res[at[i]] = err
		}
	}
	for i, err := range res {
		if err != nil && waybill.ClassOf(err) != waybill.ClassOutage && !errors.Is(err, waybill.ErrPredecessorFailed) {
			r.p.ledger.Refused(r.route, batch[i].ID, err)
		}
	}
	r.p.stand()
	if r.p.dead.Load() {
		return core.AllFailed(len(batch), errDown)
	}
	return res
}
