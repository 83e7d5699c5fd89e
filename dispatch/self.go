package dispatch

import (
	"time"

	"github.com/waybill-go/waybill/core"
)

// maxGivenUp is how many sessions of its own a member looks for, of those whose Join had no answer. An older one that
// comes late is removed after its lease.
const maxGivenUp = 8

// self is what the member tells about itself. A renewal that the store has answered extends its lease.
type self struct {
	*env
	joined      bool            // a Heartbeat of this session was answered
	heartbeats  int64           // renewals of this session that were sent; grows with each
	arrived     int64           // the number of the latest renewal that the store has answered
	renewalSent time.Time       // when that renewal was sent
	renewNow    bool            // the next renewal must not wait
	renewedLate bool            // the latest renewal came late: it evicts no member
	givenUp     []core.Session  // those whose Join had no answer
	unavailable map[string]bool // routes that the member cannot serve now

	stopping bool // no more is read or handed out; the member leaves when all is settled
	quitting bool // stopping, without waiting for records that are out
	left     bool // the member has left, and makes no more calls
}

func newSelf(e *env) self { return self{env: e, unavailable: map[string]bool{}} }

// reset ends the session. It keeps which sessions were given up, which routes the member can serve, and whether it
// stops.
func (m *self) reset() {
	m.joined, m.heartbeats, m.arrived, m.renewalSent, m.renewedLate = false, 0, 0, time.Time{}, false
}

// deadline returns when the latest lease ends, zero before there was one. It counts from when the renewal was sent: the
// others count from when they saw it, which is later.
func (m *self) deadline() time.Time {
	if !m.joined {
		return time.Time{}
	}
	return m.renewalSent.Add(m.opts.Lease)
}

// renewAt returns when the lease is to be renewed.
func (m *self) renewAt() time.Time { return m.renewalSent.Add(m.opts.Lease / 3) }

// nextRenewal counts a renewal that is about to be sent. A late one evicts no member: others may have seen as little
// of this member.
func (m *self) nextRenewal() {
	m.renewedLate = m.joined && m.now.Sub(m.renewalSent) > m.opts.Lease/2
	m.heartbeats++
}

// Deadline returns when the latest lease ends. No work may be started after it.
func (d *Dispatcher) Deadline() time.Time { return d.self.deadline() }
