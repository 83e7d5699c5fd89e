package consumer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
)

// The rules of a limit over all processes are functions of the stored state, a question and the limiter's clock. So
// each limiter follows the same rules, and stores only a text. There are two parts:
//
//   part        | the state               | a permit is
//   ------------|-------------------------|---------------------------------------------------------------
//   rate        | the next free place     | a place that is free within hold from now; an unused one is lost
//   concurrency | the slots of each       | a slot, until the lease of its process ends; the quotas say how
//               | process, with a lease   | many slots a process may have while others want some

const (
	// limitLease is how long a process keeps its slots without a word.
	limitLease = 15 * time.Second
	// waiterLease is how long one that has none is waited for. It asks more often than that.
	waiterLease = 2 * time.Second
	// limitTurn is how long a process may keep a slot while there are more processes than slots.
	limitTurn = 5 * time.Second
	// maxHold is the longest time between a permit to begin and the beginning.
	maxHold = time.Second
	// maxHolders bounds the processes that share a limit.
	maxHolders = 1000
)

// limitState is what a limiter stores of one [waybill.SharedLimit]. Times are those of its clock, in microseconds since
// 1970. The methods decide who may begin what; they have no side effects.
type limitState struct {
	// Next is the next free place of the rate.
	Next int64 `json:"next,omitempty"`
	// Holders are the processes that have slots or wait for some.
	Holders map[string]limitHolder `json:"holders,omitempty"`
}

type limitHolder struct {
	Slots int   `json:"slots"` // it has so many
	Wants int   `json:"wants"` // it has use for so many
	Since int64 `json:"since"` // it has some, or none, since then
	Until int64 `json:"until"` // the end of its lease
}

// limitAsk is what a process asks for.
type limitAsk struct {
	id     string // of the process
	starts int    // how many messages it has use to begin, within hold from now
	hold   time.Duration
	busy   int // how many of its handlers run
	wants  int // how many could
}

// limitGrant is the answer.
type limitGrant struct {
	starts int           // so many messages may begin
	wait   time.Duration // until the next one may
	slots  int           // so many handlers may run; those that do not fit any more end by themselves
	held   int           // so many slots are this process's until it asks again
}

// decode reads a state. Only this package writes one.
func (s *limitState) decode(text string) error {
	*s = limitState{}
	if text != "" {
		if err := json.Unmarshal([]byte(text), s); err != nil {
			return fmt.Errorf("%w: its state in the limiter cannot be read: delete it, and the limit begins anew (%w)", waybill.ErrMisconfigured, err)
		}
	}
	if s.Holders == nil {
		s.Holders = map[string]limitHolder{}
	}
	return nil
}

func (s *limitState) encode() string {
	text, _ := json.Marshal(s) // numbers and strings
	return string(text)
}

// ask answers a at the time now and changes the state accordingly.
func (s *limitState) ask(l *waybill.SharedLimit, a *limitAsk, now time.Time) (g limitGrant) {
	wanted := a.starts
	if l.Concurrency > 0 {
		g.slots, g.held = s.quota(l.Concurrency, a, now.UnixMicro())
		if g.slots <= a.busy {
			wanted = 0 // without a slot it would lapse
		}
	}
	if l.Rate > 0 {
		g.starts, g.wait = s.begin(newPace(l.Rate, l.Burst), wanted, a.hold, now)
	}
	return g
}

// begin takes places of the rate. A permit is used at some time within hold from now: it takes the place that is free
// at the latest of these times, and must have one at the earliest. So the rate holds whenever the permits are used.
func (s *limitState) begin(p pace, wanted int, hold time.Duration, now time.Time) (n int, wait time.Duration) {
	next := time.UnixMicro(s.Next)
	// Further ahead than a decision can make it: the clock went back, or the limit was another one.
	if farthest := now.Add(max(p.slack, maxHold) + p.gap); next.After(farthest) {
		next = farthest
	}
	for n < wanted && p.wait(now, next) == 0 {
		next = p.take(now, next, hold)
		n++
	}
	s.Next = next.Add(time.Microsecond - 1).UnixMicro() // rounded up
	return n, p.wait(now, next)
}

// quota decides how many slots the process has. It keeps those in which handlers run.
func (s *limitState) quota(limit int, a *limitAsk, now int64) (slots, held int) {
	maps.DeleteFunc(s.Holders, func(_ string, h limitHolder) bool {
		return h.Until <= now || h.Until > now+limitLease.Microseconds() // a clock that went back
	})
	me, known := s.Holders[a.id]
	if a.busy == 0 && a.wants == 0 || !known && len(s.Holders) >= maxHolders {
		delete(s.Holders, a.id)
		return 0, 0
	}
	if !known {
		me.Since = now
	}
	me.Wants = a.wants
	s.Holders[a.id] = me
	quotas := s.quotas(limit, now)
	free, lacking := limit, 0 // lacking is what others lack of their quotas
	for id, h := range s.Holders {
		if id != a.id {
			free -= h.Slots
			lacking += max(min(h.Wants, quotas[id])-h.Slots, 0)
		}
	}
	// It gets its quota, and beyond that the free slots that others do not lack. It never gets more than are free.
	slots = min(a.wants, max(free, 0), max(quotas[a.id], free-lacking))
	slots = max(slots, 0)
	// Running handlers keep their slots, although the answer says that fewer may run: those end by themselves.
	held = max(slots, a.busy)
	if (me.Slots > 0) != (held > 0) {
		me.Since = now
	}
	me.Slots, me.Until = held, now+limitLease.Microseconds()
	if held == 0 {
		me.Until = now + waiterLease.Microseconds()
	}
	s.Holders[a.id] = me
	return slots, held
}

// quotas divides the slots evenly among the processes. What cannot be divided goes to those in their turn first, then
// to those that wait, the longest first, and then to those whose turn is over.
func (s *limitState) quotas(limit int, now int64) map[string]int {
	class := func(h limitHolder) int {
		switch {
		case h.Slots == 0:
			return 1
		case h.Since > now-limitTurn.Microseconds():
			return 0
		}
		return 2
	}
	ids := slices.SortedFunc(maps.Keys(s.Holders), func(x, y string) int {
		h, k := s.Holders[x], s.Holders[y]
		return cmp.Or(class(h)-class(k), cmp.Compare(h.Since, k.Since), cmp.Compare(x, y))
	})
	quotas := make(map[string]int, len(ids))
	for i, id := range ids {
		quotas[id] = limit / len(ids)
		if i < limit%len(ids) {
			quotas[id]++
		}
	}
	return quotas
}
