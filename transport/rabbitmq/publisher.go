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

// blockedGrace is how long messages in flight may still be confirmed after the broker blocked the connection.
const blockedGrace = time.Second

// outgoing is one message to publish. fill may be called more than once; it puts the headers into table, which is
// empty, and whose content is not used after the message was sent. failed says that message i failed, or may have: fill
// may refuse what follows it.
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

	calls   atomic.Int32  // in progress
	opening chan struct{} // capacity 1: held by who opens the channel
	mu      sync.Mutex
	main    *pubChannel
}

func newPublisher(l *link, opts Options, broker *topology.Broker, verified *atomic.Bool) *publisher {
	return &publisher{
		link: l, opts: opts, verified: verified, opening: make(chan struct{}, 1),
		prepare: preparation{opts: opts, broker: broker, want: topology.Of(opts.TopologyOptions()), limits: opts.PipelineKeys},
	}
}

// publish sends messages 0 to n-1 and fills results. Messages that were in flight when one of them made the broker
// close the channel are suspects: they are sent again one at a time, so that only the culprit gets the error.
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
		if run.cause == nil {
			return
		}
		suspects := run.lost
		if !blames(run.cause) {
			fail(results, suspects, outage("publish", lostError(run.cause)))
			fail(results, todo[sent:], outage("publish", lostError(run.cause)))
			return
		}
		if err := p.investigate(ctx, suspects, msgs, results); err != nil {
			fail(results, todo[sent:], err)
			return
		}
		todo = todo[sent:]
	}
}

// investigate sends suspects one at a time. It returns an error if the messages after them will fail in the same way.
func (p *publisher) investigate(ctx context.Context, suspects []int, msgs outgoing, results core.Results) error {
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
		if !blames(run.cause) {
			err := outage("publish", lostError(run.cause))
			fail(results, suspects[k:], err)
			return err
		}
		exchange, key, _, _ := msgs.fill(i, time.Now(), amqp.Table{})
		err := culprit(run.cause, exchange, key)
		results[i] = err
		msgs.failed(i)
		if errors.Is(err, waybill.ErrMisconfigured) { // about the exchange: the others would fare no better
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

// channel returns the open channel, opening it if there is none.
func (p *publisher) channel(ctx context.Context) (*pubChannel, error) {
	if pc := p.current(); pc != nil {
		return pc, nil
	}
	select {
	case p.opening <- struct{}{}:
		defer func() { <-p.opening }()
	case <-ctx.Done():
		return nil, outage("publish", context.Cause(ctx))
	}
	if pc := p.current(); pc != nil {
		return pc, nil
	}
	pc, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
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

// open opens a channel in confirm mode, after declaring what publishing needs.
func (p *publisher) open(ctx context.Context) (*pubChannel, error) {
	ctx, cancel := context.WithTimeout(ctx, p.opts.ConnectTimeout+p.opts.ReconnectMax)
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
		conn: c, ch: ch, sending: make(chan struct{}, 1), freed: make(chan struct{}, 1), limit: p.opts.Window, table: amqp.Table{},
		returns: ch.NotifyReturn(make(chan amqp.Return, p.opts.Window+1)), closed: ch.NotifyClose(make(chan *amqp.Error, 1)),
		ids: map[string]uint64{}, returned: map[uint64]returnInfo{},
	}
	if err := await(ctx, func() error { return ch.Confirm(false) }, func() { _ = ch.Close() }); err != nil {
		return nil, outage("publish", fmt.Errorf("confirm mode: %w", err))
	}
	return pc, nil
}

// pubChannel is a channel in confirm mode. Confirms are matched by the driver's delivery tags; returns by
// the message's id as long as it is unique in flight, else by headerTag. The channels that the
// driver writes to never block it: there is room for a return of every message in flight.
type pubChannel struct {
	conn    *conn
	ch      *amqp.Channel
	sending chan struct{} // capacity 1: held by who sends
	table   amqp.Table    // reused for every message; guarded by sending
	tag     uint64        // of the last message sent; guarded by sending

	limit    int
	freed    chan struct{} // capacity 1: the window has room again
	windowMu sync.Mutex
	inFlight int

	abandoned atomic.Int64 // in flight, and nobody waits for them any more

	returns  chan amqp.Return
	mu       sync.Mutex
	ids      map[string]uint64     // tags of the messages in flight, by id; a message whose id is in flight already has headerTag instead
	returned map[uint64]returnInfo // returned, and not yet confirmed
	closed   chan *amqp.Error
	cause    *amqp.Error // guarded by mu
	known    bool        // cause is final; guarded by mu
}

type returnInfo struct {
	code          uint16
	text          string
	exchange, key string
}

// acquire takes up to want places in the window and returns how many it got.
func (pc *pubChannel) acquire(want int) int {
	pc.windowMu.Lock()
	defer pc.windowMu.Unlock()
	n := min(want, pc.limit-pc.inFlight)
	pc.inFlight += n
	if pc.inFlight < pc.limit { // more for another one who waits
		pc.notify()
	}
	return n
}

func (pc *pubChannel) release(n int) {
	pc.windowMu.Lock()
	pc.inFlight -= n
	pc.windowMu.Unlock()
	pc.notify()
}

// replaceIfStuck closes the channel if most of its window is taken by messages whose callers gave up, such as those of
// a queue that lost its majority: a new channel has a window of its own, so that messages for other queues get through.
func (pc *pubChannel) replaceIfStuck() {
	if pc.abandoned.Load() > int64(pc.limit/2) {
		go func() { _ = pc.ch.Close() }()
	}
}

func (pc *pubChannel) notify() {
	select {
	case pc.freed <- struct{}{}:
	default:
	}
}

// register makes the id of a message that is about to be sent stand for its tag, and reports whether it does: not if it
// has none, or if another message with this id is in flight.
func (pc *pubChannel) register(id string, tag uint64) bool {
	if id == "" {
		return false
	}
	pc.mu.Lock()
	defer pc.mu.Unlock()
	if _, taken := pc.ids[id]; taken {
		return false
	}
	pc.ids[id] = tag
	return true
}

// takeReturn ends the flight of f, which was confirmed, and reports whether it was returned. The driver hands over a
// return before the confirm of its message, so that whoever has seen the confirm finds the return here.
func (pc *pubChannel) takeReturn(f *inFlight) (returnInfo, bool) {
	pc.mu.Lock()
	defer pc.mu.Unlock()
	for len(pc.returns) > 0 {
		r, ok := <-pc.returns
		if !ok {
			break
		}
		tag := uint64(number(r.Headers[headerTag]))
		if tag == 0 {
			tag = pc.ids[r.MessageId]
		}
		pc.returned[tag] = returnInfo{r.ReplyCode, r.ReplyText, r.Exchange, r.RoutingKey}
	}
	if f.id != "" {
		delete(pc.ids, f.id)
	}
	info, ok := pc.returned[f.tag]
	if ok {
		delete(pc.returned, f.tag)
	}
	return info, ok
}

// closeCause returns why the channel closed. It may be called only once the channel is known to be closed.
func (pc *pubChannel) closeCause() *amqp.Error {
	pc.mu.Lock()
	defer pc.mu.Unlock()
	if !pc.known {
		pc.cause = <-pc.closed // sent or closed by the driver at its shutdown
		pc.known = true
		if pc.cause == nil {
			pc.cause = amqp.ErrClosed
		}
	}
	return pc.cause
}
