package dispatch

import (
	"errors"
	"time"

	"github.com/waybill-go/waybill/core"
)

// env is what every part of a Dispatcher may read: its options, the time, its session, and the rules that a test has
// switched off. Only the Dispatcher changes it.
type env struct {
	opts    Options
	now     time.Time
	session core.Session // 0: to join
	off     rule         // rules that a test has switched off
	bounds
}

// bounds are the bounds that no user sets. Tests make them small: a fault at a bound shows at 1 as at 100,000.
type bounds struct {
	keyDepth, queueDepth        int
	keyReads, askMost, maxLeave int
	waitingPage, againPage      int
	maxTake, dueLimit           int
	firstWindow                 int
	maxWatched, maxHorizons     int
	passSlack, takeStep         int64
	maxPassed                   int
}

// usual are the bounds in production.
var usual = bounds{
	keyDepth: keyDepth, queueDepth: queueDepth, keyReads: keyReads, askMost: askMost, maxLeave: maxLeave, waitingPage: waitingPage, againPage: againPage,
	maxTake: maxTake, dueLimit: dueLimit, firstWindow: firstWindow, maxWatched: maxWatched, maxHorizons: maxHorizons,
	passSlack: passSlack, takeStep: step, maxPassed: maxPassed,
}

// tick takes in the time, which never goes back.
func (e *env) tick(now time.Time) {
	if now.After(e.now) {
		e.now = now
	}
}

// has reports whether a rule is on.
func (e *env) has(r rule) bool { return e.off&r == 0 }

// rule is one of the rules that keep the promises; a test switches each off, to see that it is needed.
type rule uint64

const (
	ruleLoadHeld    rule = 1 << iota // a new unit's waiting records come first
	ruleHint                         // a unit's hint is below all that may still appear
	ruleUpper                        // what may be running goes up to a transaction id drawn after the snapshot
	ruleHazardKeys                   // a page of a key behind a walk is discarded
	rulePassHazard                   // keyed records behind a walk are read by key
	ruleRecent                       // a record that was settled after a read was sent is not taken from the read
	ruleForeignHold                  // a record that another session holds is not handed out
	ruleRestore                      // a database that went back ends the session
	ruleTakeLocked                   // a locked record holds its key
	ruleControl                      // control records are carried out
	ruleTwoRetries                   // of several retries of a key the first goes first
	ruleUnitFence                    // a unit with another owner is dropped
	ruleLoadOut                      // records that others have out come with a unit
	ruleGapped                       // a late member removes nobody
	ruleUnstored                     // a key goes on when the end of a record is stored
	ruleAgain                        // records that another session held are read again
	ruleDeadline                     // nothing is handed out after the deadline
	rulePresence                     // a flagged member starts nothing
	ruleLower                        // a hint is lowered before a control record is deleted
	ruleTheirs                       // control records of a unit that is given up belong to its next owner
	ruleSweep                        // sweeps find forgotten records; nothing else should rely on them
)

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
