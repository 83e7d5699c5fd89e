package core

import (
	"time"
	"unicode/utf8"
)

// MaxErrorBytes caps the text of a stored error.
const MaxErrorBytes = 1000

// SuspectCrashes is the number of crashes from which a record is claimed alone, so that one record that kills its relay
// cannot spend the budget of the batch it rides with.
const SuspectCrashes = 2

// MaxCrashes is the number of crashes at which a record is abandoned with [ReasonCrashed].
const MaxCrashes = 10

// Lease is a claim on a record. Every settle carries its token; a stale token changes nothing.
type Lease struct {
	// Token is the fencing token: different for every claim of a record.
	Token int64
	// Remaining is how long the lease lasted when the store answered, by the store's clock. Engines count from before
	// they asked, by their own monotonic clock, so that no two clocks are compared.
	Remaining time.Duration
}

// Record is a stored message that was claimed.
type Record struct {
	// Envelope is what to publish.
	Envelope Envelope
	// Route is its lane.
	Route string
	// Seq is its place in the store's staging order.
	Seq int64
	// Attempts counts how often the broker said no.
	Attempts int
	// Crashes counts how often a lease on it expired, this claim's takeover included.
	Crashes int
	// Age is the time since it became due (staged or scheduled), by the store's clock.
	Age time.Duration
	// Failed reports that the record was in StateFailed before this claim: it has an error from an earlier attempt.
	Failed bool
	// Lease is this claim.
	Lease Lease
	// Err is not nil when the store could not read the row. Envelope then holds what could be read; the record must be
	// abandoned with ReasonUndecodable.
	Err error
}

// Outcome is what an engine decided about one claimed record. It is built only by [Published], [Retry], [Abandon] and
// [Release]; stores persist it. The zero value is not an outcome.
type Outcome struct {
	route   string
	id      string
	seq     int64
	token   int64
	stamp   int64
	event   Event
	state   State
	reason  Reason
	err     string
	retryIn time.Duration
	unknown bool
}

func outcome(r *Record, ev Event) Outcome {
	to, _ := Next(StateProcessing, ev)
	return Outcome{route: r.Route, id: r.Envelope.ID, seq: r.Seq, token: r.Lease.Token, stamp: int64(r.Envelope.HLC), event: ev, state: to}
}

// Published says that the broker confirmed the record and routed it.
func Published(r *Record) Outcome { return outcome(r, EventConfirmed) }

// Retry says that an attempt failed with err and that the record is due again after in, by the store's clock. The
// attempt counts. A negative delay counts as none.
func Retry(r *Record, err error, in time.Duration) Outcome {
	o := outcome(r, EventRejected)
	o.err, o.retryIn = ErrorText(err), max(in, 0)
	return o
}

// Abandon gives the record up for good; without a reason it is [ReasonRejected]. The attempt counts unless the reason is
// [ReasonCrashed] or [ReasonExpired].
func Abandon(r *Record, reason Reason, err error) Outcome {
	if reason == ReasonNone {
		reason = ReasonRejected
	}
	ev := EventGivenUp
	if reason == ReasonCrashed {
		ev = EventCrashesSpent
	}
	o := outcome(r, ev)
	o.reason, o.err = reason, ErrorText(err)
	return o
}

// Release hands the record back unsent: due again after in (0 = at once). It costs nothing: attempts, stored error and
// crashes stay as they are, and a record that had failed before is failed again.
func Release(r *Record, in time.Duration) Outcome {
	o := outcome(r, EventReleased)
	o.retryIn = max(in, 0)
	if r.Failed {
		o.state = StateFailed
	}
	return o
}

// ReleaseUnknown is [Release] for a record that was sent and whose result never came: it may have arrived. The store
// remembers that, for whoever cancels it.
func ReleaseUnknown(r *Record, in time.Duration) Outcome {
	o := Release(r, in)
	o.unknown = true
	return o
}

// Unknown reports whether the record may have arrived although it is handed back.
func (o *Outcome) Unknown() bool { return o.unknown }

// Route returns the record's lane.
func (o *Outcome) Route() string { return o.route }

// ID returns the message id.
func (o *Outcome) ID() string { return o.id }

// Seq returns the record's sequence.
func (o *Outcome) Seq() int64 { return o.seq }

// Token returns the fencing token that the store must compare.
func (o *Outcome) Token() int64 { return o.token }

// Stamp returns the record's HLC stamp as an int64 (0 = none), for stores that keep a high-water mark.
func (o *Outcome) Stamp() int64 { return o.stamp }

// Event returns what happened.
func (o *Outcome) Event() Event { return o.event }

// State returns the record's new state.
func (o *Outcome) State() State { return o.state }

// Reason returns why the record was abandoned, or ReasonNone.
func (o *Outcome) Reason() Reason { return o.reason }

// Error returns the text to store as last error, capped and without payload. Empty means: keep the stored one.
func (o *Outcome) Error() string { return o.err }

// RetryIn returns the delay until the record is due again, by the store's clock.
func (o *Outcome) RetryIn() time.Duration { return o.retryIn }

// CountsAttempt reports whether the store must add one to the record's attempts.
func (o *Outcome) CountsAttempt() bool {
	return o.event == EventRejected || o.event == EventGivenUp && o.reason != ReasonExpired
}

// ErrorText returns err's text as stored and logged: valid UTF-8 without NUL, capped at MaxErrorBytes.
func ErrorText(err error) string {
	if err == nil {
		return ""
	}
	return clip(err.Error(), MaxErrorBytes)
}

// clip cuts s to at most n bytes at a character boundary and makes it storable.
func clip(s string, n int) string {
	clean := make([]rune, 0, min(len(s), n))
	size := 0
	for _, r := range s {
		if r == 0 {
			r = utf8.RuneError
		}
		if size += utf8.RuneLen(r); size > n {
			break
		}
		clean = append(clean, r)
	}
	return string(clean)
}
