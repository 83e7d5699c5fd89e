package rabbitmq

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// Transport is a RabbitMQ transport. It is safe for concurrent use.
type Transport struct {
	opts    Options
	pubs    []*publisher
	in      *link // connection of the receivers
	foreign bool
	names   topology.Names
	// broker is nil without Options.ManagementURL.
	broker    *topology.Broker
	refreshAt int64 // see parkedWalk.next

	closing   chan struct{}
	closeOnce sync.Once
	mu        sync.Mutex
	receivers []*receiver
}

var (
	_ core.Transport = (*Transport)(nil)
	_ core.Checker   = (*Transport)(nil)

	_ admin.ParkedQueue  = (*Transport)(nil)
	_ admin.DriftChecker = (*Transport)(nil)
)

// Dial connects to the broker at address, a URL such as amqp://user:password@host:5672/vhost, or amqps:// for TLS, and
// returns a transport that reconnects by itself. Publishing and receiving have connections of their own; the latter is
// opened by the first Subscribe. An error has a class: outage if the broker cannot be reached, and it matches
// waybill.ErrMisconfigured if another attempt is pointless. It never holds the URL.
func Dial(ctx context.Context, address string, opts Options) (*Transport, error) {
	problems := opts.problems()
	if s := checkURL(address, opts); s != "" {
		problems = append(problems, s)
	}
	user := amqp.URI{Username: "any"}
	if u, err := amqp.ParseURI(address); err == nil {
		user = u
	}
	broker, more := opts.management(user.Username, user.Password, user.Vhost)
	problems = append(problems, more...)
	if err := waybill.Invalid("waybill/rabbitmq: options", problems...); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	closing := make(chan struct{})
	t := &Transport{
		opts: opts, names: opts.TopologyOptions().Names(), closing: closing, in: newLink("consume", address, opts, closing),
		broker: broker, refreshAt: refreshCount,
	}
	var verified atomic.Bool
	for range opts.PublishConnections {
		t.pubs = append(t.pubs, newPublisher(newLink("publish", address, opts, closing), opts, broker, &verified))
	}
	if opts.Lazy {
		return t, nil
	}
	if err := t.Check(ctx); err != nil {
		return nil, err
	}
	return t, nil
}

// New returns a transport on the caller's open connection, which Close leaves open. It cannot reconnect: once the
// connection is lost, every call is an outage. TLS, heartbeat and name are the connection's own. A connection with the
// driver's experimental recovery is refused, since both would reopen the same channels.
func New(connection *amqp.Connection, opts Options) (*Transport, error) {
	problems := opts.problems()
	switch {
	case connection == nil:
		problems = append(problems, "connection: is nil; pass an open *amqp091.Connection, or use Dial")
	case connection.IsRecoveryEnabled():
		problems = append(problems, "connection: has amqp091's own recovery; open it without Config.Recovery, or use Dial")
	}
	if opts.TLS != nil {
		problems = append(problems, "TLS: belongs to the connection; set it when dialling")
	}
	var host string
	if connection != nil {
		host = connection.Config.Vhost
	}
	broker, more := opts.management("", "", host)
	problems = append(problems, more...)
	if err := waybill.Invalid("waybill/rabbitmq: options", problems...); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	closing := make(chan struct{})
	l := newLink("shared", "", opts, closing)
	l.foreign, l.conn = true, &conn{Connection: connection, blocked: make(chan struct{})}
	go l.conn.watch(l)
	return &Transport{
		opts: opts, names: opts.TopologyOptions().Names(), closing: closing, in: l, foreign: true, broker: broker, refreshAt: refreshCount,
		pubs: []*publisher{newPublisher(l, opts, broker, new(atomic.Bool))},
	}, nil
}

// Check connects for publishing, declares the exchange or verifies it, and reports what is wrong, as Dial does.
func (t *Transport) Check(ctx context.Context) error {
	if isClosed(t.closing) {
		return outage("check", waybill.ErrClosed)
	}
	_, err := t.pubs[0].channel(ctx)
	return err
}

// Traits implements core.Publisher.
func (t *Transport) Traits() core.PublisherTraits {
	order := core.KeyOrderSerial
	if t.opts.PipelineKeys {
		order = core.KeyOrderPipelinedPrefix
	}
	return core.PublisherTraits{KeyOrder: order, Confirmed: true, DetectsUnroutable: true, MaxBodyBytes: t.opts.MaxBodyBytes}
}

// SubscriberTraits implements core.Subscriber.
func (t *Transport) SubscriberTraits() core.SubscriberTraits {
	return core.SubscriberTraits{
		KeyOrder: true, RetryLater: true, MaxRetryDelay: topology.MaxDelay, Parks: true, SingleActive: true, Wildcards: true,
		CountsRedeliveries: t.opts.QueueType == topology.Quorum,
	}
}

