package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
)

// filterFlags select records, or parked messages.
type filterFlags struct {
	ids, routes, states, reasons, topics, tenants, keys []string

	since, until string
	older        time.Duration
}

// add adds the flags of records, or those of parked messages.
func (f *filterFlags) add(cmd *cobra.Command, parked bool) {
	fl := cmd.Flags()
	fl.StringArrayVar(&f.ids, "id", nil, "id of a message; repeatable, as all of these")
	fl.StringArrayVar(&f.reasons, "reason", nil, "why it was given up: "+strings.Join(reasonNames(), ", "))
	fl.StringArrayVar(&f.topics, "topic", nil, "topic")
	fl.StringArrayVar(&f.tenants, "tenant", nil, "tenant")
	fl.StringArrayVar(&f.keys, "key", nil, "key")
	of := "the message's time"
	if parked {
		of = "the time when it was parked"
	} else {
		fl.StringArrayVar(&f.routes, "route", nil, "route")
		fl.StringArrayVar(&f.states, "state", nil, "state: "+strings.Join(stateNames(), ", "))
	}
	fl.StringVar(&f.since, "since", "", "from this time on, by "+of+": 2006-01-02, 2006-01-02T15:04:05Z, or 2h for two hours ago")
	fl.StringVar(&f.until, "until", "", "before this time, written as in --since")
	fl.DurationVar(&f.older, "older", 0, "older than this; --older 2h is --until 2h")
}

func reasonNames() []string {
	var out []string
	for _, r := range waybill.Reasons() {
		out = append(out, string(r))
	}
	return out
}

func stateNames() []string {
	var out []string
	for s := core.StatePending; s <= core.StateAbandoned; s++ {
		out = append(out, s.String())
	}
	return out
}

// filter returns the filter of stored records. The error lists every mistake.
func (f *filterFlags) filter() (admin.Filter, error) {
	var p problems
	out := admin.Filter{IDs: f.ids, Routes: f.routes, Topics: f.topics, Tenants: f.tenants, Keys: f.keys, Reasons: p.reasons(f.reasons)}
	for _, s := range f.states {
		if i := slices.Index(stateNames(), s); i >= 0 {
			out.States = append(out.States, core.StatePending+core.State(i))
		} else {
			p.add("--state: %q is unknown: choose of %s", s, strings.Join(stateNames(), ", "))
		}
	}
	out.Since, out.Until = f.times(&p)
	f.texts(&p)
	return out, p.err()
}

// parked returns the filter of parked messages.
func (f *filterFlags) parked() (admin.ParkedFilter, error) {
	var p problems
	out := admin.ParkedFilter{IDs: f.ids, Topics: f.topics, Tenants: f.tenants, Keys: f.keys, Reasons: p.reasons(f.reasons)}
	out.Since, out.Until = f.times(&p)
	f.texts(&p)
	return out, p.err()
}

// texts refuses what no message can hold. A server would answer for itself, each one something else.
func (f *filterFlags) texts(p *problems) {
	for _, flag := range []struct {
		name   string
		values []string
	}{{"--id", f.ids}, {"--route", f.routes}, {"--topic", f.topics}, {"--tenant", f.tenants}, {"--key", f.keys}} {
		for _, v := range flag.values {
			if !utf8.ValidString(v) {
				p.add("%s: %q is not valid UTF-8, as each text of a message is", flag.name, v)
			}
		}
	}
}

func (f *filterFlags) times(p *problems) (since, until time.Time) {
	now := time.Now()
	since, until = p.time("--since", f.since, now), p.time("--until", f.until, now)
	switch {
	case f.older < 0:
		p.add("--older: %s is negative", f.older)
	case f.older > 0 && f.until != "":
		p.add("--older: --until is given too: give one of them")
	case f.older > 0:
		until = now.Add(-f.older)
	}
	if !since.IsZero() && !until.IsZero() && !since.Before(until) {
		p.add("--until: %s is not after --since, %s", until.Format(time.RFC3339), since.Format(time.RFC3339))
	}
	return since, until
}

// problems collects what is wrong with the flags.
type problems []string

func (p *problems) add(format string, a ...any) { *p = append(*p, fmt.Sprintf(format, a...)) }

func (p *problems) err() error { return waybill.Invalid("waybill: arguments", *p...) }

// between checks a number.
func (p *problems) between(flag string, n, least, most int) {
	if n < least || n > most {
		p.add("%s: %d is not between %d and %d", flag, n, least, most)
	}
}

func (p *problems) reasons(names []string) (out []waybill.Reason) {
	for _, name := range names {
		if !slices.Contains(reasonNames(), name) {
			p.add("--reason: %q is unknown: choose of %s", name, strings.Join(reasonNames(), ", "))
		}
		out = append(out, waybill.Reason(name))
	}
	return out
}

// time reads a time, or how long ago it was.
func (p *problems) time(flag, text string, now time.Time) time.Time {
	if text == "" {
		return time.Time{}
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d)
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateTime, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t
		}
	}
	p.add("%s: %q is no time: write 2006-01-02, 2006-01-02T15:04:05Z (UTC unless it says otherwise), or 2h for two hours ago", flag, text)
	return time.Time{}
}
