package postgres

import "sync"

// noticeFloor is a number up to which all notices are gone, on all routes. Notices that were deleted stay in the
// index as long as an old snapshot keeps them, and a member that gets a partition knows nothing about its notices. So
// each look for them begins above the floor.
//
// The floor rises with the answers to heartbeats, in three steps:
//
//  1. The candidate is the last number that was drawn.
//  2. A call that was sent after that answer draws a transaction id. Each transaction that drew a number up to the
//     candidate has a lesser id, since it has its id first: it locks a row before it numbers a notice. The end of the
//     ids of a snapshot would not do: transactions can run whose ids are beyond it.
//  3. When all transactions with lesser ids have ended, none can show such a number any more. The floor rises to the
//     candidate, or to just below the first notice that is there.
//
// A life of the database ends with a fail-over or a restore, which change the epoch, and when the last number went
// back. The floor then begins anew. An answer to a call that was sent in a former life can lack notices, and does not
// raise the floor: its look began above a floor of that life. The zero value knows nothing. Safe for concurrent use.
type noticeFloor struct {
	mu        sync.Mutex
	epoch     string
	after     int64
	round     int64 // counts the candidates and the lives
	born      int64 // the round with which this life began
	candidate int64
	below     int64 // the id of step 2; 0 = none yet
}

// lookFrom is where a look for notices begins, and the round in which it was sent.
type lookFrom struct{ after, round int64 }

// look returns where a call that is about to be sent looks from.
func (f *noticeFloor) look() lookFrom {
	f.mu.Lock()
	defer f.mu.Unlock()
	return lookFrom{f.after, f.round}
}

// saw takes in the answer to a heartbeat, and returns the result of holds.
func (f *noticeFloor) saw(from lookFrom, epoch string, r *drawn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch ok := f.live(from, epoch, r.lastNotice); {
	case from.round < f.born:
		return ok
	case f.candidate > 0 && f.below == 0 && f.round == from.round:
		f.below = r.id
	}
	switch {
	case f.candidate == 0:
	case f.below > 0 && r.xmin >= f.below:
		if f.after = f.candidate; r.notice > 0 {
			f.after = min(f.after, r.notice-1)
		}
	default:
		return true
	}
	f.candidate, f.below = r.lastNotice, 0
	f.round++
	return true
}

// holds takes in the epoch and the last number of an answer. It reports whether the answer has all notices above the
// number that its caller asked for.
func (f *noticeFloor) holds(from lookFrom, epoch string, lastNotice int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.live(from, epoch, lastNotice)
}

func (f *noticeFloor) live(from lookFrom, epoch string, lastNotice int64) bool {
	if epoch != f.epoch || lastNotice < from.after && from.round >= f.born {
		f.round++
		f.epoch, f.born, f.after, f.candidate, f.below = epoch, f.round, 0, 0, 0
	}
	return from.after == 0 || from.round >= f.born
}
