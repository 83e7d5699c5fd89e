package dispatch

import (
	"context"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/enum"
)

// The Dispatcher makes no calls of the store itself: it returns them, the owner runs them, and gives them back with
// their answers. So the same code runs with goroutines and in a model in virtual time. At most one call of each kind is
// under way, releases apart. An answer can be lost, and the call can still be executed later. So each call names its
// session, and can be repeated.

const (
	// maxLimit bounds the time limit of a call, as long as no call of its kind has run into the limit.
	maxLimit = 5 * time.Second
	// maxPatience is how often the limit of a call is doubled.
	maxPatience = 5
	// maxFails bounds how often the pause after a failure is doubled.
	maxFails = 8
)

// CallKind is the method of the store that a call calls.
type CallKind uint8

// The kinds of calls.
const (
	CallHeartbeat CallKind = iota
	CallRead
	CallHold
	CallDue
	CallSettle
	CallRelease
	callKinds
)

// String returns its name in logs and metrics.
func (k CallKind) String() string {
	return enum.Name("CallKind", k, 0, "heartbeat", "read", "hold", "due", "settle", "release partition")
}

// Call is one call of the store. Do runs it, on any goroutine. Done takes in its answer.
type Call struct {
	kind CallKind
	op   callOp
	err  error
	sent time.Time
	// limit is how long its answer may take.
	limit time.Duration
	// gen shows that a call belongs to an earlier session.
	gen core.Session
}

// callOp is the work of a call, and the work with its answer.
type callOp interface {
	do(ctx context.Context, s core.OutboxStore) error
	done(c *Call)
}

// Limit returns how long to wait for the answer. After a call ran into its limit, the next one of its kind gets twice
// as long. Otherwise work that a slow store undoes at each interruption would never get done.
func (c *Call) Limit() time.Duration { return c.limit }

// Do makes the call. The store's error is kept for Done.
func (c *Call) Do(ctx context.Context, s core.OutboxStore) { c.err = c.op.do(ctx, s) }

// Lose replaces an answer by the error err, as if the answer was lost; for tests of the owner.
func (c *Call) Lose(err error) { c.err = err }

// Kind returns the method that the call calls.
func (c *Call) Kind() CallKind { return c.kind }

// Err returns the store's error.
func (c *Call) Err() error { return c.err }

// calls knows which calls are under way, and how earlier calls of each kind went. At most one call of a kind is under
// way. Releases are not counted here; see release.go.
type calls struct {
	*env
	underWay  [callKinds]*Call     // nil = none; never a release
	notBefore [callKinds]time.Time // the pause after a failure
	fails     [callKinds]int       // in a row
	patience  [callKinds]int       // how often the limit was doubled
	late      *Call                // the Hold to be made next: it stores holds of records that are out for long
}

// begin notes that a call is under way.
func (cs *calls) begin(c *Call) { cs.underWay[c.kind] = c }

// end notes that a call has its answer, and how long that took.
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
func (cs *calls) busy(k CallKind) bool { return cs.underWay[k] != nil }

// quiet reports whether no call is under way that reads or changes records.
func (cs *calls) quiet() bool {
	return !cs.busy(CallRead) && !cs.busy(CallHold) && !cs.busy(CallDue) && !cs.busy(CallSettle)
}

// pause delays the next call of a kind that failed.
func (cs *calls) pause(k CallKind) { cs.notBefore[k] = cs.now.Add(cs.backoff(k)) }

// backoff is how long to wait after so many failures in a row.
func (cs *calls) backoff(k CallKind) time.Duration {
	n := min(cs.fails[k], maxFails)
	return min(10*time.Millisecond<<n, cs.opts.Lease/6)
}

// baseLimit is how long a call may take if no call of its kind ran into the limit.
func (cs *calls) baseLimit(k CallKind) time.Duration {
	if k == CallHeartbeat { // leaves time for another one
		return min(cs.opts.Lease/3, maxLimit)
	}
	return min(cs.opts.Lease/2, maxLimit)
}

// limit is how long a call may take.
func (cs *calls) limit(k CallKind) time.Duration {
	limit := cs.baseLimit(k) << cs.patience[k]
	if k == CallHeartbeat { // a later answer is useless
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
