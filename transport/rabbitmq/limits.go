package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/admin"
)

const unlimit = "with Options.PipelineKeys the queue may refuse a message when it is full and take a later one of the same key: remove the limit, or leave PipelineKeys off"

// addLimits appends to found a deviation for every length limit of a queue that messages to exchange may reach, also
// through other exchanges, by bindings and alternate exchanges. The policies of a queue are known about ten seconds
// late. An exchange's own policies are not followed.
func (m *management) addLimits(ctx context.Context, exchange string, found []deviation) ([]deviation, error) {
	ask := m.begin()
	defer ask.end()
	seen := map[destination]bool{}
	for todo := []destination{{exchange, "exchange"}}; len(todo) > 0; {
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
		var live liveQueue
		if err := ask.get(ctx, &live, "queues", at.Name); err != nil && !errors.Is(err, errNotFound) {
			return nil, err
		}
		for _, d := range live.limits(at.Name) {
			if !slices.ContainsFunc(found, func(f deviation) bool { return f.Difference == d.Difference }) { // of a queue of the topology
				found = append(found, d)
			}
		}
	}
	return found, nil
}

// destination is what an exchange sends messages to.
type destination struct {
	Name string `json:"destination"`
	Type string `json:"destination_type"` // queue or exchange
}

// destinations returns where exchange sends messages; nothing if it does not exist.
func (a *asking) destinations(ctx context.Context, exchange string) ([]destination, error) {
	var live liveExchange
	var out []destination
	err := a.get(ctx, &live, "exchanges", exchange)
	if err == nil {
		err = a.get(ctx, &out, "exchanges", exchange, "bindings", "source")
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
func (q *liveQueue) limits(name string) []deviation {
	if q.Type == "stream" {
		return nil
	}
	var out []deviation
	add := func(object string, values map[string]any, limit string) {
		if have := valueText(values, limit); have != "none" {
			out = append(out, deviation{Difference: admin.Difference{Object: object, Want: "none", Have: have}, cure: unlimit})
		}
	}
	policy, _ := q.Effective.(map[string]any)
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
