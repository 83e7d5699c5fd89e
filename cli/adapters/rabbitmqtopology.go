package adapters

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/transport/rabbitmq"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// rabbitTopology is the topology of a RabbitMQ transport.
type rabbitTopology struct {
	bus    *rabbitmq.Transport
	opts   topology.Options
	vhost  string
	broker *topology.Broker // nil without a management URL
}

// of returns the topology of subscriptions, or an error that lists every problem of them.
func (r *rabbitTopology) of(subs []core.Subscription) (topology.Topology, error) {
	var p []string
	for i := range subs {
		for _, text := range r.opts.SubscriptionProblems(&subs[i]) {
			p = append(p, fmt.Sprintf("subscription %q: %s", subs[i].Queue, text))
		}
	}
	if err := waybill.Invalid("waybill: topology", p...); err != nil {
		return topology.Topology{}, err
	}
	return topology.Of(r.opts, subs...), nil
}

// Print returns exchanges, queues with their arguments, and bindings.
func (r *rabbitTopology) Print(subs []core.Subscription) (string, error) {
	t, err := r.of(subs)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, e := range t.Exchanges {
		fmt.Fprintf(&b, "exchange %s (%s, durable)\n", e.Name, e.Kind)
	}
	for _, q := range t.Queues {
		fmt.Fprintf(&b, "\nqueue %s (durable)\n", q.Name)
		for _, name := range slices.Sorted(maps.Keys(q.Arguments)) {
			fmt.Fprintf(&b, "  %s: %v\n", name, q.Arguments[name])
		}
		for _, at := range t.Bindings {
			if at.Queue == q.Name {
				fmt.Fprintf(&b, "  bound to %s with key %q\n", at.Exchange, at.Key)
			}
		}
	}
	return b.String(), nil
}

// Formats are those of Export.
func (r *rabbitTopology) Formats() []string { return []string{"definitions", "terraform"} }

// Export returns definitions for rabbitmqctl import_definitions, or Terraform. Neither makes users, whose passwords
// belong in no export.
func (r *rabbitTopology) Export(subs []core.Subscription, format string, users cli.BrokerUsers) (string, error) {
	t, err := r.of(subs)
	if err != nil {
		return "", err
	}
	if format == "terraform" {
		return t.Terraform(r.vhost, topology.Users(users)), nil
	}
	text, err := t.Definitions(r.vhost, topology.Users(users))
	return string(text), err
}

// Declare makes what is missing.
func (r *rabbitTopology) Declare(ctx context.Context, subs []core.Subscription) error {
	t, err := r.of(subs)
	if err != nil {
		return err
	}
	return r.bus.Declare(ctx, t)
}

// Verify compares arguments and bindings, too.
func (r *rabbitTopology) Verify(ctx context.Context, subs []core.Subscription) ([]admin.Difference, error) {
	t, broker, err := r.manage(subs)
	if err != nil {
		return nil, err
	}
	found, err := broker.Compare(ctx, t)
	if err != nil {
		return nil, err
	}
	var out []admin.Difference
	for _, d := range found {
		out = append(out, d.Difference)
	}
	return out, nil
}

// Unbound returns the topics without a binding.
func (r *rabbitTopology) Unbound(ctx context.Context, topics []string) ([]string, error) {
	if r.broker == nil {
		return nil, nil
	}
	return r.broker.Unbound(ctx, topology.Of(r.opts), topics)
}

// Unused returns the queues of the exchange that no subscription has.
func (r *rabbitTopology) Unused(ctx context.Context, subs []core.Subscription) ([]string, error) {
	t, broker, err := r.manage(subs)
	if err != nil {
		return nil, err
	}
	return broker.UnusedQueues(ctx, t)
}

// Delete deletes one of them, which takes twelve seconds.
func (r *rabbitTopology) Delete(ctx context.Context, subs []core.Subscription, queue string) error {
	t, broker, err := r.manage(subs)
	if err != nil {
		return err
	}
	return broker.DeleteUnusedQueue(ctx, t, queue)
}

func (r *rabbitTopology) manage(subs []core.Subscription) (topology.Topology, *topology.Broker, error) {
	if r.broker == nil {
		return topology.Topology{}, nil, &cli.UnverifiableError{
			Cause: "management_url: is missing in the settings of the transport: only the management API shows queues, arguments and bindings",
		}
	}
	t, err := r.of(subs)
	return t, r.broker, err
}
