package outboxtest

import (
	"context"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var presenceChecks = []named{
	{"suspicion-needs-the-token", suspicionNeedsTheToken},
	{"missing-needs-a-token", missingNeedsAToken},
	{"acquired-token-is-present", acquiredTokenIsPresent},
	{"token-is-missing-after-its-end", tokenIsMissingAfterItsEnd},
	{"acquire-has-new-tokens", acquireHasNewTokens},
}

// Without this a member that has acquired a new token in the last moment is stopped for the token that it had before.
func suspicionNeedsTheToken(k *kit) {
	a, b := k.stranger(1), k.join(1)
	a.self.Presence = 5
	a.join()
	expect := func(what string, want bool) {
		got := find(b.heartbeat(), a.self.Session)
		k.failIf(got == nil || got.Suspected != want, "%s: the member is %+v, want the flag %v", what, got, want)
	}
	b.heartbeat(a.flag(6))
	expect("it was flagged for another token", false)
	b.heartbeat(a.flag(0))
	expect("it was flagged for no token", false)
	a.self.Heartbeats, a.self.Presence = a.self.Heartbeats+1, 0
	a.heartbeat()
	b.heartbeat(a.flag(0))
	expect("it has no token, and was flagged for none", false)
	b.heartbeat(a.flag(5))
	expect("it has no token, and was flagged for an earlier one", false)
	a.self.Heartbeats, a.self.Presence = a.self.Heartbeats+1, 7
	a.heartbeat()
	b.heartbeat(a.flag(6), a.flag(7))
	expect("it was flagged for an earlier and for its own token", true)
	a.self.Heartbeats, a.self.Presence = a.self.Heartbeats+1, 0
	a.heartbeat()
	expect("it renewed without a token", false)
}

// Without this a member behind a pooler is flagged by all others, for ever.
func missingNeedsAToken(k *kit) {
	m := k.join(1)
	for _, r := range []*core.Membership{m.heartbeat(), k.look(), k.join(1).heartbeat()} {
		got := find(r, m.self.Session)
		k.failIf(got == nil || got.PresenceLost, "a member has no token, and the membership says %+v", got)
	}
}

// acquire has m show a token, and returns the channel that is closed when it is lost, and the function that ends it.
func (m *member) acquire() (lost <-chan struct{}, end context.CancelFunc) {
	p := needs[core.Presence](m.k, m.store, "presence")
	ctx, end := context.WithCancel(m.k.ctx)
	token, lost, err := p.Acquire(ctx)
	if err != nil {
		end()
		m.k.fail("acquire: %w", err)
	}
	if token == 0 {
		end()
		m.k.undeclared("presence on this connection")
	}
	if token < 0 {
		end()
		m.k.fail("acquire returned the token %d", token)
	}
	m.self.Presence = token
	m.self.Heartbeats++
	return lost, end
}

func (k *kit) missing(r *core.Membership, m *member) bool {
	got := find(r, m.self.Session)
	k.failIf(got == nil || got.Presence != m.self.Presence, "a member shows the token %d, and the membership says %+v", m.self.Presence, got)
	return got.PresenceLost
}

// Without this a process that lives is taken for killed.
func acquiredTokenIsPresent(k *kit) {
	a, b := k.join(1), k.join(1)
	for _, m := range []*member{a, b} {
		lost, end := m.acquire()
		defer end()
		defer func() {
			select {
			case <-lost:
				k.fail("a token was lost, and was not ended")
			default:
			}
		}()
		m.heartbeat()
	}
	for range 3 {
		for _, r := range []*core.Membership{a.heartbeat(), b.heartbeat(), k.look()} {
			k.failIf(k.missing(r, a) || k.missing(r, b), "two members have acquired tokens, and one is missing")
		}
		k.sleep(pause)
	}
}

// Without this a process that was killed costs its lease, or its own relay does not learn that others will miss it.
func tokenIsMissingAfterItsEnd(k *kit) {
	a, b := k.join(1), k.join(1)
	lost, end := a.acquire()
	defer end()
	_, stay := b.acquire()
	defer stay()
	a.heartbeat()
	b.heartbeat()
	end()
	_, closed := suitetest.Come(lost)
	k.failIf(!closed, "a token was given back, and its channel is not closed after %s", suitetest.Patience)
	k.until("a token that was given back is missing", func() bool { return k.missing(b.heartbeat(), a) && k.missing(k.look(), a) })
	k.failIf(k.missing(a.heartbeat(), b), "a token was given back, and another member is missing")
	_, again := a.acquire()
	defer again()
	a.heartbeat()
	k.failIf(k.missing(b.heartbeat(), a), "a member has acquired another token, and is missing")
}

// Without this the flag for a token that was lost is set for one that is there.
func acquireHasNewTokens(k *kit) {
	seen := map[int64]bool{}
	for range 3 {
		for _, m := range []*member{k.join(1), k.join(1)} {
			_, end := m.acquire()
			end()
			k.failIf(seen[m.self.Presence], "two tokens are %d", m.self.Presence)
			seen[m.self.Presence] = true
		}
	}
}
