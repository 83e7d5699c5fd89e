package waybill

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill/internal/chance"
	"github.com/waybill-go/waybill/internal/enum"
)

// BackoffKind is the shape of a Backoff.
type BackoffKind uint8

// The kinds of back-off.
const (
	BackoffExponential BackoffKind = iota // base × factor^(n−1)
	BackoffLinear                         // base × n
	BackoffConstant                       // base
	BackoffDelays                         // Delays, one after the other, then give up
	BackoffNone                           // no second attempt
	BackoffCustom                         // Custom decides
)

// String returns the name of the kind.
func (k BackoffKind) String() string {
	return enum.Name("BackoffKind", k, 0, "exponential", "linear", "constant", "schedule", "none", "custom")
}

// JitterKind says how delays are spread, so that messages that failed together do not come back together.
type JitterKind uint8

// The kinds of jitter, with d for the computed delay.
const (
	JitterEqual JitterKind = iota // d/2 plus a random share of d/2
	JitterShare                   // d ± Share×d
	JitterNone                    // d
)

// String returns the name of the kind.
func (k JitterKind) String() string { return enum.Name("JitterKind", k, 0, "equal", "share", "off") }

// Defaults of a Backoff, for the relay.
const (
	DefaultBackoffBase     = time.Second
	DefaultBackoffFactor   = 2.0
	DefaultBackoffCap      = 5 * time.Minute
	DefaultBackoffAttempts = 20
	maxBackoff             = 366 * 24 * time.Hour
)

// Backoff decides whether and when there is another attempt. Attempt 1 is at once; the delay before attempt n+1 is
// min(Cap, f(n)) with f by Kind, then jittered. The zero value makes 20 attempts in about an hour: 1 s, doubled to
// 5 min, equal jitter. It is a value; do not change Delays after use.
type Backoff struct {
	// Kind is the shape; default exponential.
	Kind BackoffKind
	// Base is the first delay; default 1 s.
	Base time.Duration
	// Factor multiplies an exponential delay; default 2, at least 1.
	Factor float64
	// Cap bounds every delay before jitter; default 5 min (BackoffDelays: none). At most 366 days.
	Cap time.Duration
	// Attempts bounds the attempts, the first included; default 20, negative = no bound. It is ignored by
	// BackoffDelays, which makes len(Delays)+1 attempts, and by BackoffNone, which makes 1.
	Attempts int
	// Jitter spreads the delays. Schedules are not jittered.
	Jitter JitterKind
	// Share is the share of JitterShare, 0 to 1.
	Share float64
	// Delays are the delays of BackoffDelays.
	Delays []time.Duration
	// Custom decides for BackoffCustom, after the given attempt failed with err: it returns the delay before the
	// next attempt and true, or false to give up. Next returns an error if Custom panics, or returns a delay that
	// is negative or longer than 366 days. It must be safe for concurrent use.
	Custom func(attempt int, err error) (time.Duration, bool)
}

// RetryDelays returns the back-off that waits delays in turn and then gives up. RetryDelays() gives up at once.
func RetryDelays(delays ...time.Duration) *Backoff {
	return &Backoff{Kind: BackoffDelays, Delays: delays}
}

// Validate reports all problems of b, prefixed with field.
func (b *Backoff) Validate(field string) []string {
	var p []string
	bad := func(format string, a ...any) { p = append(p, field+"."+fmt.Sprintf(format, a...)) }
	if b.Kind > BackoffCustom {
		bad("Kind: %d is unknown", b.Kind)
	}
	if b.Base < 0 {
		bad("Base: %s is negative; leave it 0 for %s", b.Base, DefaultBackoffBase)
	}
	if b.Cap < 0 || b.Cap > maxBackoff {
		bad("Cap: %s is not between 0 and %s", b.Cap, maxBackoff)
	}
	if b.Factor != 0 && !(b.Factor >= 1 && b.Factor <= 1000) {
		bad("Factor: %v is not between 1 and 1000", b.Factor)
	}
	if base, top := b.base(), b.cap(); b.Kind != BackoffDelays && base > top && b.Base >= 0 && b.Cap >= 0 {
		bad("Base: %s is more than Cap %s", base, top)
	}
	if b.Jitter > JitterNone {
		bad("Jitter: %d is unknown", b.Jitter)
	}
	if !(b.Share >= 0 && b.Share <= 1) {
		bad("Share: %v is not between 0 and 1", b.Share)
	}
	for i, d := range b.Delays {
		if d < 0 || d > maxBackoff {
			bad("Delays[%d]: %s is not between 0 and %s", i, d, maxBackoff)
		}
	}
	if len(b.Delays) > 0 && b.Kind != BackoffDelays && b.Kind != BackoffCustom {
		bad("Delays: set, but Kind is not a schedule; use waybill.RetryDelays")
	}
	if (b.Kind == BackoffCustom) != (b.Custom != nil) {
		bad("Custom: set it exactly when Kind is BackoffCustom")
	}
	return p
}

