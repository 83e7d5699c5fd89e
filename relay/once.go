package relay

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/errtext"
)

// A RunOnce ends when nothing is due any more. It sees only the records of its own partitions. So while other relays
// own partitions it asks the store for counts: records that are left are an error, which names their owners. If an
// owner may be dead, the pass waits until its partitions come here.

// leftEvery is the time between two looks of a pass that has no work of its own at the records of other relays.
const leftEvery = 400 * time.Millisecond

// pass is the end of a RunOnce.
type pass struct {
	counting bool      // the store is asked for counts
	countAt  time.Time // not before
}

// stepOnce stops a RunOnce when its work is done: nothing is due, or the due records cannot be had. The steps:
//
//  1. While a publish is under way or the dispatcher has work, there is nothing to decide. Paused routes, and those
//     with an open breaker, do not count as work.
//  2. If no other relay owns or holds anything, and no breaker is open, the run ends.
//  3. Otherwise the store is asked for counts. Due records that are left are an error, which names their owners. If an
//     owner may be dead, the pass waits and asks again: its partitions may come here.
func (e *engine) stepOnce() (next time.Time) {
	if !e.once || e.drain.begun || e.pass.counting || len(e.publishes.inFlight) > 0 {
		return time.Time{}
	}
	var blocked []string
	outage := false
	for _, rt := range e.order {
		open := !rt.breakers.route.closed()
		if rt.paused || open {
			blocked = append(blocked, rt.Name)
		}
		for _, b := range rt.breakers.topics {
			open = open || !b.closed()
		}
		outage = outage || open && !rt.paused
	}
	if !e.d.Resting(blocked) {
		return time.Time{}
	}
	owners := e.d.Elsewhere()
	if len(owners) == 0 && !outage && !e.othersHold() {
		e.stop()
		return time.Time{}
	}
	if e.now.Before(e.pass.countAt) {
		return e.pass.countAt
	}
	doubt := !outage && e.anyMaybeDead(owners)
	counter, _ := core.As[admin.Counter](e.store)
	e.pass.counting = true
	e.async(func() func() {
		var counts []admin.Count
		var err error
		if counter != nil {
			ctx, cancel := context.WithTimeout(e.upkeep.ctx, lookTimeout)
			defer cancel()
			err = guardErr("count", func() (err error) {
				counts, err = counter.Counts(ctx)
				return err
			})
		}
		return func() {
			e.pass.counting = false
			if e.drain.begun {
				return
			}
			if err != nil {
				e.fail(errtext.Within("waybill/relay: store", err))
				return
			}
			left := e.leftOver(counts, counter != nil)
			if left != "" && doubt { // the partitions of a dead relay will become ours
				e.pass.countAt = e.now.Add(leftEvery)
				return
			}
			if left != "" {
				e.drain.fatal = &waybill.Error{Op: "waybill/relay: run once", Class: waybill.ClassOutage, Err: fmt.Errorf("%s is left: %s", left, e.whoHas(owners))}
			}
			e.stop()
		}
	})
	return time.Time{}
}

// othersHold reports whether records of the relay's partitions are held by others.
func (e *engine) othersHold() bool {
	return slices.ContainsFunc(e.order, func(rt *route) bool { return e.d.Status(rt.Name).Elsewhere > 0 })
}

// anyMaybeDead reports whether an owner of partitions may be dead.
func (e *engine) anyMaybeDead(owners map[core.Session]int) bool {
	for s := range owners {
		if e.d.MaybeDead(s) {
			return true
		}
	}
	return false
}

// leftOver describes due records that were not published; empty if there are none. Paused routes are left on purpose.
func (e *engine) leftOver(counts []admin.Count, counted bool) string {
	if !counted {
		return fmt.Sprintf("what others own, and %d due", e.inMemory())
	}
	var parts []string
	for i := range counts {
		n := &counts[i]
		rt := e.routes[n.Route]
		if rt == nil || rt.paused || n.N == 0 {
			continue
		}
		switch n.State {
		case core.StatePending, core.StateFailed:
			if n.Oldest > 0 {
				parts = append(parts, fmt.Sprintf("%d %s on route %s, the oldest due for %s,", n.N, n.State, n.Route, round(n.Oldest)))
			}
		case core.StateProcessing:
			parts = append(parts, fmt.Sprintf("%d in progress on route %s", n.N, n.Route))
		case core.StateNone, core.StatePublished, core.StateAbandoned:
		}
	}
	if n := e.inMemory(); len(parts) == 0 && n > 0 {
		parts = append(parts, fmt.Sprintf("%d due", n))
	}
	return strings.Join(parts, " and ")
}

// inMemory is how many records of routes that are not paused are in memory.
func (e *engine) inMemory() (n int) {
	for _, rt := range e.order {
		if st := e.d.Status(rt.Name); !rt.paused {
			n += st.Ready + st.Waiting
		}
	}
	return n
}

// whoHas names the owners of the records that are left.
func (e *engine) whoHas(owners map[core.Session]int) string {
	var parts []string
	for _, rt := range e.order {
		if rt.paused {
			continue
		}
		if rt.breakers.route.failures > 0 {
			parts = append(parts, fmt.Sprintf("publishing on route %s is paused by an outage: %s", rt.Name, rt.breakers.route.cause))
		}
		for topic, b := range rt.breakers.topics {
			parts = append(parts, fmt.Sprintf("publishing to topic %s on route %s is paused by an outage: %s", topic, rt.Name, b.cause))
		}
	}
	for s, n := range owners {
		name := "a relay that has not left"
		for i := range e.d.Membership().Members {
			if m := &e.d.Membership().Members[i]; m.Session == s && m.Name != "" {
				name = m.Name
			}
		}
		parts = append(parts, fmt.Sprintf("%s owns %d partitions", name, n))
	}
	if e.othersHold() {
		parts = append(parts, "other relays still have some on their way")
	}
	slices.Sort(parts)
	return strings.Join(parts, "; ")
}
