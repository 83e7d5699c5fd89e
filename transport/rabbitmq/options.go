package rabbitmq

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// Options configures a transport. The zero value is ready for use. It is a value; changes after Dial or New have no
// effect.
type Options struct {
	// Exchange is the topic exchange that messages are published to, and the stem of the other exchanges' names;
	// default "waybill".
	Exchange string
	// Prefix stands before the name of every exchange and queue, such as "staging."; default none.
	Prefix string
	// ConsumerTimeout is the broker's consumer_timeout: how long a delivery may be held before the broker closes
	// the channel and delivers it again. The log warns when half of it is over. With Subscription.InOrder a message
	// waits for its retries in place, so a policy whose delays add up to more than half of it is refused. Default
	// 30 min, as the broker's; negative = the broker has none.
	ConsumerTimeout time.Duration
	// QueueType is the type of the queues of subscriptions; default topology.Quorum.
	QueueType topology.QueueType
	// SharedDelays has all subscriptions of the exchange share one delay queue for each delay. That makes fewer
	// queues, but one subscription whose queue is full or gone then holds up the retries of all.
	SharedDelays bool
	// DeliveryLimit is after how many deliveries without an outcome the broker itself parks a message; see
	// topology.Options. Default 200; above Subscription.MaxDeliveries.
	DeliveryLimit int
	// Connection says how connections are opened.
	Connection ConnectionOptions
	// ConnectTimeout bounds one attempt to connect, and any one question to the broker; default 10 s.
	ConnectTimeout time.Duration
	// ReconnectMax bounds the back-off between attempts to connect, which begins at 100 ms and doubles, with
	// jitter; default 1 s.
	ReconnectMax time.Duration
	// PublishTimeout bounds a Publish whose context has no earlier deadline; default 30 s.
	PublishTimeout time.Duration
	// PublishConnections is how many connections publish; default 2, at most 16. A call uses one of them, the
	// idlest, so that the second is only opened when calls overlap.
	PublishConnections int
	// Window bounds the messages that one connection has sent and not seen confirmed, over all calls; default
	// 2,000.
	Window int
	// PipelineKeys sends messages of one key without waiting for the confirm of the one before, so that a hot key
	// is as fast as any other; default false: one at a time. The order of a key then survives relays that die and
	// connections that are lost, since only the end of the sequence is lost. It does not survive a queue that
	// refuses one message and takes a later one: one with a length limit, one that is declared, bound or deleted
	// while relays run, or one that has no leader for a while, as after a broker's failure. The messages behind one
	// that failed are sent again behind it. With ManagementURL a queue with a length limit, by argument or policy,
	// is an error at a publisher's start, and a difference for Drift. It has no effect on routes with
	// BlockAfterAbandon.
	PipelineKeys bool
	// MaxBodyBytes bounds a message as Envelope.Size counts it, with its names and headers; a larger one is
	// refused for good with reason too_large and not sent. Default 16 MiB, which every version of RabbitMQ takes by
	// default; at most 512 MiB.
	MaxBodyBytes int
	// PrefetchBytes bounds, about, the bytes of the bodies that a subscription holds unsettled, those that Receive
	// has returned among them. RabbitMQ sends ahead a number of messages: Subscription.Prefetch until
	// more bytes are held than the bound, then what fits of the sizes that came, at least 1, and again more when
	// bodies become small. It changes when all of them are held. A consumer without a Prefetch, or with one above
	// 64 and twice its Concurrency, begins with few, and nothing exceeds the bound: what is too much goes back, and
	// comes again, with a count up to RabbitMQ 4.2. Otherwise a whole prefetch may exceed it, once, after a start
	// or when bodies become larger; and handlers that keep more than half of it for a second may hold up to twice
	// the bound. It has no effect with Subscription.InOrder, where another consumer would take over: lower Prefetch
	// there. Default 64 MiB; negative = no bound.
	PrefetchBytes int
	// Lazy leaves it to the first use to connect, so that Dial returns at once. Then a broker that is down at the
	// start is an outage as any other.
	Lazy bool
	// Passive looks for the topology with passive declares, and makes nothing: it must be there at the start. So a
	// user without the right to configure will do. Without ManagementURL only exchanges, queues and the right to
	// write are verified; an INFO log lists the rest.
	Passive bool
	// ManagementURL is the address of the management API, such as https://user:password@host:15671. It shows
	// arguments and bindings, which AMQP does not. Without a user the AMQP URL's is used; the user needs the tag
	// "management". Used at the start and by Drift, with the virtual host of the connection. Default none.
	ManagementURL string
	// ManagementCredentials is asked for the user of the management API before each use, if ManagementURL names
	// none; see Connection.Credentials. Default nil: the user of the AMQP connection.
	ManagementCredentials func(context.Context) (Credentials, error)
	// ManagementTLS is the client's side of TLS for an https:// ManagementURL; nil means
	// that of Connection.TLS.
	ManagementTLS *tls.Config
	// Logger gets the log; nil means slog.Default.
	Logger *slog.Logger
}

