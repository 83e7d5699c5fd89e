package postgres_test

// An old snapshot keeps everything that ends after it: messages of each kind, marks, members. Here much of all that
// ends, and each statement of the engines is counted alone.
//
// The other stores have no such test. A snapshot in SQLite keeps former pages in the log, and a page of today has no
// row that ended. MongoDB ends a transaction after a minute, and keeps the history of five minutes, by its defaults.
// MySQL keeps ended records as Postgres does; the test in contrib/mysql counts pages there.

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/store/postgres"
)

const (
	flatRelay = "r"
	flatQueue = "mails"
	flatDead  = core.Session(77) // a member that dies again and again
)

// flat is a relay and a table queue of two members in virtual time, an inbox, and all that makes calls beside them.
type flat struct {
	*testing.T
	server  *scaled
	name    string
	pool    *pgxpool.Pool
	o       *postgres.Outbox
	inbox   *postgres.Inbox
	members []*dispatch.Dispatcher
	now     time.Time
	done    int
	n       int // of messages, marks and members, for their ids
	ran     *texts
}

// texts are the statements that ran.
type texts struct {
	mu sync.Mutex
	of map[string]bool
}

func (x *texts) add(sql string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.of[sql] = true
}

func (x *texts) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	x.add(q.SQL)
	return ctx
}
func (x *texts) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (x *texts) TraceBatchStart(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	for _, q := range b.Batch.QueuedQueries {
		x.add(q.SQL)
	}
	return ctx
}
func (x *texts) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (x *texts) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func newFlat(t *testing.T) *flat {
	t.Helper()
	f := &flat{T: t, server: newScaled(t), name: "flat", now: time.Now(), ran: &texts{of: map[string]bool{}}}
	if _, err := f.server.side.Exec(t.Context(), "CREATE DATABASE flat"); err != nil {
		t.Fatal(err)
	}
	f.pool = openPoolWith(t, f.server.server.DSN(f.name), func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = f.ran })
	f.o = outboxOn(t, f.pool, postgres.Options{Retention: waybill.Retention{Abandoned: time.Minute, Cancelled: time.Minute}})
	in, err := postgres.NewInbox(f.pool, postgres.InboxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.inbox = in
	snapshot(t, f.pool)
	f.join()
	f.until("the first member owns all", func() bool { return owned(f.members[0]) == 8 })
	return f
}

func (f *flat) join() *dispatch.Dispatcher {
	d := dispatch.New(dispatch.Options{
		Lease: 6 * time.Second, NewSession: newSession, Handlers: 50,
		Routes: []dispatch.Route{{Name: flatRelay, Partitions: 4, Blocks: true}, {Name: flatQueue, Partitions: 4, Queue: true}},
	})
	d.SetFree(50)
	f.members = append(f.members, d)
	return d
}

