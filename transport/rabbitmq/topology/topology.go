package topology

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// noLimit is a delivery limit beyond reach, on queues that the broker must never drop a message from. It is set
// explicitly: RabbitMQ 4 has a default of 20, and 3.x takes no negative number for "no limit".
const noLimit = 1_000_000

// Topology is what a broker must hold for a set of subscriptions: every exchange, queue, argument and binding. The
// transport declares and verifies it; Terraform, Definitions and Permissions write it down; a [Broker] is compared with
// it. It is a value; make it with [New].
type Topology struct {
	Exchanges []Exchange
	Queues    []Queue
	Bindings  []Binding

	names         Names
	subscriptions []string // their names
	delays        []string // the shared delay exchanges
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

// New returns what publishing and the subscriptions need with these options. Each subscription must have its Retry,
// which says what delay queues there are: give that of the consumer (consumer.DefaultRetry if it has none). The error
// lists all problems.
func New(opts Options, subs ...waybill.Subscription) (Topology, error) {
	problems := opts.Problems()
	asked, more := opts.subscriptions(subs)
	if problems = append(problems, more...); len(problems) > 0 {
		return Topology{}, waybill.Invalid("waybill/rabbitmq: topology", problems...)
	}
	t := Of(opts, asked...)
	args := map[string]Queue{}
	for _, q := range t.Queues {
		if other, ok := args[q.Name]; ok && !maps.Equal(other.Arguments, q.Arguments) {
			problems = append(problems, fmt.Sprintf("queue %q is needed twice, with different arguments: "+
				"rename a subscription's queue", q.Name))
		}
		args[q.Name] = q
	}
	return t, waybill.Invalid("waybill/rabbitmq: topology", problems...)
}

// Of is New without the checks, for a transport: it has made them when it was asked for the subscriptions. See
// Options.Problems and Options.SubscriptionProblems.
func Of(opts Options, subs ...core.Subscription) Topology {
	opts = opts.withDefaults()
	n := opts.Names()
	t := Topology{Exchanges: []Exchange{{n.Exchange(), "topic"}}, names: n}
	for i := range subs {
		sub := &subs[i]
		dlx := n.DeadLetterExchange(sub.Queue)
		t.addExchange(dlx, "direct")
		queue, dlq := n.Queue(sub.Queue), n.DeadLetterQueue(sub.Queue)
		own := map[string]any{"x-dead-letter-exchange": dlx, "x-dead-letter-routing-key": queue}
		if sub.InOrder {
			own["x-single-active-consumer"] = true
		}
		if opts.QueueType == Quorum {
			own["x-delivery-limit"] = int64(opts.DeliveryLimit)
		}
		t.subscriptions = append(t.subscriptions, sub.Queue)
		t.addQueue(dlq, opts.queueArgs(nil))
		t.addQueue(queue, opts.queueArgs(own))
		t.addBinding(dlx, dlq, queue)
		t.addBinding(dlx, queue, n.ReturnKey(sub.Queue))
		for _, d := range DelaysOf(sub.RetryDelays) {
			t.addDelay(opts, sub.Queue, d)
		}
		for _, key := range sub.Bindings {
			t.addBinding(n.Exchange(), queue, key)
		}
	}
	return t
}

// addDelay adds a delay queue. That of a subscription leads back by the key of its queue. A shared one has no
// dead-letter routing key: each message goes by its own, which is the name of its queue.
func (t *Topology) addDelay(opts Options, subscription string, d time.Duration) {
	ttl := d.Milliseconds()
	if !opts.SharedDelays {
		delay, dlx := t.names.DelayQueue(subscription, d), t.names.DeadLetterExchange(subscription)
		t.addQueue(delay, opts.queueArgs(map[string]any{
			"x-dead-letter-exchange": dlx, "x-dead-letter-routing-key": t.names.ReturnKey(subscription), "x-message-ttl": ttl,
		}))
		t.addBinding(dlx, delay, delay)
		return
	}
	delay := t.names.SharedDelay(d)
	if t.addExchange(delay, "fanout") {
		t.delays = append(t.delays, delay)
	}
	t.addQueue(delay, opts.queueArgs(map[string]any{"x-dead-letter-exchange": "", "x-message-ttl": ttl}))
	t.addBinding(delay, delay, "")
}

// queueArgs completes the arguments of a queue.
func (o Options) queueArgs(args map[string]any) map[string]any {
	if args == nil {
		args = map[string]any{}
	}
	args["x-queue-type"] = string(o.QueueType)
	args["x-overflow"] = "reject-publish"
	if o.QueueType == Classic {
		return args
	}
	if _, ok := args["x-delivery-limit"]; !ok {
		args["x-delivery-limit"] = int64(noLimit)
	}
	if _, ok := args["x-dead-letter-exchange"]; ok {
		args["x-dead-letter-strategy"] = "at-least-once"
	}
	return args
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

// RetryExchanges returns the exchanges that a consumer publishes to when it retries or dead-letters a message.
func (t Topology) RetryExchanges() []string {
	var out []string
	for _, sub := range t.subscriptions {
		out = append(out, t.names.DeadLetterExchange(sub))
	}
	return append(out, t.delays...)
}

// BoundElsewhere returns the queues of subscriptions without bindings: another program has to bind them.
func (t Topology) BoundElsewhere() []string {
	var out []string
	for _, sub := range t.subscriptions {
		queue, dlx := t.names.Queue(sub), t.names.DeadLetterExchange(sub)
		if !slices.ContainsFunc(t.Bindings, func(b Binding) bool { return b.Queue == queue && b.Exchange != dlx }) {
			out = append(out, queue)
		}
	}
	return out
}
