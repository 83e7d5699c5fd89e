package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/sleep"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/relay"
)

const (
	childRole       = "WAYBILL_SQLITE_TEST_ROLE"
	childFile       = "WAYBILL_SQLITE_TEST_FILE"
	childPartitions = 8
	childLease      = 500 * time.Millisecond
)

// childKeys are keys, one in each partition, so that each relay that has partitions has work.
var childKeys = sharedtest.KeyOfEach("default", childPartitions)

// runChild makes the test binary one of the processes of TestKilledProcesses.
func runChild() bool {
	role := os.Getenv(childRole)
	if role == "" {
		return false
	}
	ctx := context.Background()
	s, err := Open(ctx, os.Getenv(childFile), Options{Source: "/orders", AutoMigrate: true})
	if err == nil && role == "producer" {
		err = produce(ctx, s)
	} else if err == nil {
		err = publish(ctx, s)
	}
	fmt.Fprintln(os.Stderr, role, err)
	os.Exit(1)
	return true
}

// produce commits a business row and its message, over and over.
func produce(ctx context.Context, s *Store) error {
	for {
		tx, err := s.DB().BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		var n int64
		if err := tx.QueryRowContext(ctx, "INSERT INTO orders DEFAULT VALUES RETURNING n").Scan(&n); err != nil {
			return err
		}
		if _, err := s.Stage(ctx, tx, raw(strconv.FormatInt(n, 10), childKeys[n%childPartitions])); err != nil {
			return err
		}
		if err := tx.Commit(); err != nil {
			return err
		}
		if err := sleep.For(ctx, time.Millisecond); err != nil { // SQLite is not fair: others would wait
			return err
		}
	}
}

// publish runs a relay.
func publish(ctx context.Context, s *Store) error {
	r, err := relay.New(s, &effects{s}, relay.Options{
		Lease: childLease, BatchSize: 20, Routes: []relay.Route{{Partitions: childPartitions}}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// effects is a broker with a consumer: each message has one effect, through the inbox.
type effects struct{ s *Store }

func (f *effects) Traits() core.PublisherTraits {
	return core.PublisherTraits{KeyOrder: core.KeyOrderSerial, Confirmed: true}
}

func (f *effects) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	res := make(core.Results, len(batch))
	for i := range batch {
		e := &batch[i]
		_, res[i] = f.s.Do(ctx, core.InboxKey{Consumer: "billing", Source: e.Source, ID: e.ID},
			func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO effects (n, key, by) VALUES (?, ?, ?)", e.ID, e.Key, os.Getpid())
				return err
			})
	}
	return res
}

// Two producers and two relays, each a process of its own, are killed at any moment and started again: every committed
// order has exactly one effect, and those of one key come in order. At last one relay is left, and finishes alone.
// ST-01 DB-02 DB-04 DB-16 IN-01 IN-03 OR-02 OR-08
func TestKilledProcesses(t *testing.T) {
	tier.Nightly(t, "kills a dozen processes, with real leases: 5 s")
	t.Parallel()
	path := filepath.Join(t.TempDir(), "shared.db")
	s := openAt(t, path, Options{Source: "/orders"})
	run(t, s.DB(), `CREATE TABLE orders (n INTEGER PRIMARY KEY AUTOINCREMENT);
		CREATE TABLE effects (at INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER NOT NULL, key TEXT NOT NULL, by INTEGER NOT NULL)`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	number := func(text string, args ...any) (n int) {
		t.Helper()
		if err := s.DB().QueryRowContext(ctx, text, args...).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	until := func(what, text string, args ...any) {
		t.Helper()
		patience.Moving(t, what, func() (int, bool) {
			return number("SELECT count(*) FROM effects"), number(text, args...) != 0
		})
	}
	start := func(role string) *sharedtest.Process {
		t.Helper()
		return sharedtest.StartProcess(t, childRole+"="+role, childFile+"="+path)
	}
	roles := []string{"relay", "relay", "producer", "producer"}
	children := make([]*sharedtest.Process, len(roles))
	for i, role := range roles {
		children[i] = start(role)
	}
	for i := range 2 {
		until("a relay has published", "SELECT count(*) FROM effects WHERE by = ?", children[i].PID)
	}
	for range 12 {
		if err := sleep.For(ctx, 100*time.Millisecond+rand.N(200*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		i := rand.IntN(len(roles))
		children[i].Kill()
		children[i] = start(roles[i])
	}
	for _, c := range children[1:] {
		c.Kill()
	}
	until("all is published", "SELECT count(*) = 0 FROM waybill_outbox")

	orders, effects := number("SELECT count(*) FROM orders"), number("SELECT count(*) FROM effects")
	t.Logf("%d orders, %d effects, by %d processes", orders, effects, number("SELECT count(DISTINCT by) FROM effects"))
	if distinct := number("SELECT count(DISTINCT n) FROM effects"); orders == 0 || effects != orders || distinct != orders {
		t.Errorf("%d orders, %d effects of %d orders", orders, effects, distinct)
	}
	if late := number(`SELECT count(*) FROM (SELECT n, lag(n) OVER (PARTITION BY key ORDER BY at) AS before FROM effects) WHERE before > n`); late != 0 {
		t.Errorf("%d effects came after a later one of their key", late)
	}
	var check string
	if err := s.DB().QueryRowContext(ctx, "PRAGMA integrity_check").Scan(&check); err != nil || check != "ok" {
		t.Errorf("integrity check: %s %v", check, err)
	}
}
