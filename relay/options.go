package relay

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill/core"
)

// Defaults of Options.
const (
	DefaultBatchSize         = 500
	DefaultBatchBytes        = 16 << 20
	DefaultWindow            = 4
	DefaultPollMin           = 50 * time.Millisecond
	DefaultPollMax           = 10 * time.Second
	DefaultLease             = time.Minute
	DefaultPublishTimeout    = 30 * time.Second
	DefaultDrainTimeout      = 15 * time.Second
	DefaultMaxBatches        = 100
	DefaultUnroutableHorizon = 24 * time.Hour
	DefaultCleanInterval     = time.Minute
	DefaultStaleAfter        = 5 * time.Minute

	maxWeight    = 1000
	minRate      = 1.0 / 3600
	maxRate      = 1e6
	maxBatchSize = 10_000
	maxWindow    = 256
	minDuration  = time.Millisecond
	maxDuration  = 24 * time.Hour
)

// Options configures a Relay. Zero fields mean their defaults.
type Options struct {
	// Name names the relay in the store and in every line of its log; the default is made of both ends, host name and process
	// id. If set, it is a label of every metric too. Set it when a process runs several relays, to what tells both ends,
	// such as "tenant-7 to rabbitmq".
	Name string
	// Routes to serve; default the one route core.DefaultRoute, to the relay's publisher, in per-key order.
	Routes []Route

	// BatchSize bounds the records of one claim and of one publish; default 500, 1 to 10,000. With 1 and a Window of 1
	// the relay is sequential. The default is lowered to what the store can claim at once.
	BatchSize int
	// BatchBytes bounds the bodies of one claim; default 16 MiB, negative = unbounded.
	BatchBytes int64
	// Window is how many batches a route may hold between claim and settle; default 4, 1 to 256.
	Window int
	// PollMin and PollMax bound the pause after an empty claim: it doubles from one to the other, jittered. A store that
	// wakes its relay is polled every PollMax only. Defaults 50 ms and 10 s.
	PollMin, PollMax time.Duration
	// Lease is how long a claim lasts; default 60 s. It is renewed at half time where the store can. More than
	// PublishTimeout plus a tenth of itself.
	Lease time.Duration
	// PublishTimeout bounds one Publish call; default 30 s. What has no result by then is an outage.
	PublishTimeout time.Duration
	// DrainTimeout bounds how long publishes in flight may go on after Run's context ended; default 15 s, negative = not
	// at all.
	DrainTimeout time.Duration
	// MaxBatches bounds the batches of one RunOnce, and says after how many Run logs its progress; default 100,
	// negative = unbounded.
	MaxBatches int
	// UnroutableHorizon is how long after it was due a message may stay unroutable before it is abandoned, if it was tried
	// core.DefaultBackoffAttempts times (about an hour), so that an outage does not use up its time; default 24 h,
	// negative = it is abandoned at once.
	UnroutableHorizon time.Duration
	// CleanInterval is how often the relay cleans its store, jittered: what expired is abandoned, and what its retention is
	// over for is deleted. Of several relays one is elected. Default 1 min, at least 1 s, negative = off. Stores that keep
	// nothing have nothing to clean.
	CleanInterval time.Duration
	// StaleAfter is how long a message may be due before Health tells, and on a route that this relay does not serve the
	// log and the metric waybill.relay.unserved too; default 5 min, at least 1 s, negative = off.
	StaleAfter time.Duration

	// Logger receives the relay's log; nil means slog.Default().
	Logger *slog.Logger
	// Hooks observe what happens to messages.
	Hooks Hooks
	// MeterProvider and TracerProvider; nil means the global ones.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

// Route is one lane of the outbox and where it leads.
type Route struct {
	// Name is the route's name; default core.DefaultRoute.
	Name string
	// Publisher sends the route's messages; nil means the relay's.
	Publisher core.Publisher
	// Order is how the route is claimed and sent; the default is per-key order.
	Order core.Order
	// BlockAfterAbandon makes an abandoned message block its key until an operator decides. Needs core.OrderPerKey.
	BlockAfterAbandon bool
	// Backoff decides about the next attempt of a rejected message; nil means core's default: 20 attempts in about an
	// hour.
	Backoff *core.Backoff
	// RatePerSecond bounds the messages that this relay publishes per second, failed attempts included, with bursts of a
	// tenth of a second's worth, but at least one message; one an hour to a million; 0 = unbounded. A limited route is
	// claimed apart, and no more of it is held than can be sent within a second or a quarter of the lease.
	RatePerSecond float64
	// Weight is the route's share of the relay, in messages, while other routes have work too; default 1, at most 1,000. A
	// limited route takes what its rate allows.
	Weight int
	// Lanes serves the priority lanes of the route, see core.InLane: while all have work, the high one gets 6 of 10
	// messages, the normal one 3, the low one 1. A lane that is empty leaves its part to the others. The lanes are routes
	// of their own to the store; they share RatePerSecond and Weight.
	Lanes bool
}

// Defaults returns the options that the zero value stands for, without Name, which depends on the host.
func Defaults() Options { return Options{}.withDefaults() }

func (o Options) withDefaults() Options {
	setInt(&o.BatchSize, DefaultBatchSize)
	setInt(&o.Window, DefaultWindow)
	setInt(&o.MaxBatches, DefaultMaxBatches)
	setInt(&o.BatchBytes, DefaultBatchBytes)
	setInt(&o.PollMin, DefaultPollMin)
	setInt(&o.PollMax, DefaultPollMax)
	setInt(&o.Lease, DefaultLease)
	setInt(&o.PublishTimeout, DefaultPublishTimeout)
	setInt(&o.DrainTimeout, DefaultDrainTimeout)
	setInt(&o.UnroutableHorizon, DefaultUnroutableHorizon)
	setInt(&o.CleanInterval, DefaultCleanInterval)
	setInt(&o.StaleAfter, DefaultStaleAfter)
	if len(o.Routes) == 0 {
		o.Routes = []Route{{}}
	}
	o.Routes = append([]Route(nil), o.Routes...)
	for i := range o.Routes {
		if o.Routes[i].Name == "" {
			o.Routes[i].Name = core.DefaultRoute
		}
		setInt(&o.Routes[i].Weight, 1)
	}
	return o
}

func setInt[T int | int64 | time.Duration](p *T, v T) {
	if *p == 0 {
		*p = v
	}
}

// ownerName is the default of Options.Name: the packages at both ends, and the process.
func ownerName(store core.OutboxStore, routes []Route) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	var ends []string
	for i := range routes {
		if name := transportName(routes[i].Publisher); !slices.Contains(ends, name) && len(ends) < 4 {
			ends = append(ends, name)
		}
	}
	return fmt.Sprintf("%s to %s %s:%d", transportName(store), strings.Join(ends, "+"), host, os.Getpid())
}

