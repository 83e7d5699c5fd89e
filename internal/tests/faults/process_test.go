//go:build unix && !race

package faults_test

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/internal/testenv"
)

// DB-24: the keys of a relay that is killed go on long before its lease could end.
func TestKilledRelay(t *testing.T) {
	nightly(t)
	for range times(1) {
		w := newWorld(t, testenv.Postgres(t).DSN)
		all := w.startAll(member{Lease: 30 * time.Second, Slow: 5 * time.Millisecond}, "a", "b")
		stop := w.produce(keys("k", 40), 0)
		for _, p := range all {
			w.until(10*time.Second, "both publish, and see each other", func() bool {
				return w.number(w.sink, "SELECT count(*) FROM arrivals WHERE pid = $1 AND at > clock_timestamp() - interval '100 ms'", p.PID) > 0
			})
		}
		w.pause(time.Second + rand.N(time.Second))
		killed := time.Now()
		all[0].Kill()
		w.until(15*time.Second, "the other one owns everything", func() bool {
			return w.number(w.pool, "SELECT count(DISTINCT owner) FROM waybill.waybill_outbox_partitions") == 1
		})
		t.Logf("the survivor owned everything after %s", time.Since(killed).Round(time.Millisecond))
		w.pause(time.Second)
		stop()
		w.allArrive(15*time.Second - time.Since(killed))
		w.logWorst()
	}
}

// logWorst logs how long the messages took at worst.
func (w *world) logWorst() {
	w.Helper()
	type arrival struct {
		ID string
		At time.Time
	}
	first := map[string]time.Time{}
	rows, _ := w.sink.Query(w.Context(), "SELECT id, min(at) FROM arrivals GROUP BY id")
	arrivals, err := pgx.CollectRows(rows, pgx.RowToStructByPos[arrival])
	if err != nil {
		w.Fatal(err)
	}
	for _, a := range arrivals {
		first[a.ID] = a.At
	}
	rows, _ = w.pool.Query(w.Context(), "SELECT id, at FROM staged")
	staged, err := pgx.CollectRows(rows, pgx.RowToStructByPos[arrival])
	if err != nil {
		w.Fatal(err)
	}
	var worst time.Duration
	for _, s := range staged {
		if at, ok := first[s.ID]; ok {
			worst = max(worst, at.Sub(s.At))
		}
	}
	w.Logf("the worst message took %s", worst.Round(time.Millisecond))
}

// DB-24: a relay that stands still for longer than its lease loses its partitions. When it goes on it begins nothing,
// though it does not hear of that at once, and joins anew.
func TestFrozenRelay(t *testing.T) {
	nightly(t)
	w := newWorld(t, testenv.Postgres(t).DSN)
	var all []*process
	var lines []*testenv.Proxy
	for _, name := range []string{"a", "b", "c"} {
		line := testenv.NewProxy(t, w.pool.Config().ConnConfig.Host+":"+strconv.Itoa(int(w.pool.Config().ConnConfig.Port)))
		lines = append(lines, line)
		all = append(all, w.startAll(member{DSN: line.URL(w.dsn), Lease: time.Second, Slow: 5 * time.Millisecond}, name)...)
	}
	stopA, stopB := w.produce(keys("k", 40), 0), w.produce(keys("l", 20), 300*time.Millisecond)
	late := 0
	for range times(3) {
		i := rand.IntN(len(all))
		p, old := all[i], all[i].session()
		frozen := time.Now()
		w.stage(slices.Repeat(keys("much", 40), 80)) // so that it has more to send when it goes on
		w.until(10*time.Second, "it sends that", func() bool {
			return w.number(w.sink, "SELECT count(*) FROM arrivals WHERE pid = $1 AND key LIKE 'much%' AND began > $2", p.PID, frozen) > 100
		})
		frozen = time.Now()
		p.Signal(syscall.SIGSTOP)
		w.until(20*time.Second, "it was removed", func() bool { return p.session() == 0 })
		w.pause(rand.N(500 * time.Millisecond))
		lines[i].Blackhole(testenv.Down)
		thawed := time.Now()
		p.Signal(syscall.SIGCONT)
		w.pause(200 * time.Millisecond)
		lines[i].Heal()
		w.until(10*time.Second, "it joined anew, and has partitions", func() bool { return p.session() != 0 && p.session() != old && p.partitions() > 0 })
		late += min(w.number(w.sink, `SELECT count(DISTINCT z.began) FROM arrivals z JOIN arrivals o ON o.id = z.id AND o.n < z.n
			WHERE z.pid = $1 AND z.began > $2 AND o.began BETWEEN $3 AND $2`, p.PID, thawed, frozen), 1)
	}
	// A call may have been about to begin, once in a while.
	if t.Logf("it began something that others had sent meanwhile %d times", late); late > times(1) {
		t.Error("this is no coincidence")
	}
	stopA()
	stopB()
	w.allArrive(15 * time.Second)
}

