package nats_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/contrib/nats"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/sqlite"
)

const (
	roleEnv, dirEnv, portEnv = "WAYBILL_NATS_ROLE", "WAYBILL_NATS_DIR", "WAYBILL_NATS_PORT"
	orders                   = 3000
	kills                    = 12
)

var placed = waybill.NewTopic("orders.placed", waybill.JSON[int]())

func TestMain(m *testing.M) {
	role, ok := os.LookupEnv(roleEnv)
	if !ok {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := runRole(ctx, role, os.Getenv(dirEnv)); err != nil {
		fmt.Fprintln(os.Stderr, role, err)
		os.Exit(1)
	}
}

// runRole is a process of the test, until it is killed.
func runRole(ctx context.Context, role, dir string) error {
	port, err := strconv.Atoi(os.Getenv(portEnv))
	if err != nil {
		return err
	}
	if role == "server" {
		srv, err := server.NewServer(&server.Options{
			Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: filepath.Join(dir, "server"), NoSigs: true, NoLog: true,
		})
		if err != nil {
			return err
		}
		srv.Start()
		<-ctx.Done()
		return nil
	}
	var bus *nats.Transport
	for bus == nil { // the server may be away
		bus, err = nats.Dial(ctx, "nats://127.0.0.1:"+strconv.Itoa(port), nats.Options{HoldFor: 2 * time.Second})
		if err != nil && waybill.ClassOf(err) != waybill.ClassOutage || ctx.Err() != nil {
			return err
		}
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
	err = c.Handle(waybill.Subscription{Queue: "billing", Bindings: []string{"orders.#"}},
		inbox.Handler(billing, placed, func(ctx context.Context, tx *sql.Tx, n int) error {
			if d, ok := waybill.DeliveryFrom(ctx); ok && n%50 == 0 && d.Attempt == 1 {
				return waybill.RetryAfter(errors.New("once more"), 200*time.Millisecond)
			}
			_, err := tx.ExecContext(ctx, `INSERT INTO effects (n) VALUES (?)`, n)
			return err
		}))
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// TR-11: relay, consumer and server are killed in turn, while messages are staged and travel. Every message has its
// effect once.
func TestKilledProcesses(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "kills processes again and again: 40 s")
	ctx, moved := patience.Context(t.Context(), patience.Limit)
	dir := t.TempDir()
	outbox, effects := openStore(t, dir, "relay"), openStore(t, dir, "consumer")
	if _, err := effects.DB().ExecContext(ctx, `CREATE TABLE effects (n INTEGER NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	probe := startServer(t, nil) // for a port that is free
	probe.stop()
	p := &processes{dir: dir, port: probe.port, running: map[string]*exec.Cmd{}}
	t.Cleanup(p.end)
	roles := []string{"server", "consumer", "relay"}
	for _, role := range roles {
		if err := p.start(role); err != nil {
			t.Fatal(err)
		}
	}
	count := func() (all, distinct int) {
		row := effects.DB().QueryRowContext(ctx, `SELECT COUNT(*), COUNT(DISTINCT n) FROM effects`)
		if err := row.Scan(&all, &distinct); err != nil {
			t.Fatal(err)
		}
		return all, distinct
	}
	reach := func(n int) {
		before := 0
		for all, distinct := count(); distinct < n; all, distinct = count() {
			if distinct > before {
				before = distinct
				moved()
			}
			if ctx.Err() != nil {
				t.Fatalf("%d effects of %d messages, want %d", all, distinct, n)
			}
			wait(ctx, 20*time.Millisecond)
		}
	}
	const part = orders / kills
	for k := range kills {
		stage(t, outbox, k*part, part)
		reach(k*part + part/4)
		if err := p.kill(roles[k%len(roles)]); err != nil {
			t.Fatal(err)
		}
	}
	reach(orders)
	if all, distinct := count(); all != orders || distinct != orders {
		t.Errorf("%d effects of %d messages, want %d of both", all, distinct, orders)
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
		messages[i] = placed.Message(first+i, waybill.Key("k"+strconv.Itoa(i%20)))
	}
	if _, err := s.Stage(t.Context(), tx, messages...); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

type processes struct {
	dir     string
	port    int
	running map[string]*exec.Cmd
}

func (p *processes) start(role string) error {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"="+role, dirEnv+"="+p.dir, portEnv+"="+strconv.Itoa(p.port))
	cmd.Stderr = os.Stderr
	p.running[role] = cmd
	return cmd.Start()
}

// kill kills with SIGKILL, and starts again.
func (p *processes) kill(role string) error {
	cmd := p.running[role]
	if err := cmd.Process.Kill(); err != nil {
		return err
	}
	_ = cmd.Wait() // killed
	return p.start(role)
}

func (p *processes) end() {
	for _, cmd := range p.running {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}
