package topology

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

const unlimit = "with Options.PipelineKeys a full queue may refuse a message and take a later one of the same key: " +
	"remove the limit, or leave PipelineKeys off"

// Limits returns a difference for every length limit, by argument or policy, of a queue that messages to the exchange
// of t may reach: also through other exchanges, by bindings and alternate exchanges. The policies of an exchange are
// not followed. A queue with a limit may refuse one message and take the next, which rabbitmq.Options.PipelineKeys
// cannot do with. It waits some seconds for the policy of a new queue, and then fails with ErrPolicyUnknown.
func (b *Broker) Limits(ctx context.Context, t Topology) ([]Difference, error) {
	return b.limits(ctx, t, policyWait)
}

// ErrPolicyUnknown reports a queue whose policy the broker does not tell, so that it may have a length limit. RabbitMQ
// 3.10 tells none without statistics, and that of a new queue after some seconds.
var ErrPolicyUnknown = errors.New("the broker does not tell whether a policy limits the length: it is a new queue, or the broker keeps no " +
	"statistics: switch off management_agent.disable_metrics_collector and management.disable_stats, or leave PipelineKeys off")

const (
	// policyWait is above the time for which RabbitMQ 3.10 does not tell the policy of a new queue, about 6 s.
	policyWait = 9 * time.Second
	policyPoll = 100 * time.Millisecond
)

func (b *Broker) limits(ctx context.Context, t Topology, wait time.Duration) ([]Difference, error) {
	until := time.Now().Add(wait)
	ask := b.begin()
	defer ask.end()
	var out []Difference
	seen := map[destination]bool{}
	for todo := []destination{{t.names.Exchange(), "exchange"}}; len(todo) > 0; {
		at := todo[0]
		todo = todo[1:]
		if seen[at] {
			continue
		}
		seen[at] = true
		if at.Type != "queue" {
			next, err := ask.destinations(ctx, at.Name)
			if err != nil {
				return nil, err
			}
			todo = append(todo, next...)
			continue
		}
		live, err := ask.withPolicy(ctx, at.Name, until)
		if err != nil {
			return nil, err
		}
		out = append(out, live.limits(at.Name)...)
	}
	return out, nil
}

// withPolicy returns a queue, with its policies. Nothing of it is set if it does not exist.
func (q *inquiry) withPolicy(ctx context.Context, queue string, until time.Time) (live liveQueue, err error) {
	for untold := false; ; untold = true {
		live = liveQueue{}
		switch err := q.get(ctx, &live, "queues", queue); {
		case errors.Is(err, errNotFound):
			return live, nil
		case err != nil && (ctx.Err() == nil || !untold):
			return live, err
		case err == nil && (live.Effective != nil || live.Type == "stream"):
			return live, nil
		}
		poll := time.NewTimer(policyPoll)
		select {
		case <-poll.C:
		case <-ctx.Done():
		}
		poll.Stop()
		if ctx.Err() != nil || !time.Now().Before(until) {
			return live, outage(fmt.Errorf("queue %q: %w", queue, ErrPolicyUnknown))
		}
	}
}

// destination is what an exchange sends messages to.
type destination struct {
	Name string `json:"destination"`
	Type string `json:"destination_type"` // queue or exchange
}

// destinations returns where exchange sends messages; nothing if it does not exist.
func (q *inquiry) destinations(ctx context.Context, exchange string) ([]destination, error) {
	var live liveExchange
	var out []destination
	err := q.get(ctx, &live, "exchanges", exchange)
	if err == nil {
		err = q.get(ctx, &out, "exchanges", exchange, "bindings", "source")
	}
	if err != nil && !errors.Is(err, errNotFound) {
		return nil, err
	}
	if alternate, ok := live.Arguments["alternate-exchange"].(string); ok {
		out = append(out, destination{alternate, "exchange"})
	}
	return out, nil
}

// limits returns the length limits of a queue. A stream has none: it drops its oldest messages, and refuses nothing.
func (q *liveQueue) limits(name string) []Difference {
	if q.Type == "stream" {
		return nil
	}
	var out []Difference
	add := func(object string, values map[string]any, limit string) {
		if have := valueText(values, limit); have != "none" {
			out = append(out, differs(object, "none", have, unlimit))
		}
	}
	var policy map[string]any
	if json.Unmarshal(q.Effective, &policy) != nil {
		policy = nil // an empty text or list
	}
	for _, limit := range []string{"max-length", "max-length-bytes"} {
		add(fmt.Sprintf("queue %q argument x-%s", name, limit), q.Arguments, "x-"+limit)
		add(fmt.Sprintf("queue %q %s by %s", name, limit, q.policies()), policy, limit)
	}
	return out
}

// policies names what sets Effective.
func (q *liveQueue) policies() string {
	var by []string
	if q.Policy != "" {
		by = append(by, fmt.Sprintf("policy %q", q.Policy))
	}
	if q.OperatorPolicy != "" {
		by = append(by, fmt.Sprintf("operator policy %q", q.OperatorPolicy))
	}
	return strings.Join(by, " and ")
}
