//go:build unix && !race

package faults_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/internal/testenv"
)

// DB-24: relays whose presence connection is lost are alive all the same, also if they do not notice at once. No
// handler of a queue beside them runs twice.
func TestPresenceConnectionsEnd(t *testing.T) {
	nightly(t)
	w := newWorld(t, testenv.Postgres(t).DSN)
	all := w.startAll(member{Slow: 50 * time.Millisecond}, "a", "b", "c", "d")
	stopQueue := w.handle("mails", 20, 60*time.Millisecond)
	stop, stopMails := w.produce(keys("k", 60), 100*time.Millisecond), w.produce(keys("mails/k", 60), 100*time.Millisecond)
	ended := 0
	for i := range times(20) {
		victims := all
		if i%4 > 0 {
			victims = all[i%4 : i%4+1]
		}
		for _, p := range victims {
			if len(victims) == 1 {
				p.Signal(syscall.SIGSTOP)
			}
			ended += w.number(w.pool, `
SELECT count(pg_terminate_backend(l.pid)) FROM pg_locks l JOIN waybill.waybill_outbox_members m ON l.classid::bigint << 32 | l.objid::bigint = m.presence
WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.mode = 'ExclusiveLock' AND m.presence <> 0 AND m.name = $1`, p.name)
		}
		w.pause(200 * time.Millisecond) // for less than others wait for an answer
		for _, p := range victims {
			p.Signal(syscall.SIGCONT)
		}
		w.pause(50*time.Millisecond + rand.N(250*time.Millisecond))
	}
	stop()
	stopMails()
	if again := w.allArrive(10 * time.Second); again > 0 {
		t.Errorf("%d arrived twice", again)
	}
	w.unharmed()
	stopQueue()
	t.Logf("%d connections were ended", ended)
	if ended < 6 {
		t.Error("too few to prove anything")
	}
}

