package relay_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
)

// attended is a store with tokens, whose connections a test can end.
type attended struct {
	core.OutboxStore
	fail bool // Attend fails

	mu     sync.Mutex
	last   int64
	lost   map[int64]chan struct{} // those that are there
	at     []time.Time
	hidden bool // there is a pooler
}

func (s *attended) Unwrap() any { return s.OutboxStore }

func (s *attended) Attend(ctx context.Context) (int64, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = append(s.at, time.Now())
	if s.fail {
		return 0, nil, errors.New("no connection")
	}
	if s.hidden {
		return 0, nil, nil
	}
	s.last++
	token, lost := s.last, make(chan struct{})
	s.lost[token] = lost
	context.AfterFunc(ctx, func() { s.end(token) })
	return token, lost, nil
}

func (s *attended) end(token int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lost := s.lost[token]; lost != nil {
		delete(s.lost, token)
		close(lost)
	}
}

func (s *attended) there() (tokens []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for token := range s.lost {
		tokens = append(tokens, token)
	}
	return tokens
}

func (s *attended) Meet(ctx context.Context, m core.Meeting) (core.Roster, error) {
	r, err := s.OutboxStore.Meet(ctx, m)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range r.Members {
		r.Members[i].Missing = r.Members[i].Presence != 0 && s.lost[r.Members[i].Presence] == nil
	}
	return r, err
}

func newAttended(t *testing.T) *attended {
	t.Helper()
	return &attended{OutboxStore: newStore(t), lost: map[int64]chan struct{}{}}
}

// shown returns the token of the only member, and whether it is flagged.
func (s *attended) shown(t *testing.T) (token int64, flag bool) {
	t.Helper()
	r, err := s.OutboxStore.Meet(t.Context(), core.Meeting{})
	if err != nil || len(r.Members) != 1 {
		t.Fatalf("%+v, %v", r.Members, err)
	}
	return r.Members[0].Presence, r.Members[0].Flag
}

// A relay shows that it is there, takes another token when it has lost one or was flagged, and gives it back at its
// end.
func TestPresence(t *testing.T) { // DB-24
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newAttended(t)
		stop := begin(t, newRelay(t, s, newBus(), relay.Options{}))
		patience.Pass(t, time.Second)
		if token, _ := s.shown(t); token != 1 {
			t.Errorf("shows %d, want 1", token)
		}
		s.end(1)
		time.Sleep(10 * time.Millisecond)
		if token, _ := s.shown(t); token != 0 {
			t.Errorf("shows %d, which is lost", token)
		}
		patience.Pass(t, time.Second)
		if token, _ := s.shown(t); token != 2 {
			t.Errorf("shows %d, want 2", token)
		}
		if _, err := s.OutboxStore.Meet(t.Context(), core.Meeting{Join: true, Self: core.Member{Session: 1, Beat: 1}, Flag: []core.Flagging{{Session: sessionOf(t, s), Presence: 2}}}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.OutboxStore.Meet(t.Context(), core.Meeting{Self: core.Member{Session: 1, Beat: 2}, Leave: true}); err != nil {
			t.Fatal(err)
		}
		patience.Pass(t, 5*time.Second)
		if token, flag := s.shown(t); token != 3 || flag {
			t.Errorf("shows %d (flagged: %t), want 3", token, flag)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if there := s.there(); len(there) != 0 {
			t.Errorf("%v are still taken", there)
		}
	})
}

func sessionOf(t *testing.T, s *attended) core.Session {
	t.Helper()
	r, err := s.OutboxStore.Meet(t.Context(), core.Meeting{})
	if err != nil || len(r.Members) != 1 {
		t.Fatalf("%+v, %v", r.Members, err)
	}
	return r.Members[0].Session
}

// Whatever goes wrong with presence does not stop the relay, and is not tried without a pause.
func TestPresenceFails(t *testing.T) { // DB-24
	t.Parallel()
	for name, tc := range map[string]struct {
		fail, hidden bool
		most         int
	}{"fails": {true, false, 20}, "behind a pooler": {false, true, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newAttended(t)
				s.fail, s.hidden = tc.fail, tc.hidden
				b := newBus()
				mem := newStore(t)
				s.OutboxStore = mem
				stop := begin(t, newRelay(t, s, b, relay.Options{}))
				stage(t, mem, msg("a", ""))
				patience.Pass(t, time.Minute)
				if err := stop(); err != nil {
					t.Error(err)
				}
				if n := len(s.at); n == 0 || n > tc.most {
					t.Errorf("it was tried %d times in a minute", n)
				}
				if b.count() != 1 {
					t.Error("the message was not published")
				}
			})
		})
	}
}
