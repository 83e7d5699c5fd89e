package waybillmysql_test

// An open read view keeps all that was deleted after it: a dump, a report, a forgotten transaction. The server counts
// no rows that a statement goes over without seeing them, but it counts the pages that it looks at.

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
)

const (
	flatRelay = "r"
	flatQueue = "mails"
)

// flat is a relay and a table queue in virtual time, and an inbox, on a server of their own.
type flat struct {
	*testing.T
	s     *waybillmysql.Store
	all   bool // the latest Due looked for all that is due
	side  *sql.DB
	d     *dispatch.Dispatcher
	now   time.Time
	done  int
	n     int                  // of messages and marks, for their ids
	pages map[string][]float64 // by call
}

func newFlat(t *testing.T) *flat {
	t.Helper()
	server, err := startServer("--skip-log-bin")
	missing(t, err)
	t.Cleanup(func() {
		server.kill()
		_ = os.RemoveAll(server.dir)
	})
	dsn := newDatabase(t, server.dsn)
	f := &flat{T: t, now: time.Now(), s: openAt(t, dsn, waybillmysql.Options{Retention: waybill.Retention{Abandoned: time.Minute, Cancelled: time.Minute}})}
	f.must(f.s.Migrate(t.Context()))
	f.side, err = sql.Open("mysql", dsn+"?multiStatements=true")
	f.must(err)
	t.Cleanup(func() { _ = f.side.Close() })
	view, err := f.side.Conn(t.Context())
	f.must(err)
	_, err = view.ExecContext(t.Context(), "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT")
	f.must(err)
	t.Cleanup(func() { _ = view.Close() })
	f.d = f.join()
	f.until("it owns all", func() bool { return len(f.d.Owned(flatRelay))+len(f.d.Owned(flatQueue)) == 2 })
	return f
}

func (f *flat) join() *dispatch.Dispatcher {
	d := dispatch.New(dispatch.Options{
		Lease: 6 * time.Second, NewSession: func() core.Session { return core.Session(rand.Int64N(1<<62) + 1) }, Handlers: 50,
		Routes: []dispatch.Route{{Name: flatRelay, Partitions: 1, Blocks: true}, {Name: flatQueue, Partitions: 1, Queue: true}},
	})
	d.SetFree(50)
	return d
}

func (f *flat) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *flat) exec(text string, args ...any) {
	f.Helper()
	if _, err := f.side.ExecContext(f.Context(), text, args...); err != nil {
		f.Fatalf("%s: %v", text, err)
	}
}

// read returns how many pages the server has looked at.
func (f *flat) read() (n float64) {
	f.Helper()
	f.must(f.side.QueryRowContext(f.Context(), "SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_read_requests'").Scan(new(string), &n))
	return n
}

// count counts the pages of a call.
func (f *flat) count(name string, fn func()) {
	f.Helper()
	if f.pages == nil {
		fn()
		return
	}
	f.all = false
	before := f.read()
	fn()
	if f.all {
		name += " for all"
	}
	f.pages[name] = append(f.pages[name], f.read()-before)
}

// flatStore tells the Dues apart that look for all.
type flatStore struct {
	*waybillmysql.Store
	f *flat
}

func (s flatStore) Due(ctx context.Context, self core.Session, parts []core.RouteSlots, limit int) (core.DueResult, error) {
	for _, p := range parts {
		s.f.all = s.f.all || p.MaxOverdue == 0 || !p.DueExcludeHeld
	}
	return s.Store.Due(ctx, self, parts, limit)
}

