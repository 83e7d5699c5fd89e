package relay

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/check"
	"github.com/waybill-go/waybill/internal/enum"
)

// Defaults of Options.
const (
	DefaultBatchSize         = 500
	DefaultBatchBytes        = 16 << 20
	DefaultWindow            = 8
	DefaultPollMin           = 50 * time.Millisecond
	DefaultPollMax           = time.Minute
	UnwokenPollMin           = 10 * time.Millisecond
	UnwokenPollMax           = 250 * time.Millisecond
	DefaultLease             = 10 * time.Second
	DefaultPublishTimeout    = 30 * time.Second
	DefaultDrainTimeout      = 15 * time.Second
	DefaultUnroutableTimeout = 24 * time.Hour
	DefaultCleanInterval     = time.Minute
	DefaultStaleAfter        = 5 * time.Minute

	maxWeight     = 1000
	minRate       = 1.0 / 3600
	maxRate       = 1e6
	maxBatchSize  = 10_000
	maxWindow     = 256
	maxRead       = 10_000 // records
	maxPartitions = 16 * core.NumSlots
	minDuration   = time.Millisecond
	maxDuration   = 24 * time.Hour
)

// Options configures a Relay. Zero fields mean their defaults.
type Options struct {
	// Name names the relay in the store and in every line of its log; the default is made of both ends, host name
	// and process id. If set, it is a label of every metric too. Set it when a process runs several relays, to a
	// name that tells both ends, such as "tenant-7 to rabbitmq".
	Name string
	// Routes to serve; default the one route waybill.DefaultRoute, to the relay's publisher, in per-key order.
	Routes []Route

	// BatchSize bounds the records of a route in one publish; default 500, 1 to 10,000. In per-key order a publish
	// takes half of it, unless the publisher pipelines keys: a key waits until its call is over. With 1 and a
	// Window of 1 the relay is sequential.
	BatchSize int
	// BatchBytes bounds the bodies of a route in one read; default 16 MiB, negative = unbounded.
	BatchBytes int64
	// Window is how many batches of a route may be in memory, ready or on their way; default 8, 1 to 256. A
	// read brings as many records as have room, at most 10,000, so that a far database is asked seldom.
	Window int
	// PollMin and PollMax bound the pause after a read that found nothing: it doubles from one to the other.
	// Defaults 50 ms and 1 min; with a store that is no core.Waiter, so that nothing else ends the pause, 10 ms and
	// 250 ms.
	PollMin, PollMax time.Duration
	// Pacing is PacingPrompt, the default, or PacingSaving: a relay that saves costs less under a light load, and a
	// message takes up to 25 ms more.
	Pacing Pacing
	// Lease is how long the relay may be silent before others take over its partitions; default 10 s. It is renewed
	// every third of that. A publish that is in progress when it ends is given up.
	Lease time.Duration
	// PublishTimeout bounds one Publish call; default 30 s. A message without a result by then meets an outage.
	PublishTimeout time.Duration
	// DrainTimeout bounds how long publishes in flight may go on after Run's context ended; default 15 s, negative
	// = not at all.
	DrainTimeout time.Duration
	// UnroutableTimeout is how long after it was due a message may stay unroutable before it is abandoned, if its
	// topic has had no queue for an hour, so that an outage does not use up its time; default 24 h, negative = it
	// is abandoned at once. Meanwhile one message of the topic tries every five seconds; the others wait.
	UnroutableTimeout time.Duration
	// CleanInterval is how often the relay cleans its store, jittered: expired records are abandoned, and records
	// past their retention are deleted. Of several relays one is elected. Default 1 min, at least 1 s, negative =
	// off. Stores that keep nothing have nothing to clean.
	CleanInterval time.Duration
	// StaleAfter is how long a message may be due before Health tells, and on a route that this relay does not
	// serve the log and the metric waybill.relay.unserved too; default 5 min, at least 1 s, negative = off.
	StaleAfter time.Duration

	// Logger receives the relay's log; nil means slog.Default().
	Logger *slog.Logger
	// Hooks observe what happens to messages.
	Hooks Hooks
	// StoredError returns the text of an error as it is stored with a message, so that it can leave secrets out.
	// Nil means the error's own text. An unroutable message keeps its own, by which commands say why it waits. Logs
	// and hooks have the error as it is.
	StoredError func(err error) string
	// MeterProvider and TracerProvider; nil means the global ones.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

// Route is one route of the outbox and where it leads.
type Route struct {
	// Name is the route's name; default waybill.DefaultRoute.
	Name string
	// Publisher sends the route's messages; nil means the relay's.
	Publisher core.Publisher
	// Order is how the route is read and sent; the default is per-key order.
	Order waybill.Order
	// BlockAfterAbandon makes an abandoned message block its key until an operator decides. Needs
	// waybill.OrderPerKey.
	BlockAfterAbandon bool
	// Backoff decides about the next attempt of a rejected message; nil means core's default: 20 attempts in about
	// an hour.
	Backoff *waybill.Backoff
	// RatePerSecond bounds the messages that this relay publishes per second, failed attempts included, with bursts
	// of a tenth of a second's worth, but at least one message; one an hour to a million; 0 = unbounded.
	RatePerSecond float64
	// Weight is the route's share of the relay, in messages, while other routes have work too; default 1, at most
	// 1,000. If weights differ, or there are Lanes, routes with work divide one window between them, so that they
	// share the capacity of the publishers. A limited route takes no more than its rate.
	Weight int
	// Lanes serves the priority lanes of the route, see waybill.InLane: while all have work, the high one gets 6 of
	// 10 messages, the normal one 3, the low one 1. A lane that is empty leaves its part to the others. The lanes
	// are routes of their own to the store; they share RatePerSecond and Weight.
	Lanes bool
	// SubRoutes divides the route into so many sub-routes, which are served in turns, see [waybill.SubRoute]; up to
	// waybill.MaxSubRoutes, 0 = none. The route's own name is served, too. They are routes of their own to the
	// store; they share RatePerSecond and Weight, and each has the route's Lanes.
	SubRoutes int
	// Partitions is how many partitions the route, or each of its lanes and sub-routes, is divided into between
	// relays, if this relay is the first to serve it; 1 to 64. More relays than partitions share nothing. The
	// default is 64 for up to 16 routes, lanes and sub-routes, and 1,024 in all for more. The number stays as long
	// as any member serves the route. A relay that asked for another one says so in its log, once:
	// event=relay.partitions_differ.
	Partitions int
}

// Pacing says whether a relay reads at once or gathers. Nothing else depends on it.
type Pacing uint8

const (
	// PacingPrompt reads as soon as a message is staged: for services that wait for their messages.
	PacingPrompt Pacing = iota
	// PacingSaving costs less under a steady light load: a message takes up to 25 ms more, a timer up to 50 ms.
	// While messages come, the relay reads every 25 ms, and no commit wakes it. It stores every 100 ms what was
	// published: after a crash the messages of 0.1 s more come twice. A message that comes alone is read at once,
	// and a backlog as fast as ever. [Relay.RunOnce] never gathers.
	PacingSaving
)

// String returns the name of p.
func (p Pacing) String() string { return enum.Name("Pacing", p, 0, "prompt", "saving") }

const (
	// savingRead is how long a relay that saves waits between reads, savingSettle before it settles. With minPause
	// a read is 25 ms after the one before, as PacingSaving states.
	savingRead   = 24 * time.Millisecond
	savingSettle = 100 * time.Millisecond
)

// Defaults returns the options that the zero value stands for, without Name, which depends on the host.
func Defaults() Options { return Options{}.withDefaults() }

// withDefaults returns o with the defaults set.
func (o Options) withDefaults() Options {
	setInt(&o.BatchSize, DefaultBatchSize)
	setInt(&o.Window, DefaultWindow)
	setInt(&o.BatchBytes, DefaultBatchBytes)
	setInt(&o.PollMin, DefaultPollMin)
	setInt(&o.PollMax, DefaultPollMax)
	setInt(&o.Lease, DefaultLease)
	setInt(&o.PublishTimeout, DefaultPublishTimeout)
	setInt(&o.DrainTimeout, DefaultDrainTimeout)
	setInt(&o.UnroutableTimeout, DefaultUnroutableTimeout)
	setInt(&o.CleanInterval, DefaultCleanInterval)
	setInt(&o.StaleAfter, DefaultStaleAfter)
	if len(o.Routes) == 0 {
		o.Routes = []Route{{}}
	}
	o.Routes = append([]Route(nil), o.Routes...)
	stored := 0
	for i := range o.Routes {
		stored += o.Routes[i].stored()
	}
	for i := range o.Routes {
		o.Routes[i].Name = cmp.Or(o.Routes[i].Name, waybill.DefaultRoute)
		setInt(&o.Routes[i].Weight, 1)
		setInt(&o.Routes[i].Partitions, min(max(maxPartitions/stored, 1), core.NumSlots))
	}
	return o
}

// setInt sets *p to v if it is zero.
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

// bytes is how much of bodies a route may hold in memory.
func (o *Options) bytes() int64 {
	if o.BatchBytes < 0 || o.BatchBytes > math.MaxInt64/maxWindow {
		return math.MaxInt64
	}
	return max(o.BatchBytes, 1) * 4 // a read of the dispatcher brings a quarter of it
}

// Validate reports all problems of o as one [*waybill.InvalidError], or nil. New checks the same, and the rules that
// depend on the store and the publishers.
func (o Options) Validate() error {
	o = o.withDefaults()
	return waybill.Invalid("waybill/relay: options", o.problems()...)
}

// problems lists the faults of o, whose defaults are set.
func (o *Options) problems() []string {
	var p []string
	bad := func(format string, a ...any) { p = append(p, fmt.Sprintf(format, a...)) }
	if s := check.Name(o.Name); s != "" {
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
	if o.Pacing > PacingSaving {
		bad("Pacing: %d is unknown", o.Pacing)
	}
	if o.DrainTimeout > maxDuration {
		bad("DrainTimeout: %s is more than %s", o.DrainTimeout, maxDuration)
	}
	if o.PollMax > 0 && o.PollMin > o.PollMax {
		bad("PollMin: %s is more than PollMax %s", o.PollMin, o.PollMax)
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
		if s := check.Name(r.Name); s != "" {
			bad("%s.Name: %s", at, s)
		}
		if seen[r.Name] {
			bad("%s.Name: %q is listed twice; a route leads to one publisher", at, r.Name)
		}
		seen[r.Name] = true
		if r.SubRoutes < 0 || r.SubRoutes > waybill.MaxSubRoutes {
			bad("%s.SubRoutes: %d is not between 0 (none) and %d", at, r.SubRoutes, waybill.MaxSubRoutes)
			continue
		}
		for _, s := range spread([]Route{*r}) {
			field, what := "Lanes", "lane"
			if r.SubRoutes > 0 {
				field, what = "SubRoutes", "sub-route"
			}
			switch problem := check.Name(s.Name); {
			case s.Name == r.Name:
			case problem != "":
				bad("%s.%s: the name of its %s %s: %s", at, field, what, check.Clip(s.Name, 300), problem)
			case seen[s.Name] || slices.ContainsFunc(o.Routes[i+1:], func(o Route) bool { return o.Name == s.Name }):
				bad("%s.%s: its %s %q is listed as a route too; leave that out", at, field, what, s.Name)
			}
		}
		if f := r.RatePerSecond; f != 0 && !(f >= minRate && f <= maxRate) { // NaN is in no range
			bad("%s.RatePerSecond: %g is not between one an hour and %g; 0 = unbounded; to publish nothing use Pause", at, f, maxRate)
		}
		if r.Weight < 1 || r.Weight > maxWeight {
			bad("%s.Weight: %d is not between 1 and %d", at, r.Weight, maxWeight)
		}
		if r.Partitions < 1 || r.Partitions > core.NumSlots {
			bad("%s.Partitions: %d is not between 1 and %d", at, r.Partitions, core.NumSlots)
		}
		if r.Order > waybill.OrderBestEffortHLC {
			bad("%s.Order: %d is unknown", at, r.Order)
		}
		if r.BlockAfterAbandon && r.Order != waybill.OrderPerKey {
			bad("%s.BlockAfterAbandon: needs Order per_key, not %s", at, r.Order)
		}
		if r.Backoff != nil {
			p = append(p, r.Backoff.Validate(at+".Backoff")...)
		}
	}
	return p
}

// promises lists the properties that the options ask of the publishers and the publishers do not promise.
func (o *Options) promises() []string {
	var p []string
	bad := func(format string, a ...any) { p = append(p, fmt.Sprintf(format, a...)) }
	for i := range o.Routes {
		r := &o.Routes[i]
		at := fmt.Sprintf("Routes[%d] (%s)", i, r.Name)
		if check.Nil(r.Publisher) {
			bad("%s.Publisher: is nil, and so is the relay's; give one of them", at)
			continue
		}
		t := r.Publisher.Traits()
		if !t.Confirmed {
			bad("%s.Publisher: does not wait for confirms, so messages could be lost; turn publisher confirms on", at)
		}
		if r.Order == waybill.OrderPerKey && t.KeyOrder == core.KeyOrderNone {
			bad("%s.Order: per_key, but the publisher keeps no order; choose waybill.OrderBestEffort or a transport with ordered keys (an SQS FIFO queue)", at)
		}
	}
	return p
}
