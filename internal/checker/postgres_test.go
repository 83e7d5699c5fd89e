package checker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/checker"
	"github.com/waybill-go/waybill/internal/historytest"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// servers are a database and a broker that several histories share, each with routes, an exchange and a queue of its
// own.
type servers struct {
	dsn, url string
	pool     *pgxpool.Pool
	outbox   *postgres.Outbox
	inbox    *postgres.Inbox
	// kill kills a server and starts it again; nil if they are not to be killed.
	kill func(ctx context.Context) error
}

// quick are the options of a transport whose broker goes away often.
func quick(exchange string, pipelined bool) rabbitmq.Options {
	return rabbitmq.Options{Exchange: exchange, PipelineKeys: pipelined, ReconnectMax: 200 * time.Millisecond, ConnectTimeout: patience.For(2 * time.Second), Lazy: true, Logger: slog.New(slog.DiscardHandler)}
}

func openServers(t *testing.T, dsn, broker string) *servers {
	t.Helper()
	s := &servers{dsn: dsn, url: broker}
	var err error
	if s.pool, err = openPool(t.Context(), dsn, "checker", 16); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.pool.Close)
	m, err := postgres.NewMigrations(postgres.MigrationOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Up(t.Context(), s.pool); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.Exec(t.Context(), "CREATE TABLE effects (route text, id text)"); err != nil {
		t.Fatal(err)
	}
	if s.outbox, err = postgres.NewOutbox(s.pool, pgOptions()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.outbox.Close(context.WithoutCancel(t.Context())) })
	if s.inbox, err = postgres.NewInbox(s.pool, postgres.InboxOptions{}); err != nil {
		t.Fatal(err)
	}
	return s
}

func pgOptions() postgres.Options {
	return postgres.Options{Source: "/checker", Logger: slog.New(slog.DiscardHandler)}
}

func openPool(ctx context.Context, dsn, name string, conns int32) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns, cfg.ConnConfig.ConnectTimeout = conns, patience.For(2*time.Second)
	cfg.ConnConfig.RuntimeParams["application_name"] = name
	return pgxpool.NewWithConfig(ctx, cfg)
}

// pgSide is one history's share of the servers, behind proxies of its own.
type pgSide struct {
	*servers
	name      string
	pg, mq    *testenv.Proxy
	child     bool // relays are processes, which are SIGKILLed
	pipelined bool // keys are; then bindings must stay as they are
	toKill    atomic.Bool
}

func newPGSide(t *testing.T, s *servers, name, queueType string) *pgSide {
	t.Helper()
	address := func(raw string) string {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		if u.Port() == "" {
			return net.JoinHostPort(u.Hostname(), map[string]string{"amqp": "5672", "postgres": "5432"}[u.Scheme])
		}
		return u.Host
	}
	p := &pgSide{servers: s, name: name, pg: testenv.NewProxy(t, address(s.dsn)), mq: testenv.NewProxy(t, address(s.url))}
	if err := p.declare(queueType); err != nil {
		t.Fatal(err)
	}
	return p
}

// channel runs fn on a channel of its own.
func (s *pgSide) channel(fn func(ch *amqp.Channel) error) error {
	conn, err := amqp.Dial(s.url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	return fn(ch)
}

func (s *pgSide) declare(queueType string) error {
	return s.channel(func(ch *amqp.Channel) error {
		if err := ch.ExchangeDeclare(s.name, "topic", true, false, false, false, nil); err != nil {
			return err
		}
		if queueType != "" {
			if _, err := ch.QueueDeclare(s.name, true, false, false, false, amqp.Table{"x-queue-type": queueType}); err != nil {
				return err
			}
		}
		return ch.QueueBind(s.name, s.name+".#", s.name, false, nil)
	})
}

type pgTx struct {
	pgx.Tx
	o *postgres.Outbox
}

func (x pgTx) Stage(ctx context.Context, msgs ...waybill.Message) ([]waybill.Staged, error) {
	return x.o.Stage(ctx, x.Tx, msgs...)
}

func (x pgTx) Exec(ctx context.Context, sql string) error {
	_, err := x.Tx.Exec(ctx, sql)
	return err
}

func (x pgTx) Rollback() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = x.Tx.Rollback(ctx)
}

