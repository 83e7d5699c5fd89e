package rules

import "github.com/waybill-go/waybill/core"

// Hold returns the answer of a Hold of self for the record that ref names, and whether it writes a hold. owns says
// whether self owns the partition of r, and locked whether a transaction has locked r. r is nil if there is no record
// with this number and id. The first line that fits counts:
//
//	gone, ended, or another version             gone
//	self holds it                               held, and nothing is written
//	self does not own its partition                  gone
//	another session holds it, or it is locked   locked
//	any other                                   held, and a hold is written
func Hold(r *Row, ref core.Ref, self core.Session, owns, locked bool) (holdStatus core.HoldStatus, writes bool) {
	switch {
	case r == nil || !r.Is(ref):
		return core.HoldGone, false
	case r.Holder == self:
		return core.HoldGranted, false
	case !owns:
		return core.HoldGone, false
	case r.Holder != 0 || locked:
		return core.HoldSkipped, false
	}
	return core.HoldGranted, true
}

// Held returns r as it is after self has taken it. A hold does not raise the version. deliver counts a delivery.
func Held(r *Row, self core.Session, deliver bool) Row {
	held := *r
	held.Holder = self
	if deliver {
		held.Deliveries++
	}
	return held
}

// Kept reports whether a record that self names as out when it releases a partition is held by self afterwards. All
// other holds of self in the partition end. in says whether r is in the partition.
func Kept(r *Row, ref core.Ref, self core.Session, in bool) bool {
	return r != nil && in && r.Is(ref) && (r.Holder == 0 || r.Holder == self)
}

// GivenUp answers for a partition that self gives up, which has that owner and that term now: whether it was given up
// in an earlier call, so that nothing is left to do; or core.ErrFenced, because it is another's. Of a route without
// partitions the owner is 0, and the term is the greatest that its partitions had.
func GivenUp(owner core.Session, term int64, self core.Session, asked int64) (before bool, err error) {
	switch {
	case term > asked:
		return true, nil
	case term != asked || owner != self:
		return false, core.ErrFenced
	}
	return false, nil
}
