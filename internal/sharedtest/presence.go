package sharedtest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/waybill-go/waybill/core"
)

// PresenceStore is an outbox store with tokens of presence, whose connections a test can end. Make it with
// NewPresenceStore.
type PresenceStore struct {
	core.OutboxStore
	// Fail makes Acquire fail. Hidden makes it return no token, as behind a pooler.
	Fail, Hidden bool

	tokens *tokens
	own    []int64 // of this process
	killed bool
}

// tokens are those of a database.
type tokens struct {
	mu    sync.Mutex
	last  int64
	lost  map[int64]chan struct{} // those that are there
	asked []time.Time
}

// NewPresenceStore returns store with tokens.
func NewPresenceStore(store core.OutboxStore) *PresenceStore {
	return &PresenceStore{OutboxStore: store, tokens: &tokens{lost: map[int64]chan struct{}{}}}
}

// Over returns what another process sees of the same tokens, through store.
func (s *PresenceStore) Over(store core.OutboxStore) *PresenceStore {
	return &PresenceStore{OutboxStore: store, tokens: s.tokens}
}

// Unwrap returns the store.
func (s *PresenceStore) Unwrap() any { return s.OutboxStore }

// Acquire implements core.Presence.
func (s *PresenceStore) Acquire(ctx context.Context) (int64, <-chan struct{}, error) {
	t := s.tokens
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked = append(t.asked, time.Now())
	if s.Fail || s.killed {
		return 0, nil, errors.New("no connection")
	}
	if s.Hidden {
		return 0, nil, nil
	}
	t.last++
	token, lost := t.last, make(chan struct{})
	t.lost[token], s.own = lost, append(s.own, token)
	context.AfterFunc(ctx, func() { s.End(token) })
	return token, lost, nil
}

// End ends the connection of a token.
func (s *PresenceStore) End(token int64) {
	t := s.tokens
	t.mu.Lock()
	defer t.mu.Unlock()
	if lost := t.lost[token]; lost != nil {
		delete(t.lost, token)
		close(lost)
	}
}

// Kill ends all connections of this process, for good.
func (s *PresenceStore) Kill() {
	s.tokens.mu.Lock()
	s.killed = true
	own := s.own
	s.tokens.mu.Unlock()
	for _, token := range own {
		s.End(token)
	}
}

// There returns the tokens whose connection lasts.
func (s *PresenceStore) There() (tokens []int64) {
	t := s.tokens
	t.mu.Lock()
	defer t.mu.Unlock()
	for token := range t.lost {
		tokens = append(tokens, token)
	}
	return tokens
}

// Asked returns when Acquire was called.
func (s *PresenceStore) Asked() []time.Time {
	t := s.tokens
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.asked
}

// Heartbeat implements core.OutboxStore.
func (s *PresenceStore) Heartbeat(ctx context.Context, m core.HeartbeatRequest) (core.Membership, error) {
	r, err := s.OutboxStore.Heartbeat(ctx, m)
	t := s.tokens
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range r.Members {
		r.Members[i].PresenceLost = r.Members[i].Presence != 0 && t.lost[r.Members[i].Presence] == nil
	}
	return r, err
}
