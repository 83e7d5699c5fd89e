package hlc

import (
	"math"
	"testing"
)

// The end of time cannot be reached from outside: see ceilingMillis.
func TestEndOfTime(t *testing.T) {
	t.Parallel()
	var c Clock
	c.last.Store(math.MaxInt64 - 1)
	for range 3 {
		if got := c.Now(); got != MaxTimestamp {
			t.Fatalf("Now is %d, want it to stay at MaxTimestamp", got)
		}
	}
	if got, err := c.Observe(MaxTimestamp); err != nil || got != MaxTimestamp {
		t.Fatalf("Observe: %d, %v; want it to stay at MaxTimestamp", got, err)
	}
}