// Publish implements core.Publisher. The messages are sent in order, pipelined on one channel, persistent and
// mandatory. A message that no queue is bound for is waybill.ErrUnroutable; one that a queue refused is an outage of
// its topic. If the context ends, or PublishTimeout passes, before a message was confirmed, its slot is an outage and
// its result is unknown.
func (t *Transport) Publish(ctx context.Context, envelopes []waybill.Envelope) core.Results {
	results := make(core.Results, len(envelopes))
	if len(envelopes) == 0 {
		return results
	}
	b := &envelopeBatch{exchange: t.names.Exchange(), maxBody: t.opts.MaxBodyBytes, prefix: t.opts.PipelineKeys, envelopes: envelopes}
	t.publish(ctx, len(envelopes), b, results)
	if b.prefix {
		failBehind(envelopes, results)
	}
	return results
}

// failBehind fails what was confirmed behind a failed message of its key, as core.KeyOrderPipelinedPrefix promises.
func failBehind(envelopes []waybill.Envelope, results core.Results) {
	var failed map[string]bool
	for i := range envelopes {
		switch key := envelopes[i].Key; {
		case key == "":
		case failed[key]:
			if results[i] == nil {
				results[i] = errBehind
			}
		case results[i] != nil:
			if failed == nil {
				failed = map[string]bool{}
			}
			failed[key] = true
		}
	}
}

// publish sends n messages and fills results.
func (t *Transport) publish(ctx context.Context, n int, msgs outgoing, results core.Results) {
	if isClosed(t.closing) {
		fill(results, outage("publish", waybill.ErrClosed))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, t.opts.PublishTimeout)
	defer cancel()
	if !t.foreign {
		t.idlest().publish(ctx, n, msgs, results)
		return
	}
	// A write to the caller's connection may block for as long as the broker does not read. Then this call ends with
	// its context, and the stuck write goes on with copies.
	if m, ok := msgs.(*envelopeBatch); ok {
		msgs = m.clone()
	}
	mine, done := make(core.Results, n), make(chan struct{})
	go func() {
		defer close(done)
		t.pubs[0].publish(ctx, n, msgs, mine)
	}()
	select {
	case <-done:
		copy(results, mine)
		return
	case <-ctx.Done():
	}
	grace := time.NewTimer(stuckGrace) // it ends by itself unless it is stuck in a write
	defer grace.Stop()
	select {
	case <-done:
		copy(results, mine)
	case <-grace.C:
		fill(results, outage("publish", fmt.Errorf("no confirm in time; the result is unknown: %w", context.Cause(ctx))))
	}
}

// idlest returns the publisher with the fewest calls in progress.
func (t *Transport) idlest() *publisher {
	best := t.pubs[0]
	for _, p := range t.pubs[1:] {
		if p.calls.Load() < best.calls.Load() {
			best = p
		}
	}
	return best
}

// stuckGrace is how long a Publish on a caller's connection waits after its context ended for what is known already.
const stuckGrace = 200 * time.Millisecond

func fill(results core.Results, err error) {
	for i := range results {
		results[i] = err
	}
}

// envelopeBatch is a batch of envelopes for the exchange.
type envelopeBatch struct {
	exchange  string
	maxBody   int
	prefix    bool            // nothing is sent behind a failed message of its key
	broken    map[string]bool // the keys of those
	envelopes []waybill.Envelope
}

func (b *envelopeBatch) failed(i int) {
	if key := b.envelopes[i].Key; b.prefix && key != "" {
		if b.broken == nil {
			b.broken = map[string]bool{}
		}
		b.broken[key] = true
	}
}

func (b *envelopeBatch) fill(i int, now time.Time, table amqp.Table) (exchange, key string, p amqp.Publishing, err error) {
	e := &b.envelopes[i]
	if b.broken[e.Key] {
		return "", "", p, errBehind
	}
	if len(e.Body) > b.maxBody {
		return "", "", p, permanent("publish", waybill.ReasonTooLarge, fmt.Errorf("topic %q: the body has %d bytes; Options.MaxBodyBytes allows %d: raise it within what the broker takes, "+
			"or store the content elsewhere and send a reference", clip(e.Topic), len(e.Body), b.maxBody))
	}
	p, err = encode(e, now, table)
	return b.exchange, e.Topic, p, err
}

func (b *envelopeBatch) clone() *envelopeBatch {
	c := &envelopeBatch{exchange: b.exchange, maxBody: b.maxBody, prefix: b.prefix, envelopes: slices.Clone(b.envelopes)}
	for i := range c.envelopes {
		e := b.envelopes[i].Clone()
		e.Body = bytes.Clone(b.envelopes[i].Body)
		c.envelopes[i] = e
	}
	return c
}

// Close implements core.Transport. Publishes in progress end with the connection; receivers give back what they hold.
// What New was given stays open.
func (t *Transport) Close(ctx context.Context) error {
	t.closeOnce.Do(func() { close(t.closing) })
	t.mu.Lock()
	receivers := t.receivers
	t.receivers = nil
	t.mu.Unlock()
	var wg sync.WaitGroup
	for _, r := range receivers {
		wg.Go(func() { _ = r.Close(ctx) })
	}
	wg.Wait()
	if t.foreign {
		if pc := t.pubs[0].current(); pc != nil {
			_ = await(ctx, pc.ch.Close, nil)
		}
		return nil
	}
	for _, p := range t.pubs {
		wg.Go(func() { p.link.close(ctx) })
	}
	wg.Go(func() { t.in.close(ctx) })
	wg.Wait()
	return nil
}
