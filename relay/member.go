package relay

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/internal/errtext"
	"github.com/waybill-go/waybill/internal/upkeep"
)

// The dispatcher says which calls of the store to make. Here they are made, and their answers taken in: the log and
// health hear of failures, and the lease follows the member's session.

// timed is the store for one call. In its results the ages and lives of records count from began, so that they can be
// told at any time: a record may wait before it is handed out.
type timed struct {
	core.OutboxStore
	began   time.Time
	settled error          // why nothing of a settle could be stored
	refused []core.Outcome // outcomes of records that belong to another relay

	noting   bool           // for the log, at level debug:
	read     map[string]int // records read, by route
	outcomes []core.Outcome // outcomes that were to be stored, and their results
	results  core.Results
}

// Read reads from the store, and shifts times.
func (s *timed) Read(ctx context.Context, self core.Session, request core.ReadRequest) (core.ReadResult, error) {
	result, err := s.OutboxStore.Read(ctx, self, request)
	d := time.Since(s.began)
	for i := range result.Ranges {
		shift(result.Ranges[i].Records, d)
	}
	for i := range result.Keys {
		shift(result.Keys[i].Records, d)
	}
	shift(result.Rechecked, d)
	if s.noting {
		s.read = perRoute(&result)
	}
	return result, err
}

// Due asks the store, and shifts times.
func (s *timed) Due(ctx context.Context, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
	result, err := s.OutboxStore.Due(ctx, self, parts, limit)
	shift(result.Retries, time.Since(s.began))
	return result, err
}

// Settle settles at the store, and notes what was refused.
func (s *timed) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	res := s.OutboxStore.Settle(ctx, self, outcomes)
	guardEach("an error of the store", res)
	if s.noting {
		s.outcomes, s.results = slices.Clone(outcomes), res
	}
	for i, err := range res {
		switch {
		case errors.Is(err, core.ErrFenced) && i < len(outcomes) && outcomes[i].NoticeNumber() == 0:
			s.refused = append(s.refused, outcomes[i])
		case err == nil, errors.Is(err, core.ErrFenced), errors.Is(err, core.ErrLocked), errors.Is(err, core.ErrChanged):
		default:
			s.settled = err
		}
	}
	return res
}

// shift changes times that count from now into times that count from d ago.
func shift(records []core.Record, d time.Duration) {
	for i := range records {
		records[i].DueFor -= d
		if records[i].ExpiresIn <= math.MaxInt64-d { // a longer life is the longest there is already
			records[i].ExpiresIn += d
		}
	}
}

// member is what the store says about this relay.
type member struct {
	session  core.Session // as the loop knows it
	lease    *lease
	failing  map[dispatch.CallKind]*trouble // by method that failed at its latest call
	answered time.Time                      // the latest answer of the store
	seen     upkeep.Watch                   // what the log says of members and partitions, at level debug
}

// trouble is a method of the store that fails.
type trouble struct {
	since time.Time
	text  string
}

// callStore makes the calls that the dispatcher wants now, and returns when it will want more.
func (e *engine) callStore() time.Time {
	calls := e.d.Calls(e.now)
	for _, c := range calls {
		e.call(c)
	}
	next := e.d.Next()
	if !next.IsZero() && len(calls) == 0 && next.Before(e.now.Add(minPause)) {
		next = e.now.Add(minPause)
	}
	return next
}

// call makes one call. A call that writes outlives a stop. A read ends with it: its records would not be sent.
func (e *engine) call(c *dispatch.Call) {
	from := e.base
	if c.Kind() == dispatch.CallRead {
		from = e.upkeep.ctx
	}
	ctx, cancel := e.timeout(from, c.Limit())
	s := &timed{OutboxStore: e.store, began: e.began, noting: e.debug()}
	sent := e.now
	e.async(func() func() {
		defer cancel()
		err := guardErr(c.Kind().String(), func() error {
			c.Do(ctx, s)
			return c.Err()
		})
		if err != nil {
			c.Lose(err)
		}
		return func() { e.takeAnswer(c, s, sent) }
	})
}

// takeAnswer takes in the answer of the store. The dispatcher takes it in first. Then the relay does what only it
// knows:
//
//  1. It logs what changed, at level debug, and measures.
//  2. It tells of outcomes that the store refused, since their records belong to other relays.
//  3. It notes that the method works, or fails. A refusal of the session is an answer of a store that works.
//  4. If the session has changed, that one is lost: another lease begins.
//  5. The lease lasts as long as the dispatcher says now.
func (e *engine) takeAnswer(c *dispatch.Call, s *timed, sent time.Time) {
	e.d.Done(e.now, c)
	if s.noting {
		e.noteChanges()
		e.noteAnswer(s)
	}
	err := c.Err()
	switch c.Kind() {
	case dispatch.CallHeartbeat:
		e.countPartitions()
		e.findQueue()
	case dispatch.CallRead:
		e.tel.read(e.base, e.now.Sub(sent))
	case dispatch.CallSettle:
		e.tel.settled(e.base, e.now.Sub(sent))
		if err == nil {
			err = s.settled
		}
		for i := range s.refused {
			e.refused(&s.refused[i])
		}
	case dispatch.CallHold, dispatch.CallDue, dispatch.CallRelease:
	}
	if err == nil || errors.Is(err, core.ErrFenced) {
		e.storeWorks(c.Kind())
	} else {
		e.storeFails(c.Kind(), err)
	}
	if e.member.session != 0 && e.d.Session() != e.member.session && !e.d.Left() {
		e.sessionLost()
	}
	e.member.session = e.d.Session()
	e.member.lease.renew(e.drain.sendCtx, e.d.Deadline(), e.d.StartBy())
}

