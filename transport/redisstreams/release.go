package redisstreams

import (
	"context"
	"log/slog"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// A receiver and the server can disagree about the deliveries that it holds, when an answer was lost or a failover has
// lost writes. recover makes them agree again, before the receiver takes anything more. The other functions release
// deliveries that no caller has, and close the receiver.

// recover makes again what a failover may have lost, and releases what the server counts as held by this receiver,
// which does not know of it. Only after both the receiver is sure again; until then each look begins with recover.
func (r *receiver) recover() error {
	if !r.t.opts.Passive {
		made, err := r.declare(r.life)
		if err != nil {
			return err
		}
		if made {
			r.t.log.Event(r.life, slog.LevelWarn, "redisstreams.queue_made", "the queue or its consumer group was gone, and is made again",
				slog.String("queue", r.sub.Queue))
		}
	}
	r.mu.Lock()
	args := []any{r.name}
	for id := range r.held {
		args = append(args, id)
	}
	r.mu.Unlock()
	gone, err := call(r.life, r.t, "receive", func(ctx context.Context) (int64, error) {
		return recoverScript.Run(ctx, r.t.client, []string{r.queue, r.wakeUps}, args...).Int64()
	})
	r.tellGone(gone)
	if noGroup(err) {
		err = nil // it is made again
	}
	if err == nil {
		r.mu.Lock()
		r.unsure = false
		r.mu.Unlock()
	}
	return err
}

// tellGone logs that n messages of the queue were lost, since their entries were trimmed or deleted.
func (r *receiver) tellGone(n int64) {
	if n > 0 {
		r.t.log.Event(r.life, slog.LevelError, "redisstreams.entry_gone", "entries were trimmed or deleted before they were done, and their messages are lost: "+
			"never trim the keys of a bus", slog.String("queue", r.sub.Queue), slog.Int64("messages", n))
	}
}

// releaseReady releases what no Receive has taken.
func (r *receiver) releaseReady() {
	r.mu.Lock()
	if r.receiving {
		r.mu.Unlock()
		return
	}
	left := r.ready
	r.ready = nil
	r.mu.Unlock()
	r.giveBack(r.life, left)
}

// giveBack releases deliveries that no Receive has returned. A failed one is found by recover, or its time ends.
func (r *receiver) giveBack(ctx context.Context, list []*waybill.Delivery) {
	if len(list) == 0 {
		return
	}
	acks := make([]core.Ack, len(list))
	for i, d := range list {
		acks[i] = core.AckRelease(d)
	}
	if r.settle(ctx, acks).FirstErr() == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unsure = true
	for _, d := range list {
		delete(r.held, d.Handle.(*handle).id)
	}
}

// endWith closes the receiver when ctx ends.
func (r *receiver) endWith(ctx context.Context) {
	r.stop = context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(r.life, r.t.opts.Timeout)
		defer cancel()
		_ = r.Close(ctx)
	})
}

// Close implements core.Receiver. If the server does not answer, the receiver's deliveries come again after HoldFor.
// The steps:
//
//  1. No Receive and no look begins any more.
//  2. The look under way has taken what it takes, and no other can: Close holds taking.
//  3. Deliveries that no Receive has returned are released.
//  4. The leave script releases the rest, ends the group's consumer, and wakes other receivers.
func (r *receiver) Close(ctx context.Context) error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		select {
		case <-r.ended:
		case <-ctx.Done():
		}
		return nil
	}
	r.closed = true
	defer close(r.ended)
	left, s := r.ready, r.step
	r.ready = nil
	r.mu.Unlock()
	close(r.closing)
	if r.stop != nil {
		r.stop()
	}
	r.idle.Stop()
	select {
	case r.taking <- struct{}{}: // nothing is taken from now on
		defer func() { <-r.taking }()
	case <-ctx.Done():
		return outage("close", context.Cause(ctx))
	}
	r.mu.Lock()
	left = append(left, r.ready...)
	r.ready = nil
	r.mu.Unlock()
	r.giveBack(ctx, left)
	gone, err := call(ctx, r.t, "close", func(ctx context.Context) (int64, error) {
		return leaveScript.Run(ctx, r.t.client, []string{r.queue, r.wakeUps, r.active}, r.name).Int64()
	})
	r.tellGone(gone)
	if s != nil && err == nil { // the wake-up has ended its wait
		select {
		case <-s.done:
		case <-ctx.Done():
		}
	}
	r.t.mu.Lock()
	delete(r.t.receivers, r)
	r.t.mu.Unlock()
	if noGroup(err) {
		return nil // somebody has deleted the queue
	}
	return err
}
