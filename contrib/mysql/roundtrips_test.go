package waybillmysql_test

// A call about many records takes as many round trips as one about few. On a server that is a millisecond away each of
// them costs that, for any statement.

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sharedtest"
)

// commandConn counts the commands of a program. While a test is slow, idle connections end and others begin: what these
// say by themselves does not count.
type commandConn struct {
	net.Conn
	sent *atomic.Int64
}

func (c commandConn) Write(b []byte) (int, error) {
	const quit = 1
	if len(b) > 4 && b[3] == 0 && b[4] != quit && !bytes.Contains(b, []byte("completion_type")) {
		c.sent.Add(1)
	}
	return c.Conn.Write(b)
}

// counted returns a store in a database of its own, and the number of its round trips so far.
func counted(t *testing.T) (*waybillmysql.Store, *atomic.Int64) {
	t.Helper()
	sent := new(atomic.Int64)
	network := "counted" + strconv.FormatInt(networks.Add(1), 10)
	mysql.RegisterDialContext(network, func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		return commandConn{conn, sent}, err
	})
	t.Cleanup(func() { mysql.DeregisterDialContext(network) })
	dsn := newDatabase(t, func(database string) string { return dsnOf(t, database) })
	s := openAt(t, strings.Replace(dsn, "@tcp(", "@"+network+"(", 1), waybillmysql.Options{})
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, sent
}

var networks atomic.Int64 // names of their own

// TQ-07: what several members of a process have published is one transaction.
func TestGroupedSettles(t *testing.T) {
	t.Parallel()
	s, sent := counted(t)
	together, alone := sharedtest.GroupedSettles(t, s, func(msgs ...waybill.Message) {
		if err := stage(t.Context(), s, msgs); err != nil {
			t.Fatal(err)
		}
	}, sent.Load)
	t.Logf("%d round trips together, %d alone", together, alone)
	if together > 1 { // the fences, the changes and the commit
		t.Errorf("%d round trips for five members together, want 1", together)
	}
}

// DB-20: a member renews every few seconds, and looks for records all the time.
func TestRoundTripsOfAMember(t *testing.T) {
	t.Parallel()
	s, sent := counted(t)
	const self = core.Session(1)
	ownAll(t, s, self)
	part := core.RouteSlots{Route: waybill.DefaultRoute, Slots: core.AllSlots}
	all := core.ReadRequest{Slots: []core.RouteSlots{part}, Ranges: []core.Range{{RouteSlots: part, UpToSeq: 1 << 40, Limit: 10}}, Bytes: 1 << 20}
	m := core.Member{Session: self, Name: "m", Heartbeats: 2, Lease: time.Hour, Routes: []core.ServedRoute{{Route: waybill.DefaultRoute, InitialPartitions: 1}}, Capacity: 1}
	for _, c := range []struct {
		name string
		most int64
		fn   func() error
	}{
		{"read of nothing", 1, func() error {
			_, err := s.Read(t.Context(), self, all)
			return err
		}},
		{"renewal", 3, func() error {
			m.Heartbeats++
			_, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: m})
			return err
		}},
		{"look for what is due", 1, func() error {
			_, err := s.Due(t.Context(), self, []core.RouteSlots{part}, 10)
			return err
		}},
		{"look at the members", 1, func() error {
			_, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{})
			return err
		}},
	} {
		before := sent.Load()
		if err := c.fn(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		n := sent.Load() - before
		t.Logf("%s: %d round trips", c.name, n)
		if n > c.most {
			t.Errorf("%s: %d round trips, want at most %d", c.name, n, c.most)
		}
	}
	if err := stage(t.Context(), s, rawMessages("1", "2")); err != nil {
		t.Fatal(err)
	}
	before := sent.Load()
	got, err := s.Hold(t.Context(), self, core.HoldRequest{KeylessLimit: 3, KeylessSlots: part, UpToSeq: 1 << 40, SkippedLimit: 3})
	if n := sent.Load() - before; err != nil || len(got) != 2 || n > 1 {
		t.Errorf("a Hold of the next three: %d of two records in %d round trips, want 1, %v", len(got), n, err)
	}
}

