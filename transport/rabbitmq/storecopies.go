package rabbitmq

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// The order is what keeps a message: the copy is published and confirmed first, then the original is acknowledged. A
// process that dies between the two leaves both, and the inbox drops one.

// storeCopies publishes copies, and acknowledges each original whose copy was confirmed. The others can be settled
// again, but for these: a released message stays here and is returned again, since the broker would count a requeue. A
// message that the broker will never take as a copy is dead-lettered by the broker itself, without a reason. It never
// takes one that it has refused maxRefusals times, sent alone.
func (r *receiver) storeCopies(ctx context.Context, acks []core.Ack, list []copyToSend, results core.Results) {
	published := r.publishCopies(ctx, list)
	var done doneBatch
	var again []*handle // to make ready
	var parks []int     // the acks of messages that the broker parks
	for k, err := range published {
		a := &acks[list[k].slot]
		h, _ := a.Delivery.Handle.(*handle)
		switch {
		case err == nil:
			done.add(list[k].slot, h)
		case a.Verdict == core.VerdictRelease:
			again = append(again, h)
			err = nil
		case waybill.ClassOf(err) == waybill.ClassPermanent, h.refusedAlone(err):
			parks = append(parks, list[k].slot)
		case h.sess.ch.IsClosed():
			err = outage("settle", errors.Join(errStale, err))
		default:
			h.settled.Store(false)
		}
		results[list[k].slot] = err
	}
	done.settle(results)
	r.makeReady(again)
	if len(parks) == 0 {
		return
	}
	causes := slices.Clone(results)
	r.brokerParks(ctx, acks, parks, results)
	for _, i := range parks {
		if a := &acks[i]; results[i] == nil {
			h, _ := a.Delivery.Handle.(*handle)
			r.log.Event(ctx, slog.LevelError, "rabbitmq.parked_without_reason",
				"the broker does not take a copy of a message; it is dead-lettered as it is, without its reason",
				slog.String("queue", r.queue), slog.String("id", clip(h.raw.MessageId)), slog.String("reason", string(a.Reason)),
				slog.String("verdict", a.Verdict.String()), slog.String("handler_error", a.Err), slog.Any("error", causes[i]))
		}
	}
}

// brokerParks rejects messages, so that the broker parks them. A classic queue drops a rejected message that has no
// dead-letter queue, and so does a quorum queue that dead-letters at most once. So brokerParks makes sure of that queue
// first. If that fails, the deliveries stay with the receiver: they can be settled again. parks can be empty.
func (r *receiver) brokerParks(ctx context.Context, acks []core.Ack, parks []int, results core.Results) {
	if len(parks) == 0 {
		return
	}
	err := r.ensureDeadLetters(ctx)
	for _, i := range parks {
		h, _ := acks[i].Delivery.Handle.(*handle)
		switch {
		case err == nil:
			results[i] = settled(h.sess.acks.reject(h.raw.DeliveryTag))
		case h.sess.ch.IsClosed():
			results[i] = outage("settle", errors.Join(errStale, err))
		default:
			h.settled.Store(false)
			results[i] = err
		}
	}
}

// ensureDeadLetters declares the dead-letter queue, its exchange and its binding. With Options.Passive it looks for the
// queue and the exchange: if the user may not see them, it trusts that they are there, as the start does.
func (r *receiver) ensureDeadLetters(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.t.opts.ConnectTimeout)
	defer cancel()
	c, err := r.in.get(ctx)
	if err != nil {
		return err
	}
	p, dlq := r.prepare, r.t.names.DeadLetterQueue(r.sub.Queue)
	p.want.Exchanges = slices.DeleteFunc(slices.Clone(p.want.Exchanges), func(e topology.Exchange) bool { return e.Name != r.dlx })
	p.want.Queues = slices.DeleteFunc(slices.Clone(p.want.Queues), func(q topology.Queue) bool { return q.Name != dlq })
	p.want.Bindings = slices.DeleteFunc(slices.Clone(p.want.Bindings), func(b topology.Binding) bool { return b.Queue != dlq })
	return p.run(ctx, c, false)
}

// maxRefusals is how often the broker may close the channel because of a copy.
const maxRefusals = 3

// refusedAlone counts the refusals of h's copies, and reports whether the broker will never take one. A copy that has
// no queue is not refused.
func (h *handle) refusedAlone(err error) bool {
	if waybill.ClassOf(err) == waybill.ClassRejected && !errors.Is(err, waybill.ErrUnroutable) && closedByMessage(amqpError(err)) {
		h.refusals++
	}
	return h.refusals >= maxRefusals
}

// publishCopies publishes copies and returns their results. If an exchange or a queue of the subscription has
// disappeared, it declares them again and publishes once more what met that.
func (r *receiver) publishCopies(ctx context.Context, list []copyToSend) core.Results {
	published := make(core.Results, len(list))
	r.t.publish(ctx, len(list), &copies{list: list}, published)
	var again []int
	for k, err := range published {
		if disappeared(err) {
			again = append(again, k)
		}
	}
	if len(again) == 0 || r.t.opts.Passive || !r.declareAgain(ctx) {
		return published
	}
	rest := make([]copyToSend, len(again))
	for n, k := range again {
		rest[n] = list[k]
	}
	results := make(core.Results, len(rest))
	r.t.publish(ctx, len(rest), &copies{list: rest}, results)
	for n, k := range again {
		published[k] = results[n]
	}
	return published
}

// disappeared reports whether a copy failed because an exchange or a queue of ours is not there.
func disappeared(err error) bool {
	e := amqpError(err)
	return errors.Is(err, waybill.ErrUnroutable) || e != nil && e.Server && e.Code == amqp.NotFound
}

// declareAgain declares what the subscription needs, and reports whether everything is there now.
func (r *receiver) declareAgain(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, r.t.opts.ConnectTimeout)
	defer cancel()
	c, err := r.in.get(ctx)
	if err == nil {
		err = r.prepare.declare(ctx, c)
	}
	if err != nil {
		r.log.Event(ctx, slog.LevelWarn, "rabbitmq.declare_again", "an object of the subscription has disappeared and cannot be declared again",
			slog.String("queue", r.queue), slog.Any("error", err))
		return false
	}
	r.log.Event(ctx, slog.LevelWarn, "rabbitmq.declared_again", "an object of the subscription had disappeared; it is declared again",
		slog.String("queue", r.queue))
	return true
}
