package rules

import "github.com/waybill-go/waybill/core"

// Obstructs returns why r keeps later records of its key waiting, as self sees it, or why self must not hand it out; 0
// if neither is so. blocking says whether abandoned records hold their keys on the route.
func (r *Row) Obstructs(self core.Session, blocking bool) core.BlockReason {
	switch {
	case r.Live() && r.Holder != 0 && r.Holder != self:
		return core.BlockedByHold
	case r.Retry() && r.Keyed:
		return core.BlockedByRetry
	case r.Blocks && r.Keyed && blocking:
		return core.BlockedByAbandoned
	}
	return 0
}

// Sweeps reports whether the cleaning ends r, whose expiry has passed, and whether it tells the owner of its key. It
// leaves a held record to its holder, and one that can be out to its owner. No member remembers a timer, nor a record
// in line in a partition without an owner: only the end of a retry must be told.
func Sweeps(r *Row, u Partition) (ends, tells bool) {
	ends = r.Live() && r.Holder == 0 && (r.Waits || u.Owner == 0)
	return ends, ends && r.Keyed && r.Retry()
}

// Decides reports whether an operator's decision ends r at once, and whether the owner of its key is told then. If it
// does not end r, the owner of its partition does as soon as r is not out. The decision keeps a partition without an
// owner as it is, so that no member can remember r.
func Decides(r *Row, u Partition) (ends, tells bool) {
	ends = r.Live() && r.Holder == 0 && (r.Waits || r.Cancelable || u.Owner == 0)
	return ends, ends && u.Owner != 0 && Tells(r)
}
