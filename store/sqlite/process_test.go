package sqlite

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
)

const (
	childRole = "WAYBILL_SQLITE_TEST_ROLE"
	childFile = "WAYBILL_SQLITE_TEST_FILE"
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

// relay claims, has one effect a record through the inbox, and settles; until nothing is left, if drain is set.
func relay(ctx context.Context, s *Store, drain bool) error {
	req := core.ClaimRequest{Owner: "child", Routes: []core.RouteOrder{{Route: "default"}}, MaxRecords: 20, Lease: 200 * time.Millisecond}
	for {
		c, err := s.Claim(ctx, req)
		if err != nil {
			return err
		}
		req.Alone = c.Suspects && !req.Alone
		if len(c.Records) == 0 && !c.More && !c.Suspects {
			if c.NextIn < 0 && drain {
				return nil
			}
			if c.NextIn < 0 || c.NextIn > time.Second {
				c.NextIn = time.Second
			}
			if _, err := s.Wait(ctx, []string{"default"}, c.NextIn); err != nil {
				return err
			}
			continue
		}
		out := make([]core.Outcome, 0, len(c.Records))
		for i := range c.Records {
			r := &c.Records[i]
			_, err := s.Do(ctx, core.InboxKey{Consumer: "billing", Source: r.Envelope.Source, ID: r.Envelope.ID}, func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "INSERT INTO effects (n, key) VALUES (?, ?)", r.Envelope.ID, r.Envelope.Key)
				return err
			})
			if err != nil {
				return err
			}
			out = append(out, core.Published(r))
		}
		s.Settle(ctx, out) // lost leases come again
	}
}

// Producer and relay processes are killed at any moment and started again: every committed order has exactly one effect,
// and those of one key come in order.
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
	roles := []string{"producer", "relay", "relay"}
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
		(SELECT count(*) FROM waybill_outbox)`).Scan(&orders, &effects, &distinct, &left); err != nil {
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
