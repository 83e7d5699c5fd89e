package relay_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
)

// killed has a member join, take all partitions of the default route, and never renew.
func killed(t *testing.T, s *memory.Store, lease time.Duration) {
	t.Helper()
	dead := core.Member{Session: 9, Name: "dead", Heartbeats: 5, Lease: lease, Routes: []core.ServedRoute{{Route: waybill.DefaultRoute, InitialPartitions: 64}}}
	r, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: dead, Join: true})
	var moves []core.Transfer
	for _, u := range r.Partitions {
		moves = append(moves, core.Transfer{Partition: u.Partition, To: 9})
	}
	dead.Heartbeats++
	if _, err2 := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: dead, Transfers: moves}); err != nil || err2 != nil || len(moves) == 0 {
		t.Fatal(err, err2, len(moves))
	}
}

// members are the names of those that are there.
func members(t *testing.T, s core.OutboxStore) (names []string) {
	t.Helper()
	r, err := s.Heartbeat(context.WithoutCancel(t.Context()), core.HeartbeatRequest{Self: core.Member{Session: 1}})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range r.Members {
		names = append(names, m.Name)
	}
	return names
}

// OP-18: a relay that was killed owns its records for no longer than its lease, although no other relay runs.
func TestRemoveDead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		s := newStore(t)
		stage(t, s, msg("a", "k"))
		killed(t, s, 5*time.Second)
		begun := time.Now()
		deciding := make(chan error, 1)
		go func() { deciding <- s.DecideHead(t.Context(), waybill.DefaultRoute, "k", "a", admin.HeadSkip) }()
		gone, err := relay.RemoveDead(t.Context(), s)
		if took := time.Since(begun); err != nil || gone != 1 || took < 5*time.Second || took > 7*time.Second {
			t.Errorf("removed %d after %s: %v", gone, took, err)
		}
		if err := <-deciding; err != nil {
			t.Errorf("the decision is not carried out: %v", err)
		}
		if took := time.Since(begun); took > 7*time.Second {
			t.Errorf("the decision took %s", took)
		}
		if names := members(t, s); len(names) > 0 {
			t.Errorf("members are left: %q", names)
		}
	})
}

// OP-18: relays that renew stay, and it takes no longer than a heartbeat to see that.
func TestRemoveDeadBesideTheLiving(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		stop := begin(t, newRelay(t, s, newBus(), relay.Options{Name: "alive", Lease: 6 * time.Second}))
		patience.Pass(t, time.Minute)
		begun := time.Now()
		gone, err := relay.RemoveDead(t.Context(), s)
		if took := time.Since(begun); err != nil || gone != 0 || took > 3500*time.Millisecond {
			t.Errorf("removed %d after %s: %v", gone, took, err)
		}
		if names := members(t, s); len(names) != 1 || names[0] != "alive" {
			t.Errorf("members: %q", names)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// deaf is a store whose Heartbeat fails.
type deaf struct {
	core.OutboxStore

	err error
}

func (d deaf) Heartbeat(context.Context, core.HeartbeatRequest) (core.Membership, error) {
	return core.Membership{}, d.err
}

// OP-18: while the store is away it tries until its context ends; an error that stays ends it at once.
func TestRemoveDeadWithoutAStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(20*time.Second, "the store is away until the context ends")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		begun := time.Now()
		away := down()
		if _, err := relay.RemoveDead(ctx, deaf{err: away}); !errors.Is(err, away) || time.Since(begun) != 20*time.Second {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
		begun = time.Now()
		stays := fmt.Errorf("no tables: %w", waybill.ErrMisconfigured)
		if _, err := relay.RemoveDead(t.Context(), deaf{err: stays}); !errors.Is(err, stays) || time.Since(begun) > 0 {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
	})
}

// silent is a store without wake-ups.
type silent struct{ core.OutboxStore }

// OP-18: a relay that nothing wakes, and that is paused, carries out a decision within two heartbeats, however seldom
// it reads.
func TestDecisionWithoutAWakeUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(70*time.Second, "each of 20 decisions waits for a heartbeat")
		s := newStore(t)
		r := newRelay(t, silent{s}, newBus(), relay.Options{PollMax: time.Hour})
		if err := r.Pause(waybill.DefaultRoute); err != nil {
			t.Fatal(err)
		}
		stage(t, s, msg("a", "k"), msg("b", "k"))
		stop := begin(t, r)
		for n := range 20 { // at any time between two heartbeats
			patience.Pass(t, 5*time.Minute+time.Duration(n)*200*time.Millisecond)
			id := string(rune('a' + n))
			begun := time.Now()
			if err := s.DecideHead(t.Context(), waybill.DefaultRoute, "k", id, admin.HeadSkip); err != nil {
				t.Fatalf("%s: %v", id, err)
			}
			if took := time.Since(begun); took > 7*time.Second {
				t.Errorf("the decision about %s took %s", id, took)
			}
			stage(t, s, msg(string(rune('c'+n)), "k"))
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
