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
	// membershipFor is how long a membership counts as new. Members renew every few seconds.
	membershipFor = 5 * time.Second
	// maxMembers is how many members are shown.
	maxMembers = 100
)

// watch is what is known of the members of an outbox. A store says how often a member has renewed, and not when: that
// is when its renewal was first seen.
type watch struct {
	at         time.Time // of the membership
	membership core.Membership
	err        string
	renewals   map[core.Session]renewal
}

type renewal struct {
	n       int64
	at      time.Time // when it was first seen
	renewed bool      // since then; the first renewal that is seen can be an old one
}

// look asks for the membership, unless it is new. It joins nothing and changes nothing.
func (w *watch) look(ctx context.Context, store core.OutboxStore, now time.Time) {
	if w.err == "" && now.Sub(w.at) < membershipFor {
		return
	}
	membership, err := store.Heartbeat(ctx, core.HeartbeatRequest{})
	if w.at, w.membership, w.err = now, membership, ""; err != nil {
		w.err = core.ErrorText(err)
		return
	}
	renewals := map[core.Session]renewal{}
	for i := range membership.Members {
		m := &membership.Members[i]
		b, known := w.renewals[m.Session]
		if !known || b.n != m.Heartbeats {
			b = renewal{m.Heartbeats, now, known}
		}
		renewals[m.Session] = b
	}
	w.renewals = renewals
}

// memberRow is a member as a page shows it.
type memberRow struct {
	Name         string
	Session      core.Session
	Routes       []memberRoute
	Status, Text string
	Dead         bool // for the others, or it would be if there were any
}

// memberRoute is a route that a member serves, with how many of its partitions it owns.
type memberRoute struct {
	Route             string
	Owned, Partitions int
	Unavailable       bool
	Out               int64 // at its latest heartbeat
	OldestOut         time.Duration
}

// rows lists the members, dead ones first, then by name.
func (w *watch) rows(now time.Time) []memberRow {
	type owned struct {
		route string
		by    core.Session
	}
	partitions, all := map[owned]int{}, map[string]int{}
	for i := range w.membership.Partitions {
		u := &w.membership.Partitions[i]
		partitions[owned{u.Partition.Route, u.Owner}]++
		all[u.Partition.Route]++
	}
	out := make([]memberRow, 0, len(w.membership.Members))
	for i := range w.membership.Members {
		m, b := &w.membership.Members[i], w.renewals[w.membership.Members[i].Session]
		silent := w.at.Sub(b.at) // at least
		row := memberRow{Name: m.Name, Session: m.Session, Dead: silent > m.Lease}
		for _, s := range m.Routes {
			row.Routes = append(row.Routes, memberRoute{s.Route, partitions[owned{s.Route, m.Session}], all[s.Route], s.Unavailable, int64(s.HandedOut), s.OldestHandedOut})
		}
		slices.SortFunc(row.Routes, func(a, b memberRoute) int { return strings.Compare(a.Route, b.Route) })
		switch {
		case row.Dead:
			row.Status, row.Text = "failed", fmt.Sprintf("silent for %s; its lease is %s", short(silent), short(m.Lease))
		case m.PresenceLost, m.Suspected:
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
	for i := range w.membership.Members {
		for _, s := range w.membership.Members[i].Routes {
			out[s.Route] = true
		}
	}
	return out
}