// step lets some time pass, makes the calls that are due, and handles all that is handed out.
func (f *flat) step() {
	f.Helper()
	f.now = f.now.Add(20 * time.Millisecond)
	for _, d := range f.members {
		for calls := d.Calls(f.now); len(calls) > 0; calls = d.Calls(f.now) {
			for _, c := range calls {
				if c.Do(f.Context(), f.o); c.Err() != nil {
					f.Fatal(c.Kind().String(), c.Err())
				}
				d.Done(f.now, c)
			}
			for _, route := range []string{flatRelay, flatQueue} {
				for _, item := range d.HandOut(f.now, route, 500) {
					r := &item.Record
					if r.Envelope.Topic == "t.fails" && r.Attempts == 0 {
						d.Conclude(f.now, item, core.Retry(r, context.Canceled, 0))
						continue
					}
					f.done++
					d.Conclude(f.now, item, core.Published(r))
				}
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

func owned(d *dispatch.Dispatcher) int { return len(d.Owned(flatRelay)) + len(d.Owned(flatQueue)) }

func (f *flat) rest(d time.Duration) {
	for end := f.now.Add(d); f.now.Before(end); {
		f.step()
	}
}

func (f *flat) exec(sql string, args ...any) {
	f.Helper()
	exec(f, f.pool, sql, args...)
}

// die has n rows of each kind end.
func (f *flat) die(n int) {
	f.Helper()
	const o = "waybill.waybill_outbox"
	self := int64(f.members[0].Session())
	insert := func(columns, values string) {
		for _, route := range []string{flatRelay, flatQueue} {
			f.exec(fmt.Sprintf(`INSERT INTO %s (route, topic, body, key, %s) SELECT '%s', 't.x', '', CASE i %% 2 WHEN 0 THEN 'k' || i %% 50 ELSE '' END, %s
				FROM generate_series(1, %d) i`, o, columns, route, values, n))
		}
	}
	gone := func(updates ...string) {
		for _, u := range updates {
			f.exec("UPDATE " + o + " SET " + u)
		}
		f.exec("DELETE FROM " + o)
	}
	insert("attempts", "0")
	gone()
	insert("due_at", "clock_timestamp() - interval '1 hour'")
	gone("due_at = NULL, seq = nextval('waybill.waybill_outbox_seq')")
	insert("cancellable", "true")
	gone(fmt.Sprintf("hold = CASE WHEN seq %% 2 = 0 THEN %d ELSE %d END, held_since = clock_timestamp()", self, flatDead))
	insert("attempts", "0")
	gone("retry = true, state = 4, attempts = 1, due_at = clock_timestamp() - interval '1 hour'", fmt.Sprintf("hold = %d, held_since = clock_timestamp()", self))
	insert("own_id, id, dedupe_key", "true, 'id' || i, 'd' || i")
	gone()
	insert("expires_at", "clock_timestamp() - interval '1 hour'")
	gone()
	insert("expires_at, due_at", "clock_timestamp() - interval '1 hour', clock_timestamp() - interval '1 hour'")
	gone()
	insert("attempts", "1")
	gone("state = 5, reason = CASE seq % 3 WHEN 0 THEN 'cancelled' ELSE 'rejected' END, blocks = key <> '', settled_at = clock_timestamp() - interval '1 minute'")
	insert("attempts", "1")
	gone("state = 3, settled_at = clock_timestamp()")
	f.exec(`INSERT INTO waybill.waybill_outbox (route, topic, body) SELECT 'unserved', 't.x', '' FROM generate_series(1, $1::int)`, n)
	gone()
	for _, sql := range []string{
		"INSERT INTO waybill.waybill_outbox_notices (kind, route, slot, slots, key, id, seq) SELECT 1, 'r', 0, 1, 'k', '', 0 FROM generate_series(1, $1::int)",
		"INSERT INTO waybill.waybill_inbox (consumer, source, id, handled_at) SELECT 'c', '/s', i::text, clock_timestamp() - interval '1 minute' FROM generate_series(1, $1::int) i",
	} {
		f.exec(sql, n)
	}
	f.exec("DELETE FROM waybill.waybill_outbox_notices")
	f.exec("DELETE FROM waybill.waybill_inbox")
}

// must fails the test for an error.
func (f *flat) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// stage stages a message in a transaction of its own.
func (f *flat) stage(topic, route, key string, opts ...waybill.MessageOption) {
	f.Helper()
	m := waybill.RawMessage(topic, "text/plain", nil, append(opts, waybill.Routes(route), waybill.Key(key))...)
	f.must(pgx.BeginFunc(f.Context(), f.pool, func(tx pgx.Tx) error {
		_, err := f.o.Stage(f.Context(), tx, m)
		return err
	}))
}

// messages has messages of each kind handled.
func (f *flat) messages() {
	f.Helper()
	goal := f.done
	for _, route := range []string{flatRelay, flatQueue} {
		for _, key := range []string{"", fmt.Sprint("key", f.n)} {
			f.n++
			again := fmt.Sprint("again", f.n)
			f.stage("t.x", route, key)
			f.stage("t.x", route, key, waybill.ID(fmt.Sprint("own", f.n)), waybill.DedupeKey(fmt.Sprint("dedupe", f.n)))
			f.stage("t.x", route, key, waybill.Cancellable(), waybill.TTL(time.Hour))
			f.stage("t.x", route, key, waybill.Delay(time.Millisecond))
			f.stage("t.fails", route, key)
			goal += 5
			f.stage("t.x", route, key, waybill.DedupeKey(again), waybill.Delay(time.Hour))
			f.stage("t.x", route, key, waybill.Replace(again), waybill.Delay(time.Hour))
			f.must(pgx.BeginFunc(f.Context(), f.pool, func(tx pgx.Tx) error {
				_, err := f.o.Cancel(f.Context(), tx, waybill.CancelKey{Route: route, Topic: "t.x", DedupeKey: again})
				return err
			}))
		}
	}
	for _, d := range f.members {
		d.Wake(f.now, flatRelay, flatQueue)
	}
	f.until("all are handled", func() bool { return f.done >= goal })
	f.rest(time.Second)
}

// work is what the engines do as long as their members stay.
func (f *flat) work() {
	f.Helper()
	f.messages()
	f.rest(20 * time.Second) // heartbeats
}

// takeOver has members come, leave and die.
func (f *flat) takeOver() {
	f.Helper()
	second := f.join()
	f.until("the second member owns its part", func() bool { return owned(second) > 0 && owned(f.members[0]) == 8-owned(second) })
	f.messages()
	second.Stop()
	f.until("the second member has left", second.Left)
	f.members = f.members[:1]
	f.until("the first member owns all", func() bool { return owned(f.members[0]) == 8 })
	f.exec("INSERT INTO waybill.waybill_outbox_members (session, heartbeats, lease, capacity, free_capacity, name, routes, partitions, unavailable, handed_out, oldest_handed_out, presence) "+
		"VALUES ($1, 1, 1, 1, 1, '', '{}', '{}', '{}', '{}', '{}', 0)", int64(flatDead))
	f.exec("INSERT INTO waybill.waybill_outbox (route, topic, body, hold, held_since) VALUES ('mails', 't.x', '', $1, now())", int64(flatDead))
	_, err := f.o.Heartbeat(f.Context(), core.HeartbeatRequest{
		Self: core.Member{Session: f.members[0].Session()}, Evict: []core.Eviction{{Session: flatDead, Heartbeats: 1}},
	})
	f.must(err)
	f.exec("INSERT INTO waybill.waybill_outbox_notices (kind, route, slot, slots, key, id, seq) VALUES (1, 'r', 0, 1, 'k', '', 0)")
	goal := f.done + 1
	f.members[0].Wake(f.now, flatRelay, flatQueue)
	f.until("what it held is handled", func() bool { return f.done >= goal })
	f.rest(time.Second)
}

// clean deletes what was published, and what else ended a minute ago.
func (f *flat) clean() (records, marks int) {
	f.Helper()
	done, err := f.o.Clean(f.Context(), "me", time.Minute)
	f.must(err)
	for _, n := range done.Deleted {
		records += n
	}
	marks, err = f.inbox.PurgeInbox(f.Context(), "c", time.Minute, 1000)
	f.must(err)
	postgres.GoOn(f.o, f.inbox)
	return records, marks
}

// keep is the work beside it: marks, limits, cleaning and counts.
func (f *flat) keep() {
	f.Helper()
	ctx := f.Context()
	for range 3 {
		f.n++
		f.exec("INSERT INTO waybill.waybill_outbox (route, topic, body, state, reason, settled_at) SELECT 'r', 't.x', '', CASE r WHEN '' THEN 3 ELSE 5 END, r, now() - interval '1 minute' * (r <> '')::int FROM unnest('{\"\",cancelled,rejected}'::text[]) r")
		f.exec("INSERT INTO waybill.waybill_outbox (route, topic, body, due_at, expires_at) SELECT 'r', 't.x', '', now() + interval '1 hour', now()")
		f.exec("INSERT INTO waybill.waybill_inbox (consumer, source, id, handled_at) VALUES ('c', '/s', $1, clock_timestamp() - interval '1 minute')", fmt.Sprint("old", f.n))
		if records, marks := f.clean(); records < 3 || marks < 1 {
			f.Fatalf("cleaning deletes %d records and %d marks, want all that has ended", records, marks)
		}
		_, err := f.o.HighWater(ctx)
		f.must(err)
		key := core.InboxKey{Consumer: "c", Source: "/s", ID: fmt.Sprint("do", f.n)}
		for range 2 {
			_, err = f.inbox.Do(ctx, key, func(context.Context, pgx.Tx) error { return nil })
			f.must(err)
		}
		_, err = f.inbox.DoBatch(ctx, []core.InboxKey{key, {Consumer: "c", Source: "/s", ID: fmt.Sprint("batch", f.n)}}, func(context.Context, pgx.Tx, []int) error { return nil })
		f.must(err)
		f.must(f.inbox.UpdateLimit(ctx, "l", func(string, time.Time) string { return strconv.Itoa(f.n) }))
		_, err = f.o.Counts(ctx)
		f.must(err)
		last := queryInt(f, f.pool, "SELECT last_value FROM waybill.waybill_outbox_seq")
		_, err = f.o.Read(ctx, f.members[0].Session(), core.ReadRequest{
			Ranges:  []core.Range{{RouteSlots: all(flatRelay), AfterSeq: last - 100, UpToSeq: last, Limit: 10, ExcludeSeqs: []int64{last}}},
			Recheck: []core.Ref{{Route: flatRelay, Seq: last, ID: "x"}},
		})
		f.must(err)
		// As for ten minutes after one that was not answered.
		_, err = f.o.Due(ctx, f.members[0].Session(), []core.RouteSlots{{Route: flatQueue, Slots: core.AllSlots, MaxOverdue: time.Minute}}, 10)
		f.must(err)
	}
}

// mean returns the mean number of blocks of each statement while fn runs.
func (f *flat) mean(fn func()) map[string]float64 {
	f.Helper()
	type sum struct{ calls, blocks float64 }
	sums := func() map[string]sum {
		all := map[string]sum{}
		rows, _ := f.server.side.Query(f.Context(), `SELECT query, sum(calls)::float8, sum(shared_blks_hit + shared_blks_read)::float8
			FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = $1 GROUP BY query`, f.name)
		var query string
		var s sum
		_, err := pgx.ForEachRow(rows, []any{&query, &s.calls, &s.blocks}, func() error {
			all[query] = s
			return nil
		})
		f.must(err)
		f.must(rows.Err())
		return all
	}
	before := sums()
	fn()
	mean := map[string]float64{}
	for query, s := range sums() {
		if n := s.calls - before[query].calls; n > 0 {
			mean[query] = (s.blocks - before[query].blocks) / n
		}
	}
	return mean
}

// notOfEngines are the names of statements of operators, of variants of others for larger bodies and other inserts, and
// of those that deal with a frozen process.
var notOfEngines = regexp.MustCompile(`^outbox\.(admin|decide|decideRecords|clock\.restored|heartbeat\.(reap|suspect)|.*\.added)|^stage\.(inserts|holders|raise|taken|unstage)`)

// walksOver are texts of the statements that go over all that ended, by phase, and how many blocks they may touch for
// each row of a kind that ended. Each of them does so for a reason, and not at each call.
var walksOver = map[string]map[string]float64{
	"take over": {
		// The records that wait in a new partition.
		"r.why, r.holder FROM unnest($2::text[], $3::bigint[])": 3,
		// The holds of a member that leaves or dies, and of one that releases a partition.
		"crashes = r.crashes +": 0.2,
		"WITH un AS":            0.5,
		// The Holds that follow walk over all in sixteen steps, and a Due looks for all.
		"WITH own AS": 6,
		"p.repeats":   4,
		// A range: its width is bounded, and wider than that of this test's rows.
		"$7::boolean[], $8::int[]": 1,
	},
	"keep": {
		// Counts.
		"others AS": 30,
	},
}

// DB-28: each statement of the engines touches as much behind 36,000 rows that an old snapshot keeps, of eighteen
// kinds, as behind a quarter of them, with the plans that it got for a small table. At night there are 1,080,000. The
// statements of walksOver touch more for each row.
func TestEveryStatementIsFlatBehindAnOldSnapshot(t *testing.T) {
	t.Parallel()
	n := 500
	if tier.IsNightly() {
		n = 15_000
	}
	f := newFlat(t)
	phases := []struct {
		name string
		do   func()
	}{{"work", f.work}, {"take over", f.takeOver}, {"keep", f.keep}}
	for _, p := range phases {
		p.do()
	}
	costs := func(n int) (of []map[string]float64) {
		f.rest(2 * time.Minute) // the walks that follow a change of owners end
		f.die(n)
		f.work() // the fronts follow
		f.clean()
		for _, p := range phases {
			of = append(of, f.mean(p.do))
		}
		return of
	}
	before, after := costs(n), costs(3*n)
	for name, text := range postgres.Texts(f.o) {
		if !f.ran.of[text] && !notOfEngines.MatchString(name) {
			t.Error("this test does not run ", name)
		}
	}
	for i, p := range phases {
		for _, query := range slices.Sorted(maps.Keys(after[i])) {
			text := strings.Join(strings.Fields(query), " ")
			x, y := before[i][query], after[i][query]
			more := 0.0
			for part, each := range walksOver[p.name] {
				if strings.Contains(text, part) {
					more = each * float64(4*n)
				}
			}
			if y > 1.5*x+25 && y > more {
				t.Errorf("%s: %.0f blocks behind %d rows of each kind, %.0f behind %d: %s", p.name, x, n, y, 4*n, text)
			} else {
				t.Logf("%s: %.0f blocks behind %d rows of each kind, %.0f behind %d: %.100s", p.name, x, n, y, 4*n, text)
			}
		}
	}
}

// TestSweepGoesOn: looks for expired records go on where the latest one ended, and leave none of many out. One from the
// beginning finds what came back.
func TestSweepGoesOn(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	in, err := postgres.NewInbox(pool, postgres.InboxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	expired := func(n int, ago string) {
		exec(t, pool, "INSERT INTO waybill.waybill_outbox (topic, body, expires_at) SELECT 't.x', '', clock_timestamp() - $2::interval FROM generate_series(1, $1::int)", n, ago)
	}
	clean := func(what string, want int) {
		t.Helper()
		done, err := o.Clean(t.Context(), "me", time.Minute)
		if err != nil || done.Expired != want || done.More != (want == 1000) {
			t.Errorf("%s: %+v, %v; want %d", what, done, err, want)
		}
		postgres.GoOn(o, in)
	}
	expired(1500, "1 hour")
	clean("the first ones", 1000)
	clean("the others", 500)
	clean("none", 0)
	expired(3, "0")
	clean("some that expired since", 3)
	expired(2, "1 hour")
	clean("some that came late", 0)
	postgres.Anew(o)
	clean("the same from the beginning", 2)
}

// IN-05: a purge that is full goes on at its newest mark, and one that is not where the young marks begin.
func TestPurgeInboxGoesOn(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	in, err := postgres.NewInbox(pool, postgres.InboxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `INSERT INTO waybill.waybill_inbox (consumer, source, id, handled_at)
		SELECT 'c', '/s', i::text, clock_timestamp() - interval '1 hour' + i * interval '1 second' FROM generate_series(1, 5) i`)
	for _, want := range []int{2, 2, 1, 0} {
		if n, err := in.PurgeInbox(t.Context(), "c", time.Minute, 2); n != want || err != nil {
			t.Errorf("a purge deletes %d marks, %v, want %d", n, err, want)
		}
		postgres.GoOn(o, in)
	}
}
