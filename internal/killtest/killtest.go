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
		r, err := NewRelay(store, bus)
		if err != nil {
			return err
		}
		return r.Run(ctx)
	}
	c, err := NewConsumer(store, bus, waybill.Subscription{Queue: Queue, Bindings: Bindings, InOrder: inOrder})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// Queue is the queue of the service.
const Queue = "billing"

// Bindings are its bindings.
var Bindings = []string{"orders.#"}

// NewRelay returns the relay of the service.
func NewRelay(store *sqlite.Store, bus core.Publisher) (*relay.Relay, error) {
	return relay.New(store, bus, relay.Options{Lease: 2 * time.Second, PollMax: 500 * time.Millisecond})
}

// NewConsumer returns a consumer of the service. Its handler has an inbox, and asks for some messages once more.
func NewConsumer(store *sqlite.Store, bus core.Subscriber, sub waybill.Subscription) (*consumer.Consumer, error) {
	billing, err1 := inbox.New(store, "billing", inbox.Options{})
	c, err2 := consumer.New(bus, consumer.Options{Pause: waybill.Backoff{Base: 200 * time.Millisecond, Cap: time.Second}})
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	return c, c.Handle(sub,
		inbox.Handler(billing, placed, func(ctx context.Context, tx *sql.Tx, n int) error {
			if d, ok := waybill.DeliveryFrom(ctx); ok && n%50 == 0 && d.Attempt == 1 {
				return waybill.RetryAfter(errors.New("once more"), 50*time.Millisecond)
			}
			_, err := tx.ExecContext(ctx, `INSERT INTO effects (n) VALUES (?)`, n)
			return err
		}))
}

func open(ctx context.Context, role, dir string) (*sqlite.Store, error) {
	return sqlite.Open(ctx, filepath.Join(dir, role+".db"), sqlite.Options{Source: "/orders", AutoMigrate: true})
}

// Books are the outbox and the effects of the service.
type Books struct {
	Outbox, Effects *sqlite.Store
	staged          int
	moved           func()
}

// OpenBooks makes the books in dir. The context that it returns ends when no effect has come for long.
func OpenBooks(t *testing.T, dir string) (context.Context, *Books) {
	t.Helper()
	ctx, moved := patience.Context(t.Context(), patience.Limit)
	outbox, err1 := open(ctx, Relay, dir)
	effects, err2 := open(ctx, Consumer, dir)
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
	return ctx, &Books{Outbox: outbox, Effects: effects, moved: moved}
}

// Stage stages n messages more.
func (b *Books) Stage(ctx context.Context, n int) error {
	tx, err := b.Outbox.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	messages := make([]waybill.Message, n)
	for i := range messages {
		messages[i] = placed.Message(b.staged+i, waybill.Key("k"+strconv.Itoa((b.staged+i)%keys)))
	}
	if _, err := b.Outbox.Stage(ctx, tx, messages...); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	b.staged += n
	return tx.Commit()
}

// Staged is how many messages were staged.
func (b *Books) Staged() int { return b.staged }

// Reach waits for n effects.
func (b *Books) Reach(ctx context.Context, n int) error {
	for all, before := 0, 0; all < n; {
		if err := b.Effects.DB().QueryRowContext(ctx, `SELECT COUNT(*) FROM effects`).Scan(&all); err != nil {
			return fmt.Errorf("%d effects, want %d: %w", before, n, err)
		}
		if all > before {
			before = all
			b.moved()
		}
	}
	return nil
}

// Compare reports messages that had no effect or several, and with inOrder those whose effects came too early.
func (b *Books) Compare(ctx context.Context, t *testing.T, inOrder bool) error {
	t.Helper()
	rows, err := b.Effects.DB().QueryContext(ctx, `SELECT n FROM effects ORDER BY at`)
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
		if before, ok := last[n%keys]; inOrder && (ok && n != before+keys || !ok && n >= keys) {
			t.Errorf("the effect of %d came after that of %d", n, before)
		}
		seen[n], last[n%keys] = true, n
	}
	if len(seen) != b.staged {
		t.Errorf("%d messages had effects, want %d", len(seen), b.staged)
	}
	return rows.Err()
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
	ctx, books := OpenBooks(t, k.Dir)
	running := map[string]*sharedtest.Process{}
	start := func(role string) {
		running[role] = sharedtest.StartProcess(t, append(k.Env, roleEnv+"="+role, dirEnv+"="+k.Dir)...)
	}
	for _, role := range k.Roles {
		start(role)
	}
	reach := func(n int) {
		if err := books.Reach(ctx, n); err != nil {
			t.Fatalf("%v; %s; %s", err, running[Relay].Log.String(), running[Consumer].Log.String())
		}
	}
	part := k.Messages / k.Kills
	for i := range k.Kills {
		if err := books.Stage(ctx, part); err != nil {
			t.Fatal(err)
		}
		reach(i*part + part/4)
		role := k.Roles[i%len(k.Roles)]
		running[role].Kill()
		start(role)
	}
	reach(books.Staged())
	if err := books.Compare(ctx, t, k.InOrder); err != nil {
		t.Fatal(err)
	}
}