func (s *pgSide) Begin(ctx context.Context) (historytest.Tx, error) {
	x, err := s.pool.Begin(ctx)
	return pgTx{x, s.outbox}, err
}

// Relay starts a relay with connections of its own through the proxies.
func (s *pgSide) Relay(w *historytest.World, n int) (*historytest.Runner, error) {
	if s.child {
		return s.process(w, n)
	}
	ctx := context.WithoutCancel(w.T.Context())
	pool, err := openPool(ctx, s.pg.URL(s.dsn), s.name, 4)
	if err != nil {
		return nil, err
	}
	outbox, err := postgres.NewOutbox(pool, pgOptions())
	if err != nil {
		return nil, err
	}
	bus, err := rabbitmq.Dial(ctx, s.mq.URL(s.url), quick(s.name, s.pipelined))
	if err != nil {
		return nil, err
	}
	return w.Relay(n, outbox, func(p *checker.Process, route string, i int) core.Publisher {
		return checker.NewRefuser(bus, p, route, w.Refuse, w.Seed, uint64(n<<4+i))
	}, func() {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_ = bus.Close(ctx)
		_ = outbox.Close(ctx)
		pool.Close()
	})
}

// Harm cuts connections, loses answers, terminates backends, and lets channels fail.
func (s *pgSide) Harm(w *historytest.World, d *checker.Dice, last bool) {
	ctx := w.T.Context()
	what := d.N(6)
	if s.pipelined && what == 5 {
		what = 1
	}
	w.Ledger.Note("harm %d", what)
	if staged, _ := w.Ledger.Size(); s.kill != nil && (staged >= 12 || last) && s.toKill.CompareAndSwap(true, false) {
		w.Ledger.Note("harm: server killed")
		if err := s.kill(ctx); err != nil {
			w.T.Error(err)
		}
		w.Ledger.Note("harm: server is back")
		s.declareAgain(w)
		return
	}
	switch what {
	case 0:
		s.pg.Cut()
	case 1:
		s.mq.Cut()
	case 2, 3: // the answers are lost, then the connection
		proxy := []*testenv.Proxy{s.pg, s.mq}[what-2]
		proxy.Blackhole(testenv.Down)
		time.Sleep(d.Up(300 * time.Millisecond))
		if d.N(2) == 0 {
			proxy.Cut()
		}
		proxy.Heal()
	case 4:
		_, _ = s.pool.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1", s.name)
	case 5: // a publish to an exchange that is not there closes its channel
		err := s.channel(func(ch *amqp.Channel) error { return ch.ExchangeDelete(s.name, false, false) })
		if err != nil {
			w.Ledger.Note("delete of the exchange: %v", err)
		}
		time.Sleep(d.Up(100 * time.Millisecond))
		s.declareAgain(w)
	}
}

