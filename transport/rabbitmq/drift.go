package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// deviation is a difference and what it means.
type deviation struct {
	admin.Difference
	extra bool   // there is more than there must be; no reason not to start
	cure  string // what to do
}

func (d deviation) problem() string {
	if d.Have == missing {
		return d.Object + " does not exist: " + d.cure
	}
	return fmt.Sprintf("%s is %s, want %s: %s", d.Object, d.Have, d.Want, d.cure)
}

const (
	missing  = "missing"
	recreate = "change the options to match, or delete it when it is empty and create it again"
)

// Drift compares what the transport's exchange and its open subscriptions need with the live broker, and returns every
// difference: what is missing, has other arguments, or is bound too much. With Options.PipelineKeys queues with a
// length limit are differences, too. Other policies are not looked at. It needs Options.ManagementURL, and implements
// admin.DriftChecker.
func (t *Transport) Drift(ctx context.Context) ([]admin.Difference, error) {
	return t.DriftFrom(ctx, t.Topology())
}

// Topology returns what the transport's exchange and its open subscriptions need.
func (t *Transport) Topology() Topology {
	t.mu.Lock()
	defer t.mu.Unlock()
	var subs []core.Subscription
	for _, r := range t.receivers {
		if !slices.ContainsFunc(subs, func(s core.Subscription) bool { return s.Queue == r.sub.Queue }) {
			subs = append(subs, r.sub)
		}
	}
	return newTopology(t.opts, subs...)
}

// DriftFrom compares topology with the live broker, as Drift does.
func (t *Transport) DriftFrom(ctx context.Context, topology Topology) ([]admin.Difference, error) {
	if t.management == nil {
		return nil, waybill.Invalid("waybill/rabbitmq: drift", "ManagementURL: is not set; arguments and bindings can be seen only by the management API, such as "+exampleManagementURL)
	}
	found, err := t.management.compare(ctx, &topology)
	if err == nil && t.opts.PipelineKeys {
		found, err = t.management.addLimits(ctx, t.opts.names().exchange, found)
	}
	if err != nil {
		return nil, err
	}
	var out []admin.Difference
	for _, d := range found {
		out = append(out, d.Difference)
	}
	return out, nil
}

// The answers of the management API, as far as they matter.
type (
	liveExchange struct {
		Type       string         `json:"type"`
		Durable    bool           `json:"durable"`
		AutoDelete bool           `json:"auto_delete"`
		Internal   bool           `json:"internal"`
		Arguments  map[string]any `json:"arguments"`
	}
	liveQueue struct {
		Type           string         `json:"type"`
		Durable        bool           `json:"durable"`
		AutoDelete     bool           `json:"auto_delete"`
		Exclusive      bool           `json:"exclusive"`
		Arguments      map[string]any `json:"arguments"`
		Policy         string         `json:"policy"`
		OperatorPolicy string         `json:"operator_policy"`
		Effective      any            `json:"effective_policy_definition"` // of both policies: an object, or something empty
	}
	liveBinding struct {
		Source    string         `json:"source"`
		Key       string         `json:"routing_key"`
		Arguments map[string]any `json:"arguments"`
	}
)

// compare returns every difference, in the topology's order.
func (m *management) compare(ctx context.Context, t *Topology) ([]deviation, error) {
	ask := m.begin()
	defer ask.end()
	var out []deviation
	add := func(object, want, have, cure string) {
		if want != have {
			out = append(out, deviation{Difference: admin.Difference{Object: object, Want: want, Have: have}, cure: cure})
		}
	}
	for _, e := range t.Exchanges {
		var live liveExchange
		switch err := ask.get(ctx, &live, "exchanges", e.Name); {
		case errors.Is(err, errNotFound):
			add(e.String(), "there", missing, provision)
			continue
		case err != nil:
			return nil, err
		}
		want := liveExchange{Type: e.Kind, Durable: true}
		add(fmt.Sprintf("exchange %q", e.Name), want.String(), live.String(), recreate)
	}
	for _, q := range t.Queues {
		var live liveQueue
		switch err := ask.get(ctx, &live, "queues", q.Name); {
		case errors.Is(err, errNotFound):
			add(q.String(), "there", missing, provision)
			continue
		case err != nil:
			return nil, err
		}
		add(q.String(), (&liveQueue{Durable: true}).String(), live.String(), recreate)
		for _, name := range slices.Sorted(maps.Keys(merged(q.Arguments, live.Arguments))) {
			add(q.String()+" argument "+name, valueText(q.Arguments, name), valueText(live.Arguments, name), recreate)
		}
		found, err := ask.bindings(ctx, t, q.Name)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	return out, nil
}

// bindings compares the bindings of a queue that is there.
func (a *asking) bindings(ctx context.Context, t *Topology, queue string) ([]deviation, error) {
	var live []liveBinding
	if err := a.get(ctx, &live, "queues", queue, "bindings"); err != nil && !errors.Is(err, errNotFound) {
		return nil, err
	}
	var out []deviation
	has := map[Binding]bool{}
	fed := false
	for _, b := range live {
		if b.Source == "" { // the default exchange
			continue
		}
		is := Binding{b.Source, queue, b.Key}
		fed = fed || b.Source != t.names.dlx()
		if len(b.Arguments) == 0 {
			has[is] = true
		}
		elsewhere := slices.Contains(t.queues, queue) && t.boundElsewhere(queue) && b.Source != t.names.dlx()
		if (!slices.Contains(t.Bindings, is) || len(b.Arguments) > 0) && !elsewhere {
			out = append(out, deviation{Difference: admin.Difference{Object: is.String(), Want: "none", Have: "there"}, extra: true})
		}
	}
	for _, b := range t.Bindings {
		if b.Queue == queue && !has[b] {
			out = append(out, deviation{Difference: admin.Difference{Object: b.String(), Want: "there", Have: missing}, cure: provision})
		}
	}
	if slices.Contains(t.queues, queue) && t.boundElsewhere(queue) && !fed {
		out = append(out, deviation{
			Difference: admin.Difference{Object: Queue{Name: queue}.String(), Want: "bound to an exchange", Have: "bound to nothing"},
			cure:       "no message can reach it: name its topics in Subscription.Bindings, or bind it",
		})
	}
	return out, nil
}

// String describes an exchange.
func (e liveExchange) String() string {
	return flags(e.Type, map[string]bool{"not durable": !e.Durable, "auto-delete": e.AutoDelete, "internal": e.Internal})
}

// String describes a queue without its arguments.
func (q *liveQueue) String() string {
	return flags("durable", map[string]bool{"not durable": !q.Durable, "auto-delete": q.AutoDelete, "exclusive": q.Exclusive})
}

func flags(first string, set map[string]bool) string {
	all := []string{first}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if set[name] {
			all = append(all, name)
		}
	}
	return strings.Join(all, ", ")
}

func merged(a, b map[string]any) map[string]any {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]any{}
	}
	maps.Copy(all, b)
	return all
}

// valueText writes an argument; numbers alike whatever their type is.
func valueText(args map[string]any, name string) string {
	switch v := args[name].(type) {
	case nil:
		return "none"
	case string:
		return fmt.Sprintf("%q", v)
	case float64:
		if v == float64(int64(v)) {
			return strconv.FormatInt(int64(v), 10)
		}
		return fmt.Sprint(v)
	default:
		return fmt.Sprint(v)
	}
}
