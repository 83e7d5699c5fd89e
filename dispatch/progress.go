package dispatch

import (
	"math"
	"slices"
	"time"

	"github.com/waybill-go/waybill/core"
)

// A Hold of the next records without a key begins behind those that are gone. Otherwise it would go over all that was
// deleted since the oldest snapshot in the database, each time. So a member remembers how far it has come. Up to there
// each record without a key is gone, waits for a time, is in memory, or is in passed. Such a record comes back in one
// of these ways:
//
//   - A transaction that shows it commits late. The front stays behind what may still appear. A transaction that runs
//     for long is watched, and a walk follows when it ends.
//   - Another member releases it, or a transaction unlocks it. It was met and not taken, so that each Hold asks for it.
//   - Another member dies or leaves, which had heard of it from an operator: a walk over all.
//   - This member gives it back, or forgets it: each Hold asks for it.
//   - An operator has put it back, and tells the owner of its slot. If the slot gets another owner, a walk over all.

const (
	// passSlack is how many numbers may be between the first record that others hold and the end of a Hold. Up to
	// there the next Hold begins at it. Beyond that, records that others hold are passed.
	passSlack = 1000
	// maxPassed bounds the records that were met and not taken. Beyond it the front stays where it is.
	maxPassed = 1000
	// holdSteps is the number of Holds that go over numbers that were never met, and over a walk.
	holdSteps = 16
	// holdSweepEvery is how often a walk goes over all numbers.
	holdSweepEvery = 10 * time.Minute
	// partitionSweepPause is the least pause between two walks over all for partitions that come. Those of busy
	// members come often.
	partitionSweepPause = time.Minute
)

// progress is the memory of a member about the records without a key: how far its Holds have come.
type progress struct {
	front   int64           // everything up to it was met
	passed  map[int64]bool  // met and not taken, or given back; true = the Hold under way asks for it
	visible int64           // transactions may not show anything up to it any more, the watched ones apart
	watch   map[int64]int64 // by watched transaction: its records have greater sequences
	walk    span            // the walk under way; each second Hold goes on with it
	moves   bool            // the walk got on in its latest Hold
	news    int64           // the least number from which on a walk was asked for since the Hold under way was sent
	// The Hold under way goes on with the walk; it passes records that others hold; sent: the visible number when
	// it was sent.
	walks, passes bool
	sent          int64
	stuck         bool      // the next Hold passes what others hold
	fails         int       // grows with each Hold without an answer, falls with each answer; halves the range
	sweepAt       time.Time // when a walk goes over all numbers without a reason
	allAt         time.Time // when to walk over all for a partition that came; zero = none came
}

// span are the numbers that a walk has before it: from < number ≤ to.
type span struct{ from, to int64 }

func newProgress() progress {
	return progress{passed: map[int64]bool{}, watch: map[int64]int64{}, news: math.MaxInt64}
}

// pass has each Hold ask for a record, until it is gone or taken.
func (m *progress) pass(seq int64) { m.passed[seq] = false }

// back has a walk go over the numbers behind a sequence once more.
func (m *progress) back(seq int64) {
	m.news = min(m.news, seq)
	if seq >= m.front {
		return
	}
	if m.walk.from >= m.walk.to {
		m.walk = span{seq, m.front}
	}
	m.walk, m.moves = span{min(m.walk.from, seq), max(m.walk.to, m.front)}, true
}

// partitionCame has a walk over all follow: the former owner can have heard of records from operators that it did not
// take.
func (m *progress) partitionCame(now time.Time) {
	m.allAt = earliest(m.allAt, later(now, m.sweepAt.Add(partitionSweepPause-holdSweepEvery)))
}

// holdScope sets the numbers that the next Hold goes over: the ones behind the front, or every second time the next
// ones of the walk.
func (rt *route) holdScope(s *core.HoldRequest) {
	m := &rt.queue.progress
	if by := m.allAt; !by.IsZero() && !rt.now.Before(by) || !rt.noSweeps && !rt.now.Before(m.sweepAt) {
		m.back(0)
		m.allAt, m.sweepAt = time.Time{}, rt.now.Add(holdSweepEvery)
	}
	m.sent, m.news = m.visible, math.MaxInt64
	// Every second Hold goes on with the walk, so that neither waits for the other.
	m.walks = m.walk.from < m.walk.to && !m.walks
	room := max(rt.maxPassed-len(m.passed), 0)
	m.passes = m.stuck && room > 0
	// A Hold that passes nothing hears only of the first record that others hold: the front stops before that.
	s.AfterSeq, s.UpToSeq, s.SkippedLimit = m.front, math.MaxInt64, 1
	end := m.sent
	if m.walks {
		s.AfterSeq, s.UpToSeq, end = m.walk.from, m.walk.to, m.walk.to
	}
	// Numbers that were never met go in steps: a sixteenth of them, but not less than a step; fewer after Holds
	// without an answer.
	if at := s.AfterSeq + max(rt.holdStep>>m.fails, (end-s.AfterSeq)/(holdSteps<<m.fails)); at < end && (m.passes || !m.stuck) {
		s.UpToSeq = at
	}
	if m.passes {
		s.SkippedLimit = room
	}
	s.ExtraSeqs = sortedSeqs(m.passed)
	for _, seq := range s.ExtraSeqs {
		m.passed[seq] = true
	}
}

