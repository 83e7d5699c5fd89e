package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

// cancel cancels in a transaction of its own.
func cancel(tb testing.TB, pool *pgxpool.Pool, o *postgres.Outbox, keys ...waybill.CancelKey) []waybill.CancelStatus {
	tb.Helper()
	var got []waybill.CancelStatus
	err := pgx.BeginFunc(tb.Context(), pool, func(tx pgx.Tx) (err error) {
		got, err = o.Cancel(tb.Context(), tx, keys...)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return got
}

// ST-09: holds and cancels of the same messages at the same time: each message has exactly one of them, also with
// keys, in batches, and with transactions that roll back.
func TestCancelAndClaimRace(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	const n = 600
	msgs := make([]waybill.Message, n)
	for i := range msgs {
		msgs[i] = message(waybill.ID(strconv.Itoa(i)), waybill.DedupeKey(fmt.Sprint("d", i)))
		if i%2 == 0 {
			msgs[i].Key = fmt.Sprint("k", i%6)
		}
	}
	stage(t, pool, o, msgs...)
	var mu sync.Mutex
	held, cancelled := map[string]int{}, map[string]int{}
	all := func() int { mu.Lock(); defer mu.Unlock(); return len(held) + len(cancelled) }
	ctx, moved := patience.Context(t.Context(), patience.Limit)
	errs := make(chan error, 4)
	self := session(t, o, waybill.DefaultRoute)
	for range 1 {
		go func() {
			for all() < n && ctx.Err() == nil {
				c, err := tryHoldNext(ctx, o, self, want(7))
				if err != nil {
					errs <- err
					return
				}
				var out []core.Outcome
				mu.Lock()
				for i := range c.Records {
					held[c.Records[i].Envelope.ID]++
					out = append(out, core.Published(&c.Records[i]))
				}
				mu.Unlock()
				moved()
				// A canceller that saw a record before it was held may lock it until its
				// transaction ends. A settled record is gone, which is no error.
				err = o.Settle(ctx, self, out).FirstErr()
				for errors.Is(err, core.ErrLocked) && ctx.Err() == nil {
					err = o.Settle(ctx, self, out).FirstErr()
				}
				if err != nil {
					errs <- err
					return
				}
			}
			errs <- ctx.Err()
		}()
	}
	undo := errors.New("undo")
	for w := range 3 {
		go func() {
			for i := n - 1 - w; i >= 0; i -= 3 {
				keys := []waybill.CancelKey{{ID: strconv.Itoa(i)}, {Topic: "t.x", DedupeKey: fmt.Sprint("d", max(i-1, 0))}, {ID: strconv.Itoa(max(i-2, 0))}}
				var got []waybill.CancelStatus
				err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
					if got, err = o.Cancel(ctx, tx, keys...); err == nil && i%5 == 0 {
						return undo
					}
					return err
				})
				if errors.Is(err, undo) {
					continue
				}
				if err != nil {
					errs <- err
					return
				}
				moved()
				mu.Lock()
				for j := range got {
					if got[j] == waybill.CancelDone && (j == 0 || i-j >= 0) {
						cancelled[strconv.Itoa(max(i-j, 0))]++
					}
				}
				mu.Unlock()
			}
			errs <- nil
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Fatalf("%v, with %d of %d messages held or cancelled", err, all(), n)
		}
	}
	for i := range n {
		if c, w := held[strconv.Itoa(i)], cancelled[strconv.Itoa(i)]; c+w != 1 {
			t.Errorf("message %d was held %d times and cancelled %d times", i, c, w)
		}
	}
	if left := queryInt(t, pool, "SELECT count(*) FROM waybill.waybill_outbox"); left != 0 {
		t.Errorf("%d rows are left", left)
	}
	t.Logf("%d held, %d cancelled", len(held), len(cancelled))
}

// ST-09: cancelling what a relay holds waits for nothing, and the relay's settle does not wait for the canceller.
func TestCancelInFlightHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	id := stage(t, pool, o, message())[0].ID
	c := holdNext(t, o, want(1))
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if got, err := o.Cancel(t.Context(), tx, waybill.CancelKey{ID: id}); err != nil || got[0] != waybill.CancelInFlight {
		t.Fatalf("got %q, %v", got, err)
	}
	settle(t, o, core.Published(&c.Records[0])) // with tx open
}

