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
//     candidate has a lesser id, since it has its id first.
//  3. When all transactions with lesser ids have ended, none can show such a number any more. The floor rises to the
//     candidate, or to just below the first notice that is there.
//
// Its zero value knows nothing. A fail-over or a restore, which change the epoch, begin anew. Safe for concurrent use.
type noticeFloor struct {
	mu        sync.Mutex
	epoch     string
	after     int64
	round     int64 // counts the candidates
	candidate int64
	below     int64 // the id of step 2; 0 = none yet
}

// look returns the floor, for a call that is about to be sent.
func (f *noticeFloor) look() (after, round int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.after, f.round
}

// saw takes in the answer to a heartbeat that was sent in a round.
func (f *noticeFloor) saw(epoch string, round int64, r *drawn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if epoch != f.epoch || r.lastNotice < f.after {
		f.begin(epoch)
	}
	if f.candidate > 0 && f.below == 0 && f.round == round {
		f.below = r.id
	}
	switch {
	case f.candidate == 0:
	case f.below > 0 && r.xmin >= f.below:
		if f.after = f.candidate; r.notice > 0 {
			f.after = min(f.after, r.notice-1)
		}
	default:
		return
	}
	f.candidate, f.below = r.lastNotice, 0
	f.round++
}

// holds reports whether the floor after, with which a call was sent, is one of the database that answered, which has
// this epoch. If not, the floor is that of another life of the database, and the answer can lack notices.
func (f *noticeFloor) holds(epoch string, after int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if after > 0 && epoch != f.epoch {
		f.begin(epoch)
	}
	return after <= f.after
}

func (f *noticeFloor) begin(epoch string) {
	f.epoch, f.after, f.candidate, f.below = epoch, 0, 0, 0
}
