package rabbitmq

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// The topology, with every argument. {exchange} and {queue} include Options.Prefix.
//
//	exchange {exchange}            topic, durable
//	exchange {exchange}.dlx        direct, durable
//	exchange {exchange}.delay_{d}  fanout, durable; one a distinct delay, shared by all subscriptions
//
//	queue {exchange}.delay_{d}     quorum; bound to its exchange
//	    x-message-ttl={d}
//	    x-dead-letter-exchange="" (the default exchange)
//	    x-dead-letter-strategy=at-least-once, x-overflow=reject-publish, x-delivery-limit=1000000
//
//	queue {queue}                  quorum; bound to {exchange} with the subscription's bindings,
//	                               and to {exchange}.dlx with {queue}.return
//	    x-dead-letter-exchange={exchange}.dlx, x-dead-letter-routing-key={queue}
//	    x-dead-letter-strategy=at-least-once, x-overflow=reject-publish, x-delivery-limit=1000000
//	    x-single-active-consumer=true with Subscription.InOrder
//
//	queue {queue}.dlq              quorum; bound to {exchange}.dlx with {queue}
//	    x-overflow=reject-publish, x-delivery-limit=1000000
//
// Classic queues have x-queue-type, x-message-ttl, x-overflow and the dead-letter exchange and key only: the broker
// takes no more.
//
// A message that is to be retried is published to the delay exchange with the queue's name as its routing key. The
// delay queue has no dead-letter routing key, so that when its time is over the message goes by its own key through the
// default exchange to that one queue. What comes back at once (a retry without a delay, a replay) goes through
// {exchange}.dlx with {queue}.return, so that nobody needs the permission to write to the default exchange, which
// reaches every queue.

// deliveryLimit is set explicitly, and beyond reach, so that the broker never parks a message without a reason:
// RabbitMQ 4 has a default of 20, and 3.x takes no negative number for "no limit".
const deliveryLimit = 1_000_000

const (
	maxStem  = 200 // bytes of an exchange's or a queue's name, so that the derived ones fit into 255
	maxDelay = maxExpiration * time.Millisecond
)

// names makes the names of one transport's objects.
type names struct{ prefix, exchange string }

func (o Options) names() names { return names{o.Prefix, o.Prefix + o.Exchange} }

func (n names) dlx() string                  { return n.exchange + ".dlx" }
func (n names) delay(d time.Duration) string { return n.exchange + ".delay_" + delayName(d) }
func (n names) queue(name string) string     { return n.prefix + name }

// The names that come from a queue's, prefix included.
func deadLetterQueue(queue string) string { return queue + ".dlq" }
func returnKey(queue string) string       { return queue + ".return" }

// delayName writes a delay readably: 500ms, 1m30s, 1d12h. It is unambiguous for whole milliseconds.
func delayName(d time.Duration) string {
	var b strings.Builder
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := int64(d / u.unit); n > 0 {
			b.WriteString(strconv.FormatInt(n, 10) + u.name)
			d %= u.unit
		}
	}
	if b.Len() == 0 {
		return "0ms"
	}
	return b.String()
}

// tiers returns the delays to declare: whole milliseconds, at least one, ascending, without doubles.
func tiers(delays []time.Duration) []time.Duration {
	var out []time.Duration
	for _, d := range delays {
		d = max(d+time.Millisecond-1, time.Millisecond).Truncate(time.Millisecond)
		if len(out) == 0 || d > out[len(out)-1] {
			out = append(out, d)
		}
	}
	return out
}

// tierFor returns the first tier that is not shorter than d, else the last; 0 if there is none or d is 0.
func tierFor(tiers []time.Duration, d time.Duration) time.Duration {
	if d <= 0 || len(tiers) == 0 {
		return 0
	}
	for _, t := range tiers {
		if t >= d {
			return t
		}
	}
	return tiers[len(tiers)-1]
}

// Topology is what a broker must hold for a set of subscriptions: every exchange, queue, argument and binding. It is
// what a transport declares and verifies, and what Terraform, Definitions and Permissions write down. It is a value;
// make it with [NewTopology].
type Topology struct {
	Exchanges []Exchange
	Queues    []Queue
	Bindings  []Binding

	names  names
	queues []string // of the subscriptions
	delays []string // the delay exchanges
}

// Exchange is a durable exchange.
type Exchange struct {
	// Name of the exchange; Kind is topic, direct or fanout.
	Name, Kind string
}

// Queue is a durable queue.
type Queue struct {
	Name string
	// Arguments are its x-arguments: strings, int64 and bool.
	Arguments map[string]any
}

// Binding binds a queue to an exchange.
type Binding struct {
	Exchange, Queue, Key string
}

// String returns the exchange as errors name it.
func (e Exchange) String() string { return fmt.Sprintf("%s exchange %q", e.Kind, e.Name) }

