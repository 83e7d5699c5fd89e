package core

import (
	"fmt"
	"slices"
	"time"
)

// Bounds and defaults of what operators ask for.
const (
	DefaultPageLimit  = 100
	MaxPageLimit      = 1000
	DefaultPageBudget = 10_000
	MaxPageBudget     = 1_000_000
	// MaxFilterValues bounds the values of one field of a Filter.
	MaxFilterValues = 1000
)

// RefusedDuplicate counts, in Redriven.Refused, records for which a live one with their dedupe key stands. Force does
// not help: cancel that one first.
const RefusedDuplicate = "duplicate"

// Blocks reports whether an abandoned record with reason r blocks its key on a route with BlockAfterAbandon. One that
// somebody took out on purpose does not: cancelled, replaced, skipped, parked.
func (r Reason) Blocks() bool {
	return r != ReasonNone && !r.Withdrawn() && r != ReasonSkipped && r != ReasonParked
}

// Matches reports whether f selects s. Adapters that have no query language of their own filter with it.
func (f *Filter) Matches(s *Stored) bool {
	in := func(list []string, v string) bool { return len(list) == 0 || slices.Contains(list, v) }
	e := &s.Envelope
	return in(f.IDs, e.ID) && in(f.Routes, s.Route) && in(f.Topics, e.Topic) && in(f.Tenants, e.Tenant) && in(f.Keys, e.Key) &&
		(len(f.States) == 0 || slices.Contains(f.States, s.State)) && (len(f.Reasons) == 0 || slices.Contains(f.Reasons, s.Reason)) &&
		(f.Since.IsZero() || !e.Time.Before(f.Since)) && (f.Until.IsZero() || e.Time.Before(f.Until))
}

// OnlyAbandoned reports whether all that f can match is abandoned, so that an index of abandoned records finds it.
func (f *Filter) OnlyAbandoned() bool {
	return len(f.Reasons) > 0 && !slices.Contains(f.Reasons, ReasonNone) || len(f.States) == 1 && f.States[0] == StateAbandoned
}

func (f *Filter) check(p []string) []string {
	for _, v := range [...]struct {
		name string
		n    int
	}{
		{"IDs", len(f.IDs)},
		{"Routes", len(f.Routes)},
		{"States", len(f.States)},
		{"Reasons", len(f.Reasons)},
		{"Topics", len(f.Topics)},
		{"Tenants", len(f.Tenants)},
		{"Keys", len(f.Keys)},
	} {
		if v.n > MaxFilterValues {
			p = append(p, fmt.Sprintf("Filter.%s: %d values; at most %d are allowed: split the call", v.name, v.n, MaxFilterValues))
		}
	}
	for _, s := range f.States {
		if s < StatePending || s > StateAbandoned {
			p = append(p, fmt.Sprintf("Filter.States: %s is not a state of stored records", s))
		}
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		p = append(p, fmt.Sprintf("Filter.Until: %s is not after Since, %s", f.Until.Format(time.RFC3339), f.Since.Format(time.RFC3339)))
	}
	return p
}

func (p *Page) check(problems []string) []string {
	bounds := func(name string, v *int, def, most int) {
		switch {
		case *v == 0:
			*v = def
		case *v < 0 || *v > most:
			problems = append(problems, fmt.Sprintf("Page.%s: %d is not between 1 and %d; 0 means %d", name, *v, most, def))
		}
	}
	if p.After < 0 {
		problems = append(problems, fmt.Sprintf("Page.After: %d is negative; 0 begins at the beginning, then pass the Next of the page before", p.After))
	}
	bounds("Limit", &p.Limit, DefaultPageLimit, MaxPageLimit)
	bounds("Budget", &p.Budget, DefaultPageBudget, MaxPageBudget)
	return problems
}

// CheckList returns page with its defaults filled in, or an [*InvalidError] that lists every problem of f and page.
// Every store's List begins with it.
func CheckList(f *Filter, page Page) (Page, error) {
	p := page.check(f.check(nil))
	return page, Invalid("waybill: list", p...)
}

