package admin_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
)

// lockedStore has a record that is locked at the first looks.
type lockedStore struct {
	core.OutboxStore
	locked, looks int
}

func (s *lockedStore) Hindrances(context.Context, *admin.Stored, bool) (admin.Hindrances, error) {
	s.looks++
	return admin.Hindrances{Locked: s.looks <= s.locked, LockedBy: []string{fmt.Sprint("process ", s.looks)}}, nil
}

func (*lockedStore) Heartbeat(context.Context, core.HeartbeatRequest) (core.Membership, error) {
	return core.Membership{Members: []core.Member{{Name: "relay-1", Routes: []core.ServedRoute{{Route: "default"}}}}}, nil
}

// OR-05: a relay locks what it settles for a moment. No operator is told to end that transaction, only one that stays.
func TestALockOfAMomentIsNoCause(t *testing.T) {
	t.Parallel()
	for locked, want := range []admin.WaitCause{admin.WaitTurn, admin.WaitTurn, admin.WaitLock} {
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t)
			rec := admin.Stored{State: core.StatePending, Route: "default"}
			w, err := admin.WhyWaits(t.Context(), &lockedStore{locked: locked}, &rec, false)
			if err != nil || w.Cause != want {
				t.Errorf("locked at %d looks: it waits for %q, %v; want %q", locked, w.Cause, err, want)
			}
			if want == admin.WaitLock && !slices.Equal(w.LockedBy, []string{"process 2"}) {
				t.Errorf("locked by %q, want who has the lock at the second look", w.LockedBy)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	rec := admin.Stored{State: core.StatePending, Route: "default"}
	if _, err := admin.WhyWaits(ctx, &lockedStore{locked: 9}, &rec, false); err == nil {
		t.Error("no error although the context has ended")
	}
}