// step lets some time pass, makes the calls that are due, and handles all that is handed out.
func (f *flat) step() {
	f.Helper()
	f.now = f.now.Add(20 * time.Millisecond)
	for calls := f.d.Calls(f.now); len(calls) > 0; calls = f.d.Calls(f.now) {
		for _, c := range calls {
			f.count(c.Kind().String(), func() { c.Do(f.Context(), flatStore{f.s, f}) })
			f.must(c.Err())
			f.d.Done(f.now, c)
		}
		for _, route := range []string{flatRelay, flatQueue} {
			for _, item := range f.d.HandOut(f.now, route, 500) {
				r := &item.Record
				if r.Envelope.Topic == "t.fails" && r.Attempts == 0 {
					f.d.Conclude(f.now, item, core.Retry(r, context.Canceled, 0))
					continue
				}
				f.done++
				f.d.Conclude(f.now, item, core.Published(r))
			}
		}
	}
}

func (f *flat) until(what string, so func() bool) {
	f.Helper()
	for range 4000 {
		if so() {
			return
		}
		f.step()
	}
	f.Fatalf("not in 80 s: %s (%d are done)", what, f.done)
}

func (f *flat) rest(d time.Duration) {
	for end := f.now.Add(d); f.now.Before(end); {
		f.step()
	}
}

func (f *flat) stage(topic, route, key string, opts ...waybill.MessageOption) {
	f.Helper()
	f.must(stage(f.Context(), f.s, []waybill.Message{waybill.RawMessage(topic, "text/plain", nil, append(opts, waybill.Routes(route), waybill.Key(key))...)}))
}

// work is what the engines do as long as their members stay.
func (f *flat) work() {
	f.Helper()
	for range 3 {
		goal := f.done
		for _, route := range []string{flatRelay, flatQueue} {
			for _, key := range []string{"", fmt.Sprint("key", f.n)} {
				f.n++
				f.stage("t.x", route, key)
				f.stage("t.x", route, key, waybill.Delay(time.Millisecond))
				f.stage("t.fails", route, key)
				goal += 3
			}
		}
		f.d.Wake(f.now, flatRelay, flatQueue)
		f.until("all are handled", func() bool { return f.done >= goal })
		f.rest(time.Second)
	}
	f.rest(20 * time.Second) // heartbeats
}

// keep is the work beside it.
func (f *flat) keep() {
	f.Helper()
	for range 3 {
		f.n++
		f.exec(`INSERT INTO waybill_inbox (consumer, source, id, handled_at, mark) VALUES ('c', '/s', ?, `+flatNow+` - 60000000, 1)`, fmt.Sprint("old", f.n))
		f.exec(`INSERT INTO waybill_outbox (route, id, topic, k, slot, attrs, body, state, ends_at)
			SELECT 'old', UUID(), 't', '', 0, '', '', s.state, ` + flatNow + ` - IF(s.state = 3, 0, 60000000) FROM (SELECT 3 state UNION SELECT 5 UNION SELECT 6) s`)
		f.exec(`INSERT INTO waybill_outbox_aside (seq, route, k, slot, state, due_at, ends_at, hold, flags)
			SELECT seq, route, k, slot, state, due_at, ends_at, hold, flags FROM waybill_outbox WHERE route = 'old'`)
		f.count("clean", func() {
			done, err := f.s.Clean(f.Context(), "me", time.Minute)
			f.must(err)
			n := 0
			for _, of := range done.Deleted {
				n += of
			}
			if n != 3 {
				f.Fatalf("cleaning deletes %v, want a record of each class", done.Deleted)
			}
		})
		f.count("purge the inbox", func() {
			n, err := f.s.PurgeInbox(f.Context(), "c", time.Minute, 1000)
			f.must(err)
			if n != 1 {
				f.Fatalf("a purge deletes %d marks, want 1", n)
			}
		})
		f.s.GoOn()
		key := core.InboxKey{Consumer: "c", Source: "/s", ID: fmt.Sprint("do", f.n)}
		f.count("do", func() {
			_, err := f.s.Do(f.Context(), key, func(context.Context, *sql.Tx) error { return nil })
			f.must(err)
		})
	}
}

