package rabbitmq

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill/core"
)

// The topology, with every argument. {exchange} and {queue} include Options.Prefix.
//
//	object                    type    arguments
//	{exchange}                topic   durable
//	{exchange}.dlx            direct  durable
//	{exchange}.delay_{d}      fanout  durable; one a distinct delay, shared by all subscriptions
//	queue {exchange}.delay_{d}  quorum  x-message-ttl={d}, x-dead-letter-exchange="" (the default exchange), x-dead-letter-strategy=at-least-once,
//	                                  x-overflow=reject-publish, x-delivery-limit=1000000; bound to its exchange
//	queue {queue}             quorum  x-dead-letter-exchange={exchange}.dlx, x-dead-letter-routing-key={queue}, x-dead-letter-strategy=at-least-once,
//	                                  x-overflow=reject-publish, x-delivery-limit=1000000; bound to {exchange} with the subscription's bindings
//	queue {queue}.dlq         quorum  x-overflow=reject-publish, x-delivery-limit=1000000; bound to {exchange}.dlx with {queue}
//
// Classic queues have x-queue-type, x-message-ttl, x-overflow and the dead-letter exchange and key only: the broker takes no more.
//
// A message that is to be retried is published to the delay exchange with the queue's name as its routing key. The delay queue has no
// dead-letter routing key, so that when its time is over the message goes by its own key through the default exchange to that one queue.

// deliveryLimit is set explicitly, and beyond reach, so that the broker never parks a message without a reason: RabbitMQ 4 has a default of 20,
// and 3.x takes no negative number for "no limit".
const deliveryLimit = 1_000_000

const (
	maxStem  = 200 // bytes of an exchange's or a queue's name, so that the derived ones fit into 255
	maxDelay = maxExpiration * time.Millisecond
)

// names makes the names of one transport's objects.
type names struct{ prefix, exchange string }

func (o Options) names() names { return names{o.Prefix, o.Prefix + o.Exchange} }

func (n names) dlx() string                    { return n.exchange + ".dlx" }
func (n names) delay(d time.Duration) string   { return n.exchange + ".delay_" + delayName(d) }
func (n names) queue(name string) string       { return n.prefix + name }
func (n names) deadLetter(queue string) string { return n.prefix + queue + ".dlq" }

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

// object is one thing to declare.
type object struct {
	exchange, kind string     // an exchange, if kind is set
	queue          string     // a queue, if no binding
	key            string     // with exchange and queue: a binding
	args           amqp.Table // of a queue
}

func (o object) String() string {
	switch {
	case o.kind != "":
		return fmt.Sprintf("%s exchange %q", o.kind, o.exchange)
	case o.exchange != "":
		return fmt.Sprintf("binding of queue %q to exchange %q with key %q", o.queue, o.exchange, o.key)
	}
	return fmt.Sprintf("queue %q", o.queue)
}

// declare makes o on ch, or finds it as it should be.
func (o object) declare(ch *amqp.Channel) error {
	switch {
	case o.kind != "":
		return ch.ExchangeDeclare(o.exchange, o.kind, true, false, false, false, nil)
	case o.exchange != "":
		return ch.QueueBind(o.queue, o.key, o.exchange, false, nil)
	}
	_, err := ch.QueueDeclare(o.queue, true, false, false, false, o.args)
	return err
}

// exists asks for o without making it. Bindings cannot be asked for.
func (o object) exists(ch *amqp.Channel) error {
	switch {
	case o.kind != "":
		return ch.ExchangeDeclarePassive(o.exchange, o.kind, true, false, false, false, nil)
	case o.exchange != "":
		return nil
	}
	_, err := ch.QueueDeclarePassive(o.queue, true, false, false, false, nil)
	return err
}

// publisherObjects is what publishing needs.
func (o Options) publisherObjects() []object {
	return []object{{exchange: o.names().exchange, kind: amqp.ExchangeTopic}}
}

// subscriptionObjects is what a subscription needs, in the order of declaring.
func (o Options) subscriptionObjects(sub *core.Subscription) []object {
	n := o.names()
	queue, dlq := n.queue(sub.Queue), n.deadLetter(sub.Queue)
	list := append(o.publisherObjects(),
		object{exchange: n.dlx(), kind: amqp.ExchangeDirect},
		object{queue: dlq, args: o.queueArgs(nil)},
		object{exchange: n.dlx(), queue: dlq, key: queue},
		object{queue: queue, args: o.queueArgs(amqp.Table{"x-dead-letter-exchange": n.dlx(), "x-dead-letter-routing-key": queue})},
	)
	for _, d := range tiers(sub.RetryDelays) {
		name := n.delay(d)
		list = append(list,
			object{exchange: name, kind: amqp.ExchangeFanout},
			object{queue: name, args: o.queueArgs(amqp.Table{"x-dead-letter-exchange": "", "x-message-ttl": d.Milliseconds()})},
			object{exchange: name, queue: name})
	}
	for _, key := range sub.Bindings {
		list = append(list, object{exchange: n.exchange, queue: queue, key: key})
	}
	return list
}

func (o Options) queueArgs(args amqp.Table) amqp.Table {
	if args == nil {
		args = amqp.Table{}
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

// declareAll declares objects in order on a channel of its own, since a failure closes the channel. A user that may not configure is served
// too, as long as everything is there: what was refused is asked for instead.
func declareAll(ctx context.Context, c *conn, objects []object) error {
	var ch *amqp.Channel
	defer func() {
		if ch != nil {
			go func() { _ = ch.Close() }()
		}
	}()
	run := func(do func(*amqp.Channel) error) error {
		if ch == nil || ch.IsClosed() {
			var err error
			if ch, err = c.channel(ctx); err != nil {
				return err
			}
		}
		used := ch
		return await(ctx, func() error { return do(used) }, nil)
	}
	for _, o := range objects {
		err := run(o.declare)
		if e := amqpError(err); e != nil && e.Server && e.Code == amqp.AccessRefused && (o.kind != "" || o.exchange == "") {
			if run(o.exists) == nil {
				continue
			}
		}
		if err != nil {
			return declareError(o.String(), err)
		}
	}
	return nil
}
