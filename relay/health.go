package relay

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
)

// healthTimeout bounds the store's part of Health if its context does not end earlier.
const healthTimeout = 5 * time.Second

// Health says how the relay is. The checks are "run", "store", "route NAME" for each route or lane, and, if the store
// counts ([admin.Counter]), "backlog" and "unserved", for which it is asked: give ctx a bound; and "cleanup" while the
// latest cleaning has failed. It is safe for concurrent use at any time.
//
// Live is false if Run ended with an error, or its loop does not answer. Ready is true if the relay runs and the store
// answers. A paused route, an open breaker, a message that is due for longer than StaleAfter
// and routes that this relay does not serve are degradations.
func (r *Relay) Health(ctx context.Context) waybill.Health {
	c, _ := core.As[admin.Counter](r.store)
	return r.HealthWith(ctx, c)
}

// HealthWith is Health with the counts of c, and asks the store nothing: a caller that has counted already, or shows
// several relays of one store, spares the store more questions. Without c, nil, the checks "backlog" and "unserved" are
// left out.
func (r *Relay) HealthWith(ctx context.Context, c admin.Counter) waybill.Health {
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	h := waybill.Health{Live: true, Ready: true}
	r.mu.Lock()
	e, failed, paused := r.engine, r.lastErr, maps.Clone(r.paused)
	r.mu.Unlock()
	var found waybill.Health
	switch {
	case e != nil && e.ask(ctx.Done(), func() { found = e.health() }):
		h = found
	case e != nil && ctx.Err() != nil && !closed(e.closed):
		h.Live = caller.Err() != nil // a caller that does not wait learns nothing
		h.Add("run", waybill.HealthFailed, "the loop does not answer")
	case failed != nil:
		h.Live = false
		h.Add("run", waybill.HealthFailed, "ended: %s", core.ErrorText(failed))
	default:
		h.Add("run", waybill.HealthFailed, "not running")
		for i := range r.routes {
			if name := r.routes[i].Name; paused[name] {
				h.Add("route "+name, waybill.HealthDegraded, "paused")
			}
		}
	}
	if c != nil {
		r.backlog(ctx, c, &h)
	}
	return h
}

// hindrance is the first check that a person should look at. Of a relay that starts, stops or has ended it is empty.
func (r *Relay) hindrance(ctx context.Context) (text string) {
	r.mu.Lock()
	e := r.engine
	r.mu.Unlock()
	if e == nil {
		return ""
	}
	answered := e.ask(ctx.Done(), func() {
		for _, c := range e.health().Checks {
			if c.Status == waybill.HealthDegraded || c.Name == "store" && len(e.member.failing) > 0 {
				text = c.Name + ": " + c.Text
				return
			}
		}
	})
	if !answered && ctx.Err() != nil {
		return "the loop does not answer"
	}
	return text
}

// closed reports whether a channel is closed.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// pausedTopics names the topics of a route that are paused, each since when, with the cause of the first one and the
// number of keys that wait for them.
func (e *engine) pausedTopics(rt *route) string {
	topics := slices.Sorted(maps.Keys(rt.breakers.topics))
	cause := rt.breakers.topics[topics[0]].cause
	for i, name := range topics {
		topics[i] = fmt.Sprintf("%s for %s", name, round(e.now.Sub(rt.breakers.topics[name].since)))
	}
	text := "paused topics: " + strings.Join(topics, ", ") + "; the first one: " + cause
	switch n := e.d.PausedKeys(rt.Name); n {
	case 0:
		return text
	case 1:
		return text + "; 1 key waits for a paused topic: waybill keys list tells what is behind it"
	default:
		return fmt.Sprintf("%s; %d keys wait for a paused topic: waybill keys list tells what is behind them", text, n)
	}
}

