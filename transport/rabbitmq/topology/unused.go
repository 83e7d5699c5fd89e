package topology

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// UnusedDelay is a delay queue that a topology does not have any more.
type UnusedDelay struct {
	Queue string
	// Messages wait in it, by the broker's statistics, which are up to ten seconds old; -1 = it keeps none.
	Messages int
}

// statsAge is longer than the broker's statistics are old.
const statsAge = 12 * time.Second

// UnusedDelays returns the delay queues of t's subscriptions that the broker has and t does not, by name: of a retry
// delay that was changed, or of all delays after Options.SharedDelays was set. It does not see those of a subscription
// that t does not have, nor shared ones, which may be another service's.
func (b *Broker) UnusedDelays(ctx context.Context, t Topology) ([]UnusedDelay, error) {
	ask := b.begin()
	defer ask.end()
	var live []struct {
		Name     string `json:"name"`
		Messages *int   `json:"messages"`
	}
	if err := ask.get(ctx, &live, "queues"); err != nil && !errors.Is(err, errNotFound) {
		return nil, err
	}
	var out []UnusedDelay
	for _, q := range live {
		used := slices.ContainsFunc(t.Queues, func(have Queue) bool { return have.Name == q.Name })
		if !used && t.isDelay(q.Name) {
			u := UnusedDelay{q.Name, -1}
			if q.Messages != nil {
				u.Messages = *q.Messages
			}
			out = append(out, u)
		}
	}
	slices.SortFunc(out, func(a, b UnusedDelay) int { return strings.Compare(a.Queue, b.Queue) })
	return out, nil
}

// messages returns how many messages queue holds, by the broker's statistics.
func (q *inquiry) messages(ctx context.Context, queue string) (int, error) {
	var live struct {
		Messages *int `json:"messages"`
	}
	if err := q.get(ctx, &live, "queues", queue); err != nil {
		return 0, err
	}
	if live.Messages == nil {
		return 0, withoutStatistics(queue)
	}
	return *live.Messages, nil
}

// isDelay reports whether a queue has the name of a delay queue of a subscription.
func (t *Topology) isDelay(queue string) bool { return t.delayExchange(queue) != "" }

// delayExchange returns the dead-letter exchange of the subscription that a delay queue belongs to by its name, or "".
func (t *Topology) delayExchange(queue string) string {
	for _, sub := range t.subscriptions {
		if delay, ok := strings.CutPrefix(queue, t.names.Queue(sub)+delaySuffix); ok && isDelayName(delay) {
			return t.names.DeadLetterExchange(sub)
		}
	}
	return ""
}

// DeleteUnusedDelay unbinds a queue that UnusedDelays returned, waits until it is empty, and deletes it. It takes
// twelve seconds at least, since the broker's statistics are late, and at most as long as the queue's delay and ctx
// allow. A message that an old process sends to the queue meanwhile finds no way: that process declares its queue
// again and sends it once more. If ctx ends, the queue stays, unbound. The user needs the permission to configure and
// read it.
func (b *Broker) DeleteUnusedDelay(ctx context.Context, t Topology, queue string) error {
	return b.deleteUnusedDelay(ctx, t, queue, statsAge)
}

func (b *Broker) deleteUnusedDelay(ctx context.Context, t Topology, queue string, age time.Duration) error {
	unused, err := b.UnusedDelays(ctx, t)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(unused, func(u UnusedDelay) bool { return u.Queue == queue }) {
		return misconfigured("queue %q is no unused delay queue of the topology: take a name that UnusedDelays returns", queue)
	}
	ask := b.begin()
	defer ask.end()
	if err := ask.do(ctx, http.MethodDelete, nil, "bindings", "e", t.delayExchange(queue), "q", queue, queue); err != nil && !errors.Is(err, errNotFound) {
		return err
	}
	for fresh := time.After(age); ; {
		select {
		case <-fresh:
		case <-ctx.Done():
			return outage(fmt.Errorf("queue %q is unbound and not deleted, since messages still wait in it: call again (%w)",
				queue, context.Cause(ctx)))
		}
		switch n, err := ask.messages(ctx, queue); {
		case err != nil:
			return gone(err)
		case n == 0:
			return gone(ask.do(ctx, http.MethodDelete, nil, "queues", queue))
		}
		fresh = time.After(time.Second)
	}
}
