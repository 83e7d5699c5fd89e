package postgres_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

// acquire takes a token and fails if there is none.
func acquire(ctx context.Context, tb testing.TB, o *postgres.Outbox) (int64, <-chan struct{}) {
	tb.Helper()
	token, lost, err := o.Acquire(ctx)
	if err != nil || token <= 0 || lost == nil {
		tb.Fatalf("acquired with %d, %v, %v", token, lost == nil, err)
	}
	return token, lost
}

// present is a member that shows its presence.
func present(tb testing.TB, o *postgres.Outbox, token int64) core.Member {
	tb.Helper()
	m := core.Member{Session: newSession(), Name: "present", Heartbeats: 1, Lease: time.Hour, Capacity: 1, FreeCapacity: 1, Presence: token}
	if _, err := o.Heartbeat(tb.Context(), core.HeartbeatRequest{Self: m, Join: true}); err != nil {
		tb.Fatal(err)
	}
	return m
}

// seen returns a member as a look shows it.
func seen(tb testing.TB, o *postgres.Outbox, session core.Session) core.Member {
	tb.Helper()
	r, err := o.Heartbeat(tb.Context(), core.HeartbeatRequest{})
	if err != nil {
		tb.Fatal(err)
	}
	for _, m := range r.Members {
		if m.Session == session {
			return m
		}
	}
	tb.Fatal("no such member")
	return core.Member{}
}

func closes(tb testing.TB, what string, lost <-chan struct{}) {
	tb.Helper()
	patience.Until(tb, what, func() bool {
		select {
		case <-lost:
			return true
		default:
			return false
		}
	})
}

// terminate ends the connection that has the lock of token.
func terminate(tb testing.TB, pool *pgxpool.Pool, token int64) {
	tb.Helper()
	n := query[int](tb, pool, `SELECT count(pg_terminate_backend(pid)) FROM pg_locks
		WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND objsubid = 1
		  AND classid::bigint << 32 | objid::bigint = $1`, token)
	if n != 1 {
		tb.Fatalf("%d connections have the lock", n)
	}
}

// DB-18: a live member is seen, and one whose connection ended is missed, for any cause.
func TestPresence(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	other := outboxOn(t, openPool(t, pool.Config().ConnString()), postgres.Options{})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	first, lost := acquire(ctx, t, o)
	second, gone := acquire(ctx, t, other)
	if first == second || min(first, second) < 1<<62 {
		t.Errorf("the tokens are %d and %d", first, second)
	}
	a, b, none := present(t, o, first), present(t, other, second), present(t, o, 0)
	for range 3 {
		if seen(t, o, a.Session).PresenceLost || seen(t, o, b.Session).PresenceLost || seen(t, other, a.Session).PresenceLost || seen(t, o, none.Session).PresenceLost {
			t.Fatal("somebody is missed who is there")
		}
	}
	terminate(t, pool, second)
	closes(t, "the server ended the connection", gone)
	patience.Until(t, "the token is missed", func() bool { return seen(t, o, b.Session).PresenceLost })
	if seen(t, other, a.Session).PresenceLost {
		t.Fatal("the other one is missed, too")
	}
	again, back := acquire(ctx, t, other)
	b.Presence, b.Heartbeats = again, 2
	if r, err := other.Heartbeat(t.Context(), core.HeartbeatRequest{Self: b}); err != nil || !r.IsMember || again == second {
		t.Fatal(err, again)
	}
	if seen(t, o, b.Session).PresenceLost {
		t.Fatal("it is missed with its new token")
	}
	stop()
	closes(t, "ctx ended", lost)
	closes(t, "ctx ended", back)
	patience.Until(t, "the tokens are given back", func() bool { return seen(t, o, a.Session).PresenceLost && seen(t, o, b.Session).PresenceLost })
	if seen(t, o, none.Session).PresenceLost {
		t.Fatal("a member without a token is missed")
	}
}

// Members that look at the same time do not take each other for those that are there, and do not wait.
func TestMissingIsSeenByAll(t *testing.T) {
	t.Parallel()
	o, pool := newOutbox(t, postgres.Options{})
	m := present(t, o, 1<<62+1)
	// the look of another one, which takes long
	begin(t, pool, "SELECT pg_advisory_xact_lock_shared($1)", m.Presence)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				r, err := o.Heartbeat(t.Context(), core.HeartbeatRequest{})
				if err != nil || len(r.Members) != 1 || !r.Members[0].PresenceLost {
					t.Errorf("%+v, %v", r.Members, err)
				}
			}
		})
	}
	wg.Wait()
}

