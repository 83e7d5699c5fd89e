package checker

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
)

// Faults says how often what goes wrong, in per mille of the calls.
type Faults struct {
	// Before: it fails and nothing happened. After: it happened, and the answer is lost. Late: the caller is told
	// of a failure, and it happens later. Panic: it panics, before or after. Delay: it takes up to MaxDelay longer,
	// before or after. Partial: some of a batch fail.
	Before, After, Late, Panic, Delay, Partial int
	MaxDelay                                   time.Duration
	// Spell: from then on every write of the process but its renewals fails for up to twice MaxDelay, and not by an
	// outage; some settles happen.
	Spell int
	// Of publishers only, per message: refused this time, for good, for want of a queue, or by an outage of one
	// topic.
	Reject, Permanent, Unroutable, TopicOnly int
	// Latency is what every call takes at most without a fault.
	Latency time.Duration
}

// Dice decide when something goes wrong. While they are calm nothing does.
type Dice struct {
	mu   sync.Mutex
	rng  *rand.Rand
	calm *atomic.Bool
}

// NewDice returns the dice of one actor of a history.
func NewDice(seed, actor uint64, calm *atomic.Bool) *Dice {
	return &Dice{rng: rand.New(rand.NewPCG(seed, actor)), calm: calm}
}

// Roll reports true in so many of a thousand calls.
func (d *Dice) Roll(perMille int) bool {
	if perMille <= 0 || d.calm.Load() {
		return false
	}
	return d.N(1000) < perMille
}

// N returns a number from 0 to n-1.
func (d *Dice) N(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.IntN(n)
}

// Up returns a duration up to limit.
func (d *Dice) Up(limit time.Duration) time.Duration {
	if limit <= 0 {
		return 0
	}
	return time.Duration(d.N(int(limit/time.Microsecond)+1)) * time.Microsecond
}

// errDown is what a call gets whose other side does not answer.
var errDown = &waybill.Error{Op: "checker", Class: waybill.ClassOutage, Err: errors.New("no answer")}

var errSpell = errors.New("checker: an error of no known kind")