// declareAgain declares the exchange and binds the queue, as services do when they connect: a broker that is killed may
// forget what was declared just before.
func (s *pgSide) declareAgain(w *historytest.World) {
	begun := time.Now()
	for {
		err := s.declare("")
		if err == nil {
			return
		}
		w.Ledger.Note("declare again: %v", err)
		if time.Since(begun) > historytest.Drain/2 {
			w.T.Errorf("declare again: %v", err)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *pgSide) Rows(ctx context.Context, routes []string) (int, map[checker.Ref]checker.Final, error) {
	rows, err := s.pool.Query(ctx, "SELECT route, id, state, reason, attempts, crashes FROM waybill.waybill_outbox WHERE route = ANY($1)", routes)
	if err != nil {
		return 0, nil, err
	}
	defer rows.Close()
	live, final, err := historytest.Finals(rows)
	return live, final, errors.Join(err, rows.Err())
}

func (s *pgSide) Keeper() admin.BlockedKeys {
	k, _ := core.As[admin.BlockedKeys](s.outbox)
	return k
}

// Drain reads the queue with a single reader, then handles what it read, some of it twice and side by side.
func (s *pgSide) Drain(w *historytest.World) (map[checker.Ref]int, error) {
	ctx := w.T.Context()
	var got []delivery
	if err := s.channel(func(ch *amqp.Channel) error {
		for {
			m, ok, err := ch.Get(s.name, true)
			if err != nil || !ok {
				return err
			}
			key, _ := m.Headers["cloudEvents_partitionkey"].(string)
			e := waybill.Envelope{ID: m.MessageId, Source: "/checker", Key: key, Body: m.Body}
			route := strings.ReplaceAll(m.RoutingKey, ".", "-")
			w.Ledger.Arrived(route, &e)
			got = append(got, delivery{route, e})
		}
	}); err != nil {
		return nil, err
	}
	var workers sync.WaitGroup
	for i := range 3 {
		d := checker.NewDice(w.Seed, uint64(100+i), &atomic.Bool{})
		workers.Go(func() {
			for j, x := range got {
				if j%3 != i && d.N(8) > 0 { // each has its share, and some of the others'
					continue
				}
				for {
					_, err := s.inbox.Do(ctx, core.InboxKey{Consumer: x.route, Source: x.env.Source, ID: x.env.ID}, func(ctx context.Context, tx pgx.Tx) error {
						if _, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1, $2)", x.route, x.env.ID); err != nil || d.Roll(50) {
							return errors.Join(err, errHandler)
						}
						return nil
					})
					if err == nil || ctx.Err() != nil {
						break
					}
				}
			}
		})
	}
	workers.Wait()
	rows, err := s.pool.Query(ctx, "SELECT route, id, count(*) FROM effects WHERE route = ANY($1) GROUP BY route, id", w.Names)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out, err := historytest.Effects(rows)
	return out, errors.Join(err, rows.Err())
}

// childRelay is the variable that makes the test binary a relay.
const childRelay = "WAYBILL_CHECKER_RELAY"

// process runs a relay as a process of its own, which is killed by SIGKILL.
func (s *pgSide) process(w *historytest.World, n int) (*historytest.Runner, error) {
	routes := make([]string, len(w.Routes))
	for i, r := range w.Routes {
		routes[i] = fmt.Sprintf("%s:%d:%t:%d", r.Name, r.Order, r.BlockAfterAbandon, r.Backoff.Attempts)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childRelay+"="+strings.Join(routes, ","), childRelay+"_DSN="+s.pg.URL(s.dsn), childRelay+"_BROKER="+s.mq.URL(s.url),
		childRelay+"_EXCHANGE="+s.name, fmt.Sprintf("%s_BATCH=%d", childRelay, w.Options.BatchSize), fmt.Sprintf("%s_PIPELINED=%t", childRelay, s.pipelined),
		fmt.Sprintf("%s=%f", patience.Variable, patience.Factor()))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	w.Ledger.Note("start process %d", n)
	over := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(over)
	}()
	return &historytest.Runner{
		End: func(kill bool) {
			w.Ledger.Note("kill process %d: %v", n, kill)
			if kill {
				_ = cmd.Process.Kill()
			} else {
				_ = cmd.Process.Signal(syscall.SIGCONT)
				_ = cmd.Process.Signal(os.Interrupt)
			}
			<-over
		},
		Freeze: func(d time.Duration) {
			w.Ledger.Note("freeze process %d for %s", n, d)
			_ = cmd.Process.Signal(syscall.SIGSTOP)
			w.Over.Go(func() {
				select {
				case <-time.After(d):
				case <-over:
				}
				_ = cmd.Process.Signal(syscall.SIGCONT)
			})
		},
	}, nil
}

