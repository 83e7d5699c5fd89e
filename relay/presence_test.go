package relay_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
)

// shown returns the token of the only member, and whether it is flagged.
func shown(t *testing.T, s *sharedtest.PresenceStore) (token int64, flag bool) {
	t.Helper()
	r, err := s.OutboxStore.Heartbeat(t.Context(), core.HeartbeatRequest{})
	if err != nil || len(r.Members) != 1 {
		t.Fatalf("%+v, %v", r.Members, err)
	}
	return r.Members[0].Presence, r.Members[0].Suspected
}

// A relay shows that it is there, takes another token when it has lost one or was flagged, and gives it back at its
// end.
func TestPresence(t *testing.T) { // DB-24
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := sharedtest.NewPresenceStore(newStore(t))
		stop := begin(t, newRelay(t, s, newBus(), relay.Options{}))
		patience.Pass(t, 2*time.Second)
		if token, _ := shown(t, s); token != 1 {
			t.Errorf("shows %d, want 1", token)
		}
		s.End(1)
		time.Sleep(10 * time.Millisecond)
		if token, _ := shown(t, s); token != 0 {
			t.Errorf("shows %d, which is lost", token)
		}
		patience.Pass(t, time.Second)
		if token, _ := shown(t, s); token != 2 {
			t.Errorf("shows %d, want 2", token)
		}
		if _, err := s.OutboxStore.Heartbeat(t.Context(), core.HeartbeatRequest{Join: true, Self: core.Member{Session: 1, Heartbeats: 1}, Suspect: []core.Suspicion{{Session: sessionOf(t, s), Presence: 2}}}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.OutboxStore.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: 1, Heartbeats: 2}, Leave: true}); err != nil {
			t.Fatal(err)
		}
		patience.Pass(t, 5*time.Second)
		if token, flag := shown(t, s); token != 3 || flag {
			t.Errorf("shows %d (flagged: %t), want 3", token, flag)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if there := s.There(); len(there) != 0 {
			t.Errorf("%v are still taken", there)
		}
	})
}

// A relay that is alone, and waits for each answer of its database, has sent its first message before it shows that it
// is there.
func TestFirstMessageWaitsForNoPresence(t *testing.T) { // DB-24
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := newStore(t)
		s := sharedtest.NewPresenceStore(&sharedtest.Store{OutboxStore: mem, Before: func(context.Context, string, any) error {
			time.Sleep(5 * time.Millisecond)
			return nil
		}})
		asked := -1
		b := &sharedtest.Publisher{Before: func(context.Context, []waybill.Envelope) error {
			asked = len(s.Asked())
			return nil
		}}
		stage(t, mem, msg("a", ""))
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		patience.Pass(t, time.Second)
		if token, _ := shown(t, s); token != 1 {
			t.Errorf("shows %d, want 1", token)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if asked != 0 {
			t.Errorf("it had asked for %d tokens when its first message was published, want none", asked)
		}
	})
}

// A relay whose first Heartbeat was slow shows that it is there seconds later, however long its lease is.
func TestPresenceAfterASlowHeartbeat(t *testing.T) { // DB-24
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Bool
		slow.Store(true)
		s := sharedtest.NewPresenceStore(&sharedtest.Store{OutboxStore: newStore(t), Before: func(_ context.Context, call string, _ any) error {
			if call == "heartbeat" && slow.Swap(false) {
				time.Sleep(300 * time.Millisecond)
			}
			return nil
		}})
		stop := begin(t, newRelay(t, s, newBus(), relay.Options{Lease: time.Hour}))
		patience.Pass(t, 5*time.Second)
		if token, _ := shown(t, s); token != 1 || slow.Load() {
			t.Errorf("shows %d, want 1", token)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func sessionOf(t *testing.T, s *sharedtest.PresenceStore) core.Session {
	t.Helper()
	r, err := s.OutboxStore.Heartbeat(t.Context(), core.HeartbeatRequest{})
	if err != nil || len(r.Members) != 1 {
		t.Fatalf("%+v, %v", r.Members, err)
	}
	return r.Members[0].Session
}

// An error of the presence does not stop the relay, which tries again after a pause.
func TestPresenceFails(t *testing.T) { // DB-24
	t.Parallel()
	for name, tc := range map[string]struct {
		fail, hidden bool
		most         int
	}{"fails": {true, false, 20}, "behind a pooler": {false, true, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := sharedtest.NewPresenceStore(newStore(t))
				s.Fail, s.Hidden = tc.fail, tc.hidden
				b := newBus()
				mem := newStore(t)
				s.OutboxStore = mem
				stop := begin(t, newRelay(t, s, b, relay.Options{}))
				stage(t, mem, msg("a", ""))
				patience.Pass(t, time.Minute)
				if err := stop(); err != nil {
					t.Error(err)
				}
				if n := len(s.Asked()); n == 0 || n > tc.most {
					t.Errorf("it was tried %d times in a minute", n)
				}
				if b.count() != 1 {
					t.Error("the message was not published")
				}
			})
		})
	}
}
