package rules

import (
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Change is what an outcome makes of a record.
type Change struct {
	// Row is the record afterwards. If it has ended, it ends now.
	Row
	// Due: it is due in In from now. If not, it is due when it was.
	Due bool
	In  time.Duration
	// Error is the text of the attempt that failed now; empty = the stored one stays, with its time.
	Error string
}

// Settle returns the change of r by the outcome o of self, or the reason why there is none: core.ErrChanged or
// core.ErrFenced. owns says whether self owns the partition of r. r is nil if there is no record with the number and
// the id of the outcome. Outcomes of notices, and [Confirmed] ones, have rules of their own. The first line that fits
// counts:
//
//	gone, ended, or another version                changed
//	self neither holds it nor owns its partition        fenced
//	released, and another session holds it         nothing changes
//	released                                       no hold; a retry that self held is due after In
//	an attempt failed                              failed, waits for In; no member died of it: no crashes
//	given up, or cancelled                         abandoned, now
//
// Every change ends the hold and raises the version. An unknown result makes it one that may have been sent.
func Settle(r *Row, o *core.Outcome, self core.Session, owns bool) (c Change, err error) {
	switch {
	case r == nil || !r.Is(o.Ref()):
		return c, core.ErrChanged
	case r.Holder != self && !owns:
		return c, core.ErrFenced
	}
	c.Row = *r
	if o.Event() == core.EventReleased && r.Holder != 0 && r.Holder != self {
		return c, nil
	}
	c.Holder, c.Version, c.MaybeSent = 0, r.Version+1, r.MaybeSent || o.Unknown()
	if o.Event() == core.EventReleased {
		if r.Retry() && r.Holder == self {
			c.Due, c.In = true, o.In()
		}
		return c, nil
	}
	if o.CountsAttempt() {
		c.Attempts++
	}
	c.State, c.Reason, c.Blocks, c.Error = o.State(), o.Reason(), r.Keyed && o.Reason().Blocks(), o.Error()
	if c.Waits = o.State() == core.StateFailed; c.Waits {
		c.Due, c.In, c.Crashes = true, o.In(), 0
	}
	return c, nil
}

// Confirmed answers for a record that was published and that is not live under the number and the id of ref: nil or
// core.ErrChanged. r is the record with that number, nil if there is none. Gone, or published and kept, is as good as
// ended now. A live record with this number and id ends, with any version, holder and owner.
func Confirmed(r *Row, ref core.Ref) error {
	if r == nil || r.Route == ref.Route && r.ID == ref.ID && r.State == core.StatePublished {
		return nil
	}
	return core.ErrChanged
}

// Publish returns r as it is after it was published, where published records are kept.
func Publish(r *Row) Row {
	end := *r
	end.State, end.Waits, end.Holder = core.StatePublished, false, 0
	end.Version++
	return end
}

// Requeue returns r as it is after an operator has put it back in line, and the kind of the notice that tells
// its owner. An earlier decision about it is void, and an expiry that has passed is gone.
func Requeue(r *Row) (Row, core.NoticeKind) {
	back := *r
	back.State, back.Reason, back.Waits, back.Blocks = core.StatePending, waybill.ReasonNone, false, false
	back.Attempts, back.Crashes, back.Deliveries = 0, 0, 0
	back.Version++
	if r.Keyed {
		return back, core.NoticeKey
	}
	return back, core.NoticeRecord
}
