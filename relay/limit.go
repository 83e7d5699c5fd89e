package relay

import (
	"math"
	"time"
)

const (
	// limitHold is how much of a limited route is held, in time, beyond what may be sent at once; at most a quarter of the
	// lease. So much of it is claimed ahead, half of it at a time.
	limitHold = time.Second
	// limitBurst is how much may be sent at once after a rest, and limitGrain how much is waited for if there is much to
	// send, so that calls do not become small.
	limitBurst = 100 * time.Millisecond
	limitGrain = 20 * time.Millisecond
)

// bucket is a token bucket. It belongs to whoever runs the relay.
type bucket struct {
	rate   float64 // a second
	hold   float64 // records to claim ahead
	burst  float64
	tokens float64
	at     time.Time // tokens are as of then
}

func newBucket(rate float64, lease time.Duration) *bucket {
	burst := max(rate*limitBurst.Seconds(), 1)
	return &bucket{rate: rate, hold: rate * min(limitHold, lease/4).Seconds(), burst: burst, tokens: burst}
}

// fill counts what has come in by now.
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

// room returns how many records may be claimed while unsent ones wait. If none, it returns when there will be room; zero
// = not before something was sent.
func (b *bucket) room(now time.Time, unsent, batch int) (n int, at time.Time) {
	b.fill(now)
	step := min(max(math.Floor(b.hold/2), 1), float64(batch))
	lack := step + float64(unsent) - b.hold // tokens needed
	switch {
	case b.tokens >= lack:
		return int(max(min(b.tokens+b.hold-float64(unsent), float64(batch)), step)), time.Time{}
	case b.burst >= lack:
		return 0, b.when(lack)
	}
	return 0, time.Time{}
}

// affords reports whether one more record of the unit can be sent about as soon as it is claimed. If not, it returns when;
// zero = not before something was sent.
func (u *unit) affords(now time.Time) (at time.Time, ok bool) {
	if u.limit == nil {
		return time.Time{}, true
	}
	n, at := u.limit.room(now, u.unsent(), 1)
	return at, n > 0
}

// take returns how many of ready records may be sent now. If none, it returns when.
func (b *bucket) take(now time.Time, ready int) (n int, at time.Time) {
	b.fill(now)
	want := min(max(math.Floor(b.rate*limitGrain.Seconds()), 1), float64(ready))
	if b.tokens < want {
		return 0, b.when(want)
	}
	return int(b.tokens), time.Time{}
}

// unsent is how many records of the unit wait to be sent.
func (u *unit) unsent() (n int) {
	for _, rt := range u.routes {
		n += rt.unsent
	}
	return n
}

// saving reports whether a limited unit waits for tokens and nothing else. Of RunOnce it is part of the work.
func (e *engine) saving() bool {
	for _, u := range e.units {
		if u.limit == nil {
			continue
		}
		claimable := !e.now.Before(u.wakeAt) && (e.opts.MaxBatches <= 0 || e.batches < e.opts.MaxBatches)
		for _, rt := range u.routes {
			if rt.unsent > 0 || claimable && !rt.barred() {
				return true
			}
		}
	}
	return false
}

// pace sends what is ready on the routes of a limited unit as its tokens allow, in the order of claims, and returns when to
// go on.
func (e *engine) pace(u *unit) (next time.Time) {
	for {
		var rt *route
		ready := 0
		for _, r := range u.routes {
			if len(r.ready) == 0 || r.calls >= maxCalls {
				continue
			}
			ready += len(r.ready)
			if rt == nil || r.ready[0].batch.claimed.Before(rt.ready[0].batch.claimed) {
				rt = r
			}
		}
		if rt == nil {
			return time.Time{}
		}
		n, at := u.limit.take(e.now, ready)
		if rt.blocked("") { // nothing is sent; it all goes back
			n = rt.maxCall
		}
		if n == 0 {
			return at
		}
		c := e.newCall(rt)
		e.fill(c, min(n, rt.maxCall))
		if len(c.items) == 0 {
			e.free = append(e.free, c)
			continue
		}
		u.limit.tokens -= float64(len(c.items))
		e.send(c)
	}
}
