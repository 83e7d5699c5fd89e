package hlc_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill/hlc"
)

// wall is a wall clock that tests set, in milliseconds.
type wall struct{ ms atomic.Int64 }

func (w *wall) now() time.Time { return time.UnixMilli(w.ms.Load()) }

func newClock(tb testing.TB, opts hlc.Options) *hlc.Clock {
	tb.Helper()
	c, err := hlc.NewClock(opts)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

const (
	second = int64(1000)
	minute = 60 * second
	year   = 365 * 24 * 60 * minute
	today  = int64(1795255200000) // 2026-11-21, in milliseconds
)

// Wall, event, expected. Times are in milliseconds after today; the clock's
// bound is one minute.
//
// OR-06
// OR-07
func TestClockTable(t *testing.T) {
	t.Parallel()
	type pair struct {
		ms int64
		c  uint16
	}
	type step struct {
		wall     int64
		remote   *pair // nil: Now
		want     pair
		rejected bool
	}
	from := func(ms int64, c uint16) *pair { return &pair{ms, c} }
	tests := []struct {
		name  string
		steps []step
	}{
		{"send follows the wall", []step{
			{wall: 10, want: pair{10, 0}},
			{wall: 11, want: pair{11, 0}},
			{wall: 500, want: pair{500, 0}},
		}},
		{"send in one millisecond counts", []step{
			{wall: 10, want: pair{10, 0}},
			{wall: 10, want: pair{10, 1}},
			{wall: 10, want: pair{10, 2}},
			{wall: 11, want: pair{11, 0}},
		}},
		{"wall jumps back: the counter goes on until the wall has caught up", []step{
			{wall: 100, want: pair{100, 0}},
			{wall: 40, want: pair{100, 1}},
			{wall: -year, want: pair{100, 2}},
			{wall: 100, want: pair{100, 3}},
			{wall: 101, want: pair{101, 0}},
		}},
		{"wall jumps a year forward and back: the clock stays ahead", []step{
			{wall: 10, want: pair{10, 0}},
			{wall: year, want: pair{year, 0}},
			{wall: 20, want: pair{year, 1}},
			{wall: 20, remote: from(19, 0), want: pair{year, 2}},
			// Below what the clock has reached: cannot move it, so it is taken.
			{wall: 20, remote: from(year, 1), want: pair{year, 3}},
			{wall: 20, remote: from(year, 3), want: pair{year, 4}},
			// Above it, and a year ahead of the wall: refused.
			{wall: 20, remote: from(year, 5), rejected: true},
			{wall: 20, want: pair{year, 5}},
		}},
		{"receive: wall is the highest", []step{
			{wall: 10, want: pair{10, 0}},
			{wall: 20, remote: from(15, 9), want: pair{20, 0}},
		}},
		{"receive: own stamp is the highest", []step{
			{wall: 30, want: pair{30, 0}},
			{wall: 20, remote: from(15, 9), want: pair{30, 1}},
		}},
		{"receive: remote is the highest", []step{
			{wall: 10, want: pair{10, 0}},
			{wall: 11, remote: from(15, 9), want: pair{15, 10}},
			{wall: 12, want: pair{15, 11}},
			{wall: 16, want: pair{16, 0}},
		}},
		{"receive: ties", []step{
			{wall: 10, want: pair{10, 0}},
			{wall: 10, remote: from(10, 0), want: pair{10, 1}}, // all three
			{wall: 9, remote: from(10, 7), want: pair{10, 8}},  // own and remote, remote's counter higher
			{wall: 9, remote: from(10, 3), want: pair{10, 9}},  // own and remote, own counter higher
			{wall: 12, remote: from(12, 3), want: pair{12, 4}}, // wall and remote
		}},
		{"receive: no stamp", []step{
			{wall: 10, want: pair{10, 0}},
			{wall: 10, remote: from(-today, 0), want: pair{10, 1}},
		}},
		{"a full counter carries", []step{
			{wall: 10, remote: from(12, 65534), want: pair{12, 65535}},
			{wall: 10, want: pair{13, 0}},
			{wall: 10, remote: from(20, 65535), want: pair{21, 0}},
			{wall: 21, want: pair{21, 1}},
		}},
		{"the drift bound is inclusive and rejection moves nothing", []step{
			{wall: 10, want: pair{10, 0}},
			{wall: 10, remote: from(10+minute+1, 0), rejected: true},
			{wall: 10, want: pair{10, 1}},
			{wall: 10, remote: from(10+minute, 65535), want: pair{10 + minute + 1, 0}},
			{wall: 11, remote: from(10+minute+2, 0), rejected: true},
			{wall: 12, remote: from(10+minute+2, 0), want: pair{10 + minute + 2, 1}},
		}},
		{"a sender cannot walk the clock forward", []step{
			{wall: 0, remote: from(minute, 0), want: pair{minute, 1}},
			{wall: 0, remote: from(2*minute, 0), rejected: true},
			{wall: 0, remote: from(minute+1, 0), rejected: true},
			{wall: 0, want: pair{minute, 2}},
		}},
		{"forged: the end of time", []step{
			{wall: 10, want: pair{10, 0}},
			{wall: 10, remote: from(hlc.MaxMillis-today, 65535), rejected: true},
			{wall: 10, want: pair{10, 1}},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var w wall
			c := newClock(t, hlc.Options{Wall: w.now})
			var rejected uint64
			for i, s := range tt.steps {
				w.ms.Store(today + s.wall)
				before := c.Last()
				var got hlc.Timestamp
				var err error
				if s.remote == nil {
					got = c.Now()
				} else {
					got, err = c.Observe(at(t, today+s.remote.ms, s.remote.c))
				}
				if s.rejected {
					rejected++
					if !errors.Is(err, hlc.ErrDrift) || got != 0 {
						t.Fatalf("step %d: got %v, %v; want ErrDrift", i, got, err)
					}
					if c.Last() != before {
						t.Fatalf("step %d: a refused stamp moved the clock from %v to %v", i, before, c.Last())
					}
				} else if want := at(t, today+s.want.ms, s.want.c); err != nil || got != want || c.Last() != want {
					t.Fatalf("step %d: got %d+%d, %v (last %v); want %d+%d",
						i, got.Millis()-today, got.Counter(), err, c.Last(), s.want.ms, s.want.c)
				}
				if c.Rejected() != rejected {
					t.Fatalf("step %d: Rejected is %d, want %d", i, c.Rejected(), rejected)
				}
			}
		})
	}
}

// OR-07
func TestForeignStampsThatAreNoStamps(t *testing.T) {
	t.Parallel()
	w := &wall{}
	w.ms.Store(today)
	for _, drift := range []time.Duration{0, time.Second, -1} {
		c := newClock(t, hlc.Options{Wall: w.now, MaxDrift: drift})
		before := c.Now()
		bad := []hlc.Timestamp{-1, math.MinInt64, hlc.MaxTimestamp, at(t, hlc.MaxMillis-1<<40+1, 0)}
		for _, remote := range bad {
			got, err := c.Observe(remote)
			if err == nil || got != 0 || c.Last() != before {
				t.Errorf("MaxDrift %s: Observe(%v) = %v, %v; clock at %v, was at %v", drift, remote, got, err, c.Last(), before)
			}
			if !errors.Is(err, hlc.ErrDrift) && !errors.Is(err, hlc.ErrInvalid) {
				t.Errorf("MaxDrift %s: Observe(%v): %v, want ErrDrift or ErrInvalid", drift, remote, err)
			}
			if err := c.Seed(remote); err == nil || c.Last() != before {
				t.Errorf("MaxDrift %s: Seed(%v) = %v; clock at %v, was at %v", drift, remote, err, c.Last(), before)
			}
		}
		if got := c.Rejected(); got != uint64(len(bad)) {
			t.Errorf("MaxDrift %s: Rejected is %d, want %d: remote stamps count, marks do not", drift, got, len(bad))
		}
		if got := c.Now(); got != before+1 {
			t.Errorf("MaxDrift %s: then Now is %v, want %v", drift, got, before+1)
		}
	}
}

func TestDriftBounds(t *testing.T) {
	t.Parallel()
	tests := []struct {
		drift  time.Duration
		accept []int64 // milliseconds ahead of the wall
		refuse []int64
	}{
		{drift: 0, accept: []int64{1, minute}, refuse: []int64{minute + 1, year}},
		{drift: 1, accept: []int64{1}, refuse: []int64{2}}, // rounded up
		{drift: time.Millisecond, accept: []int64{1}, refuse: []int64{2}},
		{drift: time.Millisecond + 1, accept: []int64{2}, refuse: []int64{3}},
		{drift: time.Hour, accept: []int64{60 * minute}, refuse: []int64{60*minute + 1}},
		{drift: math.MaxInt64, accept: []int64{292 * year}, refuse: []int64{293 * year}},
		{drift: -1, accept: []int64{year, 4000 * year}},
		{drift: math.MinInt64, accept: []int64{4000 * year}},
	}
	for _, tt := range tests {
		t.Run(tt.drift.String(), func(t *testing.T) {
			t.Parallel()
			w := &wall{}
			w.ms.Store(today)
			for _, ms := range tt.accept {
				c := newClock(t, hlc.Options{Wall: w.now, MaxDrift: tt.drift})
				if got, err := c.Observe(at(t, today+ms, 0)); err != nil || got != at(t, today+ms, 1) {
					t.Errorf("%d ms ahead: %v, %v; want accepted", ms, got, err)
				}
			}
			for _, ms := range tt.refuse {
				c := newClock(t, hlc.Options{Wall: w.now, MaxDrift: tt.drift})
				if _, err := c.Observe(at(t, today+ms, 0)); !errors.Is(err, hlc.ErrDrift) {
					t.Errorf("%d ms ahead: %v, want ErrDrift", ms, err)
				}
			}
		})
	}
}

// OR-07
func TestDriftErrorSurvivesWrapping(t *testing.T) {
	t.Parallel()
	w := &wall{}
	w.ms.Store(today)
	c := newClock(t, hlc.Options{Wall: w.now})
	remote := at(t, today+year, 3)
	_, err := c.Observe(remote)
	err = errors.Join(errors.New("other"), fmt.Errorf("consumer: %w", err))
	if !errors.Is(err, hlc.ErrDrift) {
		t.Fatalf("errors.Is does not find ErrDrift in %v", err)
	}
	var got *hlc.DriftError
	if !errors.As(err, &got) {
		t.Fatalf("errors.As does not find *DriftError in %v", err)
	}
	want := &hlc.DriftError{
		Op: "observe", Stamp: remote, Wall: time.UnixMilli(today).UTC(),
		Ahead: time.Duration(year) * time.Millisecond, Max: time.Minute,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, part := range []string{"waybill/hlc: observe: ", remote.String(), "8760h0m0s", "2026-11-21", "1m0s", "MaxDrift"} {
		if !strings.Contains(got.Error(), part) {
			t.Errorf("the text does not name %q: %s", part, got)
		}
	}
	_, err = c.Observe(hlc.MaxTimestamp)
	if !errors.As(err, &got) || got.Ahead != math.MaxInt64 {
		t.Errorf("thousands of years ahead: %v, want the longest duration", err)
	}
}

// A restart never goes back.
//
// OR-06
func TestRestart(t *testing.T) {
	t.Parallel()
	w := &wall{}
	w.ms.Store(today)
	first := newClock(t, hlc.Options{Wall: w.now})
	var mark hlc.Timestamp
	for range 70_000 { // more than a counter holds
		mark = first.Now()
	}
	if mark != first.Last() {
		t.Fatalf("Last is %v, want %v", first.Last(), mark)
	}
	for _, back := range []int64{0, 1, 30 * second} {
		w.ms.Store(today - back)
		byFloor := newClock(t, hlc.Options{Wall: w.now, Floor: mark})
		if byFloor.Last() != mark {
			t.Errorf("wall %d ms back: Last is %v before the first stamp, want %v", back, byFloor.Last(), mark)
		}
		bySeed := newClock(t, hlc.Options{Wall: w.now})
		if err := bySeed.Seed(mark); err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]*hlc.Clock{"Floor": byFloor, "Seed": bySeed} {
			if got := c.Now(); got != mark+1 {
				t.Errorf("%s, wall %d ms back: the first stamp is %v, want %v", name, back, got, mark+1)
			}
		}
	}
}

func TestSeedNeverLowers(t *testing.T) {
	t.Parallel()
	w := &wall{}
	w.ms.Store(today)
	c := newClock(t, hlc.Options{Wall: w.now})
	if err := c.Seed(0); err != nil || c.Last() != 0 {
		t.Fatalf("Seed(0): %v, last %v; want nothing", err, c.Last())
	}
	high := at(t, today+5, 5)
	for _, mark := range []hlc.Timestamp{high, at(t, today, 0), 1, 0, high} {
		if err := c.Seed(mark); err != nil || c.Last() != high {
			t.Errorf("Seed(%v): %v, last %v; want %v", mark, err, c.Last(), high)
		}
	}
	if c.Rejected() != 0 {
		t.Errorf("Rejected is %d", c.Rejected())
	}
}

// A mark from the future is refused, not followed.
//
// OR-06
func TestMarkFromTheFuture(t *testing.T) {
	t.Parallel()
	w := &wall{}
	w.ms.Store(today)
	mark := at(t, today+year, 0)

	c := newClock(t, hlc.Options{Wall: w.now})
	var drift *hlc.DriftError
	if err := c.Seed(mark); !errors.As(err, &drift) || drift.Op != "seed" || c.Last() != 0 {
		t.Errorf("Seed: %v, last %v; want a DriftError and no move", err, c.Last())
	}
	if got, err := hlc.NewClock(hlc.Options{Wall: w.now, Floor: mark}); !errors.As(err, &drift) || drift.Op != "new clock" || got != nil {
		t.Errorf("NewClock: %v, %v; want a DriftError", got, err)
	}
	// The operator decides: no bound, or the time comes.
	newClock(t, hlc.Options{Wall: w.now, Floor: mark, MaxDrift: -1})
	w.ms.Store(today + year - minute)
	if err := c.Seed(mark); err != nil || c.Now() <= mark {
		t.Errorf("a year later: %v, last %v", err, c.Last())
	}
}

func TestOptionsValidate(t *testing.T) {
	t.Parallel()
	opts := hlc.Options{Floor: -1}
	if err := opts.Validate(); !errors.Is(err, hlc.ErrInvalid) || !strings.Contains(err.Error(), "Floor") {
		t.Errorf("got %v, want ErrInvalid naming Floor", err)
	}
	if c, err := hlc.NewClock(opts); !errors.Is(err, hlc.ErrInvalid) || c != nil {
		t.Errorf("NewClock: %v, %v; want ErrInvalid", c, err)
	}
	if err := (hlc.Options{}).Validate(); err != nil {
		t.Error(err)
	}
}

// A mark that is too far ahead raises the clock as far as one can, and no further; the clock goes on from there.
func TestSeedCapped(t *testing.T) {
	t.Parallel()
	w := &wall{}
	for _, tc := range []struct {
		name  string
		mark  hlc.Timestamp
		drift time.Duration
		want  hlc.Timestamp // where the clock stands then
		err   error
	}{
		{"none", 0, 0, 0, nil},
		{"within the bound", at(t, today+minute, 7), 0, at(t, today+minute, 7), nil},
		{"just beyond it", at(t, today+minute+1, 0), 0, at(t, today+minute, 0), hlc.ErrDrift},
		{"an hour, bound by a second", at(t, today+60*minute, 9), time.Second, at(t, today+second, 0), hlc.ErrDrift},
		{"the end of time", hlc.MaxTimestamp, 0, at(t, today+minute, 0), hlc.ErrDrift},
		{"negative", -1, 0, 0, hlc.ErrInvalid},
		{"the end of time without a bound", hlc.MaxTimestamp, -1, 0, hlc.ErrInvalid},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w.ms.Store(today)
			c := newClock(t, hlc.Options{Wall: w.now, MaxDrift: tc.drift})
			if err := c.SeedCapped(tc.mark); !errors.Is(err, tc.err) || c.Last() != tc.want {
				t.Errorf("SeedCapped(%v): %v; the clock stands at %v, want %v and %v", tc.mark, err, c.Last(), tc.want, tc.err)
			}
			if got := c.Now(); got <= tc.want || got > at(t, today+minute, 8) {
				t.Errorf("then Now is %v", got)
			}
			high := c.Last()
			if _ = c.SeedCapped(tc.mark); c.Last() < high {
				t.Errorf("a second SeedCapped lowered the clock from %v to %v", high, c.Last())
			}
		})
	}
}

func TestMaxMark(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		now  time.Time
		want hlc.Timestamp
	}{
		"today":            {time.UnixMilli(today), at(t, today+minute, math.MaxUint16)},
		"a millisecond on": {time.UnixMilli(today + 1).Add(999 * time.Microsecond), at(t, today+1+minute, math.MaxUint16)},
		"before 1970":      {time.Unix(-5, 0), at(t, minute, math.MaxUint16)},
	} {
		if got := hlc.MaxMark(tc.now); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	if got := hlc.MaxMark(time.Unix(1<<60, 0)); !got.Valid() || got.Time().Year() < 6000 {
		t.Errorf("in the far future: %v", got)
	}
}