// DB-24: an outage of the database removes no member.
func TestDatabaseOutage(t *testing.T) {
	nightly(t)
	w, pg, _ := onOwnServer(t, testenv.PostgresOptions{})
	w.startAll(member{Lease: time.Second, Slow: 5 * time.Millisecond}, "a", "b", "c", "d")
	stop := w.produce(keys("k", 60), 100*time.Millisecond)
	for range times(1) {
		w.pause(500*time.Millisecond + rand.N(500*time.Millisecond))
		pg.Pause()
		w.pause(3 * time.Second)
		pg.Resume()
		w.pause(500*time.Millisecond + rand.N(500*time.Millisecond))
		pg.Stop()
		w.pause(2500 * time.Millisecond)
		if err := pg.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	w.pause(1500 * time.Millisecond)
	stop()
	w.allArrive(15 * time.Second)
	w.unharmed()
}

// DB-24: the database's clock jumps by an hour, forth and back. No relay is taken for dead, and all go on.
func TestDatabaseClockJumps(t *testing.T) {
	nightly(t)
	w, pg, _ := onOwnServer(t, testenv.PostgresOptions{Clock: true})
	w.startAll(member{Lease: time.Second, Slow: 5 * time.Millisecond}, "a", "b", "c", "d")
	stop := w.produce(keys("k", 60), 100*time.Millisecond)
	began := time.Now()
	for range times(1) {
		for _, ahead := range []time.Duration{time.Hour, 0, -time.Hour, 0} {
			if err := pg.SetClock(ahead); err != nil {
				t.Fatal(err)
			}
			w.until(5*time.Second, "the server has noticed", func() bool {
				now := list[time.Time](w, w.pool, "SELECT clock_timestamp()")[0]
				return (time.Until(now) - ahead).Abs() < 10*time.Second
			})
			before := w.number(w.sink, "SELECT count(*) FROM arrivals")
			w.until(2*time.Second, "messages arrive", func() bool { return w.number(w.sink, "SELECT count(*) FROM arrivals") > before+50 })
		}
	}
	t.Logf("four jumps in %s", time.Since(began).Round(time.Millisecond))
	stop()
	if again := w.allArrive(10 * time.Second); again > 0 {
		t.Errorf("%d arrived twice", again)
	}
	w.unharmed()
}

// ST-09: a transaction that has cancelled messages which are due, and stays open, holds up only their keys.
func TestCancellationStaysOpen(t *testing.T) {
	nightly(t)
	for _, commits := range []bool{true, false} {
		w := newWorld(t, testenv.Postgres(t).DSN)
		ctx := t.Context()
		var names []string
		for range 10 {
			names = append(names, keys("k", 100)...)
			names = append(names, keys("free", 100)...)
		}
		ids := w.stage(names)
		var touched []string // a message in the middle of each of half of the keys
		for _, key := range keys("k", 50) {
			touched = append(touched, w.stage([]string{key}, waybill.DedupeKey(key))...)
		}
		w.stage(keys("k", 100))
		tx, err := w.pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(t.Context()) }()
		for i, key := range keys("k", 50) {
			var status waybill.CancelStatus
			if i%2 == 0 {
				var all []waybill.CancelStatus
				if all, err = w.o.Cancel(ctx, tx, waybill.CancelKey{ID: touched[i]}); err == nil {
					status = all[0]
				}
			} else {
				var staged []waybill.Staged
				if staged, err = w.stageIn(ctx, tx, []string{key}, waybill.Replace(key)); err == nil {
					status = staged[0].Replaced
				}
			}
			if err != nil || status != waybill.CancelDone {
				t.Fatalf("cancelling a message of %s: %s, %v", key, status, err)
			}
		}
		// Some that the transaction does not cancel are locked, too.
		if _, err := tx.Exec(ctx, "SELECT FROM waybill.waybill_outbox WHERE id = ANY ($1) FOR UPDATE", ids[:20]); err != nil {
			t.Fatal(err)
		}
		w.startAll(member{Lease: time.Second}, "a", "b")
		w.until(10*time.Second, "the other keys go on", func() bool {
			return w.number(w.sink, "SELECT count(DISTINCT id) FROM arrivals WHERE key LIKE 'free%'") == 1000
		})
		w.until(10*time.Second, "so does what stands before the cancelled", func() bool {
			return w.number(w.sink, "SELECT count(DISTINCT id) FROM arrivals WHERE key LIKE 'k%'") == 1000+50
		})
		w.pause(1500 * time.Millisecond)
		if n := w.number(w.sink, "SELECT count(*) FROM arrivals WHERE id = ANY ($1)", touched); n > 0 {
			t.Errorf("%d arrived that were locked", n)
		}
		gone := touched
		if commits {
			err = tx.Commit(ctx)
		} else {
			gone, err = nil, tx.Rollback(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		w.allArrive(10*time.Second, gone...)
	}
}

// OP-18: owners carry out what an operator decides about messages that are due, while the broker refuses everything.
func TestDecisionsDuringAnOutage(t *testing.T) {
	nightly(t)
	w := newWorld(t, testenv.Postgres(t).DSN)
	w.startAll(member{Slow: 5 * time.Millisecond}, "a", "b")
	w.exec(w.sink, "ALTER TABLE arrivals RENAME TO away") // the broker is out of order
	var names []string
	for range times(50) {
		names = append(names, keys("k", 200)...)
	}
	ids := w.stage(names)
	w.pause(time.Second)
	var worst time.Duration
	var gone []string
	var mu sync.Mutex
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := worker; i < 20; i += 4 {
				for depth := range 2 { // the head, and the next one
					id, action := ids[i+200*depth], []admin.HeadAction{admin.HeadSkip, admin.HeadSetAside}[i%2]
					began := time.Now()
					err := w.o.DecideHead(t.Context(), waybill.DefaultRoute, names[i], id, action)
					took := time.Since(began)
					mu.Lock()
					worst = max(worst, took)
					gone = append(gone, id)
					mu.Unlock()
					if err != nil {
						t.Errorf("message %d of %s after %s: %v", depth, names[i], took, err)
					}
				}
			}
		})
	}
	wg.Wait()
	t.Logf("the longest decision took %s", worst.Round(time.Millisecond))
	if err := w.o.DecideHead(t.Context(), waybill.DefaultRoute, names[0], ids[0], admin.HeadSkip); !errors.Is(err, waybill.ErrNotFound) {
		t.Errorf("the same decision again: %v", err)
	}
	w.exec(w.sink, "ALTER TABLE away RENAME TO arrivals")
	w.allArrive(40*time.Second, gone...)
	got := list[string](w, w.pool, "SELECT id FROM waybill.waybill_outbox WHERE state = 5 AND reason IN ('skipped', 'set_aside')")
	slices.Sort(got)
	slices.Sort(gone)
	if !slices.Equal(got, gone) {
		t.Errorf("%d were given up, want %d", len(got), len(gone))
	}
}
