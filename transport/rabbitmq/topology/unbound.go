package topology

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/waybill-go/waybill/internal/check"
)

// Unbound returns the topics without a binding of t's exchange: their messages could not be routed. An exchange with an
// alternate one, by argument or perhaps by a policy, routes everything: then there are none. Neither are there if the
// exchange is missing; Compare says that.
func (b *Broker) Unbound(ctx context.Context, t Topology, topics []string) ([]string, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	ask := b.begin()
	defer ask.end()
	var live struct {
		Policy    string         `json:"policy"`
		Arguments map[string]any `json:"arguments"`
	}
	var bound []liveBinding
	err := ask.get(ctx, &live, "exchanges", t.names.Exchange())
	if err == nil {
		err = ask.get(ctx, &bound, "exchanges", t.names.Exchange(), "bindings", "source")
	}
	switch {
	case errors.Is(err, errNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case live.Policy != "" || live.Arguments["alternate-exchange"] != nil:
		return nil, nil
	}
	keys := make([][]string, len(bound))
	for i := range bound {
		keys[i] = strings.Split(bound[i].Key, ".")
	}
	var out []string
	for _, topic := range topics {
		words := strings.Split(topic, ".")
		if !slices.ContainsFunc(keys, func(key []string) bool { return check.Matches(key, words) }) {
			out = append(out, topic)
		}
	}
	return out, nil
}
