// Package chance is where the engines draw their random numbers: jitter, sessions, which of several is tried first. A
// simulation gives it a seed, so that a history that fails can be run again; without one the numbers are those of
// math/rand/v2.
package chance

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// seeded are the numbers of a simulation; nil outside of one.
var seeded atomic.Pointer[source]

type source struct {
	mu sync.Mutex
	r  *rand.Rand
}

// Seed makes all numbers follow from seed, for the whole process, until restore is called. It is for simulations, of
// which one runs at a time.
func Seed(seed uint64) (restore func()) {
	before := seeded.Swap(&source{r: rand.New(rand.NewPCG(seed, seed))})
	return func() { seeded.Store(before) }
}

// N returns a number from 0 up to n, without n. It panics if n is not above 0.
func N[T ~int | ~int64](n T) T {
	if s := seeded.Load(); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		return T(s.r.Int64N(int64(n)))
	}
	return T(rand.Int64N(int64(n)))
}

// Float64 returns a number from 0 up to 1, without 1.
func Float64() float64 {
	if s := seeded.Load(); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.r.Float64()
	}
	return rand.Float64()
}
