package sqlite

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
)

// ST-01 ST-02 DB-02 DB-03 DB-13
func TestStageReadSettle(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	tx, err := s.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Stage(t.Context(), tx, raw("lost", "")); err != nil {
		t.Fatal(err)
	}
	tx.Rollback()
	got := stage(t, s, raw("a", "k"), raw("b", "k"), raw("a", "k"), raw("c", "", waybill.Routes("default", "other")))
	if want := "[{a default false not found} {b default false not found} {a default true not found} {c default false not found} {c other false not found}]"; fmt.Sprint(got) != want {
		t.Fatalf("staged %v, want %s", got, want)
	}
	if got := stage(t, s, raw("b", "k")); !got[0].Duplicate {
		t.Fatal("the second b is no duplicate")
	}
	self := join(t, s, route).Session
	rs := read(t, s, self, route)
	if ids(rs) != "a b c " || string(rs[0].Envelope.Body) != "body of a" || rs[0].Envelope.Source != "/test" {
		t.Fatalf("read %+v", rs)
	}
	settle(t, s, self, core.Published(&rs[0]), core.Retry(&rs[1], errNo, time.Hour), core.Release(&rs[2], 0, false))
	for i, err := range s.Settle(t.Context(), self,
		[]core.Outcome{core.Published(&rs[0]), core.Release(&rs[1], 0, false), core.Release(&rs[2], 0, false)}) {
		if i == 0 && err != nil || i > 0 && !errors.Is(err, core.ErrChanged) {
			t.Errorf("settle of %d again: %v", i, err)
		}
	}
	if got := ids(read(t, s, self, route)); got != "c " {
		t.Errorf("read %s", got)
	}
}

// ST-11: the store's default time to live, and the expiry of a message instead of it.
func TestDefaultTTL(t *testing.T) {
	t.Parallel()
	s := open(t, Options{TTL: time.Hour})
	from := time.Now().Truncate(time.Microsecond)
	stage(t, s, raw("a", ""), raw("b", "", waybill.TTL(24*time.Hour)), raw("c", "", waybill.TTL(-1)))
	to := time.Now().Add(time.Microsecond)
	for i, r := range read(t, s, join(t, s, route).Session, route) {
		want := []time.Duration{time.Hour, 24 * time.Hour, 0}[i]
		at := r.Envelope.Expires
		spent := time.Since(from) + time.Microsecond
		if r.Expires != (want > 0) || at.IsZero() != (want == 0) ||
			want > 0 && (at.Before(from.Add(want)) || at.After(to.Add(want)) || r.ExpiresIn > want+time.Microsecond || r.ExpiresIn < want-spent) {
			t.Errorf("message %d expires at %s, in %s, want in %s", i, at, r.ExpiresIn, want)
		}
	}
}

