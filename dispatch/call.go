package dispatch

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/core"
)

const (
	// maxLimit bounds the limit of a call whose like has not run into it.
	maxLimit = 5 * time.Second
	// maxPatience is how often the limit of a call is doubled.
	maxPatience = 5
	// maxFails bounds how often the pause after a failure is doubled.
	maxFails = 8
)

type callKind uint8

const (
	callMeet callKind = iota
	callRead
	callTake
	callDue
	callSettle
	callGiveUp
	callKinds
)

// Call is one call of the store. Do runs it, on any goroutine, and Done takes its answer in.
type Call struct {
	kind callKind
	do   func(ctx context.Context, s core.OutboxStore) error
	done func()
	err  error
	sent time.Time
	// limit is how long its answer may take.
	limit time.Duration
	// gen tells a call of an earlier session.
	gen core.Session
}

// Limit returns how long to wait for the answer. A call that ran into it gets twice as long the next time: what a slow
// store undoes whenever it is interrupted would never get done.
func (c *Call) Limit() time.Duration { return c.limit }

// Do makes the call. The store's error is kept for Done.
func (c *Call) Do(ctx context.Context, s core.OutboxStore) { c.err = c.do(ctx, s) }

// Lose makes an answer that came the error err, as if it was lost; for tests of the owner.
func (c *Call) Lose(err error) { c.err = err }

// Name returns the method that the call calls, for logs and metrics.
func (c *Call) Name() string {
	return [...]string{"meet", "read", "take", "due", "settle", "give up"}[c.kind]
}

// Err returns the store's error.
func (c *Call) Err() error { return c.err }

// calls knows which calls are under way, and how the earlier ones of each kind went. There is one of each kind at a
// time. Give-ups are not among them: giving counts them.
type calls struct {
	*env
	underWay  [callKinds]*Call
	notBefore [callKinds]time.Time // the pause after a failure
	fails     [callKinds]int       // in a row
	patience  [callKinds]int       // how often the limit was doubled
	late      *Call                // a Take that writes down what is out for long, to be made next
}

// begin notes that a call is under way.
func (cs *calls) begin(c *Call) { cs.underWay[c.kind] = c }

// end takes in that a call has its answer, and how long that took.
func (cs *calls) end(c *Call) {
	if cs.underWay[c.kind] == c {
		cs.underWay[c.kind] = nil
	}
	switch took := cs.now.Sub(c.sent); {
	case took >= c.limit:
		if c.limit == cs.limit(c.kind) && cs.patience[c.kind] < maxPatience {
			cs.patience[c.kind]++
		}
	case c.err == nil && took < cs.baseLimit(c.kind):
		cs.patience[c.kind] = 0
	}
}

// busy reports whether a call of a kind is under way.
func (cs *calls) busy(k callKind) bool { return cs.underWay[k] != nil }

// quiet reports whether no call is under way that reads or changes records.
func (cs *calls) quiet() bool {
	return !cs.busy(callRead) && !cs.busy(callTake) && !cs.busy(callDue) && !cs.busy(callSettle)
}

// pause puts off the next call of a kind that failed.
func (cs *calls) pause(k callKind) { cs.notBefore[k] = cs.now.Add(cs.backoff(k)) }

// backoff is how long to wait after so many failures in a row.
func (cs *calls) backoff(k callKind) time.Duration {
	n := min(cs.fails[k], maxFails)
	return min(10*time.Millisecond<<n, cs.opts.Lease/6)
}

// baseLimit is how long a call may take if none like it ran into its limit.
func (cs *calls) baseLimit(k callKind) time.Duration {
	if k == callMeet { // so that there is time for another one
		return min(cs.opts.Lease/3, maxLimit)
	}
	return min(cs.opts.Lease/2, maxLimit)
}

// limit is how long a call may take.
func (cs *calls) limit(k callKind) time.Duration {
	limit := cs.baseLimit(k) << cs.patience[k]
	if k == callMeet { // what comes later is no good
		return min(limit, cs.opts.Lease)
	}
	return limit
}

// reset forgets the calls of a session that has ended.
func (cs *calls) reset() {
	clear(cs.underWay[:])
	clear(cs.notBefore[:])
	cs.late = nil
}
