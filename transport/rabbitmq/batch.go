package rabbitmq

import (
	"context"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// A broker confirms each message, but a closed channel confirms none and names none. So a batch remembers what is in
// flight, in order, and which of it has a result. Messages that a closed channel leaves open are sent again one by one
// by its caller, until the one that closes it is found. A caller that gives up leaves a goroutine behind, since the
// window's places are free only when the broker has answered.

// batch is one pass over messages on one channel: sent pipelined, confirmed in any order.
type batch struct {
	pc      *pubChannel
	msgs    outgoing
	results core.Results
	window  int

	flight  []inFlight // sent, in order; flight[:settled] have results
	settled int
	lost    []int       // indexes of messages in flight when the channel closed
	suspect bool        // a queue has refused one, or the broker has not answered in time
	cause   *amqp.Error // why it closed; nil if it did not
}

// inFlight is a message that was sent.
type inFlight struct {
	index   int
	tag     uint64
	id      string // registered for tag; "" if headerTag was sent
	confirm *amqp.DeferredConfirmation
}

const sendChunk = 64 // messages sent without letting another call in

// send publishes the messages todo and waits for their confirms. It returns how many of todo it is done with: all,
// unless the channel closed; then those in flight are in b.lost and the rest was not sent.
func (b *batch) send(ctx context.Context, todo []int) int {
	b.flight = make([]inFlight, 0, len(todo))
	sent := 0
	for sent < len(todo) && b.cause == nil {
		got, err := b.makeRoom(ctx, min(len(todo)-sent, sendChunk))
		if err != nil {
			b.giveUp(todo[sent:], err)
			return len(todo)
		}
		if b.cause != nil {
			break
		}
		n, used := b.sendSome(todo[sent : sent+got])
		b.pc.release(got - used)
		sent += n
	}
	for b.settled < len(b.flight) {
		if err := b.wait(ctx); err != nil {
			b.giveUp(nil, err)
			return len(todo)
		}
	}
	return sent
}

// makeRoom takes places in the window. It takes none if the channel turns out to be closed. It waits for, in this
// order: the buffer of the connection, if that is full; confirms of this call's own messages, since they free places,
// too; confirms of others'. A blocked connection is an error at once.
func (b *batch) makeRoom(ctx context.Context, want int) (int, error) {
	for b.cause == nil {
		if out := b.pc.conn.out; out != nil {
			if full := out.room(); full != nil {
				select {
				case <-full:
				case <-ctx.Done():
					return 0, outage("publish", context.Cause(ctx))
				case <-b.pc.conn.whenBlocked():
					return 0, outage("publish", b.pc.conn.blockedError())
				}
				continue
			}
		}
		if isClosed(b.pc.conn.whenBlocked()) {
			return 0, outage("publish", b.pc.conn.blockedError())
		}
		if n := b.pc.acquire(want); n > 0 {
			return n, nil
		}
		if b.settled < len(b.flight) {
			if err := b.wait(ctx); err != nil {
				return 0, err
			}
			continue
		}
		if err := b.waitFor(ctx, b.pc.freed); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

func (b *batch) waitFor(ctx context.Context, ready <-chan struct{}) error {
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return outage("publish", context.Cause(ctx))
	}
}

// sendSome sends todo in order, while it alone sends on the channel. It returns how many it is done with, and how many
// of those are in flight. A message that AMQP cannot carry gets its error without being sent. The id of any other is
// registered before it is sent: its return may come at once.
func (b *batch) sendSome(todo []int) (done, used int) {
	pc := b.pc
	pc.sending <- struct{}{} // held shortly: writing never waits for the network
	defer func() { <-pc.sending }()
	now := time.Now()
	for _, i := range todo {
		if done > 0 && pc.conn.out != nil && pc.conn.out.room() != nil {
			return done, used // large messages: no more is held than one above the bound
		}
		clear(pc.table)
		exchange, key, p, err := b.msgs.fill(i, now, pc.table)
		if err == nil {
			err = pc.denied.error(exchange, key, now)
		}
		if err == nil {
			err = checkStrings(key, &p)
		}
		if err == nil {
			err = checkHeaderFrame(&p, pc.conn.Config.FrameSize)
		}
		if err != nil {
			b.results[i] = err
			b.msgs.failed(i)
			done++
			continue
		}
		pc.tag++
		f := inFlight{index: i, tag: pc.tag}
		if pc.register(p.MessageId, pc.tag) {
			f.id = p.MessageId
			delete(p.Headers, headerTag)
		} else {
			p.Headers[headerTag] = int64(pc.tag)
		}
		f.confirm, err = pc.ch.PublishWithDeferredConfirm(exchange, key, true, false, p)
		if err != nil { // the channel is closed; whether this message left is unknown
			b.flight = append(b.flight, inFlight{index: i})
			b.closedNow()
			return done + 1, used
		}
		b.flight = append(b.flight, f)
		done++
		used++
	}
	return done, used
}

// wait waits for the oldest message in flight and gives it its result.
func (b *batch) wait(ctx context.Context) error {
	f := &b.flight[b.settled]
	if f.confirm == nil { // never sent: the channel was closed
		b.lost = append(b.lost, f.index)
		b.settled++
		return nil
	}
	select {
	case <-f.confirm.Done():
	default:
		if err := b.waitLong(ctx, f); err != nil {
			return err
		}
	}
	b.settled++
	b.result(f)
	b.pc.release(1)
	return nil
}

// waitLong waits for a confirm. A broker that blocks the connection is given some time, since it may still confirm the
// messages it has.
func (b *batch) waitLong(ctx context.Context, f *inFlight) error {
	select {
	case <-f.confirm.Done():
		return nil
	case <-ctx.Done():
		return outage("publish", fmt.Errorf("no confirm in time; the result is unknown: %w", context.Cause(ctx)))
	case <-b.pc.conn.whenBlocked():
	}
	grace := time.NewTimer(blockedGrace)
	defer grace.Stop()
	select {
	case <-f.confirm.Done():
		return nil
	case <-ctx.Done():
	case <-grace.C:
	}
	return outage("publish", b.pc.conn.blockedError())
}

// result gives a message its result. The broker confirms a returned message, too, and sends the return first: so a
// confirm counts only if no return with this tag came.
func (b *batch) result(f *inFlight) {
	if f.confirm.Acked() {
		if r, ok := b.pc.takeReturn(f); ok {
			b.results[f.index] = returnedError(r)
			b.msgs.failed(f.index)
		}
		return
	}
	if b.pc.ch.IsClosed() { // the driver ends all confirms so
		b.closedNow()
		b.lost = append(b.lost, f.index)
		return
	}
	b.pc.takeReturn(f)
	b.suspect = true
	b.msgs.failed(f.index)
	b.results[f.index] = &waybill.Error{
		Op: "waybill/rabbitmq: publish", Class: waybill.ClassOutage, TopicOnly: true,
		Err: errNacked,
	}
}

func (b *batch) closedNow() {
	if b.cause == nil {
		b.cause = b.pc.closeCause()
	}
}

// giveUp ends the batch with err, because its caller does not wait any longer, or the broker blocks the connection.
// Messages that were confirmed meanwhile keep their results. All others get err. The messages in flight are left to a
// goroutine, which gives back their places in the window when the broker has answered or the channel closes.
func (b *batch) giveUp(unsent []int, err error) {
	rest := b.flight[b.settled:]
	left := make([]inFlight, 0, len(rest))
	for i := range rest {
		f := &rest[i]
		select {
		case <-confirmDone(f):
			b.result(f)
			b.pc.release(1)
		default:
			b.results[f.index] = err
			if f.confirm != nil {
				left = append(left, *f)
			}
		}
	}
	for _, i := range b.lost {
		b.results[i] = err
		b.msgs.failed(i)
	}
	for _, f := range left {
		b.msgs.failed(f.index)
	}
	for _, i := range unsent {
		b.msgs.failed(i)
	}
	b.cause = nil
	fail(b.results, unsent, err)
	if len(left) == 0 {
		return
	}
	b.suspect = true
	go func() {
		for _, f := range left {
			<-f.confirm.Done()
			b.pc.takeReturn(&f)
			b.pc.release(1)
		}
	}()
}

func confirmDone(f *inFlight) <-chan struct{} {
	if f.confirm == nil {
		return nil
	}
	return f.confirm.Done()
}

// returnedError is the error of a message that the broker returned before confirming it.
func returnedError(r returnInfo) error {
	return &waybill.Error{
		Op: "waybill/rabbitmq: publish", Class: waybill.ClassRejected, Reason: waybill.ReasonUnroutable,
		Err: fmt.Errorf("topic %q: %w: bind one to exchange %q (%d %s)", clip(r.key), waybill.ErrUnroutable, r.exchange, r.code, r.text),
	}
}
