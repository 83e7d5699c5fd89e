package main

import (
	"context"
	"crypto/x509"
	"database/sql"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/cli"
	"github.com/waybill-go/waybill/cli/adapters"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/store/sqlite"
	"github.com/waybill-go/waybill/transport/memory"
)

// asCommand holds the arguments of a test binary that is the command.
const asCommand = "WAYBILL_TEST_ARGUMENTS"

func TestMain(m *testing.M) {
	if text := os.Getenv(asPart); text != "" {
		var p part
		err := json.Unmarshal([]byte(text), &p)
		if err == nil {
			err = p.play()
		}
		if err != nil {
			panic(err)
		}
		os.Exit(0)
	}
	if text := os.Getenv(asCommand); text != "" {
		var args []string
		if err := json.Unmarshal([]byte(text), &args); err != nil {
			panic(err)
		}
		os.Args = append(os.Args[:1], args...)
		cli.App{Stores: adapters.Stores(), Transports: append(adapters.Transports(), cli.NewTransportKind("stuck", openStuck))}.Main()
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background))
}

// stuck is a broker that never confirms.
type stuck struct{}

func openStuck(context.Context, *struct{}, cli.Env) (*cli.Transport, error) {
	return &cli.Transport{Publisher: stuck{}, Close: func(context.Context) error { return nil }}, nil
}

func (stuck) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	_, _ = os.Stderr.WriteString("publishing\n")
	<-ctx.Done()
	results := make(core.Results, len(batch))
	for i := range results {
		results[i] = ctx.Err()
	}
	return results
}

func (stuck) Traits() core.PublisherTraits {
	return core.PublisherTraits{Confirmed: true, KeyOrder: core.KeyOrderSerial}
}

// process starts the command as a process of its own.
func process(tb testing.TB, args ...string) *sharedtest.Process {
	tb.Helper()
	text, err := json.Marshal(args)
	if err != nil {
		tb.Fatal(err)
	}
	return sharedtest.StartProcess(tb, asCommand+"="+string(text))
}

// ended waits for the end of a process.
func ended(tb testing.TB, p *sharedtest.Process) {
	tb.Helper()
	defer func() {
		if tb.Failed() {
			tb.Log(p.Log.String())
		}
	}()
	patience.Until(tb, "the process ends", func() bool {
		select {
		case <-p.Done:
			return true
		default:
			return false
		}
	})
}

// bench is a place for tests: a SQLite database and a broker in memory, which the kind memory opens.
type bench struct {
	path   string
	store  *sqlite.Store
	bus    *memory.Transport
	opened atomic.Int32 // how often the broker was opened
}

func newBench(tb testing.TB) *bench {
	tb.Helper()
	bus, err := memory.New(memory.Options{Queues: []memory.Queue{{Name: "q", Bindings: []string{"#"}}}})
	if err != nil {
		tb.Fatal(err)
	}
	b := &bench{path: filepath.Join(tb.TempDir(), "shop.db"), bus: bus}
	b.store = database(tb, b.path)
	return b
}

// database makes a SQLite outbox.
func database(tb testing.TB, path string) *sqlite.Store {
	tb.Helper()
	s, err := sqlite.Open(tb.Context(), path, sqlite.Options{Source: "/shop", AutoMigrate: true, Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		err = s.Migrate(tb.Context())
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close(context.WithoutCancel(tb.Context())) })
	return s
}

func (b *bench) app() cli.App {
	kind := cli.NewTransportKind("memory", func(context.Context, *struct{}, cli.Env) (*cli.Transport, error) {
		b.opened.Add(1)
		return &cli.Transport{Publisher: b.bus, Close: func(context.Context) error { return nil }}, nil
	})
	return cli.App{Stores: adapters.Stores(), Transports: append(adapters.Transports(), kind)}
}

// base are the settings of one relay.
func (b *bench) base() string {
	return fmt.Sprintf("stores:\n  shop:\n    kind: sqlite\n    path: %s\ntransports:\n  bus:\n    kind: memory\n", b.path)
}

