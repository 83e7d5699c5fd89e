package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// A publish has one difficulty: a message that the broker cannot take closes the whole channel, and the error names
// neither that message nor those that arrived. So a call has two ways. Pipelined: a batch sends as many as the window
// lets it, and the confirms come in any order (batch.go). One by one, only for the messages in flight when the channel
// closed, until the one is found that closes it again (sendSingly).

// blockedGrace is how long messages in flight may still be confirmed after the broker blocked the connection.
const blockedGrace = time.Second

// outgoing is a list of messages to publish. fill returns message i, and may be called more than once. It puts the
// headers into table, which is empty and is used again after the message was sent. failed says that message i failed,
// or may have: fill may refuse the messages behind it.
type outgoing interface {
	fill(i int, now time.Time, table amqp.Table) (exchange, key string, p amqp.Publishing, err error)
	failed(i int)
}

// publisher sends messages over one link, on one channel in confirm mode at a time.
type publisher struct {
	link *link
	opts Options

	prepare  preparation
	verified *atomic.Bool // shared by the publishers of a transport: the start is verified once

	denied  denied
	calls   atomic.Int32  // in progress
	opening chan struct{} // capacity 1: held while the channel is opened
	mu      sync.Mutex    // guards main, and users and retired of each channel
	main    *pubChannel   // the channel of new calls; nil, closed or open
}

func newPublisher(l *link, opts Options, broker *topology.Broker, verified *atomic.Bool) *publisher {
	return &publisher{
		link: l, opts: opts, verified: verified, opening: make(chan struct{}, 1),
		prepare: preparation{opts: opts, broker: broker, want: topology.Of(opts.TopologyOptions()), limits: opts.PipelineKeys, once: true},
	}
}

// publish sends messages 0 to n-1 and fills results. Messages that were in flight when one of them made the broker
// close the channel are suspects: they are sent again one at a time, so that only that one gets the error. The steps:
//
//  1. A batch sends on the open channel as many as it can, and gives each its result.
//  2. The channel stayed open: all have results.
//  3. The connection was lost, or the broker closed the channel for a reason of its own: messages in flight have an
//     unknown result, and the rest is not sent. All are outages.
//  4. One of the messages in flight closed the channel: sendSingly finds it. The rest goes on at 1, on a new channel.
func (p *publisher) publish(ctx context.Context, n int, msgs outgoing, results core.Results) {
	p.calls.Add(1)
	defer p.calls.Add(-1)
	todo := make([]int, n)
	for i := range todo {
		todo[i] = i
	}
	for len(todo) > 0 {
		pc, err := p.channel(ctx)
		if err != nil {
			fail(results, todo, err)
			return
		}
		run := batch{pc: pc, msgs: msgs, results: results, window: p.opts.Window}
		sent := run.send(ctx, todo)
		p.leave(pc, run.suspect)
		if run.cause == nil {
			return
		}
		suspects := run.lost
		if !closedByMessage(run.cause) {
			fail(results, suspects, outage("publish", lostError(run.cause)))
			fail(results, todo[sent:], outage("publish", lostError(run.cause)))
			return
		}
		if err := p.sendSingly(ctx, suspects, msgs, results); err != nil {
			fail(results, todo[sent:], err)
			return
		}
		todo = todo[sent:]
	}
}

// sendSingly sends suspects one at a time, on a channel of its own that is replaced whenever one of them closes it. The
// one that does so gets the error. It returns an error if the messages after them will fail in the same way: the time
// is over, the connection is lost, or the error is about the exchange.
func (p *publisher) sendSingly(ctx context.Context, suspects []int, msgs outgoing, results core.Results) error {
	var pc *pubChannel
	defer func() {
		if pc != nil {
			go func() { _ = pc.ch.Close() }()
		}
	}()
	for k, i := range suspects {
		if ctx.Err() != nil { // nothing is sent any more, on whatever channel
			err := outage("publish", context.Cause(ctx))
			fail(results, suspects[k:], err)
			return err
		}
		if pc == nil || pc.ch.IsClosed() {
			var err error
			if pc, err = p.open(ctx); err != nil {
				fail(results, suspects[k:], err)
				return err
			}
		}
		run := batch{pc: pc, msgs: msgs, results: results, window: 1}
		run.send(ctx, suspects[k:k+1])
		if run.cause == nil {
			continue
		}
		if !closedByMessage(run.cause) {
			err := outage("publish", lostError(run.cause))
			fail(results, suspects[k:], err)
			return err
		}
		exchange, key, _, _ := msgs.fill(i, time.Now(), amqp.Table{})
		err := messageError(run.cause, exchange, key)
		if err.Reason == waybill.ReasonForbidden {
			p.denied.add(exchange, key, err)
		}
		results[i] = err
		msgs.failed(i)
		if errors.Is(err, waybill.ErrMisconfigured) { // about the exchange: the others would fail, too
			fail(results, suspects[k:], err)
			return err
		}
	}
	if ctx.Err() != nil {
		return outage("publish", context.Cause(ctx))
	}
	return nil
}