// health is the loop's part. Of the store it names the method that has failed for longest. Of a route it names the
// first reason that is there, the worst first: paused, an open breaker, a publisher that does not return, a queue on
// the route, paused topics, a bound of memory.
func (e *engine) health() waybill.Health {
	h := waybill.Health{Live: true, Ready: true}
	what := "running"
	status := waybill.HealthOK
	if e.drain.begun {
		what, status = "stopping", waybill.HealthFailed
	}
	h.Add("run", status, "%s; %d records held", what, e.held())
	switch {
	case len(e.member.failing) > 0:
		var method dispatch.CallKind
		var worst *trouble
		for kind, t := range e.member.failing {
			if worst == nil || t.since.Before(worst.since) {
				method, worst = kind, t
			}
		}
		h.Add("store", waybill.HealthFailed, "%s has failed for %s: %s", method, round(e.now.Sub(worst.since)), worst.text)
	case e.member.answered.IsZero():
		h.Add("store", waybill.HealthFailed, "starting; it has not answered yet")
	case e.d.Session() == 0 || !e.now.Before(e.member.lease.last):
		h.Add("store", waybill.HealthFailed, "the lease has ended; joining anew")
	default:
		h.Add("store", waybill.HealthOK, "latest answer %s", e.ago(e.member.answered))
	}
	for _, rt := range e.order {
		name, latest := "route "+rt.Name, "nothing published yet"
		if !rt.sentAt.IsZero() {
			latest = "latest publish " + e.ago(rt.sentAt)
		}
		latest += "; " + e.ownership(rt)
		switch {
		case rt.paused:
			h.Add(name, waybill.HealthDegraded, "paused; %s", latest)
		case rt.breakers.route.failures > 0:
			h.Add(name, waybill.HealthDegraded, "breaker open for %s, latest: %s; %s", round(e.now.Sub(rt.breakers.route.since)), rt.breakers.route.cause, latest)
		case e.publishes.overdue(rt) > 0:
			h.Add(name, waybill.HealthDegraded, "a publisher does not return although PublishTimeout, %s, is over; %d messages wait until it does, or until a restart; %s", e.opts.PublishTimeout, e.publishes.overdue(rt), latest)
		case rt.queue != "":
			h.Add(name, waybill.HealthDegraded, "consumer %s takes it for a queue, and gets a part of its messages: run no relay on it, or give the queue a route of its own; %s", rt.queue, latest)
		case len(rt.breakers.topics) > 0:
			h.Add(name, waybill.HealthDegraded, "%s; %s", e.pausedTopics(rt), latest)
		case rt.atBound != "":
			h.Add(name, waybill.HealthDegraded, "%s", latest)
		default:
			h.Add(name, waybill.HealthOK, "%s", latest)
		}
	}
	if e.upkeep.cleanErr != "" {
		h.Add("cleanup", waybill.HealthDegraded, "latest attempt failed: %s", e.upkeep.cleanErr)
	}
	return h
}

// ownership describes the partitions that the relay owns of a route.
func (e *engine) ownership(rt *route) string {
	st := e.d.Status(rt.Name)
	s := fmt.Sprintf("%d of %d partitions", st.Owned, st.Partitions)
	if st.Behind {
		s += ", more to read"
	}
	if st.Locked > 0 {
		s += fmt.Sprintf(", %d locked by other transactions", st.Locked)
	}
	if rt.atBound != "" {
		s += "; " + rt.atBound
	}
	return s
}

// ago returns how long ago t was, by the loop's clock.
func (e *engine) ago(t time.Time) string { return round(e.now.Sub(t)).String() + " ago" }

// backlog is the store's part: the records that wait on routes of the relay, with the oldest due one, and the routes
// with due records that the relay does not serve. A number that the store has estimated is named so.
func (r *Relay) backlog(ctx context.Context, c admin.Counter, h *waybill.Health) {
	var counts []admin.Count
	err := guardErr("count", func() (err error) {
		counts, err = c.Counts(ctx)
		return err
	})
	if err != nil {
		h.Add("backlog", waybill.HealthDegraded, "unknown: %s", core.ErrorText(err))
		return
	}
	var waiting int64
	var oldest time.Duration
	where, about := "", ""
	for i := range counts {
		n := &counts[i]
		if n.State != core.StatePending && n.State != core.StateFailed || !r.serves(n.Route) {
			continue
		}
		waiting += n.N
		switch {
		case n.AtLeast:
			about = "more than "
		case n.Estimated && about == "":
			about = "about "
		}
		if n.Oldest > oldest {
			oldest, where = n.Oldest, n.Route
		}
	}
	if status := waybill.HealthOK; oldest == 0 {
		h.Add("backlog", status, "%s%d waiting, none due", about, waiting)
	} else {
		if r.opts.StaleAfter > 0 && oldest > r.opts.StaleAfter {
			status = waybill.HealthDegraded
		}
		h.Add("backlog", status, "%s%d waiting, the oldest due one for %s, on route %s", about, waiting, round(oldest), where)
	}
	if r.opts.StaleAfter < 0 {
		return
	}
	if lost := r.unserved(counts); len(lost) > 0 {
		names := make([]string, len(lost))
		for i := range lost {
			names[i] = fmt.Sprintf("%s (%s)", lost[i].route, lost[i].hint(r))
		}
		h.Add("unserved", waybill.HealthDegraded, "routes with due messages that this relay does not serve: %s", strings.Join(names, "; "))
	} else {
		h.Add("unserved", waybill.HealthOK, "none")
	}
}
