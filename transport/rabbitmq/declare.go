package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
)

func (e Exchange) declare(ch *amqp.Channel) error {
	return ch.ExchangeDeclare(e.Name, e.Kind, true, false, false, false, nil)
}

func (e Exchange) exists(ch *amqp.Channel) error {
	return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, false, false, false, nil)
}

func (q Queue) declare(ch *amqp.Channel) error {
	_, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Arguments)
	return err
}

func (q Queue) exists(ch *amqp.Channel) error {
	_, err := ch.QueueDeclarePassive(q.Name, true, false, false, false, nil)
	return err
}

func (b Binding) declare(ch *amqp.Channel) error {
	return ch.QueueBind(b.Queue, b.Key, b.Exchange, false, nil)
}

// Declare makes what topology names, or finds it as it should be: for a program that provisions a broker. What may not
// be made, or is there with other properties, is an error that matches waybill.ErrMisconfigured and names the object,
// the cause and the cure. Options.Passive refuses it.
func (t *Transport) Declare(ctx context.Context, topology Topology) error {
	if t.opts.Passive {
		return waybill.Invalid("waybill/rabbitmq: declare", "Passive: declares nothing; use a transport without it")
	}
	if isClosed(t.closing) {
		return outage("declare", waybill.ErrClosed)
	}
	ctx, cancel := context.WithTimeout(ctx, t.opts.ConnectTimeout+t.opts.ReconnectMax)
	defer cancel()
	c, err := t.in.get(ctx)
	if err != nil {
		return err
	}
	return t.opts.declareAll(ctx, c, &topology)
}

// prepare declares topology or, in passive mode, looks whether it is there. The first time it also verifies what a
// declare cannot.
func (o Options) prepare(ctx context.Context, c *conn, m *management, topology *Topology, first bool) error { //nolint:revive // two moments of one thing
	var seen sight
	var err error
	if o.Passive {
		seen, err = o.lookUp(ctx, c, topology, first)
	} else {
		err = o.declareAll(ctx, c, topology)
	}
	if err != nil {
		return err
	}
	problems := append(seen.missing, seen.forbidden...)
	if first && (m != nil || len(problems) == 0) {
		found, ok, err := o.verify(ctx, m, topology, seen.unseen)
		if err != nil {
			return err
		}
		if ok { // it has seen everything, what is missing too
			problems = append(found, seen.forbidden...)
		}
	}
	if len(problems) > 0 {
		return misconfigured("verify", "%s", strings.Join(problems, "; "))
	}
	return nil
}

// scratch is a channel for questions. Any of them may close it.
type scratch struct {
	c  *conn
	ch *amqp.Channel
}

// run asks on an open channel.
func (s *scratch) run(ctx context.Context, do func(*amqp.Channel) error) error {
	if s.ch == nil || s.ch.IsClosed() {
		var err error
		if s.ch, err = s.c.channel(ctx); err != nil {
			return err
		}
	}
	used := s.ch
	return await(ctx, func() error { return do(used) }, nil)
}

func (s *scratch) close() {
	if ch := s.ch; ch != nil {
		go func() { _ = ch.Close() }()
	}
}

// refused returns whether the broker said no with this code.
func refused(err error, code int) bool {
	e := amqpError(err)
	return e != nil && e.Server && e.Code == code
}

// declareAll declares in order, on a channel of its own, since a failure closes the channel. A user that may not
// configure is served too, as long as everything is there: what was refused is asked for instead. Bindings can only be
// asked for at the management API.
func (o Options) declareAll(ctx context.Context, c *conn, topology *Topology) error {
	s := scratch{c: c}
	defer s.close()
	ensure := func(name fmt.Stringer, declare, exists func(*amqp.Channel) error) error {
		err := s.run(ctx, declare)
		if err == nil || refused(err, amqp.AccessRefused) && s.run(ctx, exists) == nil {
			return nil
		}
		return declareError(name.String(), err)
	}
	for _, e := range topology.Exchanges {
		if err := ensure(e, e.declare, e.exists); err != nil {
			return err
		}
	}
	for _, q := range topology.Queues {
		if err := ensure(q, q.declare, q.exists); err != nil {
			return err
		}
	}
	for _, b := range topology.Bindings {
		err := s.run(ctx, b.declare)
		switch {
		case err == nil, refused(err, amqp.AccessRefused) && o.ManagementURL != "": // verify looks for it
		case refused(err, amqp.AccessRefused):
			return misconfigured("declare", "%s: the user may not bind: permit it to write to the queue and to read from the exchange, or provision the topology beforehand and "+
				"set Options.Passive (%w)", b, err)
		default:
			return declareError(b.String(), err)
		}
	}
	return nil
}

const provision = "create it as Topology exports it (Terraform, definitions), or run Transport.Declare once as a user that may configure it"

// sight is what a look at the broker over AMQP found.
type sight struct {
	missing, forbidden []string // problems
	unseen             []string // what the user may not even look at, as is the rule since RabbitMQ 4.3 for what it has no permission on
}

