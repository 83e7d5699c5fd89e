package dashboard_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dashboard"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/memory"
)

// The overview shows the members of all processes, their partitions, and the silent members. It changes nothing at the
// store.
// OP-07
func TestMembersOfOtherProcesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		store, err := memory.New(memory.Options{Source: "/test"})
		if err != nil {
			t.Fatal(err)
		}
		heartbeat := func(m core.HeartbeatRequest) core.Membership {
			t.Helper()
			r, err := store.Heartbeat(t.Context(), m)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		east := core.Member{Session: 7, Name: "relay east", Heartbeats: 1, Lease: 10 * time.Second, Routes: []core.ServedRoute{{Route: "orders", InitialPartitions: 4}}, Capacity: 1, FreeCapacity: 1}
		west := east
		west.Session, west.Name, west.Routes = 8, "relay west "+hostile, []core.ServedRoute{{Route: "orders", InitialPartitions: 4}, {Route: "mails", InitialPartitions: 2, Unavailable: true, HandedOut: 12, OldestHandedOut: 90 * time.Second}}
		b, _ := open(t, dashboard.Options{Outboxes: []dashboard.Outbox{{Name: "x", Store: store}}})
		has(t, b.get("/", http.StatusOK), "Members of x No member: nobody hands out what waits.")

		membership := heartbeat(core.HeartbeatRequest{Self: east, Join: true})
		var moves []core.Transfer
		for _, u := range membership.Partitions[:3] {
			moves = append(moves, core.Transfer{Partition: u.Partition, To: east.Session})
		}
		heartbeat(core.HeartbeatRequest{Self: east, Transfers: moves})
		before := heartbeat(core.HeartbeatRequest{Self: west, Join: true})
		patience.Pass(t, 6*time.Second)
		page := b.get("/", http.StatusOK)
		has(t, page, "relay east session 7", "orders 3 of 4", "mails 0 of 2, paused or without its broker, 12 out, the oldest for 1m 30s", "session 8")
		harmless(t, "/", page)
		before.IsMember = false
		if d := cmp.Diff(before, heartbeat(core.HeartbeatRequest{})); d != "" {
			t.Errorf("the page has changed something at the store: %s", d)
		}

		for range 3 { // east lives, west does not
			patience.Pass(t, 6*time.Second)
			east.Heartbeats++
			heartbeat(core.HeartbeatRequest{Self: east})
			page = b.get("/", http.StatusOK)
		}
		has(t, page, "1 member of x is silent for longer than the lease: relay west", "silent for 18s; its lease is 10s", "renewed 0s ago")
		if strings.Contains(text(page), "silent for longer than the lease: relay east") {
			t.Error("who renews is shown as silent")
		}
		west.Heartbeats++
		heartbeat(core.HeartbeatRequest{Self: west})
		patience.Pass(t, 6*time.Second)
		if got := text(b.get("/", http.StatusOK)); strings.Contains(got, "is silent") {
			t.Errorf("who is back is shown as silent: %s", got)
		}
	})
}

func stage(t *testing.T, store *memory.Store, messages ...waybill.Message) {
	t.Helper()
	tx := store.Begin()
	if _, err := store.Stage(t.Context(), tx, messages...); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

// Due messages on a route that no member serves need attention, with or without a relay in this process.
// OP-07
func TestUnservedRoute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		store, err := memory.New(memory.Options{Source: "/test"})
		if err != nil {
			t.Fatal(err)
		}
		m := waybill.RawMessage("t", "text/plain", nil)
		m.Routes = []string{"archive"}
		stage(t, store, m)
		b, _ := open(t, dashboard.Options{Outboxes: []dashboard.Outbox{{Name: "x", Store: store}}})
		patience.Pass(t, 12*time.Second)
		has(t, b.get("/", http.StatusOK), "1 message on route archive of x waits, the oldest for 12s: no member serves the route.")
		self := core.Member{Session: 7, Name: "a", Heartbeats: 1, Lease: time.Minute, Routes: []core.ServedRoute{{Route: "archive", InitialPartitions: 1}}, Capacity: 1, FreeCapacity: 1}
		if _, err := store.Heartbeat(t.Context(), core.HeartbeatRequest{Self: self, Join: true}); err != nil {
			t.Fatal(err)
		}
		patience.Pass(t, 6*time.Second)
		if got := text(b.get("/", http.StatusOK)); strings.Contains(got, "no member serves") {
			t.Errorf("a route that is served is shown as unserved: %s", got)
		}
	})
}

// A store that cannot list its members hides nothing else.
// OP-07
func TestMembersThatAreUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		store, err := memory.New(memory.Options{Source: "/test"})
		if err != nil {
			t.Fatal(err)
		}
		broken := &shown{OutboxStore: store, noHeartbeat: errors.New("permission denied")}
		b, _ := open(t, dashboard.Options{Outboxes: []dashboard.Outbox{{Name: "x", Store: broken}}})
		page := text(b.get("/", http.StatusOK))
		if !strings.Contains(page, "The members of x are unknown: permission denied") || strings.Contains(page, "No member") {
			t.Errorf("the page says: %s", page)
		}
		broken.noHeartbeat = nil
		patience.Pass(t, 6*time.Second)
		has(t, b.get("/", http.StatusOK), "Nothing. All that is known works.", "No member: nobody hands out what waits.")
	})
}
