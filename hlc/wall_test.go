package hlc_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/waybill-go/waybill/hlc"
)

// Readings that no clock should follow move nothing, and nothing panics.
func TestWallOutOfRange(t *testing.T) {
	t.Parallel()
	var now time.Time
	c := newClock(t, hlc.Options{Wall: func() time.Time { return now }})
	readings := []time.Time{
		{},
		time.UnixMilli(-1),
		time.Date(-5000, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(6396, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Unix(math.MaxInt64, 0),
		time.Unix(math.MinInt64, 0),
		time.Unix(math.MaxInt64/1000+12345, 0), // UnixMilli overflows
	}
	for i, r := range readings {
		now = r
		if got, want := c.Now(), hlc.Timestamp(i+1); got != want {
			t.Errorf("wall %v: Now is %v, want %v", r, got, want)
		}
		if _, err := c.Observe(at(t, today, 0)); !errors.Is(err, hlc.ErrDrift) {
			t.Errorf("wall %v: Observe: %v, want ErrDrift: nothing is known about the time", r, err)
		}
	}
	now = time.UnixMilli(today)
	if got := c.Now(); got != at(t, today, 0) {
		t.Errorf("wall back in order: %v", got)
	}
	now = time.Date(6394, 1, 1, 0, 0, 0, 0, time.UTC)
	if got := c.Now(); got.Time().Year() != 6394 {
		t.Errorf("the year 6394 is documented to work: %v", got.Time())
	}
}

func TestAheadReportsARunaway(t *testing.T) {
	t.Parallel()
	w := &wall{}
	w.ms.Store(today)
	c := newClock(t, hlc.Options{Wall: w.now, MaxDrift: -1})
	c.Now()
	check := func(want time.Duration) {
		t.Helper()
		if got := c.Ahead(); got != want {
			t.Errorf("Ahead is %s, want %s", got, want)
		}
	}
	check(0)
	w.ms.Store(today + year) // forward: the clock has not followed yet
	check(0)
	c.Now()
	check(0)
	w.ms.Store(today) // and back
	check(time.Duration(year) * time.Millisecond)
	w.ms.Store(today + year - 1)
	check(time.Millisecond)
	if _, err := c.Observe(at(t, today+4000*year, 0)); err != nil {
		t.Fatal(err)
	}
	check(math.MaxInt64)
}

func TestZeroClockWorks(t *testing.T) {
	t.Parallel()
	var c hlc.Clock
	if c.Last() != 0 || c.Ahead() != 0 || c.Rejected() != 0 {
		t.Error("the zero clock is not at zero")
	}
	before := time.Now().UnixMilli()
	got := c.Now()
	if after := time.Now().UnixMilli(); got.Millis() < before || got.Millis() > after {
		t.Errorf("Now is %v, want between %d and %d", got.Time(), before, after)
	}
	if _, err := c.Observe(at(t, before+year, 0)); !errors.Is(err, hlc.ErrDrift) {
		t.Errorf("got %v, want the default bound", err)
	}
}
