package dashboard

import (
	"context"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/bcrypt"
)

const (
	// After so many wrong passwords of a user from one address the next one has to wait, and twice as long after
	// each other one. A client that tries many names has to wait, too.
	freeOfUser, freeOfAddress = 3, 20
	firstDelay, maxDelay      = time.Second, 15 * time.Minute
	// forgetAfter is how long after the latest wrong password the count begins anew.
	forgetAfter = time.Hour
	// maxBrakes is how many counts are kept.
	maxBrakes = 10_000
	// maxComparing and maxQueued bound the passwords that are compared, which costs much on purpose, and those that
	// wait for it.
	maxComparing, maxQueued = 2, 8
)

// brakes slow guesses of passwords down. They never lock a user out for everybody: a stranger could do that to any
// user.
type brakes struct {
	mu sync.Mutex
	of map[brakeKey]*brake
}

// brakeKey is a user at an address, or the address alone.
type brakeKey struct{ user, address string }

type brake struct {
	wrong       int
	until, seen time.Time
}

func keysOf(user, client string) (ofUser, ofAddress brakeKey) {
	if addr, err := netip.ParseAddr(client); err == nil && addr.Is6() { // who has one address of these has all
		if network, err := addr.Prefix(64); err == nil {
			client = network.String()
		}
	}
	return brakeKey{"+" + clip(user, 100), client}, brakeKey{"", client}
}

// wait returns how long a user at an address has to wait for the next attempt.
func (b *brakes) wait(user, client string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waitAt(time.Now(), user, client)
}

func (b *brakes) waitAt(now time.Time, user, client string) (wait time.Duration) {
	ofUser, ofAddress := keysOf(user, client)
	for _, key := range []brakeKey{ofUser, ofAddress} {
		if at := b.of[key]; at != nil {
			wait = max(wait, at.until.Sub(now))
		}
	}
	return wait
}

// try is wait, and counts an attempt that has not to wait as a wrong one before it is made: several at the same time do
// not slip through. right takes it back.
func (b *brakes) try(user, client string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	wait := b.waitAt(now, user, client)
	if wait <= 0 {
		ofUser, ofAddress := keysOf(user, client)
		b.count(ofUser, freeOfUser, now)
		b.count(ofAddress, freeOfAddress, now)
	}
	return wait
}

func (b *brakes) count(key brakeKey, free int, now time.Time) {
	at := b.of[key]
	if at == nil || now.Sub(at.seen) > forgetAfter {
		b.makeRoom()
		at = &brake{}
		b.of[key] = at
	}
	if at.wrong, at.seen = at.wrong+1, now; at.wrong >= free {
		at.until = now.Add(min(firstDelay<<min(at.wrong-free, 20), maxDelay))
	}
}

// makeRoom deletes a count if there are too many: of a few, which Go chooses at random, the one that ends first.
func (b *brakes) makeRoom() {
	if b.of == nil {
		b.of = map[brakeKey]*brake{}
	}
	if len(b.of) < maxBrakes {
		return
	}
	var first brakeKey
	var ends time.Time
	looked := 0
	for key, at := range b.of {
		end := at.until
		if at.seen.After(end) {
			end = at.seen
		}
		if looked == 0 || end.Before(ends) {
			first, ends = key, end
		}
		if looked++; looked == 100 {
			break
		}
	}
	delete(b.of, first)
}

// right takes an attempt back that was right, and forgets the user at this address. The count of the address stays: a
// guesser with a password of its own could reset it again and again.
func (b *brakes) right(user, client string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ofUser, ofAddress := keysOf(user, client)
	delete(b.of, ofUser)
	if at := b.of[ofAddress]; at != nil {
		at.wrong--
	}
}

// passwords bounds how many are compared.
type passwords struct {
	comparing chan struct{}
	queued    atomic.Int64
}

// enter waits for a turn to compare, until leave is called. An error says that too many wait.
func (s *passwords) enter(ctx context.Context) (leave func(), err error) {
	if s.queued.Add(1) > maxComparing+maxQueued {
		s.queued.Add(-1)
		return nil, &refused{http.StatusTooManyRequests, "Too many log in at the same time: try again in a moment."}
	}
	select {
	case s.comparing <- struct{}{}:
		return func() { <-s.comparing; s.queued.Add(-1) }, nil
	case <-ctx.Done():
		s.queued.Add(-1)
		return nil, ctx.Err()
	}
}

// knows compares a password.
func (p *people) knows(user, password string) bool {
	hash, ok := p.passwords[user]
	if !ok { // compare with another user's, which takes as long
		for _, hash = range p.passwords {
			break
		}
	}
	return bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) == nil && ok
}