// margin is the end of a lease in which no publish starts.
func (o *Options) margin() time.Duration { return o.Lease / 10 }

// Validate reports all problems of o as one [*core.InvalidError], or nil. What depends on the store and the publishers
// is checked by New, together with this.
func (o Options) Validate() error {
	o = o.withDefaults()
	return core.Invalid("waybill/relay: options", o.problems()...)
}

// problems lists what is wrong with o, whose defaults are set.
func (o *Options) problems() []string {
	var p []string
	bad := func(format string, a ...any) { p = append(p, fmt.Sprintf(format, a...)) }
	if s := core.CheckName(o.Name); s != "" {
		bad("Name: %s", s)
	}
	if o.BatchSize < 1 || o.BatchSize > maxBatchSize {
		bad("BatchSize: %d is not between 1 and %d", o.BatchSize, maxBatchSize)
	}
	if o.Window < 1 || o.Window > maxWindow {
		bad("Window: %d is not between 1 and %d", o.Window, maxWindow)
	}
	for _, d := range [...]struct {
		name  string
		value time.Duration
	}{{"PollMin", o.PollMin}, {"PollMax", o.PollMax}, {"Lease", o.Lease}, {"PublishTimeout", o.PublishTimeout}} {
		if d.value < minDuration || d.value > maxDuration {
			bad("%s: %s is not between %s and %s", d.name, d.value, minDuration, maxDuration)
		}
	}
	if o.DrainTimeout > maxDuration {
		bad("DrainTimeout: %s is more than %s", o.DrainTimeout, maxDuration)
	}
	if o.PollMax > 0 && o.PollMin > o.PollMax {
		bad("PollMin: %s is more than PollMax %s", o.PollMin, o.PollMax)
	}
	if o.Lease > 0 && o.PollMax >= o.Lease {
		bad("PollMax: %s is not less than Lease %s; poll more often than leases expire", o.PollMax, o.Lease)
	}
	if o.Lease > 0 && o.Lease <= o.PublishTimeout+o.margin() {
		bad("Lease: %s is not more than PublishTimeout %s plus a tenth of the lease; raise Lease or lower PublishTimeout", o.Lease, o.PublishTimeout)
	}
	for _, d := range [...]struct {
		name  string
		value time.Duration
	}{{"CleanInterval", o.CleanInterval}, {"StaleAfter", o.StaleAfter}} {
		if d.value > 0 && (d.value < time.Second || d.value > maxDuration) {
			bad("%s: %s is not between 1s and %s; negative = off", d.name, d.value, maxDuration)
		}
	}
	seen := map[string]bool{}
	for i := range o.Routes {
		r, at := &o.Routes[i], fmt.Sprintf("Routes[%d]", i)
		if s := core.CheckName(r.Name); s != "" {
			bad("%s.Name: %s", at, s)
		}
		if seen[r.Name] {
			bad("%s.Name: %q is listed twice; a route leads to one publisher", at, r.Name)
		}
		seen[r.Name] = true
		if r.Lanes {
			for _, l := range lanes[:] {
				name := core.LaneRoute(r.Name, l.lane)
				if name == r.Name {
					continue
				}
				if s := core.CheckName(name); s != "" {
					bad("%s.Lanes: the name of lane %s: %s", at, l.lane, s)
				}
				if seen[name] || slices.ContainsFunc(o.Routes[i+1:], func(o Route) bool { return o.Name == name }) {
					bad("%s.Lanes: its lane %q is listed as a route too; leave that out", at, name)
				}
			}
		}
		if f := r.RatePerSecond; f != 0 && !(f >= minRate && f <= maxRate) { // NaN is in no range
			bad("%s.RatePerSecond: %g is not between one an hour and %g; 0 = unbounded; to publish nothing use Pause", at, f, maxRate)
		}
		if r.Weight < 1 || r.Weight > maxWeight {
			bad("%s.Weight: %d is not between 1 and %d", at, r.Weight, maxWeight)
		}
		if r.Order > core.OrderHLC {
			bad("%s.Order: %d is unknown", at, r.Order)
		}
		if r.BlockAfterAbandon && r.Order != core.OrderPerKey {
			bad("%s.BlockAfterAbandon: needs Order per_key, not %s", at, r.Order)
		}
		if r.Backoff != nil {
			p = append(p, r.Backoff.Validate(at+".Backoff")...)
		}
	}
	return p
}

