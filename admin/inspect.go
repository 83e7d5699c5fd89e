package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/check"
)

// The capabilities in this file are for operators: look, put back, cancel, clean up. All of them are optional, safe
// for concurrent use, and bounded. None holds a lock while it waits for its caller. None reads a whole table.

// Stored is a stored record as an operator sees it. Times are by the store's clock.
type Stored struct {
	// Envelope is the message. List leaves out its Body.
	Envelope waybill.Envelope
	Route    string
	Seq      int64
	State    core.State
	// Reason says why it was abandoned; empty otherwise.
	Reason waybill.Reason
	// Attempts counts refusals by the broker or the handler. Crashes counts members that were removed while they
	// held it.
	Attempts, Crashes int
	// DedupeKey is the key with which it was staged.
	DedupeKey string
	// Age is the time since it was first due; negative if it is scheduled for later.
	Age time.Duration
	// DueIn is the time until its schedule or retry is due; 0 = at once, or not waiting.
	DueIn time.Duration
	// Owner is the member that holds it; empty = no member does. LeaseIn is how long that member counts as alive
	// without another sign of life.
	Owner   string
	LeaseIn time.Duration
	// LastError is the latest error, and LastErrorAt when that was; empty and zero if there was none.
	LastError   string
	LastErrorAt time.Time
	// SettledAt is when it reached a terminal state; zero if it has not.
	SettledAt time.Time
	// Err is not nil if the row could not be read whole.
	Err error
}

// SetDedupeKey sets the dedupe key that was staged. A store keeps it with the tenant: each has keys of its own.
func (s *Stored) SetDedupeKey(stored string) {
	s.DedupeKey = stored[strings.LastIndex(stored, check.TenantEnd)+1:]
}

// Filter selects stored records. Empty fields select everything; several values of one field are alternatives.
type Filter struct {
	IDs     []string
	Routes  []string
	States  []core.State
	Reasons []waybill.Reason
	Topics  []string
	Tenants []string
	Keys    []string
	// Since and Until bound Envelope.Time, Until excluded.
	Since, Until time.Time
}

// IsZero reports whether f selects everything.
func (f *Filter) IsZero() bool {
	return len(f.IDs)+len(f.Routes)+len(f.States)+len(f.Reasons)+len(f.Topics)+len(f.Tenants)+len(f.Keys) == 0 &&
		f.Since.IsZero() && f.Until.IsZero()
}

// PageRequest bounds one call over many records. The zero value starts at the beginning with the defaults.
type PageRequest struct {
	// After is the sequence after which the page begins: the Next of the page before.
	After int64
	// Limit bounds the records of the answer; default 100, at most 1,000.
	Limit int
	// Budget bounds the rows to look at. A call with a filter that few records match returns early, with the
	// records found so far. Default 10,000, at most 1,000,000.
	Budget int
}

// Listing is one page of records in staging order.
type Listing struct {
	Records []Stored
	// Next is the value of PageRequest.After for the next page; 0 = the end was reached. An empty page has a Next
	// if the budget was spent.
	Next int64
}

// Inspector looks at stored records.
type Inspector interface {
	// Inspect returns the record of a message on a route, body included; waybill.ErrNotFound if there is none. A
	// store that has no index of all ids looks in bounded steps, until ctx ends.
	Inspect(ctx context.Context, route, id string) (Stored, error)
	// List returns a page of the records that match f. An id too can be found pages later.
	List(ctx context.Context, f Filter, p PageRequest) (Listing, error)
}

// SeqInspector finds a record at once that a listing has named. By its id alone that can take a search; see Inspector.
type SeqInspector interface {
	// InspectAt is Inspect, but it looks only where an index has the id, and at the sequence seq; 0 = nowhere else.
	InspectAt(ctx context.Context, route, id string, seq int64) (Stored, error)
}

// Matches reports whether f selects s. Adapters without a query language filter with it.
func (f *Filter) Matches(s *Stored) bool {
	in := func(list []string, v string) bool { return len(list) == 0 || slices.Contains(list, v) }
	e := &s.Envelope
	return in(f.IDs, e.ID) && in(f.Routes, s.Route) && in(f.Topics, e.Topic) && in(f.Tenants, e.Tenant) && in(f.Keys, e.Key) &&
		(len(f.States) == 0 || slices.Contains(f.States, s.State)) && (len(f.Reasons) == 0 || slices.Contains(f.Reasons, s.Reason)) &&
		(f.Since.IsZero() || !e.Time.Before(f.Since)) && (f.Until.IsZero() || e.Time.Before(f.Until))
}

// OnlyAbandoned reports whether f can match only abandoned records. Then an index of abandoned records finds all of
// them.
func (f *Filter) OnlyAbandoned() bool {
	return len(f.Reasons) > 0 && !slices.Contains(f.Reasons, waybill.ReasonNone) || len(f.States) == 1 && f.States[0] == core.StateAbandoned
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
		if s < core.StatePending || s > core.StateAbandoned {
			p = append(p, fmt.Sprintf("Filter.States: %s is not a state of stored records", s))
		}
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		p = append(p, fmt.Sprintf("Filter.Until: %s is not after Since, %s", f.Until.Format(time.RFC3339), f.Since.Format(time.RFC3339)))
	}
	return p
}

func (p *PageRequest) check(problems []string) []string {
	bounds := func(name string, v *int, def, most int) {
		switch {
		case *v == 0:
			*v = def
		case *v < 0 || *v > most:
			problems = append(problems, fmt.Sprintf("Page.%s: %d is not between 1 and %d; 0 means %d", name, *v, most, def))
		}
	}
	if p.After < 0 {
		problems = append(problems, fmt.Sprintf("Page.After: %d is negative; "+
			"0 begins at the beginning, then pass the Next of the page before", p.After))
	}
	bounds("Limit", &p.Limit, DefaultPageLimit, MaxPageLimit)
	bounds("Budget", &p.Budget, DefaultPageBudget, MaxPageBudget)
	return problems
}