func fail(results core.Results, idx []int, err error) {
	for _, i := range idx {
		results[i] = err
	}
}

func lostError(cause *amqp.Error) error { return fmt.Errorf("%w (%w)", errLost, cause) }

// channel returns the open channel, opening it if there is none. The call uses it until leave.
func (p *publisher) channel(ctx context.Context) (*pubChannel, error) {
	if pc := p.use(); pc != nil {
		return pc, nil
	}
	select {
	case p.opening <- struct{}{}:
		defer func() { <-p.opening }()
	case <-ctx.Done():
		return nil, outage("publish", context.Cause(ctx))
	}
	if pc := p.use(); pc != nil {
		return pc, nil
	}
	pc, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	pc.users++
	p.main = pc
	p.mu.Unlock()
	return pc, nil
}

func (p *publisher) current() *pubChannel {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.main != nil && !p.main.ch.IsClosed() {
		return p.main
	}
	return nil
}

// use returns the open channel, nil if there is none. The call uses it until leave.
func (p *publisher) use() *pubChannel {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.main == nil || p.main.ch.IsClosed() {
		return nil
	}
	p.main.users++
	return p.main
}

// leave ends a call's use of the channel. If it is suspect, since a queue has refused a message or the broker has not
// answered in time, later calls open a new one. RabbitMQ 3.10 refuses everything for a quorum queue on a channel whose
// first message for the queue came just after its leader's node had died, until that node is back. A channel whose
// first message came while the queue had no majority was seen to stay without any answer after the majority was back. A
// new channel finds the new leader, and has a window of its own.
func (p *publisher) leave(pc *pubChannel, suspect bool) {
	p.mu.Lock()
	pc.users--
	pc.retired = pc.retired || suspect
	if pc.retired && p.main == pc {
		p.main = nil
	}
	last := pc.retired && pc.users == 0
	p.mu.Unlock()
	if last {
		go func() { _ = pc.ch.Close() }()
	}
}

// open opens a channel in confirm mode, after declaring what publishing needs. A connection that the broker blocks is
// not used: each question on it would wait.
func (p *publisher) open(ctx context.Context) (*pubChannel, error) {
	ctx, cancel := context.WithTimeout(ctx, p.opts.openTimeout())
	defer cancel()
	c, err := p.link.get(ctx)
	if err != nil {
		return nil, err
	}
	if isClosed(c.whenBlocked()) {
		return nil, outage("publish", c.blockedError())
	}
	if err := p.prepare.run(ctx, c, !p.verified.Load()); err != nil {
		return nil, err
	}
	p.verified.Store(true)
	ch, err := c.channel(ctx)
	if err != nil {
		return nil, err
	}
	pc := &pubChannel{
		conn: c, denied: &p.denied, ch: ch, sending: make(chan struct{}, 1), freed: make(chan struct{}, 1), limit: p.opts.Window, table: amqp.Table{},
		returns: ch.NotifyReturn(make(chan amqp.Return, p.opts.Window+1)), closed: ch.NotifyClose(make(chan *amqp.Error, 1)),
		ids: map[string]uint64{}, returned: map[uint64]returnInfo{},
	}
	if err := await(ctx, func() error { return ch.Confirm(false) }, func() { _ = ch.Close() }); err != nil {
		return nil, outage("publish", fmt.Errorf("confirm mode: %w", err))
	}
	return pc, nil
}
