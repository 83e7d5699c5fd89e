package dispatch

import (
	"time"

	"github.com/waybill-go/waybill/core"
)

// A member can show a token: something in the database that ends with its connection. When its process is killed,
// the token is gone, and others need not wait for its lease. A member that misses the token reports the owner as
// suspected. It removes the owner if that says nothing for the grace. This is safe for two reasons. The answers to
// Heartbeat and Read show that suspicion. And a member with a token starts no work later than the grace after it sent
// the last of those that was answered: if it was suspected meanwhile, it has stopped.
//
// A lost connection is not a dead process. A member that is suspected, or that lost its connection, renews at once
// without a token. Until it has a new token, only its lease counts. So does a member whose renewal took so long that
// hardly anything of the grace was left: with a token it would start nothing, however slow the store is. It tries again
// soon: its lease can be long.

// grace is how long a member may be suspected and say nothing.
const grace = 500 * time.Millisecond

// slowHeartbeat is how long a Heartbeat may take so that the member shows a token. The rest of the grace is for work.
const slowHeartbeat = grace / 2

// showPause is how long after a slow Heartbeat a member renews that waits to show its token. The pause doubles with
// each slow one that ends such a pause, up to the usual third of the lease, so that a slow store is not loaded more.
const showPause = time.Second

// presence is what the member shows of itself, and which members it misses.
type presence struct {
	*env
	token      int64     // to be shown
	shown      int64     // the token in the store, perhaps; 0: others go by the lease alone
	suspected  bool      // another member misses it
	slow       bool      // the latest Heartbeat took too long to show a token
	showAt     time.Time // when the member renews after a slow Heartbeat, if its token waits to be shown
	showPause  time.Duration
	answered   time.Time // when the latest answered statement was sent that shows that suspicion
	suspicions []core.Suspicion
}

// reset forgets what the session showed. The token stays, and how slow the store is.
func (p *presence) reset() {
	p.shown, p.suspected, p.answered, p.suspicions = 0, false, time.Time{}, nil
}

// note takes in that a call has ended. Only a Heartbeat or a Read that was answered shows that suspicion. A removed
// member's settle is answered, too.
func (p *presence) note(c *Call) {
	if c.err == nil && (c.kind == CallHeartbeat || c.kind == CallRead) {
		p.answered = later(p.answered, c.sent)
	}
	if c.kind == CallHeartbeat {
		p.slow = p.now.Sub(c.sent) >= slowHeartbeat
	}
}

// toShow returns the token to be shown by the next renewal.
func (p *presence) toShow() int64 {
	if p.slow {
		return 0
	}
	return p.token
}

// paceShow schedules the renewal that is to show a token, once a Heartbeat is taken in.
func (p *presence) paceShow() {
	switch {
	case !p.slow && p.shown != 0:
		p.showPause = 0
	case p.slow && !p.now.Before(p.showAt):
		p.showPause = min(max(2*p.showPause, showPause), p.opts.Lease/3)
		p.showAt = p.now.Add(p.showPause)
	}
}

// showDue returns when the member is to renew for its token; zero = no token waits for a store that was slow.
func (p *presence) showDue() time.Time {
	if p.token == 0 || p.shown != 0 {
		return time.Time{}
	}
	return p.showAt
}

// startBy returns until when work may be started, if the lease lasts until deadline.
func (p *presence) startBy(deadline time.Time) time.Time {
	switch {
	case deadline.IsZero() || p.shown == 0:
		return deadline
	case p.suspected:
		return time.Time{}
	}
	if until := p.answered.Add(grace); until.Before(deadline) {
		return until
	}
	return deadline
}

// SetPresence sets the token that shows that the process is there; 0 = none. See [core.Presence].
func (d *Dispatcher) SetPresence(token int64) {
	if token == d.presence.token {
		return
	}
	if d.presence.token != 0 {
		d.peers.doubtTokens()
	}
	d.presence.token, d.self.renewNow = token, true
}

