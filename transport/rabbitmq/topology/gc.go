package topology

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
)

// UnusedQueues returns the queues that belong to t's exchange and not to t, by name: those that are bound to one of its
// dead-letter exchanges, as the queues of every subscription are, and shared delay queues. Those of other services that
// share the exchange are among them, unless t has their subscriptions too.
func (b *Broker) UnusedQueues(ctx context.Context, t Topology) ([]string, error) {
	ask := b.begin()
	defer ask.end()
	var bound []liveBinding
	if err := ask.get(ctx, &bound, "bindings"); err != nil && !errors.Is(err, errNotFound) {
		return nil, err
	}
	var live []struct {
		Name string `json:"name"`
	}
	if err := ask.get(ctx, &live, "queues"); err != nil && !errors.Is(err, errNotFound) {
		return nil, err
	}
	var out []string
	for _, q := range live {
		of := slices.ContainsFunc(bound, func(b liveBinding) bool {
			return b.Kind == "queue" && b.Destination == q.Name && t.names.leadsToDeadLetters(b.Source)
		})
		shared, ok := strings.CutPrefix(q.Name, t.names.Exchange()+delaySuffix)
		if (of || ok && isDelayName(shared)) && !slices.ContainsFunc(t.Queues, func(have Queue) bool { return have.Name == q.Name }) {
			out = append(out, q.Name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// DeleteUnusedQueue deletes a queue that UnusedQueues returned, if it is empty and has no consumer; otherwise the error
// matches waybill.ErrInFlight, and the queue stays as it was. A broker that keeps no statistics cannot tell: then the
// error matches waybill.ErrMisconfigured. It takes twelve seconds, in which the queue is unbound, since the broker's
// statistics are late. A message that is published meanwhile does not reach the queue: do not use it while services
// start. With the last queue of a subscription its dead-letter exchange goes. The user needs the permissions to
// configure, write and read the queue, and to configure the exchange.
func (b *Broker) DeleteUnusedQueue(ctx context.Context, t Topology, queue string) error {
	return b.deleteUnusedQueue(ctx, t, queue, statsAge)
}

func (b *Broker) deleteUnusedQueue(ctx context.Context, t Topology, queue string, age time.Duration) error {
	unused, err := b.UnusedQueues(ctx, t)
	if err != nil {
		return err
	}
	if !slices.Contains(unused, queue) {
		return misconfigured("queue %q is no unused queue of the exchange: take a name that UnusedQueues returns", queue)
	}
	ask := b.begin()
	defer ask.end()
	known := time.Now().Add(age) // of a new queue there are no statistics yet
	for err = ask.unused(ctx, queue); errors.Is(err, errNoStatistics) && time.Now().Before(known); err = ask.unused(ctx, queue) {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return outage(context.Cause(ctx))
		}
	}
	if err != nil {
		return gone(err)
	}
	var bindings []liveBinding
	if err := ask.get(ctx, &bindings, "queues", queue, "bindings"); err != nil {
		return gone(err)
	}
	bindings = slices.DeleteFunc(bindings, func(b liveBinding) bool { return b.Source == "" })
	for _, at := range bindings {
		err := ask.do(ctx, http.MethodDelete, nil, "bindings", "e", at.Source, "q", queue, at.PropertiesKey)
		if err != nil && !errors.Is(err, errNotFound) {
			return ask.restore(ctx, queue, bindings, err)
		}
	}
	timer := time.NewTimer(age)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ask.restore(ctx, queue, bindings, outage(context.Cause(ctx)))
	}
	if err := ask.unused(ctx, queue); err != nil {
		return gone(ask.restore(ctx, queue, bindings, err))
	}
	if err := gone(ask.do(ctx, http.MethodDelete, nil, "queues", queue)); err != nil {
		return err
	}
	return ask.deleteExchanges(ctx, t, bindings)
}

// deleteExchanges deletes the dead-letter exchanges of subscriptions that t does not have, unless they still lead to
// another queue.
func (q *inquiry) deleteExchanges(ctx context.Context, t Topology, bindings []liveBinding) error {
	seen := map[string]bool{}
	for _, b := range bindings {
		needed := slices.ContainsFunc(t.Exchanges, func(have Exchange) bool { return have.Name == b.Source })
		if seen[b.Source] || needed || !t.names.leadsToDeadLetters(b.Source) {
			continue
		}
		seen[b.Source] = true
		var left []liveBinding
		if err := q.get(ctx, &left, "exchanges", b.Source, "bindings", "source"); err != nil || len(left) > 0 {
			if gone(err) != nil {
				return err
			}
			continue
		}
		if err := gone(q.do(ctx, http.MethodDelete, nil, "exchanges", b.Source)); err != nil {
			return err
		}
	}
	return nil
}

// gone turns the error for a deleted object into none.
func gone(err error) error {
	if errors.Is(err, errNotFound) {
		return nil
	}
	return err
}

// unused returns an error if queue holds messages or has a consumer.
func (q *inquiry) unused(ctx context.Context, queue string) error {
	var live struct {
		Messages  *int `json:"messages"`
		Consumers *int `json:"consumers"`
	}
	switch err := q.get(ctx, &live, "queues", queue); {
	case err != nil:
		return err
	case live.Messages == nil || live.Consumers == nil:
		return withoutStatistics(queue)
	case *live.Messages == 0 && *live.Consumers == 0:
		return nil
	}
	return &waybill.Error{Op: "waybill/rabbitmq: delete queue", Class: waybill.ClassRejected, Err: fmt.Errorf(
		"queue %q has %d messages and %d receivers (%w)", queue, *live.Messages, *live.Consumers, waybill.ErrInFlight)}
}

var errNoStatistics = errors.New("the broker keeps no statistics")

// withoutStatistics is the error if it is unknown whether queue is in use.
func withoutStatistics(queue string) error {
	return misconfigured("%w of queue %q, so that nobody can tell whether it is in use: switch off "+
		"management_agent.disable_metrics_collector and management.disable_stats for the deletion", errNoStatistics, queue)
}

// restore binds queue again after why prevented its end.
func (q *inquiry) restore(ctx context.Context, queue string, bindings []liveBinding, why error) error {
	if errors.Is(why, errNotFound) {
		return why
	}
	ctx = context.WithoutCancel(ctx) // each question has its own bound
	for _, at := range bindings {
		in := map[string]any{"routing_key": at.Key, "arguments": at.Arguments}
		if err := q.send(ctx, http.MethodPost, in, nil, "bindings", "e", at.Source, "q", queue); err != nil {
			return fmt.Errorf("%w; queue %q lost its binding to exchange %q with key %q, which could not be restored: restart what receives from it (%w)",
				why, queue, at.Source, at.Key, err)
		}
	}
	return why
}