// DB-20.
func TestRoundTripsOfManyRecords(t *testing.T) {
	t.Parallel()
	s, sent := counted(t)
	trips := map[string][2]int64{}
	count := func(name string, i int, fn func() error) {
		t.Helper()
		before := sent.Load()
		if err := fn(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		both := trips[name]
		both[i] = sent.Load() - before
		trips[name] = both
	}
	for i, n := range []int{1, 100} {
		msgs := make([]waybill.Message, n)
		for i := range msgs {
			msgs[i] = waybill.RawMessage("t", "", nil)
		}
		if err := stage(t.Context(), s, msgs); err != nil {
			t.Fatal(err)
		}
		self := core.Session(i + 1)
		records := ownAll(t, s, self)
		refs, retries, never := make([]core.Ref, len(records)), make([]core.Outcome, len(records)), make([]core.Outcome, len(records))
		for i := range records {
			r := &records[i]
			refs[i], retries[i] = r.Ref, core.Retry(r, errors.New("no"), time.Hour+time.Duration(i)*time.Millisecond)
			r.Version++
			never[i] = core.Abandon(r, waybill.ReasonRejected, errors.New("never"))
		}
		for _, c := range []struct {
			name string
			fn   func() error
		}{
			{"hold", func() error {
				_, err := s.Hold(t.Context(), self, core.HoldRequest{Refs: refs})
				return err
			}},
			{"retry", func() error { return s.Settle(t.Context(), self, retries).FirstErr() }},
			{"abandon", func() error { return s.Settle(t.Context(), self, never).FirstErr() }},
			{"redrive", func() error {
				got, err := s.Redrive(t.Context(), admin.RedriveRequest{All: true, Force: true})
				if err == nil && got.Changed != n {
					t.Errorf("%d of %d records were redriven", got.Changed, n)
				}
				return err
			}},
		} {
			count(c.name, i, c.fn)
		}
		// Retries and timers come due together.
		for i, r := range ownAll(t, s, self) {
			retries[i] = core.Retry(&r, errors.New("no"), time.Microsecond)
			msgs[i] = waybill.RawMessage("t", "", nil, waybill.Delay(time.Microsecond))
		}
		if err := errors.Join(stage(t.Context(), s, msgs), s.Settle(t.Context(), self, retries).FirstErr()); err != nil {
			t.Fatal(err)
		}
		var gone []core.Outcome
		count("due", i, func() error {
			got, err := s.Due(t.Context(), self, []core.RouteSlots{{Route: waybill.DefaultRoute, Slots: core.AllSlots}}, 2*n)
			if err == nil && (got.TimersReady != n || len(got.Retries) != n) {
				t.Errorf("%d timers are ready, and %d retries are held, want %d each", got.TimersReady, len(got.Retries), n)
			}
			for i := range got.Retries {
				gone = append(gone, core.Published(&got.Retries[i]))
			}
			return err
		})
		for i, r := range ownAll(t, s, self) {
			refs[i], gone = r.Ref, append(gone, core.Published(&r))
		}
		if _, err := s.Hold(t.Context(), self, core.HoldRequest{Refs: refs}); err != nil {
			t.Fatal(err)
		}
		count("publish", i, func() error { return s.Settle(t.Context(), self, gone).FirstErr() })
		if _, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: core.Member{Session: self, Heartbeats: 9}, Leave: true}); err != nil {
			t.Fatal(err)
		}
	}
	for name, got := range trips {
		t.Logf("%s: %d round trips for one record, %d for 100", name, got[0], got[1])
		most := map[string]int64{"redrive": 9, "publish": 1, "due": 3}[name]
		if most == 0 {
			most = 2
		}
		if max(got[0], got[1]) > most {
			t.Errorf("%s: %d round trips for one record, %d for 100, want at most %d", name, got[0], got[1], most)
		}
	}
}

// ownAll makes a member the owner of all of the default route, and returns the records there.
func ownAll(t *testing.T, s *waybillmysql.Store, self core.Session) []core.Record {
	t.Helper()
	m := core.Member{Session: self, Name: "m", Heartbeats: 1, Lease: time.Hour, Routes: []core.ServedRoute{{Route: waybill.DefaultRoute, InitialPartitions: 1}}, Capacity: 1, FreeCapacity: 1}
	r, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: m, Join: true})
	if err != nil {
		t.Fatal(err)
	}
	var moves []core.Transfer
	for _, u := range r.Partitions {
		moves = append(moves, core.Transfer{Partition: u.Partition, From: u.Owner, To: self})
	}
	if _, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: m, Transfers: moves}); err != nil {
		t.Fatal(err)
	}
	part := core.RouteSlots{Route: waybill.DefaultRoute, Slots: core.AllSlots}
	p, err := s.Read(t.Context(), self, core.ReadRequest{Slots: []core.RouteSlots{part}, Ranges: []core.Range{{RouteSlots: part, UpToSeq: 1 << 40, Limit: 1000}}, Bytes: 1 << 20})
	if err != nil || len(p.Ranges) != 1 {
		t.Fatalf("read: %d ranges, %v", len(p.Ranges), err)
	}
	return p.Ranges[0].Records
}