const flatNow = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`

// die has n rows of each kind end, and ten times as many notices.
func (f *flat) die(n int) {
	f.Helper()
	self := int64(f.d.Session())
	first := func(n int) string {
		return fmt.Sprintf(`(SELECT a.g + 256 * b.g AS i FROM waybill_outbox_marks a, waybill_outbox_marks b LIMIT %d) i`, n)
	}
	numbers := first(n)
	for _, route := range []string{flatRelay, flatQueue} {
		for _, state := range []string{
			"state, due_at, hold:1, 0, 0",
			fmt.Sprintf("state, due_at, hold:1, 0, %d", self),
			"state, due_at, hold:1, 0, 77",
			"state, due_at, hold:1, " + flatNow + " - 3600000000, 0",
			fmt.Sprintf("state, due_at, hold:4, "+flatNow+" - 3600000000, %d", self),
			"state, due_at, hold, flags, ends_at:5, 0, 0, 1, " + flatNow + " - 60000000",
			"state, due_at, hold, ends_at:6, 0, 0, " + flatNow + " - 60000000",
			"state, due_at, hold, ends_at:3, 0, 0, " + flatNow,
			"state, due_at, hold, ends_at:1, " + flatNow + ", 0, " + flatNow,
		} {
			var columns, values string
			for i, r := range state {
				if r == ':' {
					columns, values = state[:i], state[i+1:]
				}
			}
			f.exec(fmt.Sprintf(`INSERT INTO waybill_outbox (route, id, topic, k, slot, attrs, body, %s) SELECT '%s', UUID(), 't', IF(i %% 2, '', CONCAT('k', i %% 50)), i %% 64, '', '', %s FROM %s`, columns, route, values, numbers))
		}
	}
	f.exec(`INSERT INTO waybill_outbox_aside (seq, route, k, slot, state, due_at, ends_at, hold, flags) SELECT seq, route, k, slot, state, due_at, ends_at, hold, flags FROM waybill_outbox`)
	f.exec(`INSERT INTO waybill_outbox_notices (route, kind, slot, seq, k, id, reason) SELECT 'r', 1, 0, 0, 'k', '', '' FROM ` + first(10*n))
	f.exec(`INSERT INTO waybill_inbox (consumer, source, id, handled_at, mark) SELECT 'c', '/s', UUID(), ` + flatNow + ` - 60000000, 1 FROM ` + numbers)
	for _, table := range []string{"outbox_aside WHERE seq > 0", "outbox", "outbox_notices", "inbox"} {
		f.exec("DELETE FROM waybill_" + table)
	}
}

// usual returns the median: work of the server itself counts, too.
func usual(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}

// DB-28: the calls of the engines look at as many pages behind rows that an open read view keeps as before. The indexes
// are a level higher then. A Due for all, which is rare, goes over the entries of an index that are gone before the
// first due record. It does not look up their rows: a page has more than a hundred entries.
func TestCallsAreFlatBehindAnOldReadView(t *testing.T) {
	t.Parallel()
	f := newFlat(t)
	costs := func() map[string][]float64 {
		f.work()
		f.keep()
		f.pages = map[string][]float64{}
		f.work()
		f.keep()
		defer func() { f.pages = nil }()
		return f.pages
	}
	f.work()
	f.die(100)
	before := costs()
	const each, kinds = 2000, 18
	f.die(each)
	f.rest(2 * time.Minute)
	after := costs()
	for _, call := range slices.Sorted(maps.Keys(after)) {
		x, y := usual(before[call]), usual(after[call])
		t.Logf("%s: %.0f pages, %.0f behind what has ended", call, x, y)
		more := 40.0
		switch call {
		case "due for all":
			more = each * kinds / 100
		case "hold": // it goes twice over the last numbers that were drawn, for records that are gone, too
			more = 100
		}
		if y > x+more {
			t.Errorf("%s: looks at %.0f pages behind what has ended, and %.0f before", call, y, x)
		}
	}
}
