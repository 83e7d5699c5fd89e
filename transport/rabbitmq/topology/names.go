package topology

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// MaxDelay is the longest time that RabbitMQ holds a message for: 49 days.
const MaxDelay = math.MaxUint32 * time.Millisecond

const (
	deadLetterSuffix = ".dlq"
	deadLetterInfix  = ".dlx."
	returnSuffix     = ".return"
	delaySuffix      = ".delay_"
)

// Names makes the names of the objects of a topology. Queues are asked for by the subscription's name, which has no
// prefix; every answer has it.
type Names struct{ prefix, exchange string }

// Names returns the names with these options.
func (o Options) Names() Names {
	o = o.withDefaults()
	return Names{o.Prefix, o.Prefix + o.Exchange}
}

// Exchange is the topic exchange that messages are published to.
func (n Names) Exchange() string { return n.exchange }

// DeadLetterExchange is the direct exchange of a subscription: to its dead-letter queue and its delay queues, and back
// to its queue. Each subscription has its own, since a user that may write to it may write to the queue.
func (n Names) DeadLetterExchange(subscription string) string {
	return n.exchange + deadLetterInfix + subscription
}

// leadsToDeadLetters reports whether an exchange is the dead-letter exchange of a subscription, also of one that is
// unknown, or of an older version, in which all subscriptions had one together.
func (n Names) leadsToDeadLetters(exchange string) bool {
	return strings.HasPrefix(exchange+".", n.exchange+deadLetterInfix)
}

// DelayQueue is a delay queue of a subscription, and the routing key to it; d is one of [DelaysOf].
func (n Names) DelayQueue(subscription string, d time.Duration) string {
	return n.prefix + subscription + delaySuffix + delayName(d)
}

// SharedDelay is the fanout exchange to the delay queue of the same name, with Options.SharedDelays; d is one of
// [DelaysOf].
func (n Names) SharedDelay(d time.Duration) string { return n.exchange + delaySuffix + delayName(d) }

// Queue is the queue of a subscription, and the routing key to its dead-letter queue.
func (n Names) Queue(subscription string) string { return n.prefix + subscription }

// DeadLetterQueue is the dead-letter queue of a subscription.
func (n Names) DeadLetterQueue(subscription string) string {
	return n.prefix + subscription + deadLetterSuffix
}

// ReturnKey is the routing key by which the dead-letter exchange of a subscription leads back to its queue.
func (n Names) ReturnKey(subscription string) string { return n.prefix + subscription + returnSuffix }

// delayUnits are the parts of a delay's name, in their order.
var delayUnits = []struct {
	unit time.Duration
	name string
}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}}

// delayName writes a delay readably: 500ms, 1m30s, 1d12h. It is unambiguous for whole milliseconds.
func delayName(d time.Duration) string {
	var b strings.Builder
	for _, u := range delayUnits {
		if n := int64(d / u.unit); n > 0 {
			b.WriteString(strconv.FormatInt(n, 10) + u.name)
			d %= u.unit
		}
	}
	if b.Len() == 0 {
		return "0ms"
	}
	return b.String()
}

// isDelayName reports whether delayName can have written s.
func isDelayName(s string) bool {
	var d time.Duration
	rest := s
	for _, u := range delayUnits {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		if n, err := strconv.ParseInt(rest[:digits], 10, 32); err == nil && strings.HasPrefix(rest[digits:], u.name) && (u.name != "m" || !strings.HasPrefix(rest[digits:], "ms")) {
			d += time.Duration(n) * u.unit
			rest = rest[digits+len(u.name):]
		}
	}
	return rest == "" && delayName(d) == s
}

// Delays are the delays that have a delay queue: whole milliseconds, at least one, ascending, each once.
type Delays []time.Duration

// DelaysOf returns the delays to declare for the retry delays of a subscription, which are ascending.
func DelaysOf(retryDelays []time.Duration) Delays {
	var out Delays
	for _, d := range retryDelays {
		d = max(d+time.Millisecond-1, time.Millisecond).Truncate(time.Millisecond)
		if len(out) == 0 || d > out[len(out)-1] {
			out = append(out, d)
		}
	}
	return out
}

// For returns the delay to use for d: the first that is not shorter, else the last; 0 if there is none or d is 0.
func (delays Delays) For(d time.Duration) time.Duration {
	if d <= 0 || len(delays) == 0 {
		return 0
	}
	for _, longer := range delays {
		if longer >= d {
			return longer
		}
	}
	return delays[len(delays)-1]
}
