package rabbitmq

import (
	"context"
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
//
// It is an [admin.ParkedQueue]. A look at parked messages takes them without acknowledging them, and requeues them when
// it is done. In the meantime no other program sees them, nor does ParkedDepth count them. If the process dies, the
// broker requeues them. A look takes the 100,000 oldest at most. Of up to 10,000 parked messages the order stays as it
// is. Of more, those that it looked at come behind the others afterwards. A queue that does not exist is
// waybill.ErrNotFound.
//
// ReplayParked publishes the messages to the queue through the dead-letter exchange, without the headers that they were
// parked with, and removes each after the broker confirmed and routed it. It ends with the first error. Messages that
// do not match, or are expired, are held until the end and requeued. After 30 minutes the broker may close the channel
// (consumer_timeout), which requeues them too.
type Transport struct {
	parkedQueue

	opts     Options
	pubs     []*publisher // one for each connection that publishes
	in       *link        // connection of the receivers, unless each has its own, and of walks of parked messages
	borrowed bool         // the connection is the caller's
	bare     bool         // and nothing keeps from it what the driver cannot read
	names    topology.Names
	// broker is nil without Options.ManagementURL.
	broker      *topology.Broker
	assertEvery time.Duration // how often a receiver looks after its objects
	refreshAt   int64         // see parkedWalk.next
	address     string        // of the broker, and its port; empty and 0 on the caller's connection
	port        int

	closing   chan struct{} // closed by Close; ends waits of links and calls
	closeOnce sync.Once
	mu        sync.Mutex  // guards receivers
	receivers []*receiver // the open subscriptions
}

var (
	_ core.Transport = (*Transport)(nil)
	_ core.Checker   = (*Transport)(nil)
	_ core.Describer = (*Transport)(nil)

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
	to := target{url: address, credentials: newCredentialSource(opts.Connection.Credentials)}
	var more []string
	to.endpoints, more = parseEndpoints(endpoint{user.Host, user.Port}, opts.Connection.Hosts)
	for _, s := range more { // with the URL's host there may be more
		if !slices.Contains(problems, s) {
			problems = append(problems, s)
		}
	}
	broker, more := opts.management(user.Username, user.Password, user.Vhost, to.credentials)
	problems = append(problems, more...)
	if err := waybill.Invalid("waybill/rabbitmq: options", problems...); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	closing := make(chan struct{})
	t := &Transport{
		opts: opts, names: opts.TopologyOptions().Names(), closing: closing, in: newLink("consume", to, opts, closing),
		broker: broker, refreshAt: refreshCount, assertEvery: time.Minute, address: user.Host, port: user.Port,
	}
	t.parkedQueue = t.walks()
	var verified atomic.Bool
	for range opts.PublishConnections {
		t.pubs = append(t.pubs, newPublisher(newLink("publish", to, opts, closing), opts, broker, &verified))
	}
	if opts.Lazy {
		return t, nil
	}
	if err := t.Check(ctx); err != nil {
		return nil, err
	}
	return t, nil
}

// Describe names the broker for telemetry.
func (t *Transport) Describe() core.Description {
	return core.Description{System: "rabbitmq", Address: t.address, Port: t.port, Exchange: t.opts.Exchange}
}

// New returns a transport on the caller's open connection, which Close leaves open. It cannot reconnect: once the
// connection is lost, every call is an outage. TLS, heartbeat and name are the connection's own. A connection with the
// driver's experimental recovery is refused, since both would reopen the same channels. Only a connection that
// DialConfig opened may receive and look at parked messages: any other one ends at a message whose headers the driver
// cannot read, with everything else that the application does on it.
func New(connection *amqp.Connection, opts Options) (*Transport, error) {
	problems := opts.problems()
	switch {
	case connection == nil:
		problems = append(problems, "connection: is nil; pass an open *amqp091.Connection, or use Dial")
	case connection.IsRecoveryEnabled():
		problems = append(problems, "connection: has amqp091's own recovery; open it without Config.Recovery, or use Dial")
	}
	if opts.Connection.TLS != nil {
		problems = append(problems, "Connection.TLS: belongs to the connection; set it when dialling")
	}
	if opts.Connection.Credentials != nil {
		problems = append(problems, "Connection.Credentials: the connection has its user already; leave it nil, or use Dial")
	}
	if len(opts.Connection.Hosts) > 0 {
		problems = append(problems, "Connection.Hosts: the connection is open already; leave it empty, or use Dial")
	}
	if opts.Connection.PerSubscription {
		problems = append(problems, "Connection.PerSubscription: there is one connection; leave it false, or use Dial")
	}
	var host string
	if connection != nil {
		host = connection.Config.Vhost
	}
	broker, more := opts.management("", "", host, nil)
	problems = append(problems, more...)
	if err := waybill.Invalid("waybill/rabbitmq: options", problems...); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	closing := make(chan struct{})
	l := newLink("shared", target{}, opts, closing)
	l.borrowed, l.conn = true, newConn(connection, nil, "")
	go l.conn.watch(l)
	t := &Transport{
		opts: opts, names: opts.TopologyOptions().Names(), closing: closing, in: l, borrowed: true, bare: !guarded(connection),
		broker: broker, refreshAt: refreshCount, assertEvery: time.Minute,
		pubs: []*publisher{newPublisher(l, opts, broker, new(atomic.Bool))},
	}
	t.parkedQueue = t.walks()
	return t, nil
}

// Check connects for publishing, declares the exchange or verifies it, and reports faults, as Dial does.
func (t *Transport) Check(ctx context.Context) error {
	if isClosed(t.closing) {
		return outage("check", waybill.ErrClosed)
	}
	pc, err := t.pubs[0].channel(ctx)
	if err == nil {
		t.pubs[0].leave(pc, false)
	}
	return err
}

// Traits implements core.Publisher.
func (t *Transport) Traits() core.PublisherTraits {
	order := core.KeyOrderSerial
	if t.opts.PipelineKeys {
		order = core.KeyOrderPipelinedPrefix
	}
	return core.PublisherTraits{
		KeyOrder: order, Confirmed: true, DetectsUnroutable: true, MaxMessageBytes: t.opts.MaxBodyBytes,
		Durable: true, Synced: t.opts.QueueType == topology.Quorum, // a classic queue confirms what is written
	}
}

// SubscriberTraits implements core.Subscriber.
func (t *Transport) SubscriberTraits() core.SubscriberTraits {
	return core.SubscriberTraits{
		KeyOrder: true, DelaysRetries: true, MaxRetryDelay: topology.MaxDelay, Parks: true, SingleActive: true, Wildcards: core.WildcardsAll,
		AckTimeout:         max(t.opts.ConsumerTimeout, 0),
		CountsRedeliveries: t.opts.QueueType == topology.Quorum, BrokerParks: t.opts.QueueType == topology.Quorum,
	}
}

// Close implements core.Transport. Publishes in progress end with the connection; receivers requeue what they hold.
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
	if t.borrowed {
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
