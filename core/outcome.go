package core

import (
	"time"

	"github.com/waybill-go/waybill"
)

// Outcome is the engine's decision about one record. It is built only by [Published], [Retry], [Abandon], [Cancel],
// [Release] and [DeleteNotice]; stores persist it. The zero value is not an outcome.
type Outcome struct {
	ref     Ref
	slot    uint8
	stamp   int64
	event   Event
	state   State
	reason  waybill.Reason
	err     string
	in      time.Duration
	unknown bool
	free    bool
	notice  int64
}

func outcome(r *Record, ev Event) Outcome {
	to, _ := Next(StateProcessing, ev)
	return Outcome{ref: r.Ref, slot: r.Slot, stamp: int64(r.Envelope.HLC), event: ev, state: to}
}

// Published reports that the broker confirmed the record and routed it, or that its handler succeeded.
func Published(r *Record) Outcome { return outcome(r, EventConfirmed) }

// Retry reports that an attempt failed with err. The record is due again after in, by the store's clock. The attempt
// counts. A negative delay counts as none.
func Retry(r *Record, err error, in time.Duration) Outcome {
	o := outcome(r, EventAttemptFailed)
	o.err, o.in = ErrorText(err), max(in, 0)
	return o
}

// WithoutAttempt returns o, which [Retry] made, as one that counts no attempt. The record waits as any retry does.
func (o Outcome) WithoutAttempt() Outcome {
	o.free = true
	return o
}

// Abandon gives the record up for good; without a reason it is [waybill.ReasonRejected]. The attempt counts unless the
// reason is [waybill.ReasonCrashed] or [waybill.ReasonExpired].
func Abandon(r *Record, reason waybill.Reason, err error) Outcome {
	if reason == waybill.ReasonNone {
		reason = waybill.ReasonRejected
	}
	ev := EventGivenUp
	if reason == waybill.ReasonCrashed {
		ev = EventCrashesSpent
	}
	o := outcome(r, ev)
	o.reason, o.err = storable(reason), ErrorText(err)
	return o
}

// Cancel ends a record that was not handed out, for an operator's [NoticeDecide]. No attempt counts.
func Cancel(r *Record, reason waybill.Reason) Outcome {
	o := outcome(r, EventCancelled)
	o.state, o.reason = StateAbandoned, reason
	return o
}

// Release ends the hold on a record that is handed back. It costs nothing: attempts, crashes and the stored error stay.
// Its version grows. A retry waits on and is due after in; for other records in is ignored. unknown reports that the
// record was sent, but no result came, so it can have arrived. The store remembers that for a later Cancel.
func Release(r *Record, in time.Duration, unknown bool) Outcome {
	o := outcome(r, EventReleased)
	o.in, o.unknown = max(in, 0), unknown
	if r.Failed {
		o.state = StateFailed
	}
	return o
}

// DeleteNotice reports that a notice was acted on. The store deletes it. It needs only a live session.
func DeleteNotice(c *Notice) Outcome {
	return Outcome{ref: Ref{Route: c.Route, Seq: c.Seq, ID: c.ID}, slot: c.Slot, notice: c.Number}
}

// WithUnknown marks o: the record was sent before, but no result came, so it can have arrived. The store remembers that
// for a later Cancel.
func (o Outcome) WithUnknown() Outcome {
	o.unknown = true
	return o
}

// Ref names the record, and its version.
func (o *Outcome) Ref() Ref { return o.ref }

// Slot returns the record's slot.
func (o *Outcome) Slot() uint8 { return o.slot }

// NoticeNumber returns the number of the notice that was acted on; 0 for the outcome of a record.
func (o *Outcome) NoticeNumber() int64 { return o.notice }

// HLC returns the record's HLC stamp (0 = none), for stores that keep a high-water mark.
func (o *Outcome) HLC() int64 { return o.stamp }

// Event returns the event of the state machine.
func (o *Outcome) Event() Event { return o.event }

// State returns the record's new state.
func (o *Outcome) State() State { return o.state }

// Reason returns why the record was abandoned, or waybill.ReasonNone.
func (o *Outcome) Reason() waybill.Reason { return o.reason }

// Error returns the text to store as last error, capped and without payload. Empty means that the stored one stays.
func (o *Outcome) Error() string { return o.err }

// In returns the delay until the record is due again, by the store's clock.
func (o *Outcome) In() time.Duration { return o.in }

// Unknown reports whether the record can have arrived although the outcome is not a success.
func (o *Outcome) Unknown() bool { return o.unknown }

// CountsAttempt reports whether the store must add one to the record's attempts.
func (o *Outcome) CountsAttempt() bool {
	return o.event == EventAttemptFailed && !o.free || o.event == EventGivenUp && o.reason != waybill.ReasonExpired
}
