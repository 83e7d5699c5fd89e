package consumer

import (
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Quick handlers must not wait for round trips, so a subscription holds more messages than its handlers work on. Slow
// handlers must not keep messages from processes that are free, so it does not hold many more. No fixed number does
// both. So a subscription without a Prefetch adapts. It begins with one message for each handler. Besides, it holds as
// many as its handlers settle in a tenth of a second: then a message waits about that long here, as long as the
// handlers keep their pace. If they become slow at once, the waiting messages go back, and other processes can have
// them.
//
// Two kinds of messages stay. A release could let later messages of a key pass. And a broker with one count for
// attempts and deliveries charges a release to the message. Such a message waits as many tenths of a second as the
// handlers have become slower.

const (
	// holdTime: the messages that a subscription holds besides those of its handlers are what these settle in it.
	holdTime = 100 * time.Millisecond
	// sampleTime is the least time over which that is counted.
	sampleTime = 20 * time.Millisecond
	// mostAdapted bounds the number. Batch handlers can have more: two full batches each.
	mostAdapted = 1000
	// mostHeldBytes bounds the bodies, and mostReceivedBytes those that come together: they can be larger than any
	// before.
	mostHeldBytes     = 64 << 20
	mostReceivedBytes = mostHeldBytes / 4
	// firstAsk bounds the messages that are asked for before one has come, and shown how large they are.
	firstAsk = 64
	// lookEvery is how often a subscription that holds more than the least looks whether its handlers keep their
	// pace. They do not if what waits will wait for longer than holdTime at so many looks in a row.
	lookEvery  = holdTime / slowLooks
	slowLooks  = 4
	idleLooks  = 40          // so many looks with nothing to do make it forget the pace
	flowLowers = time.Second // how long a broker sends ahead what it was told, before it is told a quarter of it
)

// adaptive is how a subscription without a Prefetch holds messages. The runner's mu guards it.
type adaptive struct {
	few   int  // one for each handler
	least int  // a batch for each handler
	most  int  // 0 = nothing adapts
	keeps bool // a release is charged to the message

	unset       bool  // nobody set Prefetch
	bytes       int64 // how many bytes of bodies may be held; 0 = any number
	body        int64 // the largest of the latest bodies, about; 0 = none has come
	redelivered int   // held messages that came before, and may have ended their process

	since   time.Time // of the present sample
	settled int       // in it

	looks  *time.Timer // nil = there is none under way
	pace   int         // settled since the latest look
	slow   int         // looks in a row that found the handlers slow
	idle   int         // and that found nothing to do
	goBack bool        // what waits is to go back
	why    string      // the latest cause of the number, for Health
}

// holding says how a completed subscription holds messages.
type holding struct {
	unset bool // nobody set Prefetch
	least int  // 0 = it does not adapt
}

// begin readies l for a run of reg.
func (l *load) begin(reg *registration, traits *core.SubscriberTraits) {
	l.prefetch, l.kept = reg.sub.Prefetch, newKept(traits)
	l.few, l.keeps = reg.sub.Concurrency, traits.AttemptsAreDeliveries
	l.blames.longest = longestAway(reg.asked.RetryDelays, traits)
	l.bytes, l.unset = mostHeldBytes, reg.holding.unset
	if reg.holding.least > 0 {
		l.least, l.most = reg.holding.least, reg.sub.Prefetch
		l.restart(time.Now())
	}
}

// sendsAhead looks whether rcv does. A subscription that keeps the order cannot tell a broker another number. So it
// holds no more than that: a batch would wait in vain.
func (r *runner) sendsAhead(rcv core.Receiver) {
	if _, sends := core.As[core.Pauser](rcv); !sends || !r.sub.InOrder {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.load.prefetch = r.source.asked.Prefetch
}

// restart has l adapt from the least on.
func (l *load) restart(now time.Time) {
	l.prefetch, l.since, l.settled = l.least, now, 0
}

// stuck returns how many held deliveries wait for their key, or for the lock of another program.
func (b *batching) stuck() int { return b.behind + b.load.locked }

// bound returns how many deliveries may be held, of which so many are stuck. Those do not count, up to one for each
// handler, so that they keep no handler idle.
func (l *load) bound(stuck int) int {
	switch {
	case l.most == 0:
		return l.prefetch
	case l.redelivered > 0:
		return l.few + min(stuck, l.few) // if one of them ends the process, that counts against all
	}
	return l.prefetch + min(stuck, l.few)
}

// fit returns how many of n more messages fit into the bytes that may be held. One always does if nothing else is here.
func (l *load) fit(n int) int {
	switch {
	case l.bytes == 0, l.body == 0 && !l.unset:
		return n
	case l.body == 0:
		return min(n, firstAsk)
	}
	fits := int((l.bytes - l.heldBytes) / l.body)
	if l.held == l.locked {
		fits = max(fits, 1)
	}
	return min(n, fits)
}

// free returns how many more deliveries may be asked for.
func (b *batching) free() int {
	l := &b.load
	return max(l.fit(l.bound(b.stuck())-l.held), 0)
}

// came notes messages that are held now.
func (l *load) came(messages []message) {
	l.held += len(messages)
	for i := range messages {
		m := &messages[i]
		m.bytes = int64(len(m.d.Envelope.Body))
		l.heldBytes += m.bytes
		l.body = max(m.bytes, l.body-(l.body-m.bytes)/64, 1)
		if m.again = m.d.Redeliveries > 0; m.again {
			l.redelivered++
		}
	}
}

// left notes that m is not held any more.
func (l *load) left(m *message) {
	l.held--
	l.heldBytes -= m.bytes
	if m.locked {
		l.locked--
	}
	if m.again {
		if l.redelivered--; l.redelivered == 0 && l.most > 0 {
			l.restart(time.Now()) // the next ones can be such, too
		}
	}
}

// adapt notes that n more are settled, and adapts the number to the rate. mu is held.
func (r *runner) adapt(n int, now time.Time) {
	l := &r.load
	l.settled += n
	l.pace += n
	took := now.Sub(l.since)
	if l.most == 0 || took < sampleTime {
		return
	}
	more := int(float64(l.settled) * float64(holdTime) / float64(took))
	if 2*more < 3*l.least {
		more = 0 // a round trip is short beside two thirds of holdTime, and they can settle in step
	}
	l.prefetch = max(min(l.least+more, l.most), l.prefetch/2, l.least) // one sample can be too low
	l.since, l.settled = now, 0
	r.tellPrefetch()
	if l.prefetch > l.least {
		l.why = fmt.Sprintf("what handlers settle in %s", holdTime)
		if l.looks == nil && !r.stopping {
			l.pace, l.slow, l.idle = 0, 0, 0
			l.looks = time.AfterFunc(lookEvery, r.look)
		}
	}
}

// look finds out whether the handlers keep their pace. It looks again for as long as more than the least is held. If
// they were slow at slowLooks looks in a row, or there was nothing to do at idleLooks, the number begins anew from the
// least. If they were slow, the waiting messages go back, too.
func (r *runner) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := &r.load
	busy := r.running >= r.limit || r.gate != nil && r.gate.blocked
	// At this pace the messages that are ready would wait for longer than holdTime, which is slowLooks looks.
	slow := busy && l.pace*slowLooks < r.ready.len()
	l.slow = countIf(slow, l.slow)
	l.idle = countIf(l.held == 0, l.idle)
	l.pace = 0
	switch {
	case r.stopping:
		return
	case l.slow >= slowLooks:
		l.why = fmt.Sprintf("handlers did not begin what waited within %s", holdTime)
		l.goBack = true
	case l.idle >= idleLooks:
		l.why = "there was nothing to do"
	case l.prefetch > l.least || l.held > l.least:
		l.looks.Reset(lookEvery)
		return
	default:
		l.looks = nil
		return
	}
	l.looks = nil
	l.restart(time.Now())
	r.tellPrefetch()
	r.flow.end() // the Receive in progress has asked for more than that
	r.bell.ring()
}

// endLooks ends the looks.
func (l *load) endLooks() {
	if l.looks != nil {
		l.looks.Stop()
		l.looks = nil
	}
}

// countIf counts the times in a row that yes is true.
func countIf(yes bool, n int) int {
	if yes {
		return n + 1
	}
	return 0
}

// giveBackWaiting releases what waits and is more than the least. No Receive is in progress, and the broker has been
// told to send less: else it would come here again. The newest go: they would wait for longest.
func (r *runner) giveBackWaiting() {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := &r.load
	back := l.goBack && !l.keeps && r.pause.state == open && len(r.suspects) == 0
	l.goBack = false
	if !back {
		return
	}
	all := r.newest(l.held - l.unsettled - l.bound(r.behind))
	r.tel.count(r.settleCtx, r.tel.givenBack, len(all))
	r.release(all)
}

// tellPrefetch records the number for the metrics. mu is held, or r is not shared yet.
func (r *runner) tellPrefetch() {
	r.tel.prefetch.Record(r.settleCtx, int64(r.load.prefetch), r.tel.gauge...)
}

// newest takes out up to n messages that are ready and have no key, the newest ones, and returns them in the order of
// arrival.
func (s *schedule) newest(n int) []*message {
	var all []*message
	list := s.ready.list
	for at := len(list) - 1; at >= s.ready.head && len(all) < n; at-- {
		if m := list[at]; m != nil && m.key() == "" {
			all = append(all, m)
			m.h.waiting--
			s.ready.remove(at)
		}
	}
	slices.Reverse(all)
	return all
}

// stays returns the number of deliveries that are here, without those that a settle is about to end. Each takes a place
// among the messages that the broker may send ahead.
func (l *load) stays() int { return l.held - l.unsettled + l.locked }

// ahead returns how many messages the broker may send ahead; s holds the number that it was told. It is told seldom: at
// twice as many, or at a quarter. While a message probes, the broker may send that one beside those that stay here. mu
// is held.
func (r *runner) ahead(s *session) int {
	l := &r.load
	want := l.bound(r.stuck())
	switch {
	case r.pause.state == probing:
		return l.stays() + 1
	case l.bytes > 0 && l.body == 0:
		return r.source.asked.Prefetch // their sizes are not known yet
	case l.most == 0:
		return want
	case l.redelivered > 0 && s.flow > 0 && !l.goBack:
		return max(s.flow, want) // what was sent is here: a smaller number would help nobody
	}
	n := l.few
	for n < want {
		n *= 2
	}
	if n = min(n, l.most); n > s.flow || l.goBack || s.flow >= 4*n && time.Since(s.flowSince) >= flowLowers {
		return n
	}
	return s.flow
}

// holds says, for Health, how many deliveries are held, and why no more. mu is held.
func (r *runner) holds() string {
	l := &r.load
	text := fmt.Sprintf("%d deliveries held", l.held)
	if l.most == 0 {
		return text
	}
	why := l.why
	switch {
	case l.redelivered > 0:
		why = "some came again after a process had ended"
	case l.body > 0 && l.fit(1) < 1:
		why = "their bodies fill " + sizeText(l.bytes)
	}
	if why != "" {
		why = ": " + why
	}
	return fmt.Sprintf("%s of at most %d%s", text, l.bound(r.stuck()), why)
}

func sizeText(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }

// adapts reports whether a subscription without a Prefetch adapts. One that keeps the order does not: later messages
// would pass those that it gives back. One with a limit of groups does not: its messages wait for their groups, and not
// because handlers are too slow.
func adapts(sub *waybill.Subscription) bool {
	return !sub.InOrder && sub.PerGroup.Rate == 0 && sub.PerGroup.Concurrency == 0
}
