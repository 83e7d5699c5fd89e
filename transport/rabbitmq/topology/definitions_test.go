package topology_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// RM-07: the exports, as they are. An import into a real broker is TestRolesDoTheirJob.
func TestExportsGolden(t *testing.T) {
	t.Parallel()
	shop := newTopology(t, topology.Options{Exchange: "shop"}, core.Subscription{
		Queue: "billing", Bindings: []string{"orders.*", "users.#"}, RetryDelays: []time.Duration{500 * time.Millisecond, time.Minute},
	}, core.Subscription{Queue: "mail", Bindings: []string{"#"}, RetryDelays: []time.Duration{time.Minute}, InOrder: true})
	users := topology.Users{Relay: "shop-relay", Consumer: "shop-consumer", Operator: "shop-operator"}
	file, err := shop.Definitions("shop", users)
	if err != nil {
		t.Fatal(err)
	}
	sharedtest.Golden(t, "testdata/definitions.golden", string(file), "")
	sharedtest.Golden(t, "testdata/terraform.golden", shop.Terraform("shop", users), "")
}

// Names with characters that mean something in HCL and JSON stay what they are, and every resource has a label of its
// own.
func TestExportsQuote(t *testing.T) {
	t.Parallel()
	shop := newTopology(t, topology.Options{}, core.Subscription{
		Queue: `a"${b}%{c}\<&>`, Bindings: []string{`#`, `$x`, `größe.*`},
		RetryDelays: []time.Duration{},
	},
		core.Subscription{Queue: "9.lives", RetryDelays: []time.Duration{}},
		core.Subscription{Queue: "9-lives", RetryDelays: []time.Duration{}},
		core.Subscription{Queue: "9 lives", RetryDelays: []time.Duration{}})
	tf := shop.Terraform(`v"h`, topology.Users{})
	for _, want := range []string{
		`name  = "a\"$${b}%%{c}\\<&>"`, `routing_key      = "$x"`, `routing_key      = "größe.*"`,
		`vhost = "v\"h"`, `"_9_lives"`, `"_9-lives"`, `"_9_lives_2"`,
	} {
		if !strings.Contains(tf, want) {
			t.Errorf("no %s in\n%s", want, tf)
		}
	}
	seen := map[string]bool{}
	for line := range strings.Lines(tf) {
		if strings.HasPrefix(line, "resource ") && seen[line] {
			t.Errorf("twice: %s", line)
		}
		seen[line] = true
	}
	file, err := shop.Definitions(`v"h`, topology.Users{})
	if err != nil {
		t.Fatal(err)
	}
	var back struct {
		Queues []struct{ Name, VHost string }
	}
	if err := json.Unmarshal(file, &back); err != nil || len(back.Queues) != 12 || // each has a delay queue
		back.Queues[1].Name != `a"${b}%{c}\<&>` ||
		back.Queues[0].VHost != `v"h` {
		t.Errorf("%+v, %v", back, err)
	}
}

// Options and subscriptions that make no topology are refused, with every problem.
func TestTopologyRefuses(t *testing.T) {
	t.Parallel()
	_, err := topology.New(topology.Options{Exchange: "amq.x", QueueType: "x"}, waybill.Subscription{},
		waybill.Subscription{Queue: "q", Retry: &waybill.Backoff{Base: -1}},
		waybill.Subscription{Queue: "twice", Retry: waybill.RetryDelays()},
		waybill.Subscription{Queue: "twice", Retry: waybill.RetryDelays()},
		waybill.Subscription{Queue: "long", Retry: waybill.RetryDelays(60 * 24 * time.Hour)})
	if !errors.Is(err, waybill.ErrInvalid) {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Exchange: ", "QueueType: ", "subscriptions[0].Queue: is empty", "subscriptions[0].Retry: is not set",
		"subscriptions[1].Retry", "subscriptions[3].Queue: \"twice\"", "subscriptions[4].RetryDelays[1]: 1440h",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\ndoes not say %s", err, want)
		}
	}
	_, err = topology.New(topology.Options{}, waybill.Subscription{Queue: "q", Retry: waybill.RetryDelays()},
		waybill.Subscription{Queue: "q.dlq", Retry: waybill.RetryDelays()})
	if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), `queue "q.dlq" is needed twice`) {
		t.Errorf("a queue that is another one's dead-letter queue: %v", err)
	}
}
