package redisstreams_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/sqlite"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

// processRole makes the test binary a relay or a consumer: role, bus, URL and folder are in the environment.
const processRole = "WAYBILL_REDIS_TEST_ROLE"

const (
	processHold = 2 * time.Second
	sqliteBusy  = 30 * time.Second
)

func runRole(role string) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin) // ends when the parent does
	}()
	dir := os.Getenv(processRole + "_DIR")
	bus, err := redisstreams.Dial(ctx, os.Getenv(processRole+"_URL"), redisstreams.Options{
		Bus: os.Getenv(processRole + "_BUS"), HoldFor: processHold, Lazy: true, Logger: quiet(),
	})
	if err == nil && role == "relay" {
		err = relayRole(ctx, dir, bus)
	} else if err == nil {
		err = consumerRole(ctx, dir, bus)
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, role, err)
		os.Exit(1)
	}
}

func relayRole(ctx context.Context, dir string, bus *redisstreams.Transport) error {
	store, err := sqlite.Open(ctx, filepath.Join(dir, "outbox.db"), sqlite.Options{Source: "/orders", BusyTimeout: sqliteBusy})
	if err != nil {
		return err
	}
	r, err := relay.New(store, bus, relay.Options{BatchSize: 20, Lease: 2 * time.Second, PublishTimeout: time.Second, PollMax: 200 * time.Millisecond, Logger: quiet()})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

func consumerRole(ctx context.Context, dir string, bus *redisstreams.Transport) error {
	store, err := sqlite.Open(ctx, filepath.Join(dir, "effects.db"), sqlite.Options{Source: "/billing", BusyTimeout: sqliteBusy})
	if err != nil {
		return err
	}
	box, err := inbox.New(store, "billing", inbox.Options{})
	if err != nil {
		return err
	}
	c, err := consumer.New(bus, consumer.Options{Logger: quiet()})
	if err != nil {
		return err
	}
	effect := func(ctx context.Context, tx *sql.Tx, n int) error {
		// There is no unique key: a doubled one would show.
		_, err := tx.ExecContext(ctx, `INSERT INTO effects (n) VALUES (?)`, n)
		return err
	}
	if err := c.Handle(waybill.Subscription{Queue: "billing", Bindings: []string{"orders.*"}}, inbox.Handler(box, ordersPlaced, effect)); err != nil {
		return err
	}
	return c.Run(ctx)
}

var ordersPlaced = waybill.NewTopic("orders.placed", waybill.JSON[int]())

// TR-04, IN-01: relay, consumer and server are processes that get SIGKILL in turn while messages flow. Each message has
// its effect once.
func TestProcessesAreKilled(t *testing.T) {
	tier.Nightly(t, "kills processes and a server eight times: 10 s")
	t.Parallel()
	const n = 2000
	server := testenv.OwnRedis(t, testenv.RedisOptions{})
	dir, bus := t.TempDir(), newBus()
	outbox, effects := openDB(t, dir, "outbox.db"), openDB(t, dir, "effects.db")
	if _, err := effects.DB().ExecContext(t.Context(), `CREATE TABLE effects (n INTEGER)`); err != nil {
		t.Fatal(err)
	}
	begin := func(role string) *exec.Cmd {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), processRole+"="+role, processRole+"_BUS="+bus, processRole+"_URL="+server.URL(), processRole+"_DIR="+dir)
		cmd.Stderr = os.Stderr
		if _, err := cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	end := func(cmd *exec.Cmd) {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	count := func(query string) (n int) {
		t.Helper()
		if err := effects.DB().QueryRowContext(t.Context(), query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	running := map[string]*exec.Cmd{"relay": begin("relay"), "consumer": begin("consumer")}
	defer func() {
		for _, cmd := range running {
			end(cmd)
		}
	}()
	kills := []string{"consumer", "relay", "server", "consumer", "relay", "consumer", "server", "relay"}
	for i, victim := range kills {
		stage(t, outbox, i*n/len(kills), (i+1)*n/len(kills))
		patience.Until(t, "effects", func() bool { return count(`SELECT count(*) FROM effects`) > i*n/len(kills)+50 })
		if victim == "server" {
			server.Kill()
			if err := server.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			continue
		}
		end(running[victim])
		running[victim] = begin(victim)
	}
	patience.Until(t, "all effects", func() bool { return count(`SELECT count(DISTINCT n) FROM effects`) == n })
	if got := count(`SELECT count(*) FROM effects`); got != n {
		t.Errorf("%d effects of %d messages", got, n)
	}
}

func openDB(t *testing.T, dir, name string) *sqlite.Store {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(dir, name), sqlite.Options{Source: "/orders", AutoMigrate: true, BusyTimeout: sqliteBusy})
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, store)
	return store
}

func stage(t *testing.T, store *sqlite.Store, from, to int) {
	t.Helper()
	tx, err := store.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	var list []waybill.Message
	for i := from; i < to; i++ {
		list = append(list, ordersPlaced.Message(i, waybill.Key(fmt.Sprint("k", i%20))))
	}
	if _, err := store.Stage(t.Context(), tx, list...); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}
