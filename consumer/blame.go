package consumer

import (
	"cmp"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// An outage can be the fault of one message: its handler calls an address that stands in it, say. Such a message must
// not stop the others. Most brokers deliver a released message before all others, so a few bad ones at the head of a
// queue would be the only ones that probe. The consumer holds none of them. It sends them away: a message that is away
// is the broker's, and comes again after a delay as the same attempt (core.Ack.WithoutAttempt). The table says which go
// away.
//
//	a message                                   | is away for
//	--------------------------------------------|----------------------------------------------------------
//	fails as a probe, and has failed before     | the pause that begins
//	could probe, and was away before            | Pause.Base for each message that is to blame; once between
//	                                            | two probes
//	fails, and one that began later was handled | a pause of its own; it begins no pause of the subscription,
//	                                            | and is parked after Options.OutageLimit
//	comes before its own pause is over          | the rest of it
//
// Each is away for a minute at most (awayFor), and then comes or goes away again. Behind k messages that always fail
// the next one is handled after two probes for each of them: a message that is away lets others probe, also on brokers
// that deliver a message that is due before new ones. In an outage of all messages the one that comes a second time
// between two probes probes. So as long as messages come, there is a probe after each pause.
//
// With InOrder every message stays where it is. Without DelaysRetries none is away, and each outage is one of all
// messages. A broker with one count (AttemptsAreDeliveries) charges each delivery to its message. So a message that
// comes is handled, and is away for as long as the pauses of all that are to blame, or as long as it meets outages by
// itself, up to maxOwnPause.

const (
	// maxBlames bounds the messages that are remembered.
	maxBlames = 1000
	// awayFor bounds how long the broker has a message that is away. So each is handled that soon after an outage.
	awayFor = time.Minute
	// maxOwnPause bounds the pause of one message alone.
	maxOwnPause = 10 * time.Minute
	// toldFor is how long a message alone counts after its pause is over.
	toldFor = 5 * time.Minute
)

// identity is what tells messages apart.
type identity struct{ source, id string }

func identityOf(m *message) identity { return identity{m.d.Envelope.Source, m.d.Envelope.ID} }

// blame is what is known of a message that has met an outage, since it was last handled.
type blame struct {
	since  time.Time // its first outage
	at     uint64    // the number of its latest one
	alone  int       // how many since it is known that others do not meet them
	away   bool      // it was away in the pause of the subscription
	passed uint64    // the number of outages when it last let another one probe
	due    time.Time // the end of its own pause
}

// blames are the messages that are to blame for outages, as far as one can tell. The runner's mu guards them, but for
// outages.
type blames struct {
	outages atomic.Uint64 // how many there were
	of      map[identity]*blame
	well    uint64        // the greatest begun of a message that met no outage
	cause   string        // the latest outage of one message alone
	longest time.Duration // that a message is away
	trip    time.Duration // of the latest settles: about how long the broker takes
}

// settled notes that the broker took so long for a settle. One that took very long counts little.
func (a *blames) settled(took time.Duration) {
	if a.trip == 0 {
		a.trip = took
	}
	a.trip = min(took, 2*a.trip)
}

// outage is what the runner must know of an outage.
type outage struct {
	again bool // the message has met one before
	alone int  // it is the message's own, since others that began later were handled: which one in a row
}

// met notes that m met an outage. It is the message's own if another one that began after m's latest outage was handled
// (well), or if that was known before.
func (a *blames) met(m *message) (o outage, since time.Time) {
	id, at := identityOf(m), a.outages.Add(1)
	b := a.of[id]
	if b == nil {
		if a.of == nil {
			a.of = map[identity]*blame{}
		}
		for old := range a.of { // any of them: who floods the queue must not fill the memory
			if len(a.of) < maxBlames {
				break
			}
			delete(a.of, old)
		}
		b = &blame{since: time.Now(), at: at}
		a.of[id] = b
		return outage{}, b.since
	}
	if b.alone > 0 || a.well >= b.at {
		b.alone++
	}
	b.at = at
	return outage{again: true, alone: b.alone}, b.since
}

// handled notes that m met no outage.
func (a *blames) handled(m *message) {
	if a.well = max(a.well, m.begun); len(a.of) > 0 {
		delete(a.of, identityOf(m))
	}
}

// find returns the blame of m; nil if m has met no outage since it was last handled.
func (a *blames) find(m *message) *blame {
	if len(a.of) == 0 {
		return nil
	}
	return a.of[identityOf(m)]
}

// alone returns how many messages besides one meet outages alone, and are away, or were due a short time ago: they wait
// for a handler, or another process has them.
func (a *blames) alone(besides identity) (n int) {
	due := time.Now().Add(-toldFor)
	for id, b := range a.of {
		if id != besides && b.alone > 0 && !b.due.Before(due) {
			n++
		}
	}
	return n
}

// blame completes the verdict about m, which met an outage by itself: it is parked if that is so for too long.
func (r *runner) blame(m *message, v *verdict) {
	if !v.outage {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var since time.Time
	v.of, since = r.load.blames.met(m)
	limit := r.opts.OutageLimit
	if v.of.alone == 0 || limit < 0 || time.Since(since) < limit || r.pause.state != open {
		return
	}
	*v = r.judge.park(m.d, cmp.Or(waybill.ReasonOf(v.err), waybill.ReasonDeliveries), fmt.Errorf("it has met outages for %s, while other messages of the queue "+
		"were handled: %w", time.Since(since).Round(time.Second), v.err))
	delete(r.load.blames.of, identityOf(m))
}

// blameAll notes that a batch met an outage, which can be the fault of any of its messages.
func (r *runner) blameAll(ms []*message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range ms {
		if r.load.blames.find(m) == nil {
			r.load.blames.met(m)
		}
	}
}

// longestAway returns the longest time that a message is away. A transport with fixed delays rounds up, so that is one
// of them, and no longer than awayFor. One with one count can have any delay.
func longestAway(delays []time.Duration, traits *core.SubscriberTraits) time.Duration {
	if traits.AttemptsAreDeliveries {
		return maxOwnPause
	}
	longest := awayFor
	for _, d := range delays {
		if d <= awayFor {
			longest = d
		}
	}
	if most := traits.MaxRetryDelay; most > 0 {
		longest = min(longest, most)
	}
	return longest
}

// goesAway decides whether m, which met an outage, goes away instead of back. mu is held.
func (r *runner) goesAway(m *message, v *verdict) bool {
	switch {
	case !v.outage || v.inPlace || r.stopping:
		return false
	case !r.judge.traits.DelaysRetries:
		v.of.alone = 0 // it would come again at once
		return false
	}
	return v.of.alone > 0 || v.of.again && r.pause.probe == m
}

// sendAway sends m, which met an outage, away. The pause that it began, if it did, has begun. mu is held.
func (r *runner) sendAway(m *message, v *verdict) {
	delay := r.pause.delay
	if r.load.keeps {
		delay *= time.Duration(len(r.load.blames.of) + 1)
	}
	if v.of.alone > 0 {
		delay = r.ownPause(m, v)
		r.load.blames.cause = core.ErrorText(v.err)
	}
	if b := r.load.blames.find(m); b != nil {
		b.away = v.of.alone == 0
		if r.load.keeps && !b.away {
			delay = max(delay, time.Since(b.since))
		}
		if !b.away {
			b.due = time.Now().Add(delay)
		}
	}
	r.settleLater(m, delay)
}

// ownPause returns the pause of a message that meets outages alone. Such messages take half of one handler's time
// together, at most, unless they are too many for maxOwnPause. The time to settle one counts, too: a broker that
// delivers first what is due would else deliver nothing else, once all of them take longer to come than their pauses.
func (r *runner) ownPause(m *message, v *verdict) time.Duration {
	all := r.load.blames.alone(identityOf(m)) + 1
	return max(r.pauseDelay(v.of.alone), min(time.Duration(2*all)*(v.took+r.load.blames.trip), maxOwnPause))
}

// settleLater has m come again after delay, or the longest time if that is less. mu is held.
func (r *runner) settleLater(m *message, delay time.Duration) {
	r.settle(m, core.AckRetry(m.d, min(delay, r.load.blames.longest), nil).WithoutAttempt())
}

// passes returns for how long m, which has come, is away again instead of being handled; 0 = it is handled. mu is held.
func (r *runner) passes(m *message) time.Duration {
	a, p := &r.load.blames, &r.pause
	b := a.find(m)
	if b == nil || r.sub.InOrder || r.load.keeps || !r.judge.traits.DelaysRetries {
		return 0
	}
	if rest := time.Until(b.due); rest > 0 {
		return rest
	}
	if outages := a.outages.Load(); (b.away || b.alone > 0) && p.state == probing && b.passed != outages {
		b.passed = outages
		return time.Duration(len(a.of)) * r.opts.Pause.Base
	}
	return 0
}
