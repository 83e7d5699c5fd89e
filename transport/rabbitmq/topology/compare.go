package topology

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/waybill-go/waybill/admin"
)

// Difference is one thing on a broker that is not as a topology says.
type Difference struct {
	admin.Difference
	// Fix says what to do.
	Fix string
	// Surplus is true for a binding that the topology does not have. A service starts with it.
	Surplus bool
}

// String returns the difference and its fix, as errors name them.
func (d Difference) String() string {
	if d.Have == missing {
		return d.Object + " does not exist: " + d.Fix
	}
	return fmt.Sprintf("%s is %s, want %s: %s", d.Object, d.Have, d.Want, d.Fix)
}

const (
	missing  = "missing"
	create   = "create it as Topology exports it (Terraform, definitions), or run waybill topology declare (Transport.Declare in a program) once as a user that may configure it"
	recreate = "change the options to match, or delete it when it is empty and create it again"
)

// Missing returns the difference for an exchange, a queue or a binding that is not there.
func Missing(object fmt.Stringer) Difference {
	return Difference{Difference: admin.Difference{Object: object.String(), Want: "there", Have: missing}, Fix: create}
}

func differs(object, want, have, fix string) Difference {
	return Difference{Difference: admin.Difference{Object: object, Want: want, Have: have}, Fix: fix}
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
		// of both policies: an object, or an empty text or list; absent if the broker does not know it
		Effective json.RawMessage `json:"effective_policy_definition"`
	}
	liveBinding struct {
		Source        string         `json:"source"`
		Destination   string         `json:"destination"`
		Kind          string         `json:"destination_type"`
		Key           string         `json:"routing_key"`
		PropertiesKey string         `json:"properties_key"`
		Arguments     map[string]any `json:"arguments"`
	}
)

// Compare returns every difference between t and the broker, in t's order: missing objects, objects with other
// properties or arguments, and bindings that t does not have. Of policies it finds expires, message-ttl and
// delivery-limit, where they lose or park messages. A new queue's policies are known some seconds later.
func (b *Broker) Compare(ctx context.Context, t Topology) ([]Difference, error) {
	ask := b.begin()
	defer ask.end()
	var out []Difference
	for _, e := range t.Exchanges {
		found, err := ask.exchange(ctx, e)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	for _, want := range t.Queues {
		found, err := ask.queue(ctx, want)
		if err == nil {
			out = append(out, found...)
			found, err = ask.bindings(ctx, &t, want.Name)
		}
		switch {
		case errors.Is(err, errNotFound):
			out = append(out, Missing(want))
		case err != nil:
			return nil, err
		default:
			out = append(out, found...)
		}
	}
	return out, nil
}

func (q *inquiry) exchange(ctx context.Context, want Exchange) ([]Difference, error) {
	var live liveExchange
	switch err := q.get(ctx, &live, "exchanges", want.Name); {
	case errors.Is(err, errNotFound):
		return []Difference{Missing(want)}, nil
	case err != nil:
		return nil, err
	}
	if have, wanted := live.String(), (liveExchange{Type: want.Kind, Durable: true}).String(); have != wanted {
		return []Difference{differs(fmt.Sprintf("exchange %q", want.Name), wanted, have, recreate)}, nil
	}
	return nil, nil
}

// queue compares the properties and arguments of a queue, or returns errNotFound.
func (q *inquiry) queue(ctx context.Context, want Queue) ([]Difference, error) {
	var live liveQueue
	if err := q.get(ctx, &live, "queues", want.Name); err != nil {
		return nil, err
	}
	var out []Difference
	if have, wanted := live.String(), (&liveQueue{Durable: true}).String(); have != wanted {
		out = append(out, differs(want.String(), wanted, have, recreate))
	}
	all := maps.Clone(live.Arguments)
	if all == nil {
		all = map[string]any{}
	}
	maps.Copy(all, want.Arguments)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if have, wanted := valueText(live.Arguments, name), valueText(want.Arguments, name); have != wanted {
			out = append(out, differs(want.String()+" argument "+name, wanted, have, recreate))
		}
	}
	return append(out, live.spoiled(want)...), nil
}

// spoiled returns the settings of policies that lose messages of a queue of the topology, or move them where no
// subscription finds them. An argument holds against a policy, but of two limits the broker takes the smaller one.
func (q *liveQueue) spoiled(want Queue) []Difference {
	var policy map[string]any
	if json.Unmarshal(q.Effective, &policy) != nil {
		return nil // an empty text or list, or not told yet
	}
	var out []Difference
	add := func(name, effect string) {
		allowed, have := want.Arguments["x-"+name], policy[name]
		if have == nil || allowed != nil && number(have) >= number(allowed) {
			return
		}
		out = append(out, differs(fmt.Sprintf("%s %s by %s", want, name, q.policies()), valueText(want.Arguments, "x-"+name),
			valueText(policy, name), effect+": take it out of the policy, or let the policy match other queues"))
	}
	add("expires", "the broker deletes the queue with its messages while nobody uses it")
	if want.Arguments["x-dead-letter-exchange"] == nil {
		// Here message-ttl is the retention of parked messages.
		add("delivery-limit", "the broker drops parked messages that were looked at so often")
		return out
	}
	add("message-ttl", "the broker takes messages out of the queue before their time")
	add("delivery-limit", "the broker parks messages that were redelivered less often than the topology allows")
	return out
}

// number is a number of a queue's arguments, or of JSON.
func number(v any) float64 {
	switch n := v.(type) {
	case int64:
		return float64(n)
	case float64:
		return n
	}
	return 0
}

// bindings compares the bindings of a queue that is there.
func (q *inquiry) bindings(ctx context.Context, t *Topology, queue string) ([]Difference, error) {
	var live []liveBinding
	if err := q.get(ctx, &live, "queues", queue, "bindings"); err != nil && !errors.Is(err, errNotFound) {
		return nil, err
	}
	var out []Difference
	has := map[Binding]bool{}
	bound := false // by something else than a dead-letter exchange
	elsewhere := slices.Contains(t.BoundElsewhere(), queue)
	for _, l := range live {
		if l.Source == "" { // the default exchange
			continue
		}
		is := Binding{l.Source, queue, l.Key}
		own := t.names.leadsToDeadLetters(l.Source)
		bound = bound || !own
		if len(l.Arguments) == 0 {
			has[is] = true
		}
		if (!slices.Contains(t.Bindings, is) || len(l.Arguments) > 0) && (own || !elsewhere) {
			fix := "remove it, or name its key in Subscription.Bindings"
			if own {
				fix = "remove it: whoever may write to this exchange reaches the queue by it"
			}
			extra := differs(is.String(), "none", "there", fix)
			extra.Surplus = true
			out = append(out, extra)
		}
	}
	for _, b := range t.Bindings {
		if b.Queue == queue && !has[b] {
			out = append(out, Missing(b))
		}
	}
	if elsewhere && !bound {
		out = append(out, differs(Queue{Name: queue}.String(), "bound to an exchange", "bound to nothing",
			"no message can reach it: name its topics in Subscription.Bindings, or bind it"))
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

// valueText writes an argument; numbers of all types alike.
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