// noteProgress takes in the records that a Hold has met, full if there may be more to be taken. One that is full has
// come as far as the greatest record that it took. Those before it are in the answer, also if a lost Hold had held that
// one. It reports whether numbers are left that were not gone over. Records that were met and not held stop the front
// before the first of them, unless the Hold was one that passes them (passes): then the next Holds ask for them by
// number.
func (rt *route) noteProgress(s *core.HoldRequest, got []core.HoldResult, full bool) (more bool) {
	m := &rt.queue.progress
	m.fails = max(m.fails-1, 0)
	// seen is how far the Hold has gone over the numbers. skipped are the records on the way that it met and did
	// not hold.
	seen := s.AfterSeq
	var skipped []int64
	for i := range got {
		switch seq := got[i].Ref.Seq; {
		case got[i].Record != nil:
			seen = max(seen, min(seq, s.UpToSeq))
		case m.passed[seq]:
			m.passed[seq] = false
		case seq > s.AfterSeq:
			skipped = append(skipped, seq)
		}
	}
	for seq, asked := range m.passed {
		if asked {
			delete(m.passed, seq) // it is gone, or taken
		}
	}
	if !full {
		seen = s.UpToSeq
	}
	// Beyond what was visible when the Hold was sent, a record can still appear.
	if !m.walks {
		seen = max(min(seen, m.sent), s.AfterSeq)
	}
	// at is how far the next Hold need not look.
	at := seen
	switch {
	case len(skipped) == 0:
	case m.passes: // the skipped records are asked for by number from now on
		if len(skipped) >= s.SkippedLimit { // the store has told of no more than that
			at = min(at, skipped[len(skipped)-1])
		}
		for _, seq := range skipped {
			if seq <= at {
				m.passed[seq] = false
			}
		}
	default: // the next Hold begins at the first of them
		at = min(at, skipped[0]-1)
	}
	// Records that others hold keep the front back. Unless the end of all numbers is near, the next Hold passes
	// them.
	m.stuck = at < seen && (s.UpToSeq < math.MaxInt64 || seen-at > rt.passSlack)
	moved := at > s.AfterSeq
	switch {
	case !m.walks:
		m.front = max(m.front, at)
	case m.walk.from == s.AfterSeq:
		m.walk.from, m.moves = at, moved
	}
	if m.news < math.MaxInt64 {
		m.back(m.news)
	}
	return m.walks || moved && s.UpToSeq < math.MaxInt64 || m.moves && m.walk.from < m.walk.to
}

// missed notes that a Hold got no answer: the next one goes over less. The records that it has held are behind where it
// began, or in passed: they will be found, also if the Hold is carried out late.
func (m *progress) missed() { m.fails = min(m.fails+1, 10) }

// transactions takes in which transactions are watched from now on, which watched ones have ended, and up to where all
// others are visible.
func (q *queue) transactions(watch, ended []int64, visible int64, now time.Time) {
	m := &q.progress
	for _, id := range watch {
		m.watch[id] = m.visible
	}
	for _, id := range ended {
		if from, ok := m.watch[id]; ok {
			delete(m.watch, id)
			m.back(from)
			q.askNow(now)
		}
	}
	m.visible = max(m.visible, visible)
}

// noteOthers takes in a membership, before it replaces the former one. Records that a dead member had heard of from
// operators, and taken, can be free again anywhere. Hints tell the visible number also to a member that owns and reads
// nothing.
func (d *Dispatcher) noteOthers(membership *core.Membership) {
	for _, m := range d.peers.membership.Members {
		if slices.ContainsFunc(membership.Members, func(o core.Member) bool { return o.Session == m.Session }) {
			continue
		}
		for _, s := range m.Routes {
			rt := d.byName[s.Route]
			if rt == nil {
				continue
			}
			if rt.overdue.all(); rt.Queue {
				rt.queue.progress.back(0)
				rt.queue.askNow(d.now)
			}
		}
	}
	for i := range membership.Partitions {
		if rt := d.byName[membership.Partitions[i].Partition.Route]; rt != nil && rt.Queue && !d.db.wentBack {
			rt.queue.progress.visible = max(rt.queue.progress.visible, membership.Partitions[i].ReadAfter)
		}
	}
}
