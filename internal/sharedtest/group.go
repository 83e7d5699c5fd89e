package sharedtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// groupSettler is table.GroupSettler.
type groupSettler interface {
	SettleGroup(ctx context.Context, selves []core.Session, outcomes [][]core.Outcome) bool
}

// GroupedSettles counts the cost of settling the records of five members of a process: together, and one member
// after the other. A cost is a round trip, a command or a statement, of which cost returns the number so far.
func GroupedSettles(t *testing.T, s core.OutboxStore, stage func(msgs ...waybill.Message), cost func() int64) (together, alone int64) {
	t.Helper()
	groups, ok := core.As[groupSettler](s)
	if !ok {
		t.Fatal("the store is no table.GroupSettler")
	}
	const members = 5
	selves := make([]core.Session, members)
	for i := range selves {
		selves[i] = core.Session(1000 + i)
		m := core.Member{Session: selves[i], Name: "m", Heartbeats: 1, Lease: time.Hour, Routes: []core.ServedRoute{{Route: fmt.Sprint("g-", i), InitialPartitions: 1}}, Capacity: 1}
		r, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: m, Join: true})
		if err != nil {
			t.Fatal(err)
		}
		var all []core.Transfer
		for _, u := range r.Partitions {
			if u.Partition.Route == m.Routes[0].Route {
				all = append(all, core.Transfer{Partition: u.Partition, From: u.Owner, To: selves[i]})
			}
		}
		if _, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: m, Transfers: all}); err != nil {
			t.Fatal(err)
		}
	}
	read := make([]int64, members) // the last number that was read of each route
	published := func() (outcomes [][]core.Outcome) {
		for i, self := range selves {
			route := fmt.Sprint("g-", i)
			for range 3 {
				stage(waybill.RawMessage("t.x", "", nil, waybill.Routes(route)))
			}
			part := core.RouteSlots{Route: route, Slots: core.AllSlots}
			p, err := s.Read(t.Context(), self, core.ReadRequest{
				Slots: []core.RouteSlots{part}, Ranges: []core.Range{{RouteSlots: part, AfterSeq: read[i], UpToSeq: 1 << 40, Limit: 10}}, Bytes: 1 << 20,
			})
			if err != nil || len(p.Ranges) != 1 || len(p.Ranges[0].Records) != 3 {
				t.Fatalf("read: %+v, %v", p, err)
			}
			var list []core.Outcome
			for j := range p.Ranges[0].Records {
				r := &p.Ranges[0].Records[j]
				list, read[i] = append(list, core.Published(r)), r.Seq
			}
			outcomes = append(outcomes, list)
		}
		return outcomes
	}
	// The last ones are settled first: that prepares the statements, and keeps a stamp above those of the others.
	first, second, last := published(), published(), published()
	settle := func(outcomes [][]core.Outcome) int64 {
		before := cost()
		if !groups.SettleGroup(t.Context(), selves, outcomes) {
			t.Fatal("the settles of a group are refused")
		}
		return cost() - before
	}
	settle(last)
	together = settle(first)
	before := cost()
	for i, self := range selves {
		if err := s.Settle(t.Context(), self, second[i]).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	return together, cost() - before
}