// Presence returns the token that is shown. It is 0 after another member has missed it: take a new one then.
func (d *Dispatcher) Presence() int64 { return d.presence.token }

// StartBy returns until when work may be started: the deadline, or sooner if a member shows a token.
func (d *Dispatcher) StartBy() time.Time { return d.presence.startBy(d.Deadline()) }

// starts reports whether work may be started now.
func (d *Dispatcher) starts() bool { return d.now.Before(d.StartBy()) }

// staleAt returns when the store must be asked before more is handed out; zero = the token does not ask for it.
func (d *Dispatcher) staleAt() time.Time {
	if d.presence.shown == 0 || d.presence.suspected {
		return time.Time{}
	}
	for _, rt := range d.routes {
		if len(rt.ready) > 0 {
			return d.presence.answered.Add(grace)
		}
	}
	return time.Time{}
}

// noteOwn takes in the member's own row in a membership. A renewal with another token has ended the suspicion.
func (d *Dispatcher) noteOwn(token int64, renewed bool, c *Call) {
	if renewed {
		d.presence.shown, d.presence.suspected = token, false
	}
	if m := d.peers.member(d.session); m != nil {
		d.noteSuspected(m.Suspected && m.Presence == d.presence.shown, c)
	}
}

// noteSuspected takes in whether an answer showed that the member is suspected. An answer to a call that was sent
// before the latest answered renewal says nothing: that renewal may have ended the suspicion. The member gives up its
// token, which others miss, and renews without one.
func (d *Dispatcher) noteSuspected(flag bool, c *Call) {
	if !flag || c.sent.Before(d.self.renewalSent) || d.presence.shown == 0 {
		return
	}
	d.presence.suspected, d.presence.token, d.self.renewNow = true, 0, true
	d.peers.doubtTokens()
}

// observeToken takes in whether another member's token is there, and returns whether that member is dead. Only a member
// whose own token is there can tell. Of a token that it has not seen since it took its own anew it cannot tell either.
// A suspected member has the grace to take another token, and again if this member hears nothing meanwhile either.
func (d *Dispatcher) observeToken(m *core.Member, p *peer, shown bool, c *Call) bool {
	if m.Presence != p.token {
		p.token, p.doubtful, p.suspectedSince = m.Presence, false, time.Time{}
	}
	switch {
	// it shows no token: its lease alone counts
	case m.Presence == 0:
	// this member's own token is not there: it cannot tell
	case !shown:
		p.suspectedSince = time.Time{}
	// the token is there
	case !m.PresenceLost:
		p.doubtful, p.suspectedSince = false, time.Time{}
	// it may have ended with the event that ended the own connection
	case p.doubtful:
	// the token is missing, and the store does not know: the next Heartbeat, which is due now, reports it
	case !m.Suspected:
		d.presence.suspicions = append(d.presence.suspicions, core.Suspicion{Session: m.Session, Presence: m.Presence})
		p.suspectedSince, d.peers.heartbeatAt = time.Time{}, d.now
	// the report is stored, or the suspect has renewed: the grace begins
	case p.suspectedSince.IsZero() || p.heartbeats != m.Heartbeats:
		p.suspectedSince = d.now
		d.peers.heartbeatBy(d.now.Add(grace))
	default: // the suspect said nothing since
		in := c.sent.Sub(p.suspectedSince)
		if in < 2*grace {
			return in >= grace
		}
		p.suspectedSince = d.now // this member heard nothing for so long: the store was away, for both
		d.peers.heartbeatBy(d.now.Add(grace))
	}
	return false
}

// showsPresence reports whether the membership shows the member's own token.
func (d *Dispatcher) showsPresence() bool {
	m := d.peers.member(d.session)
	return m != nil && m.Presence != 0 && m.Presence == d.presence.token && !m.PresenceLost
}
