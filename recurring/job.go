package recurring

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/netresearch/go-cron"

	"github.com/waybill-go/waybill"
)

const (
	// DefaultLate is the default of Job.Late.
	DefaultLate = time.Minute
	// MaxLate bounds Job.Late.
	MaxLate = 31 * 24 * time.Hour
	minLate = time.Second

	// longestSkip is longer than a clock was ever put forward: Samoa left out a whole day.
	longestSkip = 25 * time.Hour

	maxName = waybill.MaxNameBytes - len(consumerPrefix)
	// consumerPrefix, with the name of the job behind it, is the consumer's name of its inbox marks.
	consumerPrefix = "recurring/"
)

// Job has the message to stage and the times for it. A Job must be the same in all processes that run it.
type Job struct {
	// Name identifies the job, 1 to 245 bytes. It must stay the same: marks are found by it.
	Name string
	// Schedule is a cron expression of five fields (minute, hour, day of the month, month, day of the week), as in
	// cron(5), or one of @hourly, @daily, @weekly, @monthly, @yearly.
	Schedule string
	// Location is the time zone of Schedule; nil means UTC.
	Location *time.Location
	// Message returns the message of a tick, which is in Location. It can be called several times for a tick, and
	// must do nothing else. An error is tried again until Late has passed.
	Message func(tick time.Time) (waybill.Message, error)
	// Late is how late a tick may still be staged; default one minute, from a second to 31 days. Of several ticks
	// that were missed only the latest is staged, unless All is set.
	Late time.Duration
	// All: each of the ticks that were missed is staged, the oldest first.
	All bool
	// From is when the job begins to exist: no earlier tick is staged. It is required if Late is more than a
	// minute, so that a new job does not make up for a past that it never had.
	From time.Time
	// Paused, if not nil, is asked at each tick, before its transaction. A tick of a paused job is marked without a
	// message, and is not made up for later. An error is tried again until Late has passed.
	Paused func(ctx context.Context) (bool, error)
}

// words are the expressions without fields, and their meanings.
var words = map[string]string{
	"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *",
	"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}

// schedule is a cron expression in its zone.
type schedule struct {
	cron  cron.Schedule
	zone  *time.Location
	byDay bool // it names hours, so that what the clock shows counts
}

// parse reads a cron expression.
func parse(text string, zone *time.Location) (*schedule, error) {
	if zone == nil {
		zone = time.UTC
	}
	fields := strings.Fields(text)
	if len(fields) == 1 {
		fields = strings.Fields(words[strings.ToLower(fields[0])])
	}
	if len(fields) != 5 || strings.Contains(fields[0], "=") {
		return nil, fmt.Errorf("%.60q has not five fields, and is none of @hourly, @daily, @weekly, @monthly, @yearly", text)
	}
	parser := cron.MustNewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)
	parsed, err := parser.Parse(strings.Join(fields, " "))
	if err != nil {
		return nil, fmt.Errorf("%.60q: %w", text, err)
	}
	s := &schedule{cron: parsed, zone: zone, byDay: !strings.HasPrefix(fields[1], "*")}
	if s.next(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, fmt.Errorf("%.60q never comes", text)
	}
	return s, nil
}

// next returns the first tick after t, or the zero time.
func (s *schedule) next(t time.Time) time.Time {
	from := t.In(s.zone)
	if s.byDay { // seen from right behind a skip of the clock, what the skip has moved there is missing
		from = from.Add(-longestSkip)
	}
	for {
		if from = s.follow(from); from.IsZero() || from.After(t) {
			return from
		}
	}
}

// follow returns the tick after another one, or the zero time.
func (s *schedule) follow(tick time.Time) time.Time {
	for tick = s.cron.Next(tick); !tick.IsZero() && s.byDay && isRepeated(tick); {
		tick = s.cron.Next(tick)
	}
	return tick
}

// isRepeated reports whether the clock of t's zone has shown t's time of day before, on the same day: it was put back.
func isRepeated(t time.Time) bool {
	_, now := t.Zone()
	_, before := t.Add(-3 * time.Hour).Zone()
	if before <= now {
		return false
	}
	_, then := t.Add(-time.Duration(before-now) * time.Second).Zone()
	return then == before
}

// last returns the latest tick in (after, until], or the zero time.
func (s *schedule) last(after, until time.Time) (last time.Time) {
	for tick := s.next(after); !tick.IsZero() && !tick.After(until); tick = s.follow(tick) {
		last = tick
	}
	return last
}

// problemsOf reports everything that is wrong with jobs, and returns their schedules.
func problemsOf(jobs []Job) (schedules []*schedule, p []string) {
	if len(jobs) == 0 {
		p = append(p, "jobs: there is none")
	}
	var names []string
	for i := range jobs {
		j := &jobs[i]
		bad := func(format string, args ...any) {
			p = append(p, fmt.Sprintf("jobs[%d].", i)+fmt.Sprintf(format, args...))
		}
		switch {
		case j.Name == "" || len(j.Name) > maxName:
			bad("Name: has %d bytes, not 1 to %d", len(j.Name), maxName)
		case slices.Contains(names, j.Name):
			bad("Name: %q is that of an earlier job; each needs its own", j.Name)
		}
		names = append(names, j.Name)
		s, err := parse(j.Schedule, j.Location)
		if err != nil {
			bad("Schedule: %s", err)
		}
		schedules = append(schedules, s)
		if j.Message == nil {
			bad("Message: is nil; give the function that makes the message of a tick")
		}
		switch {
		case j.Late != 0 && j.Late < minLate || j.Late > MaxLate:
			bad("Late: %s is not between %s and %s, or 0 for the default", j.Late, minLate, MaxLate)
		case j.Late > DefaultLate && j.From.IsZero():
			bad("From: is zero; say from when on the job exists, since Late looks back %s", j.Late)
		}
	}
	return schedules, p
}
