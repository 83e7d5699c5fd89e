package dispatch

import "time"

// self is what the member tells about itself. A beat that the store has answered renews its lease.
type self struct {
	*env
	joined      bool
	beat        int64
	arrived     int64           // the latest beat that the store has answered
	beatSent    time.Time       // when that beat was sent
	beatNow     bool            // the next beat must not wait
	renewedLate bool            // the latest beat came late: it removes nobody
	unavailable map[string]bool // routes that the member cannot serve now

	stopping bool
	quitting bool
	left     bool
}

func newSelf(e *env) self { return self{env: e, unavailable: map[string]bool{}} }

// reset ends the session. It keeps which routes the member can serve, and whether it stops.
func (m *self) reset() {
	m.joined, m.beat, m.arrived, m.beatSent, m.renewedLate = false, 0, 0, time.Time{}, false
}

// deadline returns when the latest lease ends, zero before there was one.
func (m *self) deadline() time.Time {
	if !m.joined {
		return time.Time{}
	}
	return m.beatSent.Add(m.opts.Lease)
}

// renewAt returns when the lease is to be renewed.
func (m *self) renewAt() time.Time { return m.beatSent.Add(m.opts.Lease / 3) }

// nextBeat counts a beat that is about to be sent. A late one removes no member: others may have seen as little of this
// member.
func (m *self) nextBeat() {
	m.renewedLate = m.joined && m.now.Sub(m.beatSent) > m.opts.Lease/2
	m.beat++
}

// Deadline returns when the latest lease ends. No work may be started after it.
func (d *Dispatcher) Deadline() time.Time { return d.self.deadline() }
