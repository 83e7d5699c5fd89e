package waybillmysql_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/tier"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

const (
	producers, keysEach = 3, 10
	maxWaiting          = 500
	killEach            = 8 // processes of a kind
)

func newEffects(t *testing.T, s *waybillmysql.Store) {
	t.Helper()
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.DB().Exec(`CREATE TABLE effects (n BIGINT AUTO_INCREMENT PRIMARY KEY, k VARBINARY(100) NOT NULL, step INT NOT NULL)`); err != nil {
		t.Fatal(err)
	}
}

// produce stages steps, in order for each key, until it is told to stop. While maxWaiting records wait it pauses, so
// the number of records left at the end does not depend on the speed of the machine. A transaction whose result is
// unknown is staged again: the ids make that harmless.
func produce(t *testing.T, s *waybillmysql.Store) (stop func(), staged *atomic.Int64) {
	t.Helper()
	done := make(chan struct{})
	staged = &atomic.Int64{}
	var wg sync.WaitGroup
	for p := range producers {
		wg.Go(func() {
			for n := 0; ; n++ {
				var msgs []waybill.Message
				for k := range keysEach {
					msgs = append(msgs, step{fmt.Sprintf("%d-%d", p, k), n}.message())
				}
				for stage(t.Context(), s, msgs) != nil {
					if t.Context().Err() != nil {
						return
					}
				}
				staged.Add(int64(len(msgs)))
				for waiting := maxWaiting; waiting == maxWaiting; {
					select {
					case <-done:
						return
					case <-time.After(20 * time.Millisecond):
					}
					if s.DB().QueryRow(`SELECT COUNT(*) FROM (SELECT 1 FROM waybill_outbox LIMIT ?) w`, maxWaiting).Scan(&waiting) != nil {
						break // stage waits for a database that is gone
					}
				}
			}
		})
	}
	return sync.OnceFunc(func() { close(done); wg.Wait() }), staged
}

func stage(ctx context.Context, s *waybillmysql.Store, msgs []waybill.Message) error {
	tx, err := s.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := s.Stage(ctx, tx, msgs...); err != nil {
		return err
	}
	return tx.Commit()
}

// exact fails unless each step has one effect.
func exact(t *testing.T, s *waybillmysql.Store, staged int64) {
	t.Helper()
	var n, distinct int64
	patience.Moving(t, "all steps have effects and the outbox is empty", func() (at [2]int64, done bool) {
		var left int64
		err := s.DB().QueryRow(`SELECT COUNT(*), COUNT(DISTINCT k, step), (SELECT COUNT(*) FROM waybill_outbox) FROM effects`).Scan(&n, &distinct, &left)
		return [2]int64{n, left}, err == nil && distinct >= staged && left == 0
	})
	if n != staged || distinct != staged {
		t.Errorf("%d steps were staged, and there are %d effects of %d steps", staged, n, distinct)
	}
}

// arrivals are the first arrivals of steps at a broker.
type arrivals struct {
	mu   sync.Mutex
	next map[string]int
	all  int
	bad  string
}

func (a *arrivals) count() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return int64(a.all)
}

// check fails if a step arrived before its turn.
func (a *arrivals) check(t *testing.T) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.bad != "" {
		t.Error(a.bad)
	}
}

func (a *arrivals) add(e *waybill.Envelope) {
	var s step
	if err := json.Unmarshal(e.Body, &s); err != nil {
		a.bad = err.Error()
	}
	a.all++
	switch next := a.next[s.Key]; {
	case s.N == next:
		a.next[s.Key]++
	case s.N > next:
		a.bad = fmt.Sprintf("step %d of key %s arrived before step %d", s.N, s.Key, next)
	}
}

// Relays are killed, and the database too, while messages are staged and handled: every message has one effect, and the
// first arrivals of each key are in order. DB-26.
func TestKilledRelaysAndDatabase(t *testing.T) {
	tier.Nightly(t, "kills relays and the database, with real leases: 30 s")
	server, err := startServer()
	missing(t, err)
	t.Cleanup(func() { server.kill(); _ = os.RemoveAll(server.dir) })
	dsn := newDatabase(t, server.dsn)
	s := openAt(t, dsn, waybillmysql.Options{})
	newEffects(t, s)

	url, seen := consume(t, s)
	stop, staged := produce(t, s)
	killAll(t, "relay", dsn, url, seen.count, func(n int) {
		if n == killEach/2 {
			server.kill()
			if err := server.start(); err != nil {
				t.Fatal(err)
			}
		}
	})
	stop()
	exact(t, s, staged.Load())
	seen.check(t)
	t.Logf("%d steps, %d arrivals, %d relays killed, the database once", staged.Load(), seen.count(), killEach)
}