// lookUp looks for every exchange and queue. The first time it also asks whether the user may write where copies go.
func (o Options) lookUp(ctx context.Context, c *conn, topology *Topology, first bool) (sight, error) { //nolint:revive // two moments of one thing
	s := scratch{c: c}
	defer s.close()
	var seen sight
	gone := map[string]bool{}
	look := func(name fmt.Stringer, key string, ask func(*amqp.Channel) error) error {
		err := s.run(ctx, ask)
		switch {
		case err == nil:
		case refused(err, amqp.NotFound):
			gone[key] = true
			seen.missing = append(seen.missing, fmt.Sprintf("%s does not exist: %s", name, provision))
		case refused(err, amqp.AccessRefused):
			seen.unseen = append(seen.unseen, "that "+name.String()+" exists")
		default:
			return declareError(name.String(), err)
		}
		return nil
	}
	for _, e := range topology.Exchanges {
		if err := look(e, e.Name, e.exists); err != nil {
			return sight{}, err
		}
	}
	for _, q := range topology.Queues {
		if err := look(q, "", q.exists); err != nil {
			return sight{}, err
		}
	}
	for _, name := range topology.copiesTo() {
		if !first || gone[name] {
			continue
		}
		may, err := s.mayWrite(ctx, name)
		if err != nil {
			return sight{}, err
		}
		if !may {
			seen.forbidden = append(seen.forbidden, fmt.Sprintf("exchange %q: the user may not write to it, so that no message could be retried or parked: permit it as Topology.Permissions says", name))
		}
	}
	return seen, nil
}

// copiesTo returns the exchanges that a consumer publishes copies to.
func (t *Topology) copiesTo() []string {
	if len(t.queues) == 0 {
		return nil
	}
	return append([]string{t.names.dlx()}, t.delays...)
}

// mayWrite asks whether the user may write to exchange, with a message that no broker routes: it claims to be from
// another user and has an expiration that is no number. The broker looks at the permission first. It closes the channel
// in any case, and says so in its log.
func (s *scratch) mayWrite(ctx context.Context, exchange string) (bool, error) {
	err := s.run(ctx, func(ch *amqp.Channel) error {
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		if err := ch.PublishWithContext(ctx, exchange, "", false, false, amqp.Publishing{UserId: "nobody-" + waybill.NewID(), Expiration: "none"}); err != nil {
			return err
		}
		if err := ch.ExchangeDeclarePassive(exchange, "", true, false, false, false, nil); err == nil {
			return nil
		}
		if e := <-closed; e != nil {
			return e
		}
		return amqp.ErrClosed
	})
	switch {
	case err == nil, refused(err, amqp.PreconditionFailed):
		return true, nil
	case refused(err, amqp.AccessRefused):
		return false, nil
	}
	return false, outage("verify", fmt.Errorf("exchange %q: %w", exchange, err))
}

// verify compares topology with what the management API knows, and returns the problems: the rest of what must be right
// at the start. It reports whether it could ask. Bindings that nobody asked for are left alone here; Drift lists them.
func (o Options) verify(ctx context.Context, m *management, topology *Topology, unseen []string) (problems []string, ok bool, err error) {
	if m == nil {
		o.sayUnverified(topology, unseen)
		return nil, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, o.ConnectTimeout/2) // the start goes on without an answer, and needs time for it
	defer cancel()
	found, err := m.compare(ctx, topology)
	if err == nil && o.PipelineKeys && len(topology.queues) == 0 { // a publisher's; consumers may start, to empty a full queue
		found, err = m.addLimits(ctx, topology.names.exchange, found)
	}
	switch {
	case errors.Is(err, waybill.ErrMisconfigured):
		return nil, false, err
	case err != nil:
		o.Logger.Warn("waybill/rabbitmq: arguments and bindings were not verified", "event", "rabbitmq.unverified", "error", err)
		return nil, false, nil
	}
	for _, d := range found {
		if d.extra {
			o.Logger.Info("waybill/rabbitmq: not in the topology", "event", "rabbitmq.foreign", "object", d.Object)
			continue
		}
		problems = append(problems, d.problem())
	}
	return problems, true, nil
}

// sayUnverified tells what nobody looked at, since there is no Options.ManagementURL.
func (o Options) sayUnverified(topology *Topology, unknown []string) {
	if o.Passive {
		for _, e := range topology.Exchanges {
			unknown = append(unknown, "kind of exchange "+e.Name)
		}
		for _, q := range topology.Queues {
			unknown = append(unknown, "arguments of queue "+q.Name)
		}
		for _, b := range topology.Bindings {
			unknown = append(unknown, b.String())
		}
	}
	for _, q := range topology.queues {
		if topology.boundElsewhere(q) {
			unknown = append(unknown, "that queue "+q+" is bound to anything")
		}
	}
	if len(unknown) > 0 {
		o.Logger.Info("waybill/rabbitmq: not verified without Options.ManagementURL", "event", "rabbitmq.unverified", "objects", unknown)
	}
}

// boundElsewhere reports whether a subscription's queue gets its messages from bindings that are not of the topology.
func (t *Topology) boundElsewhere(queue string) bool {
	for _, b := range t.Bindings {
		if b.Queue == queue && b.Exchange != t.names.dlx() {
			return false
		}
	}
	return true
}