// CheckRedrive returns req with the page's defaults filled in, and with the states it is about if it names none, or an
// [*InvalidError] that lists every problem. Every store's Redrive begins with it. The argument's slices are not
// changed.
func CheckRedrive(req RedriveRequest) (RedriveRequest, error) {
	var p []string
	if req.Filter.IsZero() && !req.All {
		p = append(p, "Filter: is empty, which selects every failed and abandoned record: set All if that is meant, or name ids, reasons, topics or times")
	}
	p = req.Page.check(req.Filter.check(p))
	for _, s := range req.Filter.States {
		if s != StateFailed && s != StateAbandoned {
			p = append(p, fmt.Sprintf("Filter.States: %s records cannot be redriven; only failed and abandoned ones", s))
		}
	}
	if req.Horizon < 0 {
		p = append(p, fmt.Sprintf("Horizon: %s is negative; 0 is not checked", req.Horizon))
	}
	if len(req.Filter.States) == 0 {
		req.Filter.States = []State{StateFailed, StateAbandoned}
	}
	return req, Invalid("waybill: redrive", p...)
}

// Takes reports whether a redrive may select a record with state s and reason r at all: failed and abandoned ones, but
// what the application took back (cancelled, replaced) only if the filter names its reason or its id.
func (r *RedriveRequest) Takes(s State, reason Reason) bool {
	return s == StateFailed || s == StateAbandoned && (!reason.Withdrawn() || len(r.Filter.Reasons) > 0 || len(r.Filter.IDs) > 0)
}

// CheckBlockedKeys returns req with the default of its limit filled in, as that of a page, or an [*InvalidError].
func CheckBlockedKeys(req BlockedKeysRequest) (BlockedKeysRequest, error) {
	page := Page{Limit: req.Limit}
	p := page.check(nil)
	if req.Route == "" {
		p = append(p, "route: is empty; name one, such as "+DefaultRoute)
	}
	req.Limit = page.Limit
	return req, Invalid("waybill: blocked keys", p...)
}

// CheckDecide returns an [*InvalidError] if DecideHead cannot mean anything with these arguments.
func CheckDecide(route, key, id string, action HeadAction) error {
	var p []string
	for _, f := range [...]struct{ name, value string }{{"route", route}, {"key", key}, {"id", id}} {
		if f.value == "" {
			p = append(p, f.name+": is empty; take it from BlockedKeys")
		}
	}
	if action < HeadSkip || action > HeadRequeue {
		p = append(p, fmt.Sprintf("action: %d is none; choose HeadSkip, HeadPark or HeadRequeue", action))
	}
	return Invalid("waybill: decide head", p...)
}

// NotHead explains that id is not the head of key: an error that matches ErrNotFound.
func NotHead(op, route, key, id string) error {
	return &Error{Op: op, Class: ClassRejected, Err: fmt.Errorf("message %q is not the head of key %q of route %q: it went on, "+
		"or is due already and cannot be put back, or another one stands before it; list the blocked keys again (%w)", id, key, route, ErrNotFound)}
}

// HeadInFlight explains that a relay holds id: an error that matches ErrInFlight.
func HeadInFlight(op, route, key, id string) error {
	return &Error{Op: op, Class: ClassRejected, Err: fmt.Errorf("message %q of key %q of route %q is being sent, or its relay died: "+
		"decide again when that is over (%w)", id, key, route, ErrInFlight)}
}

// HeadPending explains that the decision about id is stored and was not carried out yet: an error that matches
// ErrInFlight.
func HeadPending(op, route, key, id string) error {
	return &Error{Op: op, Class: ClassRejected, Err: fmt.Errorf("the decision about message %q of key %q of route %q is stored; the relay "+
		"that owns the key carries it out when the message is not being sent: look again later (%w)", id, key, route, ErrInFlight)}
}

// HeadExpired explains that id cannot be requeued since it would be given up again at once.
func HeadExpired(id string, expires time.Time) error {
	return Invalid("waybill: decide head", fmt.Sprintf("id: message %q expired at %s and would be given up again at once: skip it, park it, "+
		"or redrive it with Force, which removes the expiry", id, expires.UTC().Format(time.RFC3339)))
}

// HeadDuplicate explains that id cannot be requeued since a live message with its dedupe key stands for it.
func HeadDuplicate(id string) error {
	return Invalid("waybill: decide head", fmt.Sprintf("id: a live message with the dedupe key of message %q exists: cancel that one first, "+
		"or skip this one", id))
}

// Count counts one record that matched: put back if cause is empty, else refused for it.
func (r *Redriven) Count(cause string) {
	r.Matched++
	if cause == "" {
		r.Changed++
		return
	}
	if r.Refused == nil {
		r.Refused = map[string]int{}
	}
	r.Refused[cause]++
}

// NoRecord explains that route has no record with id: an error that matches ErrNotFound.
func NoRecord(op, route, id string) error {
	return &Error{Op: op, Class: ClassRejected, Err: fmt.Errorf("route %q has no message %q: it was never staged there, or was published "+
		"and deleted (%w)", route, id, ErrNotFound)}
}