// ST-10: a message that replaces one which another transaction stages at the same time waits for that, wins, and
// keeps its place before what the same call stages after it.
func TestReplaceMeetsRunningTransaction(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	first, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := o.Stage(t.Context(), first, message(waybill.ID("old"), waybill.DedupeKey("k"))); err != nil {
		t.Fatal(err)
	}
	var staged []waybill.Staged
	done := make(chan error, 1)
	go func() {
		done <- pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
			staged, err = o.Stage(t.Context(), tx, message(waybill.ID("before"), waybill.Key("o")), message(waybill.ID("new"), waybill.Key("o"), waybill.Replace("k")),
				message(waybill.ID("after"), waybill.Key("o")), message(waybill.ID("other"), waybill.Key("o"), waybill.DedupeKey("l")))
			return err
		})
	}()
	patience.Until(t, "the second transaction waits", func() bool {
		return queryInt(t, pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 1
	})
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for i, s := range staged {
		want := waybill.CancelNotFound
		if i == 1 {
			want = waybill.CancelDone
		}
		if s.Duplicate || s.Replaced != want {
			t.Errorf("message %d: %+v", i, s)
		}
	}
	var got []string
	for _, r := range holdNext(t, o, want(10)).Records {
		got = append(got, r.Envelope.ID)
	}
	if want := []string{"before", "new", "after", "other"}; !slices.Equal(got, want) {
		t.Errorf("held %v, want %v", got, want)
	}
}

// ST-02 ST-08 ST-10: messages with and without dedupe keys, replacements and duplicates go in one statement.
func TestStageWithDedupeKeysIsOneStatement(t *testing.T) {
	t.Parallel()
	pool, count := tracedPool(t, testenv.Postgres(t).DSN)
	o := outboxOn(t, pool, postgres.Options{})
	stage(t, pool, o, message(waybill.DedupeKey("a")), message(waybill.DedupeKey("b")))
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	msgs := []waybill.Message{message(waybill.DedupeKey("a")), message(waybill.Replace("b")), message(waybill.Delay(time.Hour))}
	for i := range 200 {
		msgs = append(msgs, message(waybill.Key("k")), message(waybill.DedupeKey(strconv.Itoa(i))), message(waybill.DedupeKey(strconv.Itoa(i))))
	}
	before := count.n.Load()
	staged, err := o.Stage(t.Context(), tx, msgs...)
	if err != nil {
		t.Fatal(err)
	}
	if got := count.n.Load() - before; got != 1 {
		t.Errorf("%d statements for %d messages", got, len(msgs))
	}
	dups := 0
	for _, s := range staged {
		if s.Duplicate {
			dups++
		}
	}
	if dups != 201 || staged[1].Replaced != waybill.CancelDone {
		t.Errorf("%d duplicates, want 201; the replacement: %+v", dups, staged[1])
	}
	before = count.n.Load()
	keys := make([]waybill.CancelKey, len(staged))
	for i := range staged {
		keys[i] = waybill.CancelKey{ID: staged[i].ID}
	}
	if _, err := o.Cancel(t.Context(), tx, keys...); err != nil {
		t.Fatal(err)
	}
	if got := count.n.Load() - before; got != 1 {
		t.Errorf("%d statements to cancel %d messages", got, len(keys))
	}
}

// DB-17: the lookups by key and by id use their indexes, however the table is.
func TestCancelPlansUseIndexes(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	for range 5 {
		msgs := make([]waybill.Message, 2000)
		for i := range msgs {
			msgs[i] = message(waybill.DedupeKey(waybill.NewID()))
		}
		stage(t, pool, o, msgs...)
	}
	const read = "SELECT seq_tup_read + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'waybill_outbox') FROM pg_stat_user_tables WHERE relname = 'waybill_outbox'"
	patience.Until(t, "statistics", func() bool {
		return queryInt(t, pool, "SELECT n_tup_ins FROM pg_stat_user_tables WHERE relname = 'waybill_outbox'") >= 10_000
	})
	before := queryInt(t, pool, read)
	for i := range 30 { // beyond the custom plans of a prepared statement
		s := stage(t, pool, o, message(waybill.Replace("r")), message(waybill.DedupeKey(strconv.Itoa(i))))
		cancel(t, pool, o, waybill.CancelKey{ID: s[1].ID}, waybill.CancelKey{Topic: "t.x", DedupeKey: "none"})
	}
	exec(t, pool, "SELECT pg_stat_force_next_flush()")
	patience.Until(t, "statistics", func() bool {
		return queryInt(t, pool, "SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = 'waybill_outbox'") >= 59
	})
	if n := queryInt(t, pool, read) - before; n > 2000 { // a few a call, dead ones included
		t.Errorf("60 calls read %d rows and index entries", n)
	}
}

