// Package killtest kills the processes of a service again and again: its relay, its consumer, and each other
// process of a transport's test. The tests of transports share it; only tests import it.
//
// # Guarantees
//
// A [Test] passes only if each message had its effect once, and with InOrder those of a key in their order.
//
// # Concurrency
//
// Tests can run side by side.
//
// # Ownership
//
// A process ends with the test that started it, also if that is killed.
//
// # Limits
//
// The outbox and the inbox are SQLite files. The processes are those of one binary, whose TestMain calls [Main].
package killtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/sqlite"
)

// Relay and Consumer are the roles of the service.
const (
	Relay    = "relay"
	Consumer = "consumer"

	roleEnv, dirEnv = "WAYBILL_KILL_ROLE", "WAYBILL_KILL_DIR"
	keys            = 20
)

var placed = waybill.NewTopic("orders.placed", waybill.JSON[int]())

// Main calls run, and exits, if this process is one of a Test. dir is the folder of the test.
func Main(run func(ctx context.Context, role, dir string) error) {
	role, ok := os.LookupEnv(roleEnv)
	if !ok {
		return
	}
	ctx, end := context.WithCancel(context.Background()) //nolint:forbidigo // a process begins here
	go func() {
		sharedtest.AwaitParent()
		end()
	}()
	code := 0
	if err := run(ctx, role, os.Getenv(dirEnv)); err != nil {
		fmt.Fprintln(os.Stderr, role, err)
		code = 1
	}
	os.Exit(code) //nolint:forbidigo // and ends here
}

// Serve is the relay or the consumer of the service over bus. It serves until it is killed.
func Serve(ctx context.Context, role, dir string, bus core.Transport, inOrder bool) error {
	store, err := open(ctx, role, dir)
	if err != nil {
		return err
	}
	if role == Relay {
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
	err = c.Handle(waybill.Subscription{Queue: "billing", Bindings: []string{"orders.#"}, InOrder: inOrder},
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

func open(ctx context.Context, role, dir string) (*sqlite.Store, error) {
	return sqlite.Open(ctx, filepath.Join(dir, role+".db"), sqlite.Options{Source: "/orders", AutoMigrate: true})
}

// Test is a run of the service.
type Test struct {
	Dir   string
	Roles []string // of the processes, which are killed in turn; Relay and Consumer are among them
	Env   []string // that they get
	// Messages are staged in as many parts as there are Kills.
	Messages, Kills int
	InOrder         bool
}

// Run kills processes while messages are staged and travel, and compares their effects.
func (k *Test) Run(t *testing.T) {
	t.Helper()
	ctx, moved := patience.Context(t.Context(), patience.Limit)
	outbox, err1 := open(ctx, Relay, k.Dir)
	effects, err2 := open(ctx, Consumer, k.Dir)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = outbox.Close(context.WithoutCancel(ctx))
		_ = effects.Close(context.WithoutCancel(ctx))
	})
	err := errors.Join(outbox.Migrate(ctx), effects.Migrate(ctx))
	if err == nil {
		_, err = effects.DB().ExecContext(ctx, `CREATE TABLE effects (at INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER NOT NULL)`)
	}
	if err != nil {
		t.Fatal(err)
	}
	running := map[string]*sharedtest.Process{}
	start := func(role string) {
		running[role] = sharedtest.StartProcess(t, append(k.Env, roleEnv+"="+role, dirEnv+"="+k.Dir)...)
	}
	for _, role := range k.Roles {
		start(role)
	}
	reach := func(n int) {
		for all, before := 0, 0; all < n; {
			if err := effects.DB().QueryRowContext(ctx, `SELECT COUNT(*) FROM effects`).Scan(&all); err != nil {
				t.Fatalf("%d effects, want %d: %v; %s; %s", before, n, err, running[Relay].Log.String(), running[Consumer].Log.String())
			}
			if all > before {
				before = all
				moved()
			}
		}
	}
	part := k.Messages / k.Kills
	for i := range k.Kills {
		if err := stage(ctx, outbox, i*part, part); err != nil {
			t.Fatal(err)
		}
		reach(i*part + part/4)
		role := k.Roles[i%len(k.Roles)]
		running[role].Kill()
		start(role)
	}
	reach(k.Kills * part)
	if err := k.compare(ctx, t, effects.DB(), k.Kills*part); err != nil {
		t.Fatal(err)
	}
}

// compare reports messages that had no effect or several, and with InOrder those whose effects came too early.
func (k *Test) compare(ctx context.Context, t *testing.T, effects *sql.DB, want int) error {
	t.Helper()
	rows, err := effects.QueryContext(ctx, `SELECT n FROM effects ORDER BY at`)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	seen, last := map[int]bool{}, map[int]int{}
	for n := 0; rows.Next(); {
		if err := rows.Scan(&n); err != nil {
			return err
		}
		if seen[n] {
			t.Errorf("message %d had two effects", n)
		}
		if before, ok := last[n%keys]; k.InOrder && (ok && n != before+keys || !ok && n >= keys) {
			t.Errorf("the effect of %d came after that of %d", n, before)
		}
		seen[n], last[n%keys] = true, n
	}
	if len(seen) != want {
		t.Errorf("%d messages had effects, want %d", len(seen), want)
	}
	return rows.Err()
}

func stage(ctx context.Context, s *sqlite.Store, first, n int) error {
	tx, err := s.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	messages := make([]waybill.Message, n)
	for i := range messages {
		messages[i] = placed.Message(first+i, waybill.Key("k"+strconv.Itoa((first+i)%keys)))
	}
	if _, err := s.Stage(ctx, tx, messages...); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}