func stage(tb testing.TB, s *sqlite.Store, msgs ...waybill.Message) {
	tb.Helper()
	tx, err := s.DB().BeginTx(tb.Context(), &sql.TxOptions{})
	if err == nil {
		if _, err = s.Stage(tb.Context(), tx, msgs...); err == nil {
			err = tx.Commit()
		}
	}
	if err != nil {
		tb.Fatal(err)
	}
}

func message(opts ...waybill.MessageOption) waybill.Message {
	return waybill.RawMessage("orders.placed", "text/plain", []byte("x"), opts...)
}

// write writes settings to a file.
func write(tb testing.TB, text string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "waybill.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// run is a command that runs in the test's process.
type run struct {
	out, log sharedtest.Log
	code     chan int
	stop     context.CancelFunc
}

// start runs a command. It is stopped at the end of the test.
func start(tb testing.TB, app cli.App, args ...string) *run {
	tb.Helper()
	ctx, stop := context.WithCancel(tb.Context())
	r := &run{code: make(chan int, 1), stop: stop}
	go func() { r.code <- app.Run(ctx, args, cli.IO{Out: &r.out, Err: &r.log}) }()
	tb.Cleanup(func() {
		stop()
		select {
		case <-r.code:
		case <-time.After(patience.For(patience.Limit)):
			tb.Errorf("does not end:\n%s", r.log.String())
		}
	})
	return r
}

// end waits for the exit code.
func (r *run) end(tb testing.TB, want int) {
	tb.Helper()
	select {
	case code := <-r.code:
		r.code <- code
		if code != want {
			tb.Errorf("exit code %d, not %d:\n%s%s", code, want, r.out.String(), r.log.String())
		}
	case <-time.After(patience.For(patience.Limit)):
		tb.Fatalf("does not end:\n%s", r.log.String())
	}
}

var listening = regexp.MustCompile(`event=daemon\.listen address=([0-9.:]+)`)

// address waits for the address of health and metrics.
func address(tb testing.TB, log *sharedtest.Log) string {
	tb.Helper()
	var found []string
	patience.Until(tb, "listening", func() bool {
		found = listening.FindStringSubmatch(log.String())
		return found != nil
	})
	return "http://" + found[1]
}

// get returns the answer to a probe; 0 if there is none.
func get(tb testing.TB, url string) (int, string) {
	tb.Helper()
	return getBy(tb, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, url)
}

// getBy is get by a client, which can have cookies.
func getBy(tb testing.TB, client *http.Client, url string) (int, string) {
	tb.Helper()
	ctx, _ := patience.Context(tb.Context(), patience.Limit)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		tb.Fatal(err)
	}
	a, err := client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	if err != nil {
		return 0, err.Error()
	}
	return a.StatusCode, string(body)
}

// says fails the test unless text holds all parts.
func says(tb testing.TB, text string, parts ...string) {
	tb.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			tb.Errorf("does not say %q:\n%s", p, text)
		}
	}
}

// userOf returns user and password of a URL.
func userOf(dsn string) string {
	_, rest, _ := strings.Cut(dsn, "://")
	user, _, _ := strings.Cut(rest, "@")
	return user
}

// withPool returns the URL with a pool of one connection.
func withPool(dsn string) string {
	sep := "?"
	if strings.Contains(dsn, "?") {
		sep = "&"
	}
	return dsn + sep + "pool_max_conns=1"
}

// waiting is how many messages are ready in the queue.
func (b *bench) waiting() int { return b.bus.Depth("q").Ready }

// migrated makes the tables of a Postgres store.
func migrated(tb testing.TB, dsn string) *pgxpool.Pool {
	tb.Helper()
	pool, err := pgxpool.New(tb.Context(), dsn)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	m, err := postgres.NewMigrations(postgres.MigrationOptions{Source: "/shop"})
	if err == nil {
		err = m.Up(tb.Context(), pool)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return pool
}

func writeCertificate(tb testing.TB, path string, c *x509.Certificate) {
	tb.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}), 0o600); err != nil {
		tb.Fatal(err)
	}
}
