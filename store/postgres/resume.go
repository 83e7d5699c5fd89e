package postgres

import (
	"sync"
	"time"
)

// lookCheap is how long a look for old rows from the beginning may take, so that each one begins there.
const lookCheap = 250 * time.Millisecond

// scratchShare is how many times as long as a purge from the beginning the next ones go on from where it ended.
const scratchShare = 20

// resume remembers where a purge that goes from old to new has got to. The deleted rows stay in the index until a
// vacuum, and no vacuum takes it while any transaction is older (a dump, a report): a purge that began anew each time
// would go through all of that, and fall behind. Now and then it begins anew, since a long transaction can commit rows
// older than the deleted ones. Its zero value begins at the beginning.
type resume struct {
	mu   sync.Mutex
	from time.Time // of the newest that was deleted, or where the latest one ended; zero = begin anew
	anew time.Time // when to begin anew
	// cheap: after a look from the beginning that took less, the next one begins there, too, also if it left rows
	// behind it. It is for rows that can come back before from: their owner leaves, or the lock of a transaction
	// ends.
	cheap time.Duration
}

// start returns from when on to look; nil = from the beginning.
func (r *resume) start(now time.Time) *time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.from.IsZero() || !now.Before(r.anew) {
		return nil
	}
	from := r.from
	return &from
}

// done notes that a purge that looked from from on took from began to now, and the time of the newest row that it
// deleted, if any. end is where it ended, if it left none behind it. The next one goes on there: another process can
// have deleted the rows before it. A short look from the beginning is repeated instead.
func (r *resume) done(from *time.Time, began, now time.Time, newest, end *time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	took := now.Sub(began)
	if from == nil && took >= r.cheap {
		r.anew = now.Add(scratchShare * took)
	}
	if end != nil && (from != nil || took >= lookCheap) {
		newest = end
	}
	if newest != nil && newest.After(r.from) {
		r.from = *newest
	}
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

// purge calls once for a consumer's marks, from where the latest one ended. It leaves out marks that were committed
// late, until it begins anew. An empty consumer is all of them, always from the beginning.
func (r *resumes) purge(
	consumer string, limit int, once func(limit int, from *time.Time) (n int, newest, end *time.Time, err error),
) (int, error) {
	if consumer == "" {
		n, _, _, err := once(limit, nil)
		return n, err
	}
	at := r.get(consumer)
	began := time.Now()
	from := at.start(began)
	n, newest, end, err := once(limit, from)
	if err != nil {
		return 0, err
	}
	at.done(from, began, time.Now(), newest, end)
	return n, nil
}
