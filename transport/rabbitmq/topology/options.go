package topology

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/check"
)

// QueueType is the type of the queues of subscriptions.
type QueueType string

// The queue types.
const (
	// Quorum is a replicated queue that dead-letters at least once and counts deliveries. The default.
	Quorum QueueType = "quorum"
	// Classic is a durable classic queue. The broker dead-letters from it at most once, and does not count
	// redeliveries.
	Classic QueueType = "classic"
)

// DefaultExchange is the default of Options.Exchange.
const DefaultExchange = "waybill"

const (
	// maxName is how many bytes the name of an exchange or a queue may have, by AMQP.
	maxName = 255
	// maxStem bounds the name of an exchange or a queue in bytes, so that the names derived from it fit into
	// maxName.
	maxStem = 200
)

// Options are the choices that a topology depends on. The zero value is ready for use.
type Options struct {
	// Exchange is the topic exchange that messages are published to, and the stem of the other exchanges' names;
	// default "waybill".
	Exchange string
	// Prefix stands before the name of every exchange and queue, such as "staging."; default none.
	Prefix string
	// QueueType is the type of the queues of subscriptions; default Quorum.
	QueueType QueueType
	// SharedDelays has all subscriptions of the exchange share one delay queue for each delay. That makes fewer
	// queues, but one subscription whose queue is full or gone then holds up the retries of all. And a consumer
	// with the right to retry can then put messages into every queue of the virtual host: it is for services that
	// trust each other.
	SharedDelays bool
	// DeliveryLimit is after how many deliveries without an outcome the broker itself parks a message. The
	// consumer does so earlier, after Subscription.MaxDeliveries, and writes down why. So this is for a message
	// that ends its process before the consumer has looked at it. It is an argument of the queue. Default 200, at
	// most 1,000,000; it must be above MaxDeliveries. Classic queues have no such limit.
	DeliveryLimit int
}

// DefaultDeliveryLimit is the default of Options.DeliveryLimit.
const DefaultDeliveryLimit = 200

func (o Options) withDefaults() Options {
	o.Exchange = cmp.Or(o.Exchange, DefaultExchange)
	o.QueueType = cmp.Or(o.QueueType, Quorum)
	o.DeliveryLimit = cmp.Or(o.DeliveryLimit, DefaultDeliveryLimit)
	return o
}

// Problems returns the faults of o: none if it is valid.
func (o Options) Problems() []string {
	var p []string
	o = o.withDefaults()
	for _, f := range []struct{ name, value string }{{"Exchange", o.Exchange}, {"Prefix", o.Prefix}} {
		if s := check.Name(f.value); s != "" {
			p = append(p, f.name+": "+s)
		}
	}
	full := o.Prefix + o.Exchange
	if len(full) > maxStem {
		p = append(p, fmt.Sprintf("Exchange: %q has %d bytes with its prefix; at most %d are allowed, "+
			"so that the names derived from it fit", clip(full), len(full), maxStem))
	}
	if strings.HasPrefix(full, "amq.") {
		p = append(p, "Exchange: names that begin with \"amq.\" belong to the broker; choose another")
	}
	if strings.Contains(full+".", deadLetterInfix) {
		p = append(p, fmt.Sprintf("Exchange: %q is named like a dead-letter exchange (%q); choose another name", clip(full),
			strings.TrimSuffix(deadLetterInfix, ".")))
	}
	if o.QueueType != Quorum && o.QueueType != Classic {
		p = append(p, fmt.Sprintf("QueueType: %q is unknown; use topology.Quorum or topology.Classic", clip(string(o.QueueType))))
	}
	if o.DeliveryLimit < 1 || o.DeliveryLimit > noLimit {
		p = append(p, fmt.Sprintf("DeliveryLimit: %d is not between 1 and %d; leave it 0 for %d", o.DeliveryLimit, noLimit, DefaultDeliveryLimit))
	}
	return p
}

