package kafka_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/contrib/kafka"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/sqlite"
)

const (
	roleEnv, dirEnv, brokerEnv, busEnv = "WAYBILL_KAFKA_ROLE", "WAYBILL_KAFKA_DIR", "WAYBILL_KAFKA_BROKER", "WAYBILL_KAFKA_BUS"
	orders, kills, keys                = 2000, 6, 20
)

var placed = waybill.NewTopic("orders.placed", waybill.JSON[int]())

// runRole is a process of the test, until it is killed.
func runRole(role, dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	opts := options()
	opts.Bus = os.Getenv(busEnv)
	bus, err := kafka.Dial(ctx, os.Getenv(brokerEnv), opts)
	if err != nil {
		return err
	}
	store, err := sqlite.Open(ctx, filepath.Join(dir, role+".db"), sqlite.Options{Source: "/orders", AutoMigrate: true})
	if err != nil {
		return err
	}
	if role == "relay" {
		r, err := relay.New(store, bus, relay.Options{Lease: 2 * time.Second, PollMax: 500 * time.Millisecond})
		if err != nil {
			return err
		}
		return r.Run(ctx)
	}
	billing, err1 := inbox.New(store, "billing", inbox.Options{})
	c, err2 := consumer.New(bus, consumer.Options{Pause: waybill.Backoff{Base: 200 * time.Millisecond, Cap: time.Second}})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	err = c.Handle(waybill.Subscription{Queue: "billing", Bindings: []string{"orders.#"}, InOrder: true},
		inbox.Handler(billing, placed, func(ctx context.Context, tx *sql.Tx, n int) error {
			if d, ok := waybill.DeliveryFrom(ctx); ok && n%50 == 0 && d.Attempt == 1 {
				return waybill.RetryAfter(errors.New("once more"), 50*time.Millisecond)
			}
			_, err := tx.ExecContext(ctx, `INSERT INTO effects (n) VALUES (?)`, n)
			return err
		}))
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// TR-11: relay and consumer are killed in turn, while messages are staged and travel over a real broker. Every message
// has its effect once, and the messages of a key have theirs in order.
func TestKilledProcesses(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "kills processes again and again: a minute")
	address, name := node(t), busName()
	ctx, moved := patience.Context(t.Context(), patience.Limit)
	dir := t.TempDir()
	outbox, effects := openStore(t, dir, "relay"), openStore(t, dir, "consumer")
	if _, err := effects.DB().ExecContext(ctx, `CREATE TABLE effects (at INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	running := map[string]*exec.Cmd{}
	start := func(role string) {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), roleEnv+"="+role, dirEnv+"="+dir, brokerEnv+"="+address, busEnv+"="+name)
		cmd.Stderr = os.Stderr
		running[role] = cmd
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	kill := func(role string) {
		_ = running[role].Process.Kill()
		_ = running[role].Wait()
	}
	roles := []string{"consumer", "relay"}
	for _, role := range roles {
		start(role)
	}
	t.Cleanup(func() { kill("consumer"); kill("relay") })
	reach := func(n int) {
		for all, before := 0, 0; all < n; {
			if err := effects.DB().QueryRowContext(ctx, `SELECT COUNT(*) FROM effects`).Scan(&all); err != nil {
				t.Fatalf("%d effects, want %d: %v", before, n, err)
			}
			if all > before {
				before = all
				moved()
			}
		}
	}
	const part = orders / kills
	for k := range kills {
		stage(t, outbox, k*part, part)
		reach(k*part + part/4)
		kill(roles[k%len(roles)])
		start(roles[k%len(roles)])
	}
	reach(kills * part)
	rows, err := effects.DB().QueryContext(ctx, `SELECT n FROM effects ORDER BY at`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	last := map[int]int{}
	for n := 0; rows.Next(); {
		if err := rows.Scan(&n); err != nil {
			t.Fatal(err)
		}
		if before, ok := last[n%keys]; ok && n != before+keys || !ok && n >= keys {
			t.Errorf("the effect of %d came after that of %d", n, before)
		}
		last[n%keys] = n
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

func openStore(t *testing.T, dir, role string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(dir, role+".db"), sqlite.Options{Source: "/orders", AutoMigrate: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.WithoutCancel(t.Context())) })
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func stage(t *testing.T, s *sqlite.Store, first, n int) {
	t.Helper()
	tx, err := s.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	messages := make([]waybill.Message, n)
	for i := range messages {
		messages[i] = placed.Message(first+i, waybill.Key("k"+strconv.Itoa((first+i)%keys)))
	}
	if _, err := s.Stage(t.Context(), tx, messages...); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}