// A relay that is killed costs the others no lease: theirs is longer than this test may take. DB-26.
func TestKilledRelayCostsNoLease(t *testing.T) {
	t.Setenv(leaseVar, time.Hour.String())
	dsn := newDatabase(t, func(database string) string { return dsnOf(t, database) })
	s := openAt(t, dsn, waybillmysql.Options{})
	newEffects(t, s)
	url, seen := consume(t, s)
	stop, staged := produce(t, s)
	first := startChild(t, "relay", dsn, url)
	startChild(t, "relay", dsn, url)
	patience.Until(t, "both relays are present and own something", func() bool {
		var n int
		err := s.DB().QueryRow(`SELECT COUNT(DISTINCT m.session) FROM waybill_outbox_partitions u JOIN waybill_outbox_members m ON m.session = u.owner
			WHERE m.presence <> 0`).Scan(&n)
		return err == nil && n == 2
	})
	kill(first)
	stop()
	exact(t, s, staged.Load())
	seen.check(t)
}

// consume returns the address of a broker with a consumer that has an inbox, and the messages that arrive there.
func consume(t *testing.T, s *waybillmysql.Store) (url string, seen *arrivals) {
	t.Helper()
	bus, err := memtransport.New(memtransport.Options{Queues: []memtransport.Queue{{Name: "steps", Bindings: []string{stepTaken.Name()}}}})
	if err != nil {
		t.Fatal(err)
	}
	seen = &arrivals{next: map[string]int{}}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var batch []waybill.Envelope
		err := json.NewDecoder(r.Body).Decode(&batch)
		if err == nil {
			seen.mu.Lock()
			defer seen.mu.Unlock()
			for i := range batch {
				seen.add(&batch[i])
			}
			err = bus.Publish(r.Context(), batch).FirstErr()
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	t.Cleanup(web.Close)
	c, err := newConsumer(bus, s, "steps")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return web.URL, seen
}

// killAll runs two children, and kills one after the other when progress was made, each time a new one starts.
func killAll(t *testing.T, role, dsn, url string, progress func() int64, killed func(n int)) {
	t.Helper()
	running := []*exec.Cmd{startChild(t, role, dsn, url), startChild(t, role, dsn, url)}
	for n := range killEach {
		was := progress()
		patience.Moving(t, "messages arrive", func() (int64, bool) { at := progress(); return at, at >= was+50 })
		kill(running[n%2])
		killed(n + 1)
		running[n%2] = startChild(t, role, dsn, url)
	}
}

// Consumers of a queue in the table are killed while messages are staged: every message has one effect, in the order of
// its key. DB-26.
func TestKilledConsumers(t *testing.T) {
	tier.Nightly(t, "kills consumers, with real leases: 20 s")
	s := openAt(t, newDatabase(t, func(database string) string { return dsnOf(t, database) }), waybillmysql.Options{})
	newEffects(t, s)
	stop, staged := produce(t, s)
	var dsn string
	if err := s.DB().QueryRow(`SELECT DATABASE()`).Scan(&dsn); err != nil {
		t.Fatal(err)
	}
	killAll(t, "consumer", dsnOf(t, dsn), "", func() (n int64) {
		if err := s.DB().QueryRow(`SELECT COUNT(*) FROM effects`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}, func(int) {})
	stop()
	exact(t, s, staged.Load())
	rows, err := s.DB().Query(`SELECT k, step FROM effects ORDER BY n`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	next := map[string]int{}
	for rows.Next() {
		var got step
		if err := rows.Scan(&got.Key, &got.N); err != nil {
			t.Fatal(err)
		}
		if got.N != next[got.Key] {
			t.Fatalf("step %d of key %s has its effect when step %d is next", got.N, got.Key, next[got.Key])
		}
		next[got.Key]++
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d steps, %d consumers killed", staged.Load(), killEach)
}
