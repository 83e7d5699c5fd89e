package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// A fault of the topology ends the start, with one error that names all faults. Later the same fault would lose a
// message, or stop one. AMQP can tell that objects exist and whether the user may write. Arguments and bindings are
// known to the management API only.

// preparation makes sure that the broker holds a topology, before a channel publishes or consumes.
type preparation struct {
	opts   Options
	broker *topology.Broker // nil without Options.ManagementURL
	want   topology.Topology
	limits bool // a queue with a length limit is an error
	// writer is the connection that asks for the user's right to write. That asks by publishing. A broker that is
	// short of memory blocks the connection, which may therefore not be one that consumes. Nil if nothing is asked.
	writer *link
	// once: an object that was there once is not declared again. A publisher that did so would make an exchange
	// without its bindings.
	once bool
}

// run declares the topology or, with Options.Passive, looks for it. The first time it also verifies what a declare
// cannot: arguments, bindings, limits and the right to write.
//
//	who                      | each time                              | the first time, besides
//	-------------------------|----------------------------------------|------------------------------------
//	Passive                  | lookUp: passive declares               | the right to write, verify
//	publisher (once)         | still: the exchange is there           | declare in place of still, verify
//	receiver                 | declare                                | verify
func (p *preparation) run(ctx context.Context, c *conn, first bool) error {
	var found findings
	var err error
	switch {
	case p.opts.Passive:
		found, err = p.lookUp(ctx, c, first)
	case p.once && !first:
		err = p.still(ctx, c)
	default:
		err = p.declare(ctx, c)
	}
	if err != nil {
		return err
	}
	problems := append(found.missing, found.forbidden...)
	if first && (p.broker != nil || len(problems) == 0) {
		differences, ok, err := p.verify(ctx, found.hidden)
		if err != nil {
			return err
		}
		if ok { // they include what is missing
			problems = append(differences, found.forbidden...)
		}
	}
	if len(problems) > 0 {
		return misconfigured("verify", "%s", strings.Join(problems, "; "))
	}
	return nil
}

// still reports an exchange that was deleted.
func (p *preparation) still(ctx context.Context, c *conn) error {
	s := inspection{c: c}
	defer s.close()
	for _, e := range p.want.Exchanges {
		err := s.run(ctx, exchangeExists(e))
		switch {
		case err == nil, refused(err, amqp.AccessRefused): // a user that may publish need not see it
		case refused(err, amqp.NotFound):
			return misconfigured("publish", "%s was deleted, and its bindings with it: a consumer that runs declares both again within a minute; "+
				"or import the definitions (%w)", e, err)
		default:
			return declareError(e.String(), err)
		}
	}
	return nil
}

// findings are what passive declares found.
type findings struct {
	missing, forbidden []string // problems
	// hidden is what the user may not even look at: since RabbitMQ 4.3 everything that it has no permission on.
	hidden []string
}

// lookUp looks for every exchange and queue. The first time it also asks, on another connection, whether the user may
// write to the exchanges for retries.
func (p *preparation) lookUp(ctx context.Context, c *conn, first bool) (findings, error) {
	s := inspection{c: c}
	defer s.close()
	var found findings
	absent := map[string]bool{}
	look := func(name fmt.Stringer, key string, ask func(*amqp.Channel) error) error {
		err := s.run(ctx, ask)
		switch {
		case err == nil:
		case refused(err, amqp.NotFound):
			absent[key] = true
			found.missing = append(found.missing, topology.Missing(name).String())
		case refused(err, amqp.AccessRefused):
			found.hidden = append(found.hidden, "that "+name.String()+" exists")
		default:
			return declareError(name.String(), err)
		}
		return nil
	}
	for _, e := range p.want.Exchanges {
		if err := look(e, e.Name, exchangeExists(e)); err != nil {
			return findings{}, err
		}
	}
	for _, q := range p.want.Queues {
		if err := look(q, "", queueExists(q)); err != nil {
			return findings{}, err
		}
	}
	var err error
	if first && p.writer != nil {
		there := slices.DeleteFunc(p.want.RetryExchanges(), func(name string) bool { return absent[name] })
		found.forbidden, err = p.unwritable(ctx, there)
	}
	return found, err
}

// unwritable returns a problem for each exchange that the user may not write to. While the broker blocks publishers it
// does not answer: then the log names the exchanges that were not asked about.
func (p *preparation) unwritable(ctx context.Context, exchanges []string) (problems []string, err error) {
	if len(exchanges) == 0 {
		return nil, nil
	}
	c, err := p.writer.get(ctx)
	if err != nil {
		return nil, err
	}
	blocked := c.whenBlocked()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-blocked:
			cancel()
		case <-ctx.Done():
		}
	}()
	s := inspection{c: c}
	defer s.close()
	for i, name := range exchanges {
		may, err := false, error(nil)
		if !isClosed(blocked) {
			may, err = s.mayWrite(ctx, name)
		}
		switch {
		case isClosed(blocked):
			p.opts.Logger.Info("not verified, since the broker blocks publishers", "event", "rabbitmq.unverified",
				"objects", "that the user may write to "+strings.Join(exchanges[i:], ", "))
			return problems, nil
		case err != nil:
			return nil, err
		case !may:
			problems = append(problems, fmt.Sprintf("exchange %q: the user may not write to it, "+
				"so that no message could be retried or parked: permit it as Topology.Permissions says", name))
		}
	}
	return problems, nil
}