// The defaults and bounds of Options.
const (
	DefaultExchange        = topology.DefaultExchange
	DefaultHeartbeat       = 10 * time.Second
	DefaultConnectTimeout  = 10 * time.Second
	DefaultConsumerTimeout = 30 * time.Minute
	DefaultReconnectMax    = time.Second
	DefaultPublishTimeout  = 30 * time.Second
	DefaultWindow          = 2000
	DefaultConnections     = 2
	DefaultMaxBodyBytes    = 16 << 20
	DefaultPrefetchBytes   = 64 << 20
	maxWindow              = 65_535
	maxConnections         = 16
	maxMaxBodyBytes        = 512 << 20
)

// exampleURL is what errors show instead of the URL, which holds a password.
const exampleURL = "amqp://user:password@host:5672/vhost" //nolint:gosec // an example, no credentials

func (o Options) withDefaults() Options {
	o.Exchange = cmp.Or(o.Exchange, DefaultExchange)
	o.QueueType = cmp.Or(o.QueueType, topology.Quorum)
	o.Connection.Name = cmp.Or(o.Connection.Name, "waybill")
	o.Logger = cmp.Or(o.Logger, slog.Default())
	for _, d := range []struct {
		p *time.Duration
		v time.Duration
	}{
		{&o.Connection.Heartbeat, DefaultHeartbeat},
		{&o.ConnectTimeout, DefaultConnectTimeout},
		{&o.ConsumerTimeout, DefaultConsumerTimeout},
		{&o.ReconnectMax, DefaultReconnectMax},
		{&o.PublishTimeout, DefaultPublishTimeout},
	} {
		if *d.p == 0 {
			*d.p = d.v
		}
	}
	o.PublishConnections = cmp.Or(o.PublishConnections, DefaultConnections)
	o.Window = cmp.Or(o.Window, DefaultWindow)
	o.MaxBodyBytes = cmp.Or(o.MaxBodyBytes, DefaultMaxBodyBytes)
	o.PrefetchBytes = cmp.Or(o.PrefetchBytes, DefaultPrefetchBytes)
	return o
}

// Validate returns an error that lists all problems of o, or nil.
func (o Options) Validate() error {
	_, problems := o.management("any", "", "", nil) // Dial takes the user of the AMQP URL
	return waybill.Invalid("waybill/rabbitmq: options", append(o.problems(), problems...)...)
}

func (o Options) problems() []string {
	o = o.withDefaults()
	p := o.TopologyOptions().Problems()
	bad := func(format string, a ...any) { p = append(p, fmt.Sprintf(format, a...)) }
	p = append(p, o.Connection.problems()...)
	atLeast := func(name string, d, least time.Duration) {
		if d < least {
			bad("%s: %s is less than %s; leave it 0 for the default", name, d, least)
		}
	}
	atLeast("ConnectTimeout", o.ConnectTimeout, 10*time.Millisecond)
	atLeast("ReconnectMax", o.ReconnectMax, 10*time.Millisecond)
	atLeast("PublishTimeout", o.PublishTimeout, 10*time.Millisecond)
	if o.PublishConnections < 1 || o.PublishConnections > maxConnections {
		bad("PublishConnections: %d is not between 1 and %d; leave it 0 for %d", o.PublishConnections, maxConnections, DefaultConnections)
	}
	if o.Window < 1 || o.Window > maxWindow {
		bad("Window: %d is not between 1 and %d; leave it 0 for %d", o.Window, maxWindow, DefaultWindow)
	}
	if o.MaxBodyBytes < 1 || o.MaxBodyBytes > maxMaxBodyBytes {
		bad("MaxBodyBytes: %d is not between 1 and %d; leave it 0 for %d", o.MaxBodyBytes, maxMaxBodyBytes, DefaultMaxBodyBytes)
	}
	return p
}

