package dispatch

import (
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

const (
	// watchAfter is how long a transaction may hold back the late range. After that it is watched separately.
	watchAfter = time.Second
	// maxWatched bounds the watched transactions. Further ones hold back the late range.
	maxWatched = 1000
	// maxHorizons bounds the remembered horizons; beyond it the newest two become one.
	maxHorizons = 4096
)

// database is what read results tell about the whole database: how far it has come, and which transactions may still
// show records.
type database struct {
	*env
	epoch      string              // the name of the database's history; a fail-over or a restore changes it
	wentBack   bool                // it was restored once: hints mean nothing
	last       int64               // the greatest ReadResult.LastSeq
	lastNotice int64               // the greatest ReadResult.LastSeqNotice
	horizons   []horizon           // in the order of the reads
	running    map[int64]time.Time // by id of a running transaction: when it was seen first
	watched    map[int64]bool      // by id: transactions that no longer hold back the late range
}

// horizon is what a read could not show: transactions with an id below upper may still show numbers up to last, and
// notices up to lastNotice.
type horizon struct{ last, lastNotice, upper int64 }

func newDatabase(e *env) database {
	return database{env: e, running: map[int64]time.Time{}, watched: map[int64]bool{}}
}

// reset forgets what the session has read. It remembers that the database went back.
func (db *database) reset() {
	db.epoch, db.last, db.lastNotice, db.horizons = "", 0, 0, nil
	clear(db.running)
	clear(db.watched)
}

// isOlder reports whether a read result is of a database that went back.
func (db *database) isOlder(result *core.ReadResult) bool {
	return result.StoreEpoch != db.epoch && db.epoch != "" || result.LastSeq < db.last
}

// observe takes in which transactions run. It returns those that are watched from now on, and the least id of those
// that hold back the late range.
func (db *database) observe(result *core.ReadResult) (watch []int64, least int64) {
	for id := range db.running {
		if hasEnded(result, id) {
			delete(db.running, id)
		}
	}
	least = result.SnapshotXmax
	for _, id := range result.RunningTxs {
		since, ok := db.running[id]
		if !ok {
			since = db.now
			db.running[id] = since
		}
		if !db.watched[id] && db.now.Sub(since) >= watchAfter && len(db.watched) < db.maxWatched {
			db.watched[id] = true
			watch = append(watch, id)
		}
		if !db.watched[id] {
			least = min(least, id)
		}
	}
	return watch, least
}

// unsettled reports whether a transaction is open that may show more.
func (db *database) unsettled() bool { return len(db.running)+len(db.watched) > 0 }

// unwatch returns the watched transactions that have ended, and watches them no longer.
func (db *database) unwatch(result *core.ReadResult) (ended []int64) {
	for id := range db.watched {
		if hasEnded(result, id) {
			delete(db.watched, id)
			ended = append(ended, id)
		}
	}
	slices.Sort(ended)
	return ended
}

// hasEnded reports whether a read result says that a transaction has ended.
func hasEnded(result *core.ReadResult, id int64) bool {
	return id < result.SnapshotXmax && !slices.Contains(result.RunningTxs, id)
}

// visible takes in the transactions that a read could not show. It returns the sequence, and the number of a notice, up
// to which everything is visible, watched transactions apart: both are of the latest horizon whose transactions, those
// below its upper, have all ended. Transactions with an id below least do not hold it back.
func (db *database) visible(result *core.ReadResult, least int64) (seq, lastNotice int64) {
	if upper := result.LastSeqXmax; upper > 0 {
		// At the bound the newest two become one, with the greater numbers: its records are found visible later
		// than they are.
		if n := len(db.horizons); n >= db.maxHorizons {
			db.horizons[n-1] = horizon{result.LastSeq, result.LastNotice, upper}
		} else {
			db.horizons = append(db.horizons, horizon{result.LastSeq, result.LastNotice, upper})
		}
	}
	n := 0
	for n < len(db.horizons) && db.horizons[n].upper <= least {
		n++
	}
	if n > 0 {
		seq, lastNotice = db.horizons[n-1].last, db.horizons[n-1].lastNotice
		db.horizons = db.horizons[n-1:] // the last resolved one stays: it says what is visible
	}
	return seq, lastNotice
}
