package rabbitmq

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/check"
)

// QueueType is the type of the queues that are declared.
type QueueType string

// The queue types.
const (
	// QueueQuorum is a replicated queue that dead-letters at least once and counts deliveries. The default.
	QueueQuorum QueueType = "quorum"
	// QueueClassic is a durable classic queue. The broker dead-letters from it at most once, and does not count
	// redeliveries.
	QueueClassic QueueType = "classic"
)

// Options configures a transport. The zero value is ready for use. It is a value; changes after Dial or New have no
// effect.
type Options struct {
	// Exchange is the topic exchange that messages are published to, and the stem of the other exchanges' names;
	// default "waybill".
	Exchange string
	// Prefix is put before the name of every exchange and queue, such as "staging."; default none.
	Prefix string
	// QueueType is the type of the queues of subscriptions; default QueueQuorum.
	QueueType QueueType
	// TLS is the client's side of TLS for amqps:// URLs: own authorities, client certificate, server name. Nil means
	// the system's authorities.
	TLS *tls.Config
	// Heartbeat is the interval after which a silent peer is suspected; it is declared dead after one and a half to two
	// of it. Default 10 s, at least 1 s. A heartbeat in the URL wins.
	Heartbeat time.Duration
	// ConnectTimeout bounds one attempt to connect, and any one question to the broker; default 10 s.
	ConnectTimeout time.Duration
	// ReconnectMax bounds the back-off between attempts to connect, which begins at 100 ms and doubles, with jitter;
	// default 1 s.
	ReconnectMax time.Duration
	// PublishTimeout bounds a Publish whose context has no earlier deadline; default 30 s.
	PublishTimeout time.Duration
	// PublishConnections is how many connections publish; default 2, at most 16. A call uses one of them, the idlest,
	// so that the second is only opened when calls overlap.
	PublishConnections int
	// Window bounds the messages that one connection has sent and not seen confirmed, over all calls; default 2,000.
	Window int
	// PipelineKeys sends messages of one key without waiting for the confirm of the one before, so that a hot key is as
	// fast as any other; default false: one at a time. The order of a key then survives relays that die and connections
	// that are lost, since what is lost is the end of what was sent. It does not survive a queue that refuses one
	// message and takes a later one: one with a length limit, one that is declared, bound or deleted while relays run,
	// or one that has no leader for a while, as after a broker's failure. What was sent behind a message that failed is
	// sent again behind it. With ManagementURL a queue with a length limit, by argument or policy, is an error at a
	// publisher's start, and a difference for Drift. It has no effect on routes with BlockAfterAbandon.
	PipelineKeys bool
	// MaxBodyBytes bounds a body; a larger one is refused for good with reason too_large and not sent. Default 16 MiB,
	// which every version of RabbitMQ takes by default; at most 512 MiB.
	MaxBodyBytes int
	// Name is shown in the broker's list of connections; default "waybill".
	Name string
	// Lazy makes Dial return without connecting: the first use connects. Then a broker that is down at the start is an
	// outage as any other.
	Lazy bool
	// Passive declares nothing: what is needed must be there, and is looked for at the start, so that a user without
	// the right to configure will do. Without ManagementURL only exchanges, queues and the right to write can be
	// verified; what was not is said in an INFO log.
	Passive bool
	// ManagementURL is the address of the management API, such as https://user:password@host:15671, for what AMQP
	// cannot tell: arguments and bindings. Without a user it is that of the AMQP URL, which needs the tag "management".
	// Used at the start and by Drift, with the virtual host of the connection. Default none.
	ManagementURL string
	// ManagementTLS is the client's side of TLS for an https:// ManagementURL; nil means that of TLS.
	ManagementTLS *tls.Config
	// Logger is told of lost and restored connections; nil means slog.Default.
	Logger *slog.Logger
}