// openTimeout bounds what opens a connection and prepares it.
func (o *Options) openTimeout() time.Duration {
	return time.Duration(1+len(o.Connection.Hosts))*o.ConnectTimeout + o.ReconnectMax
}

// TopologyOptions returns the options of the transport's topology.
func (o Options) TopologyOptions() topology.Options {
	return topology.Options{Exchange: o.Exchange, Prefix: o.Prefix, QueueType: o.QueueType, SharedDelays: o.SharedDelays, DeliveryLimit: o.DeliveryLimit}
}

// management returns the broker as the management API shows it, nil without ManagementURL, and the faults of the
// options for it. The user is that of the AMQP connection unless the URL names one.
func (o Options) management(user, password, vhost string, source *credentialSource) (*topology.Broker, []string) {
	if o.ManagementURL == "" {
		var p []string
		if o.ManagementTLS != nil {
			p = append(p, "ManagementTLS: is set, but ManagementURL is not")
		}
		if o.ManagementCredentials != nil {
			p = append(p, "ManagementCredentials: is set, but ManagementURL is not")
		}
		return nil, p
	}
	b := topology.BrokerOptions{
		URL: o.ManagementURL, User: user, Password: password, VHost: vhost, TLS: o.ManagementTLS, Timeout: max(o.ConnectTimeout, 0),
	}
	if o.ManagementCredentials != nil {
		source = newCredentialSource(o.ManagementCredentials)
	}
	if source != nil {
		b.User, b.Password, b.Credentials = "", "", source.userAndPassword
	}
	if u, err := url.Parse(o.ManagementURL); err == nil && u.Scheme == "https" && b.TLS == nil {
		b.TLS = o.Connection.TLS
	}
	problems := b.Problems()
	for i, p := range problems {
		problems[i] = "Management" + p
	}
	if len(problems) > 0 {
		return nil, problems
	}
	broker, err := topology.NewBroker(b)
	if err != nil {
		return nil, []string{err.Error()}
	}
	return broker, nil
}

// checkURL returns the fault of an AMQP URL, or "". Its answer never holds any part of the URL, since a badly escaped
// password can turn up in any part.
func checkURL(raw string, o Options) string {
	if scheme, _, ok := strings.Cut(raw, "://"); !ok || strings.ContainsAny(scheme, ":@/") {
		return "url: has no scheme; put amqp:// or amqps:// before the host, such as " + exampleURL
	}
	u, err := url.Parse(raw)
	if err != nil || strings.ContainsAny(raw, " \t\r\n") {
		return "url: cannot be read; escape special characters in user and password (net/url.UserPassword does); " +
			"it must look like " + exampleURL
	}
	switch {
	case u.Scheme != "amqp" && u.Scheme != "amqps":
		return "url: the scheme is not amqp or amqps; it must look like " + exampleURL
	case u.Hostname() == "":
		return "url: names no host; it must look like " + exampleURL
	case u.Scheme == "amqp" && o.Connection.TLS != nil:
		return "Connection.TLS: is set, but the URL says amqp://, which is not encrypted; use amqps://"
	case o.Connection.Credentials != nil && (u.User != nil || u.Query().Has("auth_mechanism")):
		return "url: names a user or an auth_mechanism, and Connection.Credentials is set: remove both from the URL, " +
			"or leave Connection.Credentials nil"
	}
	return ""
}

func clip(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:80], "") + "..."
	}
	return s
}
