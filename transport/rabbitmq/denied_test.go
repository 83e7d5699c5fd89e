package rabbitmq

import (
	"errors"
	"strconv"
	"testing"
	"time"
)

// A topic that the broker has denied is refused for a moment, and the memory of such topics is bounded.
func TestDenied(t *testing.T) {
	t.Parallel()
	var d denied
	no := errors.New("no")
	now := time.Now()
	if err := d.error("x", "a", now); err != nil {
		t.Errorf("before: %v", err)
	}
	d.add("x", "a", no)
	if err := d.error("x", "a", now); !errors.Is(err, no) {
		t.Errorf("denied: %v", err)
	}
	if err := errors.Join(d.error("x", "b", now), d.error("y", "a", now)); err != nil {
		t.Errorf("other topics and exchanges: %v", err)
	}
	if err := d.error("x", "a", time.Now().Add(deniedFor)); err != nil || d.n.Load() != 0 {
		t.Errorf("later: %v, %d are remembered", err, d.n.Load())
	}
	for i := range 2*maxDenied + 1 {
		d.add("x", strconv.Itoa(i), no)
	}
	if n := len(d.of); n > maxDenied {
		t.Errorf("%d are remembered, at most %d may be", n, maxDenied)
	}
}