// Delay returns the delay before attempt n+1 without jitter, for n ≥ 1. It does not ask Custom.
func (b *Backoff) Delay(n int) time.Duration {
	n = max(n, 1)
	var d float64
	switch b.Kind {
	case BackoffDelays:
		if n <= len(b.Delays) {
			return min(b.Delays[n-1], b.cap())
		}
		return 0
	case BackoffNone:
		return 0
	case BackoffLinear:
		d = float64(b.base()) * float64(n)
	case BackoffConstant, BackoffCustom:
		d = float64(b.base())
	case BackoffExponential:
		d = float64(b.base()) * math.Pow(b.factor(), float64(n-1))
	}
	if top := b.cap(); !(d < float64(top)) { // also for +Inf and NaN
		return top
	}
	return time.Duration(d)
}

// Next decides after attempt (≥ 1) failed with cause: it returns the jittered delay and true, or false to give up. It
// returns an error if Custom panicked or returned an invalid delay. The delay is then the cap, and the caller decides
// how to react.
func (b *Backoff) Next(attempt int, cause error) (time.Duration, bool, error) {
	attempt = max(attempt, 1)
	if limit := b.MaxAttempts(); limit > 0 && attempt >= limit {
		return 0, false, nil
	}
	if b.Kind == BackoffCustom {
		d, again, err := b.custom(attempt, cause)
		if err != nil {
			return b.cap(), true, err
		}
		return d, again, nil
	}
	return b.jitter(b.Delay(attempt)), true, nil
}

// MaxAttempts returns the bound on attempts; 0 = none.
func (b *Backoff) MaxAttempts() int {
	switch {
	case b.Kind == BackoffNone:
		return 1
	case b.Kind == BackoffDelays:
		return len(b.Delays) + 1
	case b.Attempts < 0:
		return 0
	case b.Attempts == 0:
		return DefaultBackoffAttempts
	default:
		return b.Attempts
	}
}

// Tiers returns the distinct delays without jitter, ascending, at most 64. Transports with fixed delays declare them.
func (b *Backoff) Tiers() []time.Duration {
	var all []time.Duration
	if b.Kind == BackoffDelays || b.Kind == BackoffCustom {
		all = append(all, b.Delays...)
	} else {
		limit := b.MaxAttempts()
		for n := 1; (limit == 0 || n < limit) && len(all) < 64; n++ {
			d := b.Delay(n)
			all = append(all, d)
			if d >= b.cap() || b.Kind == BackoffConstant {
				break
			}
		}
	}
	return distinct(all)
}

func (b *Backoff) custom(attempt int, cause error) (d time.Duration, again bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("waybill: the custom back-off panicked: %v", p)
		}
	}()
	d, again = b.Custom(attempt, cause)
	if d < 0 {
		return 0, true, fmt.Errorf("waybill: the custom back-off returned the negative delay %s: it can have overflowed", d)
	}
	if again && d > maxBackoff {
		return 0, true, fmt.Errorf("waybill: the custom back-off returned %s, more than %s: it can have overflowed", d, maxBackoff)
	}
	return d, again, nil
}

func (b *Backoff) jitter(d time.Duration) time.Duration {
	if d <= 0 || b.Kind == BackoffDelays {
		return d
	}
	switch b.Jitter {
	case JitterEqual:
		return d/2 + chance.N(d/2+1)
	case JitterShare:
		f := 1 + b.Share*(2*chance.Float64()-1)
		return time.Duration(float64(d) * f)
	case JitterNone:
	}
	return d
}

func (b *Backoff) base() time.Duration {
	if b.Base == 0 {
		return DefaultBackoffBase
	}
	return b.Base
}

func (b *Backoff) factor() float64 {
	if b.Factor == 0 {
		return DefaultBackoffFactor
	}
	return b.Factor
}

func (b *Backoff) cap() time.Duration {
	switch {
	case b.Cap > 0:
		return b.Cap
	case b.Kind == BackoffDelays:
		return maxBackoff
	default:
		return DefaultBackoffCap
	}
}

func distinct(ds []time.Duration) []time.Duration {
	seen := map[time.Duration]bool{}
	var out []time.Duration
	for _, d := range ds {
		if !seen[d] {
			seen[d] = true
			out = append(out, d)
		}
	}
	slices.Sort(out)
	return out
}