// countPartitions logs, once, which routes have another number of partitions than this relay asked for.
func (e *engine) countPartitions() {
	for _, rt := range e.order {
		asked := e.wanted[rt.base]
		if rt.counted || asked == 0 {
			continue
		}
		n := 0
		for i := range e.d.Membership().Partitions {
			if e.d.Membership().Partitions[i].Partition.Route == rt.Name {
				n++
			}
		}
		if rt.counted = n > 0; rt.counted && n != asked {
			e.log.Warn("the route has another number of partitions than this relay asked for: it keeps those that it was first served with",
				"event", "relay.partitions_differ", "route", rt.Name, "partitions", n, "asked", asked)
		}
	}
}

// findQueue looks for a member that takes a route for a queue: a relay says that it takes one record at a time, and a
// consumer of a table how many handlers it has. Such a route has two ends that share its messages. The log names one
// such member, and another one when that has gone; health says so as long as it lasts.
func (e *engine) findQueue() {
	queues := map[string]string{} // by route: the member
	for _, m := range e.d.Membership().Members {
		if m.Capacity <= 1 || m.Session == e.d.Session() {
			continue
		}
		for _, s := range m.Routes {
			queues[s.Route] = m.Name
		}
	}
	for _, rt := range e.order {
		before := rt.queue
		if rt.queue = queues[rt.Name]; rt.queue != "" && rt.queue != before {
			e.log.Warn("a consumer takes this route for a queue, and gets a part of its messages: give the queue a route of its own, or run no relay on it",
				"event", "relay.queue_on_route", "route", rt.Name, "member", rt.queue)
		}
	}
}

// storeWorks notes that a method of the store works.
func (e *engine) storeWorks(method dispatch.CallKind) {
	if e.member.failing[method] != nil {
		delete(e.member.failing, method)
		if len(e.member.failing) == 0 {
			e.log.Info("the store answers again", "event", "relay.store_available")
		}
	}
	e.worked.store[method] = true
	e.member.answered = e.now
}

// storeFails notes that a method of the store failed. It ends the run in two cases: a RunOnce ends with any error, and
// a Run with a misconfiguration of a method that has never worked, so that a missing right is reported at once. It does
// not end a run that has settled a record: a later fault is an outage, which passes. During a stop a failed Heartbeat
// ends the wait for the leave, if nothing but that is left.
func (e *engine) storeFails(method dispatch.CallKind, err error) {
	first := !e.worked.store[method] && !e.worked.store[dispatch.CallSettle]
	if !e.drain.begun && (e.once || errors.Is(err, waybill.ErrMisconfigured) && first) {
		e.fail(errtext.Within("waybill/relay: store", err))
		return
	}
	if e.drain.begun && method == dispatch.CallRead {
		return // it was cancelled
	}
	if e.drain.begun && method == dispatch.CallHeartbeat && e.d.Out()+e.d.Unsettled() == 0 {
		e.drain.noLeave = true // the leave alone is missing: others find out
	}
	t := e.member.failing[method]
	if t == nil {
		t = &trouble{since: e.now}
		e.member.failing[method] = t
	}
	t.text = core.ErrorText(err)
	e.warn(nil, "relay.store_unavailable", "the store failed; trying again", err, "call", method.String(), "class", waybill.ClassOf(err).String())
}

// sessionLost notes that the session has ended: other relays may send the records that this one has out, too. The
// dispatcher joins again.
func (e *engine) sessionLost() {
	for _, rt := range e.order {
		e.tel.leaseLost(e.base, rt)
		e.freeBehindKey(rt)
	}
	e.member.lease = &lease{} // records that are out keep the old one
	e.warn(nil, "relay.lease_lost", "the relay was taken for dead, or its database went back; it joins anew", errors.New("the session has ended"), "out", len(e.publishes.inFlight))
}

// refused notes an outcome that the store refused because the record belongs to another relay.
func (e *engine) refused(o *core.Outcome) {
	ref := o.Ref()
	rt := e.routes[ref.Route]
	if rt == nil {
		return
	}
	e.tel.leaseLost(e.base, rt)
	e.warn(nil, "relay.lease_lost", "an outcome was refused: the record went to another relay", core.ErrFenced, "route", ref.Route, "id", ref.ID)
	if e.opts.Hooks.OnLeaseLost != nil {
		e.observer.tell(e.opts.Hooks.OnLeaseLost, Event{Route: ref.Route, ID: ref.ID})
	}
}