// String returns the queue as errors name it.
func (q Queue) String() string { return fmt.Sprintf("queue %q", q.Name) }

// String returns the binding as errors name it.
func (b Binding) String() string {
	return fmt.Sprintf("binding of queue %q to exchange %q with key %q", b.Queue, b.Exchange, b.Key)
}

// NewTopology returns what publishing and the subscriptions need with these options. Each subscription must have its
// Retry, which says what delay queues there are: give that of the consumer (consumer.DefaultRetry if it has none). The
// error lists all problems.
func NewTopology(opts Options, subs ...waybill.Subscription) (Topology, error) {
	problems := opts.problems()
	opts = opts.withDefaults()
	seen := map[string]bool{}
	asked := make([]core.Subscription, len(subs))
	for i := range subs {
		at := fmt.Sprintf("subscriptions[%d].", i)
		if retry := subs[i].Retry; retry == nil {
			problems = append(problems, at+"Retry: is not set, so that the delay queues are unknown: give the consumer's (consumer.DefaultRetry, or waybill.RetryDelays() for no retries)")
		} else if p := retry.Validate(at + "Retry"); len(p) > 0 {
			problems = append(problems, p...)
			continue
		}
		asked[i] = core.SubscriptionOf(&subs[i])
		for _, p := range subscriptionProblems(&asked[i], opts) {
			problems = append(problems, at+p)
		}
		if queue := subs[i].Queue; seen[queue] {
			problems = append(problems, fmt.Sprintf("%sQueue: %q stands in an earlier one too", at, clip(queue)))
		}
		seen[subs[i].Queue] = true
	}
	if len(problems) > 0 {
		return Topology{}, waybill.Invalid("waybill/rabbitmq: topology", problems...)
	}
	t := newTopology(opts, asked...)
	args := map[string]Queue{}
	for _, q := range t.Queues {
		if other, ok := args[q.Name]; ok && !maps.Equal(other.Arguments, q.Arguments) {
			problems = append(problems, fmt.Sprintf("queue %q is needed twice, with different arguments: rename a subscription's queue", q.Name))
		}
		args[q.Name] = q
	}
	return t, waybill.Invalid("waybill/rabbitmq: topology", problems...)
}

// newTopology is the table above: the one place that knows every argument.
func newTopology(opts Options, subs ...core.Subscription) Topology {
	n := opts.names()
	t := Topology{Exchanges: []Exchange{{n.exchange, "topic"}}, names: n}
	if len(subs) > 0 {
		t.addExchange(n.dlx(), "direct")
	}
	for i := range subs {
		sub := &subs[i]
		queue := n.queue(sub.Queue)
		dlq := deadLetterQueue(queue)
		own := map[string]any{"x-dead-letter-exchange": n.dlx(), "x-dead-letter-routing-key": queue}
		if sub.InOrder {
			own["x-single-active-consumer"] = true
		}
		t.queues = append(t.queues, queue)
		t.addQueue(dlq, opts.queueArgs(nil))
		t.addQueue(queue, opts.queueArgs(own))
		t.addBinding(n.dlx(), dlq, queue)
		t.addBinding(n.dlx(), queue, returnKey(queue))
		for _, d := range tiers(sub.RetryDelays) {
			delay := n.delay(d)
			if t.addExchange(delay, "fanout") {
				t.delays = append(t.delays, delay)
			}
			t.addQueue(delay, opts.queueArgs(map[string]any{"x-dead-letter-exchange": "", "x-message-ttl": d.Milliseconds()}))
			t.addBinding(delay, delay, "")
		}
		for _, key := range sub.Bindings {
			t.addBinding(n.exchange, queue, key)
		}
	}
	return t
}

func (t *Topology) addExchange(name, kind string) bool {
	e := Exchange{name, kind}
	if slices.Contains(t.Exchanges, e) {
		return false
	}
	t.Exchanges = append(t.Exchanges, e)
	return true
}

func (t *Topology) addQueue(name string, args map[string]any) {
	for _, q := range t.Queues {
		if q.Name == name && maps.Equal(q.Arguments, args) {
			return
		}
	}
	t.Queues = append(t.Queues, Queue{name, args})
}

func (t *Topology) addBinding(exchange, queue, key string) {
	if b := (Binding{exchange, queue, key}); !slices.Contains(t.Bindings, b) {
		t.Bindings = append(t.Bindings, b)
	}
}

func (o Options) queueArgs(args map[string]any) map[string]any {
	if args == nil {
		args = map[string]any{}
	}
	args["x-queue-type"] = string(o.QueueType)
	args["x-overflow"] = "reject-publish"
	if o.QueueType == QueueClassic {
		return args
	}
	args["x-delivery-limit"] = int64(deliveryLimit)
	if _, ok := args["x-dead-letter-exchange"]; ok {
		args["x-dead-letter-strategy"] = "at-least-once"
	}
	return args
}
