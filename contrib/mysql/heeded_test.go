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

// DB-28: a read and a heartbeat leave out the notices up to a number, which their caller has seen. So a transaction is
// known as running before it draws the number of a notice.
func TestNoticesBehindANumber(t *testing.T) {
	t.Parallel()
	s := open(t, waybillmysql.Options{})
	if err := stage(t.Context(), s, []waybill.Message{waybill.RawMessage("t", "", nil, waybill.ID("a"))}); err != nil {
		t.Fatal(err)
	}
	const self = core.Session(1)
	r := ownAll(t, s, self)[0]
	if err := s.Settle(t.Context(), self, []core.Outcome{core.Abandon(&r, waybill.ReasonRejected, errors.New("never"))}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	read := func(known, after int64) core.ReadResult {
		t.Helper()
		p, err := s.Read(t.Context(), self, core.ReadRequest{
			Slots: []core.RouteSlots{{Route: waybill.DefaultRoute, Slots: core.AllSlots}}, KnownLastSeq: r.Seq, KnownLastNotice: known, AfterNotice: after,
		})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	before := read(0, 0)
	tx, err := s.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := s.RequeueIn(t.Context(), tx, waybill.DefaultRoute, "a"); err != nil {
		t.Fatal(err)
	}
	free, locked := 0, 0
	if err := s.DB().QueryRowContext(t.Context(), `SELECT COUNT(*) FROM (SELECT g FROM waybill_outbox_marks FOR UPDATE SKIP LOCKED) free`).Scan(&free); err != nil {
		t.Fatal(err)
	}
	if err := s.DB().QueryRowContext(t.Context(), `SELECT COUNT(*) FROM waybill_outbox_marks`).Scan(&locked); err != nil || locked-free != 1 {
		t.Errorf("a transaction that wrote a notice has locked %d of %d rows, %v, want one", locked-free, locked, err)
	}
	if open := read(before.LastNotice, 0); open.LastNotice <= before.LastNotice || open.LastSeqXmax == 0 || len(open.Notices) > 0 {
		t.Errorf("beside an open transaction a read brings %+v, want the number of its notice and the upper id", open)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	p := read(0, 0)
	if len(p.Notices) != 1 || p.Notices[0].Number > p.LastNotice {
		t.Fatalf("after the commit a read brings the notices %+v, and %d as the last number", p.Notices, p.LastNotice)
	}
	if p := read(p.LastNotice, p.LastNotice); p.LastSeqXmax != 0 || len(p.Notices) > 0 {
		t.Errorf("a read behind the last notice brings %+v", p)
	}
	has := func(after int64) bool {
		t.Helper()
		m, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{
			Self: core.Member{Session: self, Heartbeats: 1, Routes: []core.ServedRoute{{Route: waybill.DefaultRoute}}}, AfterNotice: after,
		})
		if err != nil {
			t.Fatal(err)
		}
		return m.HasNotices
	}
	if !has(p.LastNotice-1) || has(p.LastNotice) {
		t.Errorf("a membership tells of notices behind %d: %t, behind %d: %t", p.LastNotice-1, has(p.LastNotice-1), p.LastNotice, has(p.LastNotice))
	}
}
