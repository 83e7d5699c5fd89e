package rules

import (
	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Cancellation is the answer for a message that its application takes back, by Cancel or by Replace. The message is
// cancelled if the answer is CancelDone or CancelUncertain; [End] returns its new row.
//
// A record can be out without a hold only if it is ready, is not cancellable, has not crashed, and no crash window
// covers it: the engine holds all others before it hands them out. So the rule mirrors that one. The first line that
// fits counts:
//
//	ended                                                   not found
//	held                                                    in flight
//	ready, not cancellable, no crash, no crash window      in flight
//	may have been sent, or is in a crash window             maybe
//	any other                                               done
//
// A message that the same transaction has staged is done, if the store can tell; that is not asked here.
func Cancellation(r *Row, u Partition) waybill.CancelStatus {
	switch {
	case !r.Live():
		return waybill.CancelNotFound
	case r.Holder != 0:
		return waybill.CancelInFlight
	case r.Ready() && !r.Cancellable && r.Crashes == 0 && !u.Suspects(r):
		return waybill.CancelInFlight
	case r.MaybeSent || u.Suspects(r):
		return waybill.CancelUncertain
	}
	return waybill.CancelDone
}

// End returns r as it is after a party other than its owner has ended it: its application, an operator, or the
// cleaning. An attempt is not counted. It remembers that a dead member can have sent it.
func End(r *Row, u Partition, reason waybill.Reason) Row {
	end := *r
	end.State, end.Reason, end.Waits, end.Holder = core.StateAbandoned, reason, false, 0
	end.Blocks = r.Keyed && reason.Blocks()
	end.MaybeSent = r.MaybeSent || u.Suspects(r)
	end.Version++
	return end
}

// Tells reports whether the owner of r's key must be told when its application or an operator takes r away: it may
// remember that r is in the way. No member remembers a timer.
func Tells(r *Row) bool {
	return r.Keyed && (r.Live() && !r.Timer() || r.Blocks)
}
