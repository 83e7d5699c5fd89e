package waybillmysql_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
	"github.com/waybill-go/waybill/core"
)

// DB-12: two members own a half of a route each. What one of them has heeded of a large redrive is told to the other
// one still, and each of them hears of all its records.
func TestRedriveIsHeededByEachOwner(t *testing.T) {
	t.Parallel()
	s := open(t, waybillmysql.Options{})
	msgs := make([]waybill.Message, 300)
	for i := range msgs {
		msgs[i] = waybill.RawMessage("t", "", nil)
	}
	if err := stage(t.Context(), s, msgs); err != nil {
		t.Fatal(err)
	}
	halves := [2]core.Slots{core.SlotRange(0, 32), core.SlotRange(32, 64)}
	read := func(i int) core.ReadResult {
		t.Helper()
		part := core.RouteSlots{Route: waybill.DefaultRoute, Slots: halves[i]}
		p, err := s.Read(t.Context(), core.Session(i+1), core.ReadRequest{
			Slots: []core.RouteSlots{part}, Ranges: []core.Range{{RouteSlots: part, UpToSeq: 1 << 40, Limit: 1000}}, Bytes: 1 << 20, BlockingLimit: 1000,
		})
		if err != nil || len(p.Ranges) != 1 {
			t.Fatalf("read: %d ranges, %v", len(p.Ranges), err)
		}
		return p
	}
	var records [2][]core.Record
	for i := range halves {
		m := core.Member{Session: core.Session(i + 1), Heartbeats: 1, Lease: time.Hour, Routes: []core.ServedRoute{{Route: waybill.DefaultRoute, InitialPartitions: 2}}}
		r, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: m, Join: true})
		if err != nil || len(r.Partitions) != 2 {
			t.Fatal(r.Partitions, err)
		}
		if _, err = s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: m, Transfers: []core.Transfer{{Partition: r.Partitions[i].Partition, To: m.Session}}}); err != nil {
			t.Fatal(err)
		}
		records[i] = read(i).Ranges[0].Records
		var never []core.Outcome
		for j := range records[i] {
			never = append(never, core.Abandon(&records[i][j], waybill.ReasonRejected, errors.New("never")))
		}
		if err := s.Settle(t.Context(), m.Session, never).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	for req := (admin.RedriveRequest{All: true, Force: true, Page: admin.PageRequest{Limit: len(msgs)}}); ; {
		got, err := s.Redrive(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if req.Page.After = got.Next; got.Next == 0 {
			break
		}
	}
	for i := range halves {
		told := read(i).Notices
		for j := range records[i] {
			r := &records[i][j]
			if !slices.ContainsFunc(told, func(c core.Notice) bool {
				return c.Kind == core.NoticeReread && c.Seq <= r.Seq || c.Kind == core.NoticeRecord && c.ID == r.ID
			}) {
				t.Fatalf("owner %d is not told of a record of its own, after %d of 2 have heeded all that they were told", i+1, i)
			}
		}
		var done []core.Outcome
		for j := range told {
			done = append(done, core.DeleteNotice(&told[j]))
		}
		for range 2 {
			// The second time it can say that they are gone.
			_ = s.Settle(t.Context(), core.Session(i+1), done)
		}
		if left := read(i).Notices; len(told) == 0 || len(left) > 0 {
			t.Errorf("owner %d was told %d notices, heeded all, and %d are left", i+1, len(told), len(left))
		}
	}
}
