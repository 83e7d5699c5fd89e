package relay

import (
	"math"
	"time"
)

const (
	// limitBurst is how much may be sent at once after a rest. With much to send, limitGrain is the least amount to
	// wait for, so that calls do not become small.
	limitBurst = 100 * time.Millisecond
	limitGrain = 20 * time.Millisecond
)

// bucket is a token bucket. It belongs to the running engine.
type bucket struct {
	rate   float64 // a second
	burst  float64
	tokens float64
	at     time.Time // the time that tokens are for
}

func newBucket(rate float64) *bucket {
	burst := max(rate*limitBurst.Seconds(), 1)
	return &bucket{rate: rate, burst: burst, tokens: burst}
}

// fill adds the tokens that the bucket has gained since the last call.
func (b *bucket) fill(now time.Time) {
	if d := now.Sub(b.at); d > 0 {
		if !b.at.IsZero() {
			b.tokens = min(b.tokens+d.Seconds()*b.rate, b.burst)
		}
		b.at = now
	}
}

// when returns the time at which there will be n tokens.
func (b *bucket) when(n float64) time.Time {
	return b.at.Add(time.Duration((n-b.tokens)/b.rate*float64(time.Second)) + time.Microsecond)
}

// take returns how many of ready records may be sent now, or when the next may.
func (b *bucket) take(now time.Time, ready int) (n int, at time.Time) {
	b.fill(now)
	want := min(max(math.Floor(b.rate*limitGrain.Seconds()), 1), float64(ready))
	if b.tokens < want {
		return 0, b.when(want)
	}
	return int(b.tokens), time.Time{}
}
