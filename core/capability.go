package core

import (
	"context"
	"strings"
	"time"

	"github.com/waybill-go/waybill/hlc"
)

// As returns the capability T of v: v itself if v has it, else the capability of the value that v decorates, following
// Unwrap() any. A decorator that must not pass a capability on implements that capability itself.
func As[T any](v any) (T, bool) {
	for v != nil {
		if t, ok := v.(T); ok {
			return t, true
		}
		u, ok := v.(interface{ Unwrap() any })
		if !ok {
			break
		}
		v = u.Unwrap()
	}
	var zero T
	return zero, false
}

// The capabilities below are optional. Find them with [core.As], never by a type assertion, so that no decorator hides
// one.

// WakeCause says why a Wait returned.
type WakeCause string

// The causes of a wake-up, as metric labels.
const (
	WakeNotify WakeCause = "notify" // the store was told of a new message
	WakeLimit  WakeCause = "limit"  // the time asked for has passed
	WakePoll   WakeCause = "poll"   // the store's own safety poll
	WakeStop   WakeCause = "stop"   // the context ended
)

// Waiter lets a relay sleep until a message is staged. Without it the relay polls with adaptive back-off.
type Waiter interface {
	// Wait blocks until there can be something to hand out on routes, limit has passed, or ctx ends. It can return
	// early for no reason. It must not miss a message that was staged between the caller's last look and this call.
	// It is called once at a time per store value.
	Wait(ctx context.Context, routes []string, limit time.Duration) (WakeCause, error)
}

// MessagingSystem is OpenTelemetry's messaging.system for the outbox, and for transports that are no [Describer].
const MessagingSystem = "waybill"

// Describer names the system behind a transport for telemetry. Without it the name is [System].
type Describer interface {
	// Describe always returns the same description.
	Describe() Description
}

// Description names a messaging system as OpenTelemetry's conventions do.
type Description struct {
	// System is messaging.system, such as "rabbitmq".
	System string
	// Address and Port are server.address and server.port; empty and 0 if there are none.
	Address string
	Port    int
	// Exchange is the part before the topic in messaging.destination.name; empty if there is none.
	Exchange string
}

// DescriptionOf returns the description of transport, or of the transport that it decorates.
func DescriptionOf(transport any) Description {
	if d, ok := As[Describer](transport); ok {
		return d.Describe()
	}
	return Description{System: MessagingSystem}
}

// Destination returns the messaging.destination.name of topic, and of the queue on the consumer's side.
func (d *Description) Destination(topic, queue string) string {
	parts := make([]string, 0, 3)
	for _, part := range [...]string{d.Exchange, topic, queue} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ":")
}

// Checker tests at the start whether an adapter can work at all. Without it the first use reports a problem.
type Checker interface {
	// Check returns nil, an error that matches waybill.ErrMisconfigured naming the object, the cause and the cure,
	// or an error of class outage.
	Check(ctx context.Context) error
}

// ClockSeeder knows a stamp above which a restarted clock must continue. Without it a clock starts at the wall clock.
type ClockSeeder interface {
	// HighWater returns the highest stamp of the committed records, deleted ones included; zero if there is none.
	// It can be behind by up to a second for the records settled last: the restarted clock is past these anyway,
	// unless the wall clock was set back. A stamp that is further ahead of the store's clock than
	// hlc.DefaultMaxDrift does not count, neither here nor in the stamp that the store remembers: one machine with
	// a fast clock, or one forged stamp, would stop every clock that follows it.
	HighWater(ctx context.Context) (hlc.Timestamp, error)
}
