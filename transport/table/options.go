package table

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/check"
)

// The defaults of Options.
const (
	DefaultPollMin = time.Second
	DefaultPollMax = time.Minute
	UnwokenPollMin = 20 * time.Millisecond
	UnwokenPollMax = 500 * time.Millisecond
	DefaultLease   = time.Minute
	UnseenLease    = 8 * time.Second
	DefaultOwner   = "table"

	// DefaultCleanInterval is the default of Options.CleanInterval.
	DefaultCleanInterval = time.Minute

	minLease = 50 * time.Millisecond
	maxLease = 24 * time.Hour
)

// Options configures a [Transport]. Zero fields mean the default. The number of handlers is the subscription's.
type Options struct {
	// PollMin and PollMax bound the pause after a look that found nothing, while no timer is due: from PollMin,
	// doubled up to PollMax. With a store that is a core.Waiter it is PollMax at once, and the store ends it.
	// Default 1 s and 1 min; with a store that is no core.Waiter 20 ms and 500 ms. For messages without a key it is
	// at most half a second while several processes share the queue.
	PollMin, PollMax time.Duration
	// Lease is how long a process may be silent before others take over its messages, 50 ms to 24 h. A message
	// whose process was killed comes a second later at most. A store that is a core.Presence notices killed
	// processes: there it comes within two seconds, and the lease is for processes that stand still. Default 60 s,
	// with any other store 8 s.
	Lease time.Duration
	// Order is the order of a queue; default per key.
	Order waybill.Order
	// BlockAfterAbandon makes a parked message block its key until an operator decides. OrderPerKey only.
	BlockAfterAbandon bool
	// Queues overrides all of this for single queues.
	Queues map[string]QueueOptions
	// CleanInterval is how often the process cleans the store while it has subscriptions: expired records are
	// parked, and records past their retention are deleted. Of several processes, relays included, one is elected.
	// Default 1 min, at least 1 s, negative = off.
	CleanInterval time.Duration
	// Owner names the process in the store, for people to read; default "table". Use the host's name, say.
	Owner string
	// Logger is for logs; nil means slog.Default().
	Logger *slog.Logger
	// MeterProvider gets the gauges of the queues' records; nil means the global one.
	MeterProvider metric.MeterProvider
}

// QueueOptions are the options of one queue. Zero PollMin, PollMax and Lease mean those of [Options];
// Order and BlockAfterAbandon are as they stand here.
type QueueOptions struct {
	// PollMin and PollMax are as in Options.
	PollMin, PollMax time.Duration
	// Lease is as in Options.
	Lease time.Duration
	// Order is as in Options.
	Order waybill.Order
	// BlockAfterAbandon is as in Options.
	BlockAfterAbandon bool
}

// Validate reports all problems of o at once, or nil.
func (o Options) Validate() error {
	return waybill.Invalid("waybill/table: options", o.problems()...)
}

func (o Options) problems() []string {
	var p []string
	if s := check.Name(o.Owner); s != "" {
		p = append(p, "Owner: "+s)
	}
	if o.CleanInterval > 0 && o.CleanInterval < time.Second {
		p = append(p, fmt.Sprintf("CleanInterval: %s is less than 1s; leave it 0 for %s, negative = off", o.CleanInterval, DefaultCleanInterval))
	}
	p = append(p, o.base().problems("")...)
	for _, name := range slices.Sorted(maps.Keys(o.Queues)) {
		field := fmt.Sprintf("Queues[%q]", name)
		if name == "" {
			p = append(p, field+": name a queue")
		}
		p = append(p, o.queue(name).problems(field+".")...)
	}
	return p
}

// base returns the options of queues that have none of their own, completed.
func (o Options) base() QueueOptions {
	return QueueOptions{o.PollMin, o.PollMax, o.Lease, o.Order, o.BlockAfterAbandon}.or(QueueOptions{
		PollMin: DefaultPollMin, PollMax: DefaultPollMax, Lease: DefaultLease,
	})
}

// queue returns the completed options of a queue.
func (o Options) queue(name string) QueueOptions {
	q, ok := o.Queues[name]
	if !ok {
		return o.base()
	}
	return q.or(o.base())
}

// or completes q from def. A bound that is not set gives way to one that is.
func (q QueueOptions) or(def QueueOptions) QueueOptions {
	q.Lease = cmp.Or(q.Lease, def.Lease)
	switch {
	case q.PollMin == 0 && q.PollMax == 0:
		q.PollMin, q.PollMax = def.PollMin, def.PollMax
	case q.PollMin == 0:
		q.PollMin = min(def.PollMin, q.PollMax)
	case q.PollMax == 0:
		q.PollMax = max(def.PollMax, q.PollMin)
	}
	return q
}

func (q QueueOptions) problems(prefix string) []string {
	var p []string
	bad := func(format string, a ...any) { p = append(p, prefix+fmt.Sprintf(format, a...)) }
	if q.PollMin < time.Millisecond {
		bad("PollMin: %s is less than a millisecond; leave it 0 for %s", q.PollMin, DefaultPollMin)
	}
	if q.PollMax < q.PollMin {
		bad("PollMax: %s is less than PollMin %s", q.PollMax, q.PollMin)
	}
	if q.Lease < minLease || q.Lease > maxLease {
		bad("Lease: %s is not between %s and %s", q.Lease, minLease, maxLease)
	}
	if q.Order > waybill.OrderBestEffortHLC {
		bad("Order: %d is unknown", q.Order)
	}
	if q.BlockAfterAbandon && q.Order != waybill.OrderPerKey {
		bad("BlockAfterAbandon: only OrderPerKey has keys that can block")
	}
	return p
}