// ST-09 ST-10 DB-09: with a retention, a cancelled message stays with its reason, and is neither live nor in the way.
func TestCancelledAreKeptOnRequest(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{Retention: waybill.Retention{Cancelled: time.Hour}})
	stage(t, pool, o, message(waybill.ID("a"), waybill.DedupeKey("k"), waybill.Key("o")), message(waybill.ID("b"), waybill.Key("o"), waybill.DedupeKey("l")),
		message(waybill.ID("c"), waybill.Key("o")))
	if s := stage(t, pool, o, message(waybill.ID("d"), waybill.Replace("k"))); s[0].Replaced != waybill.CancelDone {
		t.Fatalf("%+v", s)
	}
	if got := cancel(t, pool, o, waybill.CancelKey{ID: "b"}, waybill.CancelKey{ID: "a"}); got[0] != waybill.CancelDone || got[1] != waybill.CancelNotFound {
		t.Fatalf("%q", got)
	}
	if n := queryInt(t, pool, `SELECT count(*) FROM waybill.waybill_outbox WHERE (id, reason) IN (('a', 'replaced'), ('b', 'cancelled')) AND state = 5 AND settled_at IS NOT NULL`); n != 2 {
		t.Errorf("%d of 2 cancelled messages are kept as they should be", n)
	}
	// cancelled messages block no key
	if n := queryInt(t, pool, `SELECT count(*) FROM waybill.waybill_outbox WHERE blocks`); n != 0 {
		t.Errorf("%d rows block their key", n)
	}
	c := holdNext(t, o, want(10))
	if len(c.Records) != 2 || c.Records[0].Envelope.ID != "c" || c.Records[1].Envelope.ID != "d" {
		t.Errorf("held %d records", len(c.Records))
	}
	if s := stage(t, pool, o, message(waybill.ID("b"))); !s[0].Duplicate {
		t.Error("the id of a cancelled message that is kept is no duplicate")
	}
}

// DB-14 ST-09: a stager without a pgx pool cancels and replaces too.
func TestSQLStagerCancels(t *testing.T) {
	t.Parallel()
	_, pool := newOutbox(t, postgres.Options{})
	s, err := postgres.NewSQLStager(postgres.Options{Source: "/test"})
	if err != nil {
		t.Fatal(err)
	}
	canceller, ok := core.As[waybill.Canceller[*sql.Tx]](s)
	if !ok {
		t.Fatal("it cannot cancel")
	}
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	odd := `a"b\c{}, ' ü`
	if _, err := s.Stage(t.Context(), tx, message(waybill.DedupeKey(odd)), message(waybill.ID(odd))); err != nil {
		t.Fatal(err)
	}
	if st, err := s.Stage(t.Context(), tx, message(waybill.Replace(odd))); err != nil || st[0].Replaced != waybill.CancelDone {
		t.Fatalf("%+v, %v", st, err)
	}
	got, err := canceller.Cancel(t.Context(), tx, waybill.CancelKey{Topic: "t.x", DedupeKey: odd}, waybill.CancelKey{ID: odd})
	if err != nil || got[0] != waybill.CancelDone || got[1] != waybill.CancelDone {
		t.Fatalf("%q, %v", got, err)
	}
	if _, err := canceller.Cancel(t.Context(), nil, waybill.CancelKey{ID: "x"}); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("without a transaction: %v", err)
	}
	_ = tx.Rollback()
	if _, err := canceller.Cancel(t.Context(), tx, waybill.CancelKey{ID: "x"}); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("in an ended transaction: %v", err)
	}
}

// ST-11: the store's default time to live, and that of a message.
func TestDefaultTTL(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{TTL: time.Hour})
	from := time.Now().Truncate(time.Microsecond)
	stage(t, pool, o, message(), message(waybill.TTL(24*time.Hour)), message(waybill.TTL(-1)))
	to := time.Now().Add(time.Microsecond)
	for i, in := range []time.Duration{time.Hour, 24 * time.Hour, 0} {
		e := &holdNext(t, o, want(1)).Records[0].Envelope
		if in == 0 && !e.Expires.IsZero() || in > 0 && (e.Expires.Before(from.Add(in)) || e.Expires.After(to.Add(in))) {
			t.Errorf("message %d expires at %s, want %s from between %s and %s", i, e.Expires, in, from, to)
		}
	}
}