// DB-24: a record that kills each relay that sends it is found among all records that were out beside it, and given up
// alone.
func TestPoisonousRecord(t *testing.T) {
	nightly(t)
	w := newWorld(t, testenv.Postgres(t).DSN)
	var names []string
	for range 5 {
		names = append(names, keys("k", 200)...)
	}
	ids := w.stage(names)
	poison := ids[500]
	m := member{Lease: time.Second, Slow: 10 * time.Millisecond, Poison: poison}
	crew := []*process{nil, nil}
	deaths := 0
	abandoned := func() bool {
		return w.number(w.pool, "SELECT count(*) FROM waybill.waybill_outbox WHERE state = 5") > 0
	}
	w.until(60*time.Second, "the record is abandoned", func() bool {
		for i, p := range crew {
			if p != nil {
				select {
				case <-p.Done:
					deaths++
				default:
					continue
				}
			}
			m.Name = []string{"a", "b"}[i]
			crew[i] = w.start(m)
		}
		return abandoned()
	})
	t.Logf("%d relays died", deaths)
	w.allArrive(10*time.Second, poison)
	if got := list[string](w, w.pool, "SELECT id || ' ' || reason FROM waybill.waybill_outbox WHERE settled_at IS NOT NULL"); len(got) != 1 || got[0] != poison+" crashed" {
		t.Errorf("abandoned: %v, want %s", got, poison)
	}
}

// OR-02, DB-24: a transaction that takes long, with much in it and much beside it, keeps its order while relays are
// killed.
func TestLongTransactionAndKill(t *testing.T) {
	nightly(t)
	for _, pipelined := range []bool{true, false} {
		for range times(1) {
			longTransactionAndKill(t, pipelined)
		}
	}
}

func longTransactionAndKill(t *testing.T, pipelined bool) {
	t.Helper()
	w := newWorld(t, testenv.Postgres(t).DSN)
	m := member{Lease: 2 * time.Second, Pipelined: pipelined}
	all := w.startAll(m, "a", "b", "c")
	stop := w.produce(keys("other", 100), 100*time.Millisecond)
	ctx := t.Context()
	err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		for i := range 20 {
			names := append(keys("k", 250), keys("k", 250)...)
			for j := 0; j < len(names); j += 20 {
				names[j] = "hot"
			}
			if _, err := w.stageIn(ctx, tx, append([]string{"hot"}, names...)); err != nil {
				return err
			}
			w.stage(append(keys("beside", 250), keys("beside", 250)...))
			if i == 10 {
				all[0].Kill()
			}
			w.pause(100 * time.Millisecond)
		}
		_, err := w.stageIn(ctx, tx, []string{"hot"})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	w.pause(rand.N(200 * time.Millisecond))
	all[1].Kill()
	stop()
	m.Name = "d"
	w.start(m)
	w.allArrive(30 * time.Second)
}
