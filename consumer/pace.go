package consumer

import (
	"math"
	"time"
)

// pace is a rate with bursts: the generic cell rate algorithm. In no span of t seconds it lets more than
// burst + rate × t through. Its state is one time, the next free place. A place that lies further ahead than the burst
// must wait.
type pace struct {
	gap   time.Duration // between two places
	slack time.Duration // how far ahead of now the next free place may lie
}

func newPace(rate float64, burst int) pace {
	gap := time.Duration(math.Ceil(float64(time.Second) / rate))
	return pace{gap: gap, slack: time.Duration(burst-1) * gap}
}

// none reports whether there is no rate.
func (p pace) none() bool { return p.gap == 0 }

// wait returns how long after now something may begin, if next is the next free place. That can lie in any age: the
// difference of two times has bounds, from which nothing more can be taken.
func (p pace) wait(now, next time.Time) time.Duration { return max(next.Sub(now.Add(p.slack)), 0) }

// take returns the next free place after something that begins between now and now+hold.
func (p pace) take(now, next time.Time, hold time.Duration) time.Time {
	if latest := now.Add(hold); next.Before(latest) {
		next = latest
	}
	return next.Add(p.gap)
}

// defaultBurst is a second's worth, but at least 1.
func defaultBurst(rate float64) int { return max(1, int(math.Ceil(rate))) }
