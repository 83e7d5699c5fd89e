package consumer

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

// The defaults of Options.
const (
	DefaultConcurrency   = 10
	DefaultMaxDeliveries = 20
	DefaultDrainTimeout  = 15 * time.Second
	DefaultPauseBase     = time.Second
	DefaultOutageLimit   = 24 * time.Hour
	DefaultPauseCap      = 30 * time.Second

	maxConcurrency = 10_000
	maxPrefetch    = 65_535 // AMQP 0-9-1 counts in 16 bits
)

// DefaultRetry returns the retry policy of subscriptions that set none: 1 s, 10 s, 1 min, 5 min, then park.
func DefaultRetry() *waybill.Backoff {
	return waybill.RetryDelays(time.Second, 10*time.Second, time.Minute, 5*time.Minute)
}

// Options configures a [Consumer]. Zero fields mean the default.
type Options struct {
	// Retry is the policy of subscriptions that set none; nil means DefaultRetry. An empty schedule parks at once.
	Retry *waybill.Backoff
	// InProcess repeats a failed handler in this process, for subscriptions that do not say: around the inbox, so
	// that each time is a transaction of its own, and before the broker sees the failure. A verdict by
	// [waybill.Reject], [waybill.RetryAfter] or [waybill.Outage] is not repeated. A handler's place is taken while
	// it waits: keep it to a few short delays; all together at most 1 min. Nil = off.
	InProcess *waybill.Backoff
	// Unknown is what becomes of a message that no handler is for; default UnknownPark. A handler with the name
	// [waybill.AnyMessage] takes them instead.
	Unknown UnknownPolicy
	// IdleTimeout makes Run return nil when all subscriptions have had nothing to do for as long, for batch jobs. A
	// subscription that is paused, or cannot reach its broker, is not idle. Messages that wait in the broker for a
	// later retry are left there. Default 0 = Run goes on, negative = the same.
	IdleTimeout time.Duration
	// Concurrency is the number of handlers at a time of subscriptions that set none; default 10.
	Concurrency int
	// Prefetch bounds the deliveries held but not settled of subscriptions that set none; default 0: the number
	// adapts, as [waybill.Subscription] says.
	Prefetch int
	// MaxDeliveries is how often a message may be delivered without an outcome before it is parked, for
	// subscriptions that set none; default 20, negative = off.
	MaxDeliveries int
	// DrainTimeout is how long handlers may go on after Run's context ended; default 15 s, negative = not at all.
	DrainTimeout time.Duration
	// Pause is the back-off while something is down: between the probes of a paused subscription, and between
	// attempts to reach the broker. Default 1 s, doubled up to 30 s, with equal jitter. Attempts is ignored: it
	// never gives up.
	Pause waybill.Backoff
	// OutageLimit is how long one message may meet outages while others of its subscription are handled: an outage
	// that is its own. Meanwhile it comes again and again, at no cost, and is parked then with
	// [waybill.ReasonDeliveries]. As long as all messages meet the outage, none is parked. Default 24 h, negative =
	// for ever.
	OutageLimit time.Duration
	// Middleware wraps every handler; the first is outermost. A panic is caught outside of all.
	Middleware []waybill.Middleware
	// StoredError returns the text of an error as it travels with a retried or a parked message, and as the table
	// queue stores it, so that it can leave secrets out; nil means the error's own text. Logs have the error as it
	// is.
	StoredError func(err error) string
	// Limiter keeps the limits of subscriptions over all processes; see [waybill.SharedLimit]. It is the inbox or
	// the store of a database that all of them use. Nil = subscriptions with such a limit are refused.
	Limiter core.Limiter
	// Clock merges the stamps of handled messages, so that messages staged in reaction carry later ones: give the
	// clock of the outbox. A stamp beyond its drift bound is logged and counted, and changes nothing. Nil = off.
	Clock *hlc.Clock
	// Logger is for logs; nil means slog.Default().
	Logger *slog.Logger
	// MeterProvider is for metrics; nil means the global one, which does nothing until the application sets it.
	MeterProvider metric.MeterProvider
	// TracerProvider is for traces; nil means the global one, which does nothing until the application sets it.
	TracerProvider trace.TracerProvider
}

// UnknownPolicy is what becomes of a message that no handler is for.
type UnknownPolicy uint8

// The policies.
const (
	UnknownPark UnknownPolicy = iota // it is parked with waybill.ReasonNoHandler
	UnknownDrop                      // it is settled as done, logged as a warning, and counted as dropped
)

