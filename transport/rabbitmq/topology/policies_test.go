package topology_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// DB-29: policies that lose or park messages are differences that name the policy: no longer life of a queue, no
// shorter delay and no lower limit than the topology's. Parked messages may have a retention.
func TestPoliciesThatLoseMessages(t *testing.T) {
	t.Parallel()
	want := newTopology(t, topology.Options{}, core.Subscription{
		Queue: "q", Bindings: []string{"#"}, RetryDelays: []time.Duration{time.Second},
	})
	for policy, differences := range map[string][]string{
		`{"expires":5000}`:                     {`queue "q.dlq" expires`, `queue "q" expires`, `queue "q.delay_1s" expires`},
		`{"message-ttl":500}`:                  {`queue "q" message-ttl`, `queue "q.delay_1s" message-ttl`},
		`{"message-ttl":5000}`:                 {`queue "q" message-ttl`},
		`{"delivery-limit":2}`:                 {`queue "q.dlq" delivery-limit`, `queue "q" delivery-limit`, `queue "q.delay_1s" delivery-limit`},
		`{"delivery-limit":1000000}`:           nil,
		`{"dead-letter-exchange":"elsewhere"}`: nil,
		`{"max-length":5,"overflow":"drop-head","queue-mode":"lazy"}`: nil,
		`""`: nil, `[]`: nil, `null`: nil,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			kind, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/api/"), "/")
			name, bindings := strings.CutSuffix(strings.TrimPrefix(rest, "//"), "/bindings")
			var answer any
			switch {
			case bindings:
				var list []map[string]any
				for _, b := range want.Bindings {
					if b.Queue == name {
						list = append(list, map[string]any{"source": b.Exchange, "destination": b.Queue, "destination_type": "queue", "routing_key": b.Key})
					}
				}
				answer = list
			case kind == "queues":
				i := slices.IndexFunc(want.Queues, func(q topology.Queue) bool { return q.Name == name })
				answer = map[string]any{
					"type": "quorum", "durable": true, "arguments": want.Queues[i].Arguments, "policy": "p",
					"effective_policy_definition": json.RawMessage(policy),
				}
			default:
				i := slices.IndexFunc(want.Exchanges, func(e topology.Exchange) bool { return e.Name == name })
				answer = map[string]any{"type": want.Exchanges[i].Kind, "durable": true}
			}
			_ = json.NewEncoder(w).Encode(answer)
		}))
		t.Cleanup(server.Close)
		b, err := topology.NewBroker(topology.BrokerOptions{URL: server.URL, User: "u", Password: "p"})
		if err != nil {
			t.Fatal(err)
		}
		found, err := b.Compare(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		var objects []string
		for _, d := range found {
			objects = append(objects, strings.TrimSuffix(d.Object, ` by policy "p"`))
			if !strings.Contains(d.String(), `by policy "p" is `) || !strings.Contains(d.String(), "take it out of the policy") || d.Surplus {
				t.Errorf("%s", d)
			}
		}
		if !slices.Equal(objects, differences) {
			t.Errorf("%s: %q, want %q", policy, objects, differences)
		}
	}
}
