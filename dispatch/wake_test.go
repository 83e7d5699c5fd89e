package dispatch

import (
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
)

// TestWakeDuringARead: a record that is staged while a read is under way, which does not see it, is read as soon as
// that read has ended if there was a wake-up, and not at the next poll.
func TestWakeDuringARead(t *testing.T) { // DB-10
	t.Parallel()
	w := newSmall(t)
	w.d = New(Options{
		Routes: []Route{{Name: "r", Partitions: 1}}, Lease: time.Second, NewSession: func() core.Session { return 100 },
		PollMin: 50 * time.Millisecond, PollMax: time.Second,
	})
	w.run(10 * time.Second) // reads are a second apart
	staged := false
	w.call = func(c *Call) {
		c.Do(t.Context(), w.st)
		if c.Kind() == CallRead && !staged {
			staged = true
			w.stage("k", "a")
			w.d.Wake(w.now)
		}
	}
	for !staged {
		w.run(time.Millisecond)
	}
	if got := w.run(3 * time.Millisecond); !slices.Equal(got, []string{"a"}) {
		t.Errorf("handed out 3 ms after it was staged: %v", got)
	}
}
