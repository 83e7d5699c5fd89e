package relay

import (
	"context"
	"errors"
	"time"

	"github.com/waybill-go/waybill/core"
)

// A token goes through these states. The loop alone changes them; a task waits for the store and for the loss:
//
//   state           | left when
//   ----------------|-----------------------------------------------------------------------
//   none            | the pause after the latest one is over (keepPresence)
//   asked for       | the store answers (acquired); an error leads to none, no token to off
//   shown           | its connection ends, the dispatcher gives it up, or the relay leaves
//   off             | never: the store has no presence

// acquireFirst and acquireLast bound the pause before a lost presence is taken again. After one that lasted for
// acquireLast the pause begins at acquireFirst again.
const (
	acquireFirst = 100 * time.Millisecond
	acquireLast  = 10 * time.Second
)

// acquireLate is how long the first token may wait for the first record: without another relay no process reads the
// token.
const acquireLate = time.Second

var errAbsent = errors.New("connection lost")

// presence shows other relays that this process is there, if the store supports it. If the process is killed, they need
// not wait for its lease.
type presence struct {
	store  core.Presence // nil: the store has no presence
	token  int64         // the token that is shown; 0 = none
	busy   bool          // a token is being taken, or is watched
	cancel context.CancelFunc
	since  time.Time     // when the latest token was asked for
	nextAt time.Time     // when to take the next one
	pause  time.Duration // the latest pause before another try
}

// keepPresence keeps a token shown. It returns when to look again. It ends a token that the dispatcher has given up, or
// that a member which has left shows. Without a token it asks for one, when the pause after the latest is over.
func (e *engine) keepPresence() time.Time {
	p := &e.presence
	switch {
	case p.store == nil || e.once: // a RunOnce is not worth a connection
		return time.Time{}
	case p.busy && (e.drain.begun && (e.d.Left() || e.drain.noLeave) || p.token != 0 && e.d.Presence() != p.token):
		// The relay has left, or the dispatcher gave the token up because another relay missed it.
		p.cancel()
		return time.Time{}
	case p.busy || e.drain.begun:
		return time.Time{}
	case e.now.Before(p.nextAt):
		return p.nextAt
	case e.acquiresLater():
		return e.began.Add(acquireLate)
	}
	ctx, cancel := context.WithCancel(e.base)
	p.busy, p.cancel, p.since = true, cancel, e.now
	e.async(func() func() {
		var token int64
		var lost <-chan struct{}
		err := guardErr("acquire presence", func() (err error) {
			token, lost, err = p.store.Acquire(ctx)
			return err
		})
		return func() { e.acquired(ctx, token, lost, err) }
	})
	return time.Time{}
}

// acquiresLater reports whether the first token can wait: where each answer takes long, the first message would wait
// for those that a token takes.
func (e *engine) acquiresLater() bool {
	return e.presence.since.IsZero() && e.counts.Published == 0 && len(e.d.Membership().Members) < 2 && e.now.Before(e.began.Add(acquireLate))
}

// acquired shows a token that was taken, until it is lost. An error leads to another try; a store that gives no token
// is not asked again. A task of its own waits for the loss.
func (e *engine) acquired(ctx context.Context, token int64, lost <-chan struct{}, err error) {
	p := &e.presence
	switch {
	case err != nil:
		if ctx.Err() == nil {
			e.warn(nil, "relay.presence_failed", "the relay cannot show that it is there; if it is killed now, others wait for its lease", err)
		}
		e.absent()
		return
	case token == 0:
		e.log.Info("the store cannot tell whether this process is there, as behind a pooler; if it is killed, others wait for its lease", "event", "relay.presence_off")
		p.cancel()
		p.store, p.busy = nil, false
		return
	}
	p.token = token
	e.d.SetPresence(token)
	e.async(func() func() {
		select {
		case <-lost:
		case <-ctx.Done():
		}
		return func() {
			if ctx.Err() == nil {
				e.warn(nil, "relay.presence_lost", "the connection that shows that the relay is there has ended; taking another", errAbsent)
			}
			e.absent()
		}
	})
}

// absent ends the token, and plans to take another one.
func (e *engine) absent() {
	p := &e.presence
	p.cancel()
	if p.token != 0 && e.d.Presence() == p.token {
		e.d.SetPresence(0)
	}
	if e.now.Sub(p.since) >= acquireLast {
		p.pause = 0
	}
	p.pause = min(max(2*p.pause, acquireFirst), acquireLast)
	p.token, p.busy, p.nextAt = 0, false, e.now.Add(p.pause)
}

// leave returns the token.
func (p *presence) leave() {
	if p.busy {
		p.cancel()
	}
}