// runChildRelay relays until it is interrupted or killed.
func runChildRelay(ctx context.Context) error {
	env := func(name string) string { return os.Getenv(childRelay + name) }
	pool, err := openPool(ctx, env("_DSN"), env("_EXCHANGE"), 4)
	if err != nil {
		return err
	}
	outbox, err := postgres.NewOutbox(pool, pgOptions())
	if err != nil {
		return err
	}
	bus, err := rabbitmq.Dial(ctx, env("_BROKER"), quick(env("_EXCHANGE"), env("_PIPELINED") == "true"))
	if err != nil {
		return err
	}
	batch, _ := strconv.Atoi(env("_BATCH"))
	o := relay.Options{
		BatchSize: batch, Lease: historytest.Lease, PublishTimeout: historytest.Lease * 7 / 10, PollMin: 5 * time.Millisecond, PollMax: 200 * time.Millisecond,
		DrainTimeout: 200 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	}
	for r := range strings.SplitSeq(env(""), ",") {
		f := strings.Split(r, ":")
		order, _ := strconv.Atoi(f[1])
		attempts, _ := strconv.Atoi(f[3])
		o.Routes = append(o.Routes, relay.Route{
			Name: f[0], Order: waybill.Order(order), BlockAfterAbandon: f[2] == "true",
			Backoff: &waybill.Backoff{Base: 20 * time.Millisecond, Cap: 100 * time.Millisecond, Attempts: attempts},
		})
	}
	r, err := relay.New(outbox, bus, o)
	if err != nil {
		return err
	}
	for ctx.Err() == nil { // as a supervisor
		if err := r.Run(ctx); err != nil {
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

// P1 to P5 P7 OR-02 OR-03 OR-04 OR-08 DB-24: real histories, with relays on goroutines whose connections fail, and with
// relays that are processes, and are stopped for a while or killed.
func TestPostgresRabbitMQHistories(t *testing.T) {
	t.Parallel()
	n := number("WAYBILL_CHECKER_REAL", histories(8, 60))
	s := openServers(t, testenv.Postgres(t).DSN, testenv.RabbitMQ(t).URL)
	historytest.Run(t, n, 4, func(t *testing.T, seed uint64, i int) *historytest.World {
		t.Helper()
		name := "h" + strconv.Itoa(i)
		p := newPGSide(t, s, name, []string{"classic", "quorum"}[i%2])
		p.child, p.pipelined = i%5 == 4, i%4 == 3
		return historytest.New(t, seed, name, p, checker.Options{Unseen: p.child})
	})
}

// P1 to P5 P7 OR-02: a server is killed in the middle of a history and started again, over which connections fail as
// well.
func TestServerKillHistories(t *testing.T) {
	tier.Nightly(t, "kills servers: half a minute")
	t.Parallel()
	kills := number("WAYBILL_CHECKER_KILLS", 2) // of the database; half as many of the broker
	killer := func(stop func(), restart func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error {
			stop()
			time.Sleep(200 * time.Millisecond)
			ctx, cancel := context.WithTimeout(ctx, patience.For(time.Minute))
			defer cancel()
			return restart(ctx)
		}
	}
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		own := testenv.OwnPostgres(t, testenv.PostgresOptions{})
		db, err := own.CreateDatabase(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s := openServers(t, db.DSN, testenv.RabbitMQ(t).URL)
		s.kill = killer(own.Kill, own.Restart)
		historytest.Run(t, kills, 1, func(t *testing.T, seed uint64, i int) *historytest.World {
			t.Helper()
			p := newPGSide(t, s, "h"+strconv.Itoa(i), "classic")
			p.child = i%5 == 4
			p.toKill.Store(true)
			return historytest.New(t, seed, p.name, p, checker.Options{Unseen: p.child})
		})
	})
	t.Run("rabbitmq", func(t *testing.T) {
		t.Parallel()
		own := testenv.OwnRabbitMQ(t, testenv.RabbitMQOptions{})
		s := openServers(t, testenv.Postgres(t).DSN, own.AMQPURL("/"))
		s.kill = killer(own.Kill, own.Restart)
		n := (kills + 1) / 2
		var sides []*pgSide
		for i := range n {
			sides = append(sides, newPGSide(t, s, "h"+strconv.Itoa(i+1), []string{"classic", "quorum"}[i%2]))
		}
		time.Sleep(testenv.DefinitionsOnDisk)
		historytest.Run(t, n, 1, func(t *testing.T, seed uint64, i int) *historytest.World {
			t.Helper()
			p := sides[i-1]
			p.toKill.Store(true)
			return historytest.New(t, seed, p.name, p, checker.Options{})
		})
	})
}
