package recurring

import (
	"testing"
	"time"
)

func berlin(tb testing.TB) *time.Location {
	tb.Helper()
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		tb.Fatal(err)
	}
	return zone
}

// When the clock is put forward or back, a job that names an hour still has one tick a day.
func TestClockChanges(t *testing.T) { // OP-14
	t.Parallel()
	zone := berlin(t)
	lordHowe, err := time.LoadLocation("Australia/Lord_Howe") // which puts its clock back by half an hour
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text  string
		zone  *time.Location
		after string
		want  []string
	}{
		// a day without 2:30, and one with two
		{"30 2 * * *", zone, "2026-03-28T12:00:00Z", []string{"2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"}},
		{"30 2 * * *", zone, "2026-10-24T12:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		{"0 2,3 * * *", zone, "2026-10-24T12:00:00Z", []string{"2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z", "2026-10-26T01:00:00Z"}},
		{"0 * * * *", zone, "2026-10-24T23:30:00Z", []string{"2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"}},
		{"*/30 * * * *", zone, "2026-03-29T00:15:00Z", []string{"2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"}},
		{"45 1 * * *", lordHowe, "2026-04-04T00:00:00Z", []string{"2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"}},
		{"30 2 * * *", nil, "2026-03-28T12:00:00Z", []string{"2026-03-29T02:30:00Z"}},
		{"0 3 31 * *", nil, "2026-01-31T12:00:00Z", []string{"2026-03-31T03:00:00Z", "2026-05-31T03:00:00Z"}},
		{"@yearly", nil, "2026-03-28T12:00:00Z", []string{"2027-01-01T00:00:00Z"}},
		{"@HOURLY", nil, "2026-03-28T12:00:00Z", []string{"2026-03-28T13:00:00Z"}},
		{"0 9 * * MON-FRI", nil, "2026-11-27T12:00:00Z", []string{"2026-11-30T09:00:00Z"}},
	} {
		s, err := parse(c.text, c.zone)
		if err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse(time.RFC3339, c.after)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if at = s.next(at); at.UTC().Format(time.RFC3339) != want {
				t.Errorf("%s in %s: %s, want %s", c.text, s.zone, at.UTC().Format(time.RFC3339), want)
			}
		}
	}
}

// Where one looks from makes no difference: each tick is the next one of every moment since the tick before.
func TestSameFromEverywhere(t *testing.T) { // OP-14
	t.Parallel()
	for _, text := range []string{"30 2 * * *", "0,30 2,3 * * *", "15 1-4 * * *", "*/20 * * * *"} {
		s, err := parse(text, berlin(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, day := range []string{"2026-03-28T20:00:00Z", "2026-10-24T20:00:00Z"} {
			at, err := time.Parse(time.RFC3339, day)
			if err != nil {
				t.Fatal(err)
			}
			next := s.next(at)
			for range 12 * 12 {
				if at = at.Add(5 * time.Minute); !at.Before(next) {
					next = s.follow(next)
				}
				if got := s.next(at); !got.Equal(next) {
					t.Fatalf("%s from %s: %s, want %s", text, at, got, next)
				}
			}
		}
	}
}

// Each day of 12 years has one tick of a daily job, at any time of day.
func TestOneTickADay(t *testing.T) { // OP-14
	t.Parallel()
	for _, text := range []string{"0 0 * * *", "30 2 * * *", "0 3 * * *", "59 1 * * *"} {
		s, err := parse(text, berlin(t))
		if err != nil {
			t.Fatal(err)
		}
		at := s.next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
		for range 12 * 365 {
			next := s.next(at)
			if want := at.AddDate(0, 0, 1).Format(time.DateOnly); next.Format(time.DateOnly) != want {
				t.Fatalf("%s: %s after %s", text, next, at)
			}
			at = next
		}
	}
}

// No expression makes the parser panic, or gives a tick that is not later.
func FuzzParse(f *testing.F) { // OP-14
	for _, text := range []string{"* * * * *", "0 0 29 2 *", "@daily", "TZ=x 0 0 * * *", "0-59/7 1,2 1-31 JAN-DEC sun", "0 0 31 2 *"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parse(text, time.UTC)
		if err != nil {
			return
		}
		at := time.Date(2026, 11, 25, 0, 0, 0, 0, time.UTC)
		for range 5 {
			next := s.next(at)
			if !next.After(at) && !next.IsZero() {
				t.Fatalf("%q: %s after %s", text, next, at)
			}
			if at = next; at.IsZero() {
				return
			}
		}
	})
}