// The defaults and bounds of Options.
const (
	DefaultExchange       = "waybill"
	DefaultHeartbeat      = 10 * time.Second
	DefaultConnectTimeout = 10 * time.Second
	DefaultReconnectMax   = time.Second
	DefaultPublishTimeout = 30 * time.Second
	DefaultWindow         = 2000
	DefaultConnections    = 2
	DefaultMaxBodyBytes   = 16 << 20
	maxWindow             = 65_535
	maxConnections        = 16
	maxMaxBodyBytes       = 512 << 20
)

// exampleURL is what errors show instead of the URL, which holds a password.
const exampleURL = "amqp://user:password@host:5672/vhost" //nolint:gosec // an example, no credentials

func (o Options) withDefaults() Options {
	if o.Exchange == "" {
		o.Exchange = DefaultExchange
	}
	if o.QueueType == "" {
		o.QueueType = QueueQuorum
	}
	if o.Name == "" {
		o.Name = "waybill"
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	for _, d := range []struct {
		p *time.Duration
		v time.Duration
	}{
		{&o.Heartbeat, DefaultHeartbeat},
		{&o.ConnectTimeout, DefaultConnectTimeout},
		{&o.ReconnectMax, DefaultReconnectMax},
		{&o.PublishTimeout, DefaultPublishTimeout},
	} {
		if *d.p == 0 {
			*d.p = d.v
		}
	}
	if o.PublishConnections == 0 {
		o.PublishConnections = DefaultConnections
	}
	if o.Window == 0 {
		o.Window = DefaultWindow
	}
	if o.MaxBodyBytes == 0 {
		o.MaxBodyBytes = DefaultMaxBodyBytes
	}
	return o
}

// Validate returns an error that lists all problems of o, or nil.
func (o Options) Validate() error {
	return waybill.Invalid("waybill/rabbitmq: options", o.problems()...)
}

func (o Options) problems() []string {
	var p []string
	bad := func(format string, a ...any) { p = append(p, fmt.Sprintf(format, a...)) }
	o = o.withDefaults()
	for _, f := range []struct{ name, value string }{{"Exchange", o.Exchange}, {"Prefix", o.Prefix}, {"Name", o.Name}} {
		if s := check.Name(f.value); s != "" {
			bad("%s: %s", f.name, s)
		}
	}
	full := o.Prefix + o.Exchange
	if len(full) > maxStem {
		bad("Exchange: %q has %d bytes with its prefix; at most %d are allowed, so that the names derived from it fit", clip(full), len(full), maxStem)
	}
	if strings.HasPrefix(full, "amq.") {
		bad("Exchange: names that begin with \"amq.\" belong to the broker; choose another")
	}
	if o.QueueType != QueueQuorum && o.QueueType != QueueClassic {
		bad("QueueType: %q is unknown; use QueueQuorum or QueueClassic", clip(string(o.QueueType)))
	}
	atLeast := func(name string, d, least time.Duration) {
		if d < least {
			bad("%s: %s is less than %s; leave it 0 for the default", name, d, least)
		}
	}
	atLeast("Heartbeat", o.Heartbeat, time.Second)
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
	if s := o.managementProblem(); s != "" {
		p = append(p, s)
	}
	return p
}

// checkURL returns what is wrong with an AMQP URL, or "". Its answer never holds any part of the URL, since a badly
// escaped password can turn up in any part.
func checkURL(raw string, o Options) string {
	u, err := url.Parse(raw)
	if err != nil || strings.ContainsAny(raw, " \t\r\n") {
		return "url: cannot be read; escape special characters in user and password (net/url.UserPassword does); it must look like " + exampleURL
	}
	switch {
	case u.Scheme != "amqp" && u.Scheme != "amqps":
		return "url: the scheme is not amqp or amqps; it must look like " + exampleURL
	case u.Hostname() == "":
		return "url: names no host; it must look like " + exampleURL
	case u.Scheme == "amqp" && o.TLS != nil:
		return "TLS: is set, but the URL says amqp://, which is not encrypted; use amqps://"
	}
	return ""
}

func clip(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:80], "") + "..."
	}
	return s
}
