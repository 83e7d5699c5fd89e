package rabbitmq

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// Declare makes the objects of want, or finds them as they should be: for a program that provisions a broker. An object
// that may not be made, or is there with other properties, is an error that matches waybill.ErrMisconfigured and names
// the object, the cause and the fix. Options.Passive refuses it.
func (t *Transport) Declare(ctx context.Context, want topology.Topology) error {
	if t.opts.Passive {
		return waybill.Invalid("waybill/rabbitmq: declare", "Passive: only looks; use a transport without it")
	}
	if isClosed(t.closing) {
		return outage("declare", waybill.ErrClosed)
	}
	ctx, cancel := context.WithTimeout(ctx, t.opts.openTimeout())
	defer cancel()
	c, err := t.in.get(ctx)
	if err != nil {
		return err
	}
	p := preparation{opts: t.opts, broker: t.broker, want: want}
	return p.declare(ctx, c)
}

// declare declares in order, on a channel of its own, since a failure closes the channel. A user that may not configure
// is served too, as long as everything is there: after a lateClose a passive declare looks for the object. There is no
// passive form of a binding: verify looks for bindings, with the management API.
//
// If a queue is bound while its exchange is being deleted, RabbitMQ 4.3 can keep the binding. Once the exchange is
// there again it lists that binding, does not route by it, and takes another bind for done. So a queue that was there
// and is bound to an exchange that was missing is unbound first. Queues are looked for before exchanges: of two
// processes that make both, neither then takes the other's new queue for an old one, and unbinds it.
func (p *preparation) declare(ctx context.Context, c *conn) error {
	s := inspection{c: c}
	defer s.close()
	ensure := func(name fmt.Stringer, declare, exists func(*amqp.Channel) error) error {
		err := s.run(ctx, declare)
		if err == nil || refused(err, amqp.AccessRefused) && s.run(ctx, exists) == nil {
			return nil
		}
		return declareError(name.String(), err)
	}
	missing, old := map[string]bool{}, map[string]bool{}
	for _, q := range p.want.Queues {
		old[q.Name] = s.run(ctx, queueExists(q)) == nil
	}
	for _, e := range p.want.Exchanges {
		missing[e.Name] = refused(s.run(ctx, exchangeExists(e)), amqp.NotFound)
		if err := ensure(e, declareExchange(e), exchangeExists(e)); err != nil {
			return err
		}
	}
	for _, q := range p.want.Queues {
		if err := ensure(q, declareQueue(q), queueExists(q)); err != nil {
			return err
		}
		p.opts.Logger.DebugContext(ctx, "queue is there", "event", "rabbitmq.declared", "queue", q.Name)
	}
	for _, b := range p.want.Bindings {
		if old[b.Queue] && missing[b.Exchange] { // an error comes back from the bind
			_ = s.run(ctx, func(ch *amqp.Channel) error { return ch.QueueUnbind(b.Queue, b.Key, b.Exchange, nil) })
		}
		err := s.run(ctx, func(ch *amqp.Channel) error { return ch.QueueBind(b.Queue, b.Key, b.Exchange, false, nil) })
		switch {
		case err == nil:
			p.opts.Logger.DebugContext(ctx, "queue is bound", "event", "rabbitmq.bound", "queue", b.Queue, "exchange", b.Exchange, "key", b.Key)
		case refused(err, amqp.AccessRefused) && p.broker != nil: // verify looks for it
		case refused(err, amqp.AccessRefused):
			return misconfigured("declare", "%s: the user may not bind: permit it to write to the queue and to read from the exchange, "+
				"or provision the topology beforehand and set Options.Passive (%w)", b, err)
		default:
			return declareError(b.String(), err)
		}
	}
	return nil
}

func declareExchange(e topology.Exchange) func(*amqp.Channel) error {
	return func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(e.Name, e.Kind, true, false, false, false, nil)
	}
}

func exchangeExists(e topology.Exchange) func(*amqp.Channel) error {
	return func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, false, false, false, nil)
	}
}

func declareQueue(q topology.Queue) func(*amqp.Channel) error {
	return func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Arguments)
		return err
	}
}

func queueExists(q topology.Queue) func(*amqp.Channel) error {
	return func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(q.Name, true, false, false, false, nil)
		return err
	}
}

// inspection asks the broker questions on a channel of its own. Any of them may close the channel.
type inspection struct {
	c  *conn
	ch *amqp.Channel
}

// run asks on an open channel.
func (s *inspection) run(ctx context.Context, do func(*amqp.Channel) error) error {
	if s.ch == nil || s.ch.IsClosed() {
		var err error
		if s.ch, err = s.c.channel(ctx); err != nil {
			return err
		}
	}
	used := s.ch
	return await(ctx, func() error { return do(used) }, nil)
}

func (s *inspection) close() {
	if ch := s.ch; ch != nil {
		go func() { _ = ch.Close() }()
	}
}

// refused returns whether the broker said no with this code.
func refused(err error, code int) bool {
	e := amqpError(err)
	return e != nil && e.Server && e.Code == code
}