// A flag is set for the token that was missed, and no other; each other token clears it.
func TestFlag(t *testing.T) {
	t.Parallel()
	o, _ := newOutbox(t, postgres.Options{})
	observer, m := present(t, o, 0), present(t, o, 7)
	flag := func(presence int64) bool {
		t.Helper()
		observer.Heartbeats++
		f := core.Suspicion{Session: m.Session, Presence: presence}
		if _, err := o.Heartbeat(t.Context(), core.HeartbeatRequest{Self: observer, Suspect: []core.Suspicion{f}}); err != nil {
			t.Fatal(err)
		}
		return seen(t, o, m.Session).Suspected
	}
	renew := func(presence int64) bool {
		t.Helper()
		m.Heartbeats++
		m.Presence = presence
		if _, err := o.Heartbeat(t.Context(), core.HeartbeatRequest{Self: m}); err != nil {
			t.Fatal(err)
		}
		return seen(t, o, m.Session).Suspected
	}
	if flag(6) || flag(0) {
		t.Error("flagged with a token that it does not have")
	}
	if !flag(7) || !renew(7) || renew(8) || flag(7) || !flag(8) || renew(0) || flag(0) {
		t.Error("a flag is set by the token, and cleared by another one")
	}
}

// DB-18: a server that is restarted has lost all locks; members find out, and acquire new tokens. No member misses the
// token of one that has not renewed since.
func TestPresenceOutlivesTheServer(t *testing.T) {
	t.Parallel()
	server := testenv.OwnPostgres(t, testenv.PostgresOptions{})
	o := outboxOn(t, openPool(t, server.DSN("postgres")), postgres.Options{})
	token, lost := acquire(t.Context(), t, o)
	m := present(t, o, token)
	server.Kill()
	closes(t, "the server was killed", lost)
	if _, _, err := o.Acquire(t.Context()); err == nil {
		t.Error("acquired at a server that is down")
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "the server answers", func() bool {
		r, err := o.Heartbeat(t.Context(), core.HeartbeatRequest{})
		return err == nil && len(r.Members) == 1
	})
	for range 3 {
		if seen(t, o, m.Session).PresenceLost {
			t.Error("it is missed, although the server cannot know that")
		}
	}
	m.Heartbeats++
	if _, err := o.Heartbeat(t.Context(), core.HeartbeatRequest{Self: m}); err != nil || !seen(t, o, m.Session).PresenceLost {
		t.Error("it is not missed with a token that the server before had", err)
	}
	m.Presence, _ = acquire(t.Context(), t, o)
	m.Heartbeats++
	if _, err := o.Heartbeat(t.Context(), core.HeartbeatRequest{Self: m}); err != nil || seen(t, o, m.Session).PresenceLost {
		t.Error("it is missed with its new token", err)
	}
}

// DB-10: behind a pooler that shares connections by transaction there is no presence, and nothing is left locked.
func TestNoPresenceBehindAPooler(t *testing.T) {
	t.Parallel()
	_, direct := newOutbox(t, postgres.Options{})
	dsn := startPooler(t, direct.Config().ConnString())
	o := outboxOn(t, openPool(t, dsn), postgres.Options{})
	for range 4 {
		began := time.Now()
		token, lost, err := o.Acquire(t.Context())
		if token != 0 || lost != nil || err != nil {
			t.Fatalf("acquired with %d, %v, %v", token, lost != nil, err)
		}
		t.Log(time.Since(began))
	}
	if n := query[int](t, direct, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"); n != 0 {
		t.Errorf("%d locks are left", n)
	}
	m := present(t, o, 1<<62+1)
	if !seen(t, o, m.Session).PresenceLost {
		t.Error("nobody is missed through a pooler")
	}
}

// A store with LISTEN and NOTIFY turned off has no presence.
func TestNoPresenceWithoutNotify(t *testing.T) {
	t.Parallel()
	o, _ := newOutbox(t, postgres.Options{DisableNotify: true})
	if token, lost, err := o.Acquire(t.Context()); token != 0 || lost != nil || err != nil {
		t.Fatalf("acquired with %d, %v, %v", token, lost != nil, err)
	}
}
