package dispatch

import (
	"errors"
	"time"

	"github.com/waybill-go/waybill/core"
)

// env is what every part of a Dispatcher may read: its options, the time, and its session. Only the Dispatcher changes
// it.
type env struct {
	opts    Options
	now     time.Time
	session core.Session // 0: to join
	// gathering: the latest read had records, so that all routes are read again after ReadEvery.
	gathering bool
	// noSweeps is for tests: sweeps find forgotten records, and nothing may rely on them.
	noSweeps bool
	bounds
}

// bounds are the bounds that no user sets. Tests make them small: a fault at a bound shows at 1 as at 100,000. The
// constants that usual names say what each of them bounds.
type bounds struct {
	keyDepth, queueDepth     int
	keyReads, askMost        int
	maxExcluded              int
	waitingPage, recheckPage int
	maxHold, dueLimit        int
	firstCrashWindow         int
	maxWatched, maxHorizons  int
	passSlack, holdStep      int64 // holdStep: how many numbers a Hold goes over at least, if so many are left
	tailPages                int64
	maxPassed                int
	dueMargin, dueLast       time.Duration
	farBack                  [4]time.Duration // by overdue.fails: how far back a Due for all looks; 0 = for all
}

// usual are the bounds in production.
var usual = bounds{
	keyDepth: keyDepth, queueDepth: queueDepth, keyReads: keyReads, askMost: askMost, maxExcluded: maxExcluded, waitingPage: waitingPage, recheckPage: againPage,
	maxHold: maxHold, dueLimit: dueLimit, firstCrashWindow: firstCrashWindow, maxWatched: maxWatched, maxHorizons: maxHorizons,
	tailPages: tailPages, passSlack: passSlack, holdStep: step, maxPassed: maxPassed,
	dueMargin: dueMargin, dueLast: dueLast, farBack: [...]time.Duration{0, 24 * time.Hour, time.Hour, dueMargin},
}

// tick takes in the time, which never goes back.
func (e *env) tick(now time.Time) {
	if now.After(e.now) {
		e.now = now
	}
}

// foreign reports whether a record is held by another session.
func (e *env) foreign(holder core.Session) bool { return holder != 0 && holder != e.session }

func fenced(err error) bool { return errors.Is(err, core.ErrFenced) }

// earliest returns the earlier of two times; zero is never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