// mayWrite asks whether the user may write to exchange. It publishes a message that no broker routes: its user-id is
// another user's, and its expiration is no number. The broker looks at the permission first. It closes the channel in
// any case, and logs that.
func (s *inspection) mayWrite(ctx context.Context, exchange string) (bool, error) {
	err := s.run(ctx, func(ch *amqp.Channel) error {
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		never := amqp.Publishing{UserId: "nobody-" + waybill.NewID(), Expiration: "none"}
		if err := ch.PublishWithContext(ctx, exchange, "", false, false, never); err != nil {
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

// verify compares the topology with that of the management API, and returns the problems. It reports whether it could
// ask. Surplus bindings are logged only.
func (p *preparation) verify(ctx context.Context, hidden []string) (problems []string, ok bool, err error) {
	if p.broker == nil {
		p.logUnverified(hidden)
		return nil, false, nil
	}
	// Half of the time is left for the start, which goes on without an answer.
	asking, cancel := context.WithTimeout(ctx, p.opts.ConnectTimeout/2)
	defer cancel()
	found, err := p.broker.Compare(asking, p.want)
	if err == nil && p.limits {
		found, err = addLimits(ctx, p.broker, p.want, found)
	}
	switch {
	case errors.Is(err, waybill.ErrMisconfigured), errors.Is(err, topology.ErrPolicyUnknown):
		return nil, false, err
	case err != nil:
		p.opts.Logger.Warn("arguments and bindings were not verified: the management API does not answer",
			"event", "rabbitmq.verify_failed", "error", err)
		return nil, false, nil
	}
	for _, d := range found {
		if d.Surplus {
			p.opts.Logger.Info("a binding is not in the topology", "event", "rabbitmq.surplus", "object", d.Object)
			continue
		}
		problems = append(problems, d.String())
	}
	return problems, true, nil
}

// logUnverified logs what was not looked at, since there is no Options.ManagementURL.
func (p *preparation) logUnverified(objects []string) {
	if p.opts.Passive {
		for _, e := range p.want.Exchanges {
			objects = append(objects, "kind of exchange "+e.Name)
		}
		for _, q := range p.want.Queues {
			objects = append(objects, "arguments of queue "+q.Name)
		}
		for _, b := range p.want.Bindings {
			objects = append(objects, b.String())
		}
	}
	for _, queue := range p.want.BoundElsewhere() {
		objects = append(objects, "that queue "+queue+" is bound to anything")
	}
	if len(objects) > 0 {
		p.opts.Logger.Info("not verified without Options.ManagementURL", "event", "rabbitmq.unverified", "objects", objects)
	}
}

// addLimits appends the queues with a length limit to the differences of a comparison.
func addLimits(
	ctx context.Context, broker *topology.Broker, want topology.Topology, found []topology.Difference,
) ([]topology.Difference, error) {
	more, err := broker.Limits(ctx, want)
	if err != nil {
		return nil, err
	}
	for _, d := range more { // an argument of a queue of the topology was found already
		if !slices.ContainsFunc(found, func(f topology.Difference) bool { return f.Difference == d.Difference }) {
			found = append(found, d)
		}
	}
	return found, nil
}

// Topology returns the objects that the transport's exchange and its open subscriptions need.
func (t *Transport) Topology() topology.Topology {
	t.mu.Lock()
	defer t.mu.Unlock()
	var subs []core.Subscription
	for _, r := range t.receivers {
		if !slices.ContainsFunc(subs, func(s core.Subscription) bool { return s.Queue == r.sub.Queue }) {
			subs = append(subs, r.sub)
		}
	}
	return topology.Of(t.opts.TopologyOptions(), subs...)
}

// Drift compares the objects that the transport's exchange and its open subscriptions need with the live broker, and
// returns every difference: missing objects, objects with other properties or arguments, and bindings that are not in
// the topology. Policies that lose or park messages of a queue are differences, and with Options.PipelineKeys length
// limits. It needs Options.ManagementURL, and implements admin.DriftChecker. A topology.Broker compares any topology.
func (t *Transport) Drift(ctx context.Context) ([]admin.Difference, error) {
	if t.broker == nil {
		return nil, waybill.Invalid("waybill/rabbitmq: drift", "ManagementURL: is not set; "+
			"only the management API shows arguments and bindings; set it, such as https://user:password@host:15671")
	}
	want := t.Topology()
	found, err := t.broker.Compare(ctx, want)
	if err == nil && t.opts.PipelineKeys {
		found, err = addLimits(ctx, t.broker, want, found)
	}
	if err != nil {
		return nil, err
	}
	var out []admin.Difference
	for _, d := range found {
		out = append(out, d.Difference)
	}
	return out, nil
}
