package waybillmysql

import (
	"sync"
	"time"
)

const (
	// lookCheap is how long a look for old rows from the beginning may take, so that each one begins there.
	lookCheap = 250 * time.Millisecond
	// scratchShare is how many times as long as a look from the beginning the next ones go on from where it ended.
	scratchShare = 20
)

// Postgres has the same mechanism (store/postgres/resume.go). A module of contrib uses no internal package of Waybill:
// other people's adapters have none either.

// resume remembers where a look that goes from old to new rows has got to. Rows that were deleted stay in the index as
// long as an open read view keeps them: a look that began anew each time would go over all of them. Now and then it
// begins anew, since a long transaction can commit rows that are older. Its zero value begins at the beginning. Times
// of rows are microseconds by the server's clock.
type resume struct {
	mu   sync.Mutex
	from int64     // where the next look begins; 0 = at the beginning
	anew time.Time // when to begin there again
	// cheap: after a look from the beginning that took less, the next one begins there, too. It is for rows that
	// come back before from: their owner leaves, or the lock of a transaction ends.
	cheap time.Duration
}

// start returns from when on to look; 0 = from the beginning.
func (r *resume) start(now time.Time) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !now.Before(r.anew) {
		return 0
	}
	return r.from
}

// done notes that a look from a place took from began to now, and the time of the newest row that it deleted; 0 = none.
// end is where the look ended, if it left none behind it; else 0. The next one goes on there: another process can have
// deleted the rows before it. A short look from the beginning is repeated instead.
func (r *resume) done(from int64, began, now time.Time, newest, end int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	took := now.Sub(began)
	if from == 0 && took >= r.cheap {
		r.anew = now.Add(scratchShare * took)
	}
	if from != 0 || took >= lookCheap {
		newest = max(newest, end)
	}
	r.from = max(r.from, newest)
}

// resumes are those of the consumers of an inbox.
type resumes struct {
	mu sync.Mutex
	of map[string]*resume
}

func (r *resumes) get(consumer string) *resume {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[string]*resume{}
	}
	if r.of[consumer] == nil {
		r.of[consumer] = &resume{}
	}
	return r.of[consumer]
}