// promises lists what the options ask of the store and the publishers, but these do not promise.
func (o *Options) promises(store core.StoreTraits) []string {
	var p []string
	bad := func(format string, a ...any) { p = append(p, fmt.Sprintf(format, a...)) }
	if store.MaxClaim > 0 && o.BatchSize > store.MaxClaim {
		bad("BatchSize: %d is more than the %d records that the store can claim at once", o.BatchSize, store.MaxClaim)
	}
	for i := range o.Routes {
		r := &o.Routes[i]
		at := fmt.Sprintf("Routes[%d] (%s)", i, r.Name)
		if core.IsNil(r.Publisher) {
			bad("%s.Publisher: is nil, and so is the relay's; give one of them", at)
			continue
		}
		t := r.Publisher.Traits()
		if !t.Confirmed {
			bad("%s.Publisher: does not wait for confirms, so messages could be lost; turn publisher confirms on", at)
		}
		if r.Order == core.OrderPerKey && t.KeyOrder == core.KeyOrderNone {
			bad("%s.Order: per_key, but the publisher keeps no order; choose core.OrderBestEffort or a transport with ordered keys (an SQS FIFO queue)", at)
		}
		if r.Order == core.OrderPerKey && !store.KeyOrder {
			bad("%s.Order: per_key, but the store does not claim in key order; choose core.OrderBestEffort", at)
		}
		if r.Order == core.OrderHLC && !store.HLCOrder {
			bad("%s.Order: hlc, but the store does not claim in HLC order; choose core.OrderPerKey or core.OrderBestEffort", at)
		}
	}
	return p
}