// SubscriptionProblems returns the faults of sub for a topology with these options: none if it is valid.
func (o Options) SubscriptionProblems(sub *core.Subscription) []string {
	var p []string
	if sub.Queue == "" {
		p = append(p, "Queue: is empty; name the queue, such as \"billing.orders\"")
	} else if s := check.Name(sub.Queue); s != "" {
		p = append(p, "Queue: "+s)
	} else if strings.HasSuffix(sub.Queue, returnSuffix) {
		p = append(p, fmt.Sprintf("Queue: %q ends in %q: retries of the queue without this ending have that routing key, "+
			"so that messages would get into the wrong queue; choose another name", clip(sub.Queue), returnSuffix))
	} else if i := strings.LastIndex(sub.Queue, delaySuffix); i >= 0 && !strings.Contains(sub.Queue[i+1:], ".") {
		p = append(p, fmt.Sprintf("Queue: %q ends like the name of a delay queue (%q), so that messages would get into the wrong queue; "+
			"choose another name", clip(sub.Queue), sub.Queue[i:]))
	} else if n := len(o.Prefix) + len(sub.Queue); n > maxStem {
		p = append(p, fmt.Sprintf("Queue: has %d bytes with its prefix; at most %d are allowed", n, maxStem))
	} else if n := len(o.Names().DeadLetterExchange(sub.Queue)); n > maxName {
		p = append(p, fmt.Sprintf("Queue: with the exchange and its prefix the name of its dead-letter exchange has %d bytes; at most %d are allowed", n, maxName))
	}
	if limit := o.withDefaults().DeliveryLimit; o.QueueType != Classic && (sub.MaxDeliveries >= limit || sub.MaxDeliveries < 0 && limit < noLimit) {
		p = append(p, fmt.Sprintf("MaxDeliveries: %d is not below Options.DeliveryLimit, %d, at which the broker parks a message by itself: "+
			"raise that, to %d for no bound", sub.MaxDeliveries, limit, noLimit))
	}
	for i, b := range sub.Bindings {
		if s := check.Name(b); s != "" {
			p = append(p, fmt.Sprintf("Bindings[%d]: %s", i, s))
		}
	}
	for i, d := range sub.RetryDelays {
		if d < 0 || d > MaxDelay {
			p = append(p, fmt.Sprintf("RetryDelays[%d]: %s is not between 0 and %s, which is as long as RabbitMQ holds a message",
				i, d, MaxDelay))
		}
		if i > 0 && d < sub.RetryDelays[i-1] {
			p = append(p, fmt.Sprintf("RetryDelays[%d]: %s is less than the one before; sort them", i, d))
		}
	}
	return p
}

// subscriptions returns subs as a transport gets them, and their faults.
func (o Options) subscriptions(subs []waybill.Subscription) (asked []core.Subscription, problems []string) {
	seen := map[string]bool{}
	asked = make([]core.Subscription, len(subs))
	for i := range subs {
		at := fmt.Sprintf("subscriptions[%d].", i)
		if retry := subs[i].Retry; retry == nil {
			problems = append(problems, at+"Retry: is not set, so that the delay queues are unknown: "+
				"give the consumer's (consumer.DefaultRetry, or waybill.RetryDelays() for no retries)")
		} else if p := retry.Validate(at + "Retry"); len(p) > 0 {
			problems = append(problems, p...)
			continue
		}
		asked[i] = core.SubscriptionOf(&subs[i])
		for _, p := range o.SubscriptionProblems(&asked[i]) {
			problems = append(problems, at+p)
		}
		if queue := subs[i].Queue; seen[queue] {
			problems = append(problems, fmt.Sprintf("%sQueue: %q is the queue of an earlier one too", at, clip(queue)))
		}
		seen[subs[i].Queue] = true
	}
	return asked, problems
}

func clip(s string) string { return check.Clip(s, 80) }