// maxInProcess bounds the delays of a policy for retries in the process, all together.
const maxInProcess = time.Minute

// Validate reports all problems of o at once, or nil.
func (o Options) Validate() error {
	var p []string
	bad := func(format string, a ...any) { p = append(p, fmt.Sprintf(format, a...)) }
	if o.Retry != nil {
		p = append(p, o.Retry.Validate("Retry")...)
	}
	p = append(p, checkInProcess(o.InProcess)...)
	if o.Unknown > UnknownDrop {
		bad("Unknown: %d is not a policy; use UnknownPark or UnknownDrop", o.Unknown)
	}
	p = append(p, checkCounts("", o.Concurrency, o.Prefetch)...)
	p = append(p, o.Pause.Validate("Pause")...)
	if o.Pause.Kind == waybill.BackoffDelays || o.Pause.Kind == waybill.BackoffNone || o.Pause.Kind == waybill.BackoffCustom {
		bad("Pause.Kind: a pause cannot give up; use exponential, linear or constant")
	}
	for i, m := range o.Middleware {
		if m == nil {
			bad("Middleware[%d]: is nil; leave it out", i)
		}
	}
	return waybill.Invalid("waybill/consumer: options", p...)
}

func (o Options) withDefaults() Options {
	if o.Retry == nil {
		o.Retry = DefaultRetry()
	}
	o.MaxDeliveries = cmp.Or(o.MaxDeliveries, DefaultMaxDeliveries)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, DefaultDrainTimeout)
	o.OutageLimit = cmp.Or(o.OutageLimit, DefaultOutageLimit)
	o.Pause.Base = cmp.Or(o.Pause.Base, min(DefaultPauseBase, cmp.Or(o.Pause.Cap, DefaultPauseBase)))
	o.Pause.Cap = cmp.Or(o.Pause.Cap, max(DefaultPauseCap, o.Pause.Base))
	o.Pause.Attempts = -1
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.Middleware = slices.Clone(o.Middleware)
	return o
}

// checkInProcess returns the problems of a policy for retries in the process: it must end soon.
func checkInProcess(b *waybill.Backoff) []string {
	if b == nil {
		return nil
	}
	p := b.Validate("InProcess")
	if len(p) > 0 {
		return p
	}
	total, ends := totalDelay(b)
	switch {
	case b.Kind == waybill.BackoffCustom:
		return []string{"InProcess.Kind: a custom policy may never end, and its handler's place is taken meanwhile; use waybill.RetryDelays"}
	case !ends:
		return []string{"InProcess.Attempts: without a bound the broker would never see the failure; set a few"}
	case total > maxInProcess:
		return []string{fmt.Sprintf("InProcess: its delays add up to %s, and a handler's place is taken all the time; at most %s are allowed: "+
			"use fewer or shorter ones, and Retry for the rest", total, maxInProcess)}
	}
	return nil
}

// totalDelay returns the sum of b's delays without jitter, and whether it ends at all; if not, the longest delay: a
// mark that is made at one attempt must be known at the next.
func totalDelay(b *waybill.Backoff) (total time.Duration, ends bool) {
	limit := b.MaxAttempts()
	if limit == 0 || b.Kind == waybill.BackoffCustom {
		tiers := b.Tiers()
		if len(tiers) == 0 {
			return 0, false
		}
		return tiers[len(tiers)-1], false
	}
	for n := 1; n < limit; n++ {
		d, times := b.Delay(n), 1
		if n > 1000 { // it has reached its cap, or as good as
			times = limit - n
		}
		if d > 0 && time.Duration(times) > (math.MaxInt64-total)/d {
			return math.MaxInt64, true
		}
		if total += d * time.Duration(times); times > 1 {
			break
		}
	}
	return total, true
}

func checkCounts(prefix string, concurrency, prefetch int) []string {
	var p []string
	if concurrency < 0 || concurrency > maxConcurrency {
		p = append(p, fmt.Sprintf("%sConcurrency: %d is not between 0 (default) and %d", prefix, concurrency, maxConcurrency))
	}
	if prefetch < 0 || prefetch > maxPrefetch {
		p = append(p, fmt.Sprintf("%sPrefetch: %d is not between 0 (default) and %d", prefix, prefetch, maxPrefetch))
	}
	if concurrency > 0 && prefetch > 0 && prefetch < concurrency {
		p = append(p, fmt.Sprintf("%sPrefetch: %d is less than Concurrency %d, so that handlers would idle; raise it or leave it 0", prefix, prefetch, concurrency))
	}
	return p
}
