package table_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/transport/table"
)

// TestKilledProcessIsMissed: with default options, the deliveries of a process that is killed come to another one
// within two seconds if the store knows which processes are there, else when its lease ends, within ten. The moment of
// the death does not matter: just before a renewal, or just after one.
//
// TQ-03, TQ-08, DB-24
func TestKilledProcessIsMissed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		knows bool
		most  time.Duration
	}{"the store knows": {true, 2 * time.Second}, "it does not": {false, 10 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for phase := time.Duration(0); phase < table.UnseenLease/2; phase += 250 * time.Millisecond {
				t.Run(phase.String(), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { killedIsMissed(t, tc.knows, time.Minute+phase, tc.most) })
				})
			}
		})
	}
}

// killedIsMissed kills a process after it has held deliveries for a while, and fails if they do not come in time.
func killedIsMissed(t *testing.T, knows bool, while, most time.Duration) {
	t.Helper()
	s := newStore(t)
	stage(t, s, message("a"), message("b", waybill.Key("k")))
	p := newProcess(s)
	killed := sharedtest.NewPresenceStore(p)
	stores := []core.OutboxStore{killed, killed.Over(s)}
	if !knows {
		stores = []core.OutboxStore{plain{p}, plain{s}}
	}
	receive(t, subscribe(t, newTable(t, stores[0], table.Options{})), 2)
	r := subscribe(t, newTable(t, stores[1], table.Options{}))
	none(t, r, while) // it is there
	p.gone.Store(true)
	killed.Kill()
	began := time.Now()
	for _, d := range receive(t, r, 2) {
		if d.Redeliveries != 1 {
			t.Errorf("%s came with %d redeliveries, want 1", d.Envelope.ID, d.Redeliveries)
		}
		settled(t, r, core.AckDone(d))
	}
	if took := time.Since(began); took > most {
		t.Errorf("they came after %s, want %s at most", took, most)
	}
}

// TestPresence: all receivers of a transport show one token, those that come later too. When it was lost, or another
// process has missed it, they show another one. It is given back at the end.
//
// TQ-03, DB-24
func TestPresence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := sharedtest.NewPresenceStore(newStore(t))
		tr := newTable(t, s, table.Options{})
		join := func(queue string) core.Receiver {
			r := subscribeTo(t, tr, queue)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if ds, err := r.Receive(ctx, 1); err == nil {
				t.Errorf("%d deliveries came", len(ds))
			}
			return r
		}
		show := func(when string, want ...int64) (members []core.Member) {
			t.Helper()
			r, err := s.OutboxStore.Heartbeat(t.Context(), core.HeartbeatRequest{})
			var got []int64
			for _, m := range r.Members {
				got = append(got, m.Presence)
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s the receivers show %v, want %v; %v", when, got, want, err)
			}
			return r.Members
		}
		first := join("mails")
		second := join("news")
		show("at first", 1, 1)
		s.End(1)
		time.Sleep(10 * time.Millisecond) // virtual time
		show("without a connection", 0, 0)
		patience.Pass(t, time.Second)
		members := show("with another one", 2, 2)
		other := core.Member{Session: 1, Heartbeats: 1}
		if _, err := s.OutboxStore.Heartbeat(t.Context(), core.HeartbeatRequest{Join: true, Self: other, Suspect: []core.Suspicion{{Session: members[0].Session, Presence: 2}}}); err != nil {
			t.Fatal(err)
		}
		other.Heartbeats++
		if _, err := s.OutboxStore.Heartbeat(t.Context(), core.HeartbeatRequest{Self: other, Leave: true}); err != nil {
			t.Fatal(err)
		}
		patience.Pass(t, 5*time.Second)
		show("after one was missed", 3, 3)
		for _, r := range []core.Receiver{first, second} {
			if err := r.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		synctest.Wait() // each resource is given back beside its Close
		if there := s.There(); len(there) != 0 || len(s.Asked()) != 3 {
			t.Errorf("%v are still taken; asked %d times, want 3", there, len(s.Asked()))
		}
	})
}

// TestPresenceFails: no failure of presence stops a delivery, and presence is not tried without a pause.
//
// DB-24
func TestPresenceFails(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fail, hidden bool
		most         int
	}{"fails": {true, false, 20}, "behind a pooler": {false, true, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				mem := newStore(t)
				s := sharedtest.NewPresenceStore(mem)
				s.Fail, s.Hidden = tc.fail, tc.hidden
				r := subscribe(t, newTable(t, s, table.Options{}))
				stage(t, mem, message("a"))
				settled(t, r, core.AckDone(receive(t, r, 1)[0]))
				patience.Pass(t, time.Minute)
				if n := len(s.Asked()); n == 0 || n > tc.most {
					t.Errorf("it was tried %d times in a minute, want 1 to %d", n, tc.most)
				}
			})
		})
	}
}
