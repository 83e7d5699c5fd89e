package topology_test

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// RM-01, RM-02: the names and arguments are a contract with objects that are on brokers already: with another argument
// the transport refuses to start.
func TestTopologyGolden(t *testing.T) {
	t.Parallel()
	opts := topology.Options{Exchange: "waybill", QueueType: topology.Quorum}
	sub := core.Subscription{
		Queue: "billing", Bindings: []string{"orders.*"},
		RetryDelays: []time.Duration{500 * time.Millisecond, 90 * time.Second},
	}
	var b strings.Builder
	shop := newTopology(t, opts, sub)
	for _, e := range shop.Exchanges {
		fmt.Fprintln(&b, e)
	}
	for _, q := range shop.Queues {
		fmt.Fprintln(&b, q)
		for _, k := range slices.Sorted(maps.Keys(q.Arguments)) {
			fmt.Fprintf(&b, "    %s = %#v\n", k, q.Arguments[k])
		}
	}
	for _, x := range shop.Bindings {
		fmt.Fprintln(&b, x)
	}
	sharedtest.Golden(t, "testdata/topology.golden", b.String(), "../../../docs/rabbitmq.md")
}

// RM-04: a message that queue orders.return parks would go to queue orders, by the key of its way back; and one that
// orders retries, to the parked ones.
func TestReturnIsNoQueueName(t *testing.T) {
	t.Parallel()
	retry := waybill.RetryDelays()
	_, err := topology.New(topology.Options{}, waybill.Subscription{Queue: "orders", Retry: retry},
		waybill.Subscription{Queue: "orders.return", Retry: retry})
	if !errors.Is(err, waybill.ErrInvalid) ||
		!strings.Contains(err.Error(), `subscriptions[1].Queue: "orders.return" ends in ".return"`) ||
		!strings.Contains(err.Error(), "choose another name") {
		t.Errorf("got %v", err)
	}
	if p := (topology.Options{}).SubscriptionProblems(&core.Subscription{Queue: "orders.return"}); len(p) != 1 {
		t.Errorf("a subscription: %v", p)
	}
	for name, want := range map[string]int{
		"orders.returns": 0, "orders.delay_1s": 1, "orders.delay_x": 1, "orders.delay_1s.x": 0, "orders.delay": 0, "delay_1s": 0,
	} {
		if p := (topology.Options{}).SubscriptionProblems(&core.Subscription{Queue: name}); len(p) != want {
			t.Errorf("%s: %v", name, p)
		}
	}
}

// newTopology returns the topology of a transport's subscriptions, as a user would make it.
func newTopology(t *testing.T, opts topology.Options, subs ...core.Subscription) topology.Topology {
	t.Helper()
	asked := make([]waybill.Subscription, len(subs))
	for i := range subs {
		sub := &subs[i]
		asked[i] = waybill.Subscription{
			Queue: sub.Queue, Bindings: sub.Bindings, InOrder: sub.InOrder, Retry: waybill.RetryDelays(sub.RetryDelays...),
		}
	}
	made, err := topology.New(opts, asked...)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// RM-03, CO-04.
func TestDelays(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		time.Millisecond: "1ms", 500 * time.Millisecond: "500ms", 90 * time.Second: "1m30s", time.Minute: "1m", time.Hour: "1h",
		36*time.Hour + 5*time.Millisecond: "1d12h5ms", 49 * 24 * time.Hour: "49d",
	} {
		if got := topology.DelayName(d); got != want {
			t.Errorf("%s is named %s, want %s", d, got, want)
		}
		if !topology.IsDelayName(want) {
			t.Errorf("%s is not taken for a delay", want)
		}
	}
	for _, name := range []string{"", "1", "ms", "soon", "60s", "1s0ms", "1s1m", "01s", "-1s", "1m1", "99999999999d"} {
		if topology.IsDelayName(name) {
			t.Errorf("%q is taken for a delay", name)
		}
	}
	list := topology.DelaysOf([]time.Duration{0, 1, time.Millisecond, time.Second, time.Second, time.Minute})
	if diff := cmp.Diff(topology.Delays{time.Millisecond, time.Second, time.Minute}, list); diff != "" {
		t.Error(diff)
	}
	for d, want := range map[time.Duration]time.Duration{
		0: 0, 1: time.Millisecond, time.Second: time.Second,
		time.Second + 1: time.Minute, time.Hour: time.Minute,
	} {
		if got := list.For(d); got != want {
			t.Errorf("a delay of %s takes %s, want %s", d, got, want)
		}
	}
}

// RM-06: the expressions match exactly the names, with any characters in these.
func TestPermissionPatterns(t *testing.T) {
	t.Parallel()
	odd := core.Subscription{Queue: `a.b*c+d?e|f(g)h[i]j{k}l\m^n$o-p q/r`, RetryDelays: []time.Duration{time.Second}}
	p := newTopology(t, topology.Options{Prefix: "p.", SharedDelays: true}, odd).Permissions()
	own := newTopology(t, topology.Options{Prefix: "p."}, odd).Permissions()
	for _, c := range []struct {
		pattern string
		names   []string
	}{
		{p.Relay.Configure, nil},
		{p.Relay.Write, []string{"p.waybill"}},
		{p.Relay.Read, nil},
		{p.Consumer.Configure, nil},
		{p.Consumer.Write, []string{"p.waybill.dlx." + odd.Queue, "p.waybill.delay_1s"}},
		{p.Consumer.Read, []string{"p." + odd.Queue}},
		{own.Consumer.Write, []string{"p.waybill.dlx." + odd.Queue}},
		{own.Consumer.Read, []string{"p." + odd.Queue}},
		{p.Operator.Configure, nil},
		{p.Operator.Write, []string{"p.waybill.dlx." + odd.Queue}},
		{p.Operator.Read, []string{"p." + odd.Queue + ".dlq"}},
	} {
		re, err := regexp.Compile(c.pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{
			"p.waybill", "p.waybill.dlx", "p.waybill.dlx.", "p.waybill.dlx." + odd.Queue, "p.waybill.dlx.other", "p.waybill.delay_1s", "p." + odd.Queue, "p." + odd.Queue + ".dlq",
			"amq.default", "waybill", "pXwaybill", "p.waybill2", "p.a.b",
		} {
			if re.MatchString(name) != slices.Contains(c.names, name) {
				t.Errorf("%s matches %q: %t", c.pattern, name, re.MatchString(name))
			}
		}
		if !strings.HasPrefix(c.pattern, "^") || !strings.HasSuffix(c.pattern, "$") {
			t.Errorf("%s is not anchored", c.pattern)
		}
	}
	nothing := topology.Permission{Configure: "^$", Write: "^$", Read: "^$"}
	if p := newTopology(t, topology.Options{}).Permissions(); p.Consumer != nothing || p.Operator != nothing {
		t.Errorf("without subscriptions: %+v", p)
	}
}

// A user with several roles has all of their permissions in one.
func TestOneUserForAll(t *testing.T) {
	t.Parallel()
	made := newTopology(t, topology.Options{}, core.Subscription{Queue: "q", RetryDelays: []time.Duration{}})
	file, err := made.Definitions("/", topology.Users{Relay: "a", Consumer: "a", Operator: "a"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"write": "^(waybill|waybill\\.dlx\\.q)$"`, `"read": "^(q|q\\.dlq)$"`} {
		if strings.Count(string(file), want) != 1 {
			t.Errorf("no %s in %s", want, file)
		}
	}
}