// Rows that plain SQL inserted have the slot of their key, for every reader.
func TestPlainSQL(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	self := join(t, s, route).Session
	stage(t, s, raw("a", "k"))
	run(t, s.DB(), `INSERT INTO waybill_outbox (id, topic, key, body) VALUES ('b', 'plain.sql', 'k', x'6869'), ('c', 'plain.sql', '', x''), ('d', 'plain.sql', 'k', NULL);
		INSERT INTO waybill_outbox (topic, key) VALUES ('plain.sql', 'other')`)
	slot := core.SlotOf(route, "k", "")
	part := core.RouteSlots{Route: route, Slots: 1 << slot}
	p, err := s.Read(t.Context(), self, core.ReadRequest{Ranges: []core.Range{
		{RouteSlots: part, UpToSeq: 1 << 62, Limit: 2},
		{RouteSlots: part, AfterSeq: 2, UpToSeq: 1 << 62},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got := ids(p.Ranges[0].Records) + ids(p.Ranges[1].Records); got != "a b d " || !p.Ranges[0].More {
		t.Fatalf("read %s, more %v", got, p.Ranges[0].More)
	}
	b := p.Ranges[0].Records[1]
	if b.Err != nil || b.Slot != slot || string(b.Envelope.Body) != "hi" || b.Envelope.Type != "plain.sql" || b.Envelope.Source != "/test" {
		t.Errorf("%+v", b)
	}
	hold(t, s, self, &b)
	taken, err := s.Hold(t.Context(), self, core.HoldRequest{KeylessSlots: all(route), KeylessLimit: 5})
	if err != nil || len(taken) != 1 || taken[0].Ref.ID != "c" || taken[0].Record.Slot != core.SlotOf(route, "", "c") {
		t.Errorf("%+v %v", taken, err)
	}
	settle(t, s, self, core.Retry(&b, errNo, 0), core.Published(taken[0].Record))
	if d := dueNow(t, s, self); len(d.Retries) != 1 || d.Retries[0].Slot != slot {
		t.Errorf("%+v", d)
	}
}

// A row that a trigger of the application refuses fails alone; if the trigger ends the whole transaction, nothing is
// settled.
func TestRefusedBySQL(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	self := join(t, s, route).Session
	stage(t, s, raw("a", ""), raw("b", ""), raw("c", ""), raw("d", ""), raw("e", ""))
	run(t, s.DB(), `CREATE TRIGGER refuse BEFORE UPDATE OF state ON waybill_outbox WHEN old.id IN ('b') BEGIN SELECT RAISE(ABORT, 'not this one'); END;
		CREATE TRIGGER refuse_too BEFORE DELETE ON waybill_outbox WHEN old.id = 'd' BEGIN SELECT RAISE(ABORT, 'nor this one'); END`)
	rs := read(t, s, self, route)
	res := s.Settle(t.Context(), self, []core.Outcome{
		core.Published(&rs[0]), core.Retry(&rs[1], errNo, time.Hour), core.Abandon(&rs[2], "",
			errNo), core.Published(&rs[3]), core.Published(&rs[4]),
	})
	for i, err := range res {
		if refused := i == 1 || i == 3; refused != (err != nil) || refused && waybill.ClassOf(err) == waybill.ClassOutage {
			t.Errorf("%d: %v", i, err)
		}
	}
	if got := ids(read(t, s, self, route)); got != "b d " {
		t.Errorf("left: %s", got)
	}
	run(t, s.DB(), `DROP TRIGGER refuse; CREATE TRIGGER refuse BEFORE UPDATE OF state ON waybill_outbox BEGIN SELECT RAISE(ROLLBACK, 'all'); END; DROP TRIGGER refuse_too`)
	for i, err := range s.Settle(t.Context(), self, []core.Outcome{core.Retry(&rs[1], errNo, time.Hour), core.Published(&rs[3])}) {
		if err == nil {
			t.Errorf("%d was settled", i)
		}
	}
	if got := ids(read(t, s, self, route)); got != "b d " {
		t.Errorf("left: %s", got)
	}
}

// Two processes that stage, take and settle: each keyless record goes to one of them.
func TestTwoStoresTake(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "test.db")
	opts := Options{BusyTimeout: time.Minute} // SQLite does not queue processes: one can wait for seconds
	stores := []*Store{openAt(t, path, opts), openAt(t, path, opts)}
	const n = 200
	var done sync.Map
	var count atomic.Int32
	var wg sync.WaitGroup
	join(t, stores[0], route)
	for i, s := range stores {
		self := join(t, s, route).Session
		wg.Go(func() {
			for j := range n {
				if _, err := tryStage(t.Context(), s, raw(fmt.Sprint(i, "-", j), "")); err != nil {
					t.Error(err)
				}
			}
		})
		for range 2 {
			wg.Go(func() {
				for count.Load() < 2*n && !t.Failed() {
					taken, err := s.Hold(t.Context(), self, core.HoldRequest{KeylessSlots: all(route), KeylessLimit: 1, CountDelivery: true})
					if err != nil {
						t.Error(err)
						return
					}
					if len(taken) == 0 {
						if _, err := s.Wait(t.Context(), []string{route}, 10*time.Millisecond); err != nil {
							t.Error(err)
						}
					}
					for _, g := range taken {
						if _, again := done.LoadOrStore(g.Ref.ID, self); again {
							// it is held by this session: another goroutine of it has it
							continue
						}
						count.Add(1)
						if err := s.Settle(t.Context(), self, []core.Outcome{core.Published(g.Record)})[0]; err != nil {
							t.Error(g.Ref.ID, err)
						}
					}
				}
			})
		}
	}
	wg.Wait()
}

// OR-06: the clock goes on above what was settled.
func TestHighWater(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	self := join(t, s, route).Session
	stage(t, s, raw("a", ""))
	r := get(t, s, self, route, "a")
	settle(t, s, self, core.Published(r))
	if ts, err := s.HighWater(t.Context()); err != nil || ts != r.Envelope.HLC || ts == hlc.Timestamp(0) {
		t.Errorf("%v %v, want %v", ts, err, r.Envelope.HLC)
	}
}

// The partitions of an unserved route go, and come back with the facts about them.
func TestPartitionsOfUnservedRoutes(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	m := join(t, s, route)
	stage(t, s, raw("a", "k"))
	partitions := core.SplitPartitions(route, 2)
	owned := heartbeat(t, s, core.HeartbeatRequest{}).Partitions
	heartbeat(t, s, core.HeartbeatRequest{Self: m, Transfers: []core.Transfer{
		{Partition: partitions[0], From: m.Session, To: m.Session, ReadAfter: 3, MaybeOutUpTo: 5},
		{Partition: partitions[1], From: m.Session, To: m.Session, ReadAfter: 2, MaybeOutUpTo: 4},
	}})
	r := heartbeat(t, s, core.HeartbeatRequest{Self: m, Leave: true})
	if len(r.Partitions) != 0 || r.IsMember {
		t.Errorf("%+v", r)
	}
	for range 2 { // without partitions, and with new ones
		next := join(t, s)
		if ok, err := s.ReleasePartition(t.Context(), next.Session, owned[0], nil); err != nil || !ok {
			t.Errorf("a release of a former term: %v %v", ok, err)
		}
		next = join(t, s, route)
		for i, u := range heartbeat(t, s, core.HeartbeatRequest{}).Partitions {
			if u.ReadAfter != 2 || u.MaybeOutUpTo != 5 || u.Owner != next.Session || u.Term <= owned[i].Term {
				t.Errorf("%+v", u)
			}
		}
	}
}

// A notice about many records goes when the owners of all slots have carried it out.
func TestNoticeFrom(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	a, b := join(t, s, route), join(t, s, route)
	partition := core.SplitPartitions(route, 2)[1]
	heartbeat(t, s, core.HeartbeatRequest{Self: a, Transfers: []core.Transfer{{Partition: partition, From: b.Session, To: a.Session}}})
	run(t, s.DB(), "INSERT INTO waybill_outbox_notices (kind, route, seq) VALUES (3, 'default', 7)")
	notice := func(of core.Member, slots core.Slots) []core.Notice {
		p, err := s.Read(t.Context(), of.Session, core.ReadRequest{Slots: []core.RouteSlots{{Route: route, Slots: slots}}})
		if err != nil {
			t.Fatal(err)
		}
		return p.Notices
	}
	own := partition.Slots()
	cs := notice(a, own)
	if len(cs) != 1 || cs[0].Kind != core.NoticeReread || cs[0].Seq != 7 {
		t.Fatalf("%+v", cs)
	}
	for range 2 {
		settle(t, s, a.Session, core.DeleteNotice(&cs[0]))
	}
	if len(notice(a, own)) != 0 || len(notice(b, ^own)) != 1 {
		t.Error("it is there for the other owner only")
	}
	settle(t, s, b.Session, core.DeleteNotice(&cs[0]))
	var n int
	if err := s.DB().QueryRowContext(t.Context(), "SELECT count(*) FROM waybill_outbox_notices").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d left, %v", n, err)
	}
}

// DB-10
func TestWaitHearsOtherConnections(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "test.db")
	a, b := openAt(t, path, Options{}), openAt(t, path, Options{})
	self := join(t, a, route).Session
	if cause, err := a.Wait(t.Context(), []string{route}, time.Millisecond); err != nil || cause != core.WakeLimit {
		t.Fatalf("nothing is there: %s %v", cause, err)
	}
	// wait waits for longer than any test: only a wake-up ends it before ctx does.
	wait := func(routes ...string) (core.WakeCause, error) {
		ctx, _ := patience.Context(t.Context(), patience.Limit)
		return a.Wait(ctx, routes, time.Hour)
	}
	for i := range 20 {
		staged := make(chan error, 1)
		go func() {
			_, err := tryStage(t.Context(), b, raw(strconv.Itoa(i), ""))
			staged <- err
		}()
		if cause, err := wait(route); err != nil || cause != core.WakeNotify {
			t.Fatalf("%s %v", cause, err)
		}
		if err := <-staged; err != nil {
			t.Fatal(err)
		}
		settle(t, a, self, core.Published(get(t, a, self, route, strconv.Itoa(i))))
	}
	stage(t, b, raw("timer", "", waybill.Delay(200*time.Millisecond)))
	if cause, err := wait(route); err != nil || cause == core.WakeStop {
		t.Errorf("a timer: %s %v", cause, err)
	}
	stage(t, b, raw("head", "k"))
	if cause, err := wait(route, "other"); err != nil || cause != core.WakeNotify {
		t.Fatal(cause, err)
	}
	settle(t, a, self, core.Abandon(get(t, a, self, route, "head"), waybill.ReasonRejected, errNo))
	if cause, err := a.Wait(t.Context(), []string{"other"}, 300*time.Millisecond); err != nil || cause != core.WakeLimit {
		t.Errorf("nothing is there: %s %v", cause, err)
	}
	if err := b.DecideHead(t.Context(), route, "k", "head", admin.HeadSetAside); err != nil {
		t.Fatal(err)
	}
	if cause, err := wait(route); err != nil || cause != core.WakeNotify {
		t.Errorf("a notice: %s %v", cause, err)
	}
}

// Only the owner of a new file can read the messages in it and beside it. The log names one that others can
// read.
func TestFileMode(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("files have no mode")
	}
	var log sharedtest.Log
	path := filepath.Join(t.TempDir(), "shop.db")
	reopen := func() {
		t.Helper()
		s, err := Open(t.Context(), path, Options{Source: "/orders", AutoMigrate: true, Logger: log.Logger(slog.LevelWarn)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close(t.Context()) })
	}
	reopen()
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if info, err := os.Stat(path + suffix); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path+suffix, info, err)
		}
	}
	if text := log.String(); text != "" {
		t.Error(text)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	reopen()
	if text := log.String(); strings.Count(text, "event=sqlite.readable") != 1 || !strings.Contains(text, "chmod 600") {
		t.Error(text)
	}
}
