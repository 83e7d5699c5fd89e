package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill/core"
)

const (
	// rosterFor is how long a roster counts as new. Members renew every few seconds.
	rosterFor = 5 * time.Second
	// maxMembers is how many members are shown.
	maxMembers = 100
)

// watch is what is known of the members of an outbox. A store says how often a member has renewed, and not when: that
// is when its beat was first seen.
type watch struct {
	at     time.Time // of the roster
	roster core.Roster
	err    string
	beats  map[core.Session]beat
}

type beat struct {
	n       int64
	at      time.Time // when it was first seen
	renewed bool      // since then; the first beat that is seen can be an old one
}

// look asks for the roster, unless it is new. It joins nothing and changes nothing.
func (w *watch) look(ctx context.Context, store core.OutboxStore, now time.Time) {
	if w.err == "" && now.Sub(w.at) < rosterFor {
		return
	}
	roster, err := store.Meet(ctx, core.Meeting{})
	if w.at, w.roster, w.err = now, roster, ""; err != nil {
		w.err = core.ErrorText(err)
		return
	}
	beats := map[core.Session]beat{}
	for i := range roster.Members {
		m := &roster.Members[i]
		b, known := w.beats[m.Session]
		if !known || b.n != m.Beat {
			b = beat{m.Beat, now, known}
		}
		beats[m.Session] = b
	}
	w.beats = beats
}

// memberRow is a member as a page shows it.
type memberRow struct {
	Name         string
	Session      core.Session
	Routes       []memberRoute
	Status, Text string
	Dead         bool // for the others, or it would be if there were any
}

// memberRoute is a route that a member serves, with how many of its units it owns.
type memberRoute struct {
	Route        string
	Owned, Units int
	Unable       bool
}

// rows lists the members, dead ones first, then by name.
func (w *watch) rows(now time.Time) []memberRow {
	type owned struct {
		route string
		by    core.Session
	}
	units, all := map[owned]int{}, map[string]int{}
	for i := range w.roster.Units {
		u := &w.roster.Units[i]
		units[owned{u.Unit.Route, u.Owner}]++
		all[u.Unit.Route]++
	}
	out := make([]memberRow, 0, len(w.roster.Members))
	for i := range w.roster.Members {
		m, b := &w.roster.Members[i], w.beats[w.roster.Members[i].Session]
		silent := w.at.Sub(b.at) // at least
		row := memberRow{Name: m.Name, Session: m.Session, Dead: silent > m.Lease}
		for _, s := range m.Serves {
			row.Routes = append(row.Routes, memberRoute{s.Route, units[owned{s.Route, m.Session}], all[s.Route], s.Unable})
		}
		slices.SortFunc(row.Routes, func(a, b memberRoute) int { return strings.Compare(a.Route, b.Route) })
		switch {
		case row.Dead:
			row.Status, row.Text = "failed", fmt.Sprintf("silent for %s; its lease is %s", short(silent), short(m.Lease))
		case m.Missing, m.Flag:
			row.Status, row.Text = "degraded", "its connection is lost"
		case b.renewed:
			row.Text = fmt.Sprintf("renewed %s ago", short(now.Sub(b.at)))
		default:
			row.Text = fmt.Sprintf("first seen %s ago", short(now.Sub(b.at)))
		}
		out = append(out, row)
	}
	slices.SortFunc(out, func(a, b memberRow) int {
		if a.Dead != b.Dead {
			if a.Dead {
				return -1
			}
			return 1
		}
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Session, b.Session))
	})
	return out
}

// served names the routes that some member serves.
func (w *watch) served() map[string]bool {
	out := map[string]bool{}
	for i := range w.roster.Members {
		for _, s := range w.roster.Members[i].Serves {
			out[s.Route] = true
		}
	}
	return out
}
