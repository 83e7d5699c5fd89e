package owned

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
)

const (
	childRole = "WAYBILL_SQLITE_OWNED_TEST_ROLE"
	childFile = "WAYBILL_SQLITE_OWNED_TEST_FILE"
	childKeys = 5
)

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
		err = relay(ctx, s, false)
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
		if _, err := s.Stage(ctx, tx, raw(strconv.FormatInt(n, 10), fmt.Sprint("key", n%childKeys))); err != nil {
			return err
		}
		if err := tx.Commit(); err != nil {
			return err
		}
	}
}

// relay joins, removes the one before it, and takes all units; then it reads, has one effect a record through the
// inbox, and settles; until nothing is left, if drain is set. There is one at a time, so that the others are dead.
func relay(ctx context.Context, s *Store, drain bool) error {
	self := outbox.Member{Session: outbox.Session(rand.Int64N(1<<62) + 1), Name: "child", Beat: 1, Serves: []outbox.Serving{{Route: route, Units: 4}}}
	r, err := s.Meet(ctx, outbox.Meeting{Self: self, Join: true})
	if err != nil {
		return err
	}
	m := outbox.Meeting{Self: self}
	for i := range r.Members {
		if other := &r.Members[i]; other.Session != self.Session {
			m.Remove = append(m.Remove, outbox.Removal{Session: other.Session, Beat: other.Beat})
		}
	}
	for _, u := range r.Units {
		m.Moves = append(m.Moves, outbox.Move{Unit: u.Unit, To: self.Session})
	}
	if _, err := s.Meet(ctx, m); err != nil {
		return err
	}
	for {
		if _, err := s.Due(ctx, self.Session, []outbox.Part{all(route)}, 100); err != nil {
			return err
		}
		p, err := s.Read(ctx, self.Session, outbox.Look{Ranges: []outbox.Range{{Part: all(route), To: 1 << 62, Limit: 20}}})
		if err != nil {
			return err
		}
		rs := p.Ranges[0].Records
		if len(rs) == 0 && drain {
			return nil
		}
		if len(rs) == 0 {
			if _, err := s.Wait(ctx, []string{route}, time.Second); err != nil {
				return err
			}
			continue
		}
		out := make([]outbox.Outcome, 0, len(rs))
		for i := range rs {
			r := &rs[i]
			_, err := s.Do(ctx, core.InboxKey{Consumer: "billing", Source: r.Envelope.Source, ID: r.Envelope.ID}, func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO effects (n, key) VALUES (?, ?)", r.Envelope.ID, r.Envelope.Key)
				return err
			})
			if err != nil {
				return err
			}
			out = append(out, outbox.Published(r))
		}
		if err := s.Settle(ctx, self.Session, out).FirstErr(); err != nil {
			return err
		}
	}
}

// Producer and relay processes are killed at any moment and started again: every committed order has exactly one
// effect, and those of one key come in order.
// ST-01 DB-02 DB-04 DB-16 IN-01 IN-03 OR-02 OR-08
func TestKilledProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	path := filepath.Join(t.TempDir(), "shared.db")
	s := openAt(t, path, Options{Source: "/orders"})
	if _, err := s.DB().ExecContext(t.Context(), `CREATE TABLE orders (n INTEGER PRIMARY KEY AUTOINCREMENT);
		CREATE TABLE effects (at INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER NOT NULL, key TEXT NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	start := func(role string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), childRole+"="+role, childFile+"="+path)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	kill := func(cmd *exec.Cmd) {
		_ = cmd.Process.Kill() // SIGKILL
		_ = cmd.Wait()
	}
	roles := []string{"producer", "producer", "relay"}
	children := make([]*exec.Cmd, len(roles))
	for i, role := range roles {
		children[i] = start(role)
	}
	for range 15 {
		time.Sleep(100*time.Millisecond + rand.N(150*time.Millisecond))
		i := rand.IntN(len(roles))
		kill(children[i])
		children[i] = start(roles[i])
	}
	for _, c := range children {
		kill(c)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := relay(ctx, s, true); err != nil {
		t.Fatal(err)
	}
	var orders, effects, distinct, left int
	if err := s.DB().QueryRowContext(ctx, `SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM effects), (SELECT count(DISTINCT n) FROM effects),
		(SELECT count(*) FROM waybill_records)`).Scan(&orders, &effects, &distinct, &left); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d orders, %d effects", orders, effects)
	if orders == 0 || effects != orders || distinct != orders || left != 0 {
		t.Errorf("%d orders, %d effects of %d orders, %d records left", orders, effects, distinct, left)
	}
	var late int
	if err := s.DB().QueryRowContext(ctx, `SELECT count(*) FROM (SELECT n, lag(n) OVER (PARTITION BY key ORDER BY at) AS before FROM effects)
		WHERE before > n`).Scan(&late); err != nil {
		t.Fatal(err)
	}
	if late != 0 {
		t.Errorf("%d effects came after a later one of their key", late)
	}
	var check string
	if err := s.DB().QueryRowContext(ctx, "PRAGMA integrity_check").Scan(&check); err != nil || check != "ok" {
		t.Errorf("integrity check: %s %v", check, err)
	}
}
