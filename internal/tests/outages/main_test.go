//go:build unix

package outages_test

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/rabbitmq"
	"github.com/waybill-go/waybill/transport/table"
)

// memberVariable is the variable that makes the test binary a member. It holds one.
const memberVariable = "WAYBILL_BADDAY_MEMBER"

func TestMain(m *testing.M) {
	if text := os.Getenv(memberVariable); text != "" {
		if err := runProcess(text); err != nil {
			slog.Error("member process", "error", err)
			os.Exit(1)
		}
		return
	}
	_ = flag.Set("test.parallel", "6") // they wait for servers; a flag of the command line wins
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background))
}

// nightly leaves the tests of this package to the night.
func nightly(tb testing.TB) {
	tb.Helper()
	tier.Nightly(tb, "starts, kills, freezes and fills servers of its own: up to a minute each")
}

func runProcess(text string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	go func() {
		sharedtest.AwaitParent()
		os.Exit(2)
	}()
	var m member
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return err
	}
	return m.run(ctx)
}

// The roles of members.
const (
	relays   = "relay"
	consumes = "consumer"       // from RabbitMQ, with the inbox
	receives = "table consumer" // from the table, with the inbox
)

const (
	topic     = "day.made"
	queueName = "day"
)

// member is the work of a process, or of a part of this one.
type member struct {
	Role, Name string
	DSN        string // of the outbox
	Effects    string // of the consumer's database; default the outbox's
	Broker     string
	Hosts      []string // of further nodes
	InOrder    bool
	Slow       time.Duration // what a handler takes

	prepare func(*pgxpool.Config)
	connect rabbitmq.ConnectionOptions
	clock   *hlc.Clock
	logger  *slog.Logger
}

func (m *member) run(ctx context.Context) error {
	if m.Role == relays {
		return m.relay(ctx)
	}
	return m.consume(ctx)
}

// programName is how the database knows a process.
func programName(pid int) string { return fmt.Sprintf("outages-%d", pid) }

func (m *member) open(ctx context.Context, dsn string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 12
	cfg.ConnConfig.RuntimeParams["application_name"] = programName(os.Getpid())
	cfg.ConnConfig.ConnectTimeout = 5 * time.Second
	if m.prepare != nil {
		m.prepare(cfg)
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}

func (m *member) outbox(pool *pgxpool.Pool) (*postgres.Outbox, error) {
	return postgres.NewOutbox(pool, postgres.Options{Source: "/badday", Logger: m.logger})
}

// bus connects when it is first used, so that it may start before its broker.
func (m *member) bus(ctx context.Context) (*rabbitmq.Transport, error) {
	connect := m.connect
	connect.Hosts, connect.Heartbeat = m.Hosts, time.Second
	return rabbitmq.Dial(ctx, m.Broker, rabbitmq.Options{
		Connection: connect, Lazy: true, ReconnectMax: 200 * time.Millisecond, ConnectTimeout: patience.For(5 * time.Second), PublishTimeout: 3 * time.Second,
		Logger: m.logger,
	})
}

func (m *member) relay(ctx context.Context) error {
	pool, err := m.open(ctx, m.DSN)
	if err != nil {
		return err
	}
	defer pool.Close()
	o, err := m.outbox(pool)
	if err != nil {
		return err
	}
	defer func() { _ = o.Close(context.WithoutCancel(ctx)) }()
	bus, err := m.bus(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = bus.Close(context.WithoutCancel(ctx)) }()
	r, err := relay.New(o, bus, relay.Options{
		Name: cmp.Or(m.Name, "relay"), BatchSize: 50, Lease: 4 * time.Second, PublishTimeout: 3 * time.Second, PollMax: time.Second,
		DrainTimeout: time.Second, CleanInterval: -1, Logger: m.logger,
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// subscription is what every consumer has.
func (m *member) subscription() waybill.Subscription {
	sub := waybill.Subscription{Queue: queueName, Concurrency: 8, InOrder: m.InOrder, Retry: waybill.RetryDelays(200*time.Millisecond, time.Second, time.Second, time.Second)}
	if m.Role == consumes {
		sub.Bindings = []string{topic}
	}
	return sub
}

// source returns where a consumer receives from.
func (m *member) source(ctx context.Context) (core.Subscriber, func(), error) {
	if m.Role == consumes {
		bus, err := m.bus(ctx)
		return bus, func() { _ = bus.Close(context.WithoutCancel(ctx)) }, err
	}
	pool, err := m.open(ctx, m.DSN)
	if err != nil {
		return nil, nil, err
	}
	o, err := m.outbox(pool)
	if err != nil {
		return nil, nil, err
	}
	tr, err := table.New(o, table.Options{Lease: time.Second, Owner: cmp.Or(m.Name, "table"), CleanInterval: -1, Logger: m.logger})
	return tr, func() {
		ctx := context.WithoutCancel(ctx)
		_ = tr.Close(ctx)
		_ = o.Close(ctx)
		pool.Close()
	}, err
}

func (m *member) consume(ctx context.Context) error {
	bus, stop, err := m.source(ctx)
	if err != nil {
		return err
	}
	defer stop()
	pool, err := m.open(ctx, cmp.Or(m.Effects, m.DSN))
	if err != nil {
		return err
	}
	defer pool.Close()
	store, err := postgres.NewInbox(pool, postgres.InboxOptions{})
	if err != nil {
		return err
	}
	box, err := inbox.New(store, "badday", inbox.Options{PurgeEvery: -1, Logger: m.logger})
	if err != nil {
		return err
	}
	c, err := consumer.New(bus, consumer.Options{
		Pause: waybill.Backoff{Base: 100 * time.Millisecond, Cap: 500 * time.Millisecond}, DrainTimeout: time.Second, Clock: m.clock, Logger: m.logger,
	})
	if err != nil {
		return err
	}
	h := inbox.Handler(box, waybill.NewTopic(topic, waybill.JSON[made]()), m.handle)
	if err := c.Handle(m.subscription(), h); err != nil {
		return err
	}
	return c.Run(ctx)
}

// made is the body of a message: its number among those of its key.
type made struct {
	Num int `json:"num"`
}

// handle is the effect of a message: a row, which two effects write twice.
func (m *member) handle(ctx context.Context, tx pgx.Tx, body made) error {
	d, _ := waybill.DeliveryFrom(ctx)
	if _, err := tx.Exec(ctx, "INSERT INTO seen (id, key, num, pid) VALUES ($1, $2, $3, $4)", d.Envelope.ID, d.Envelope.Key, body.Num, os.Getpid()); err != nil {
		return err
	}
	if m.Slow > 0 {
		select {
		case <-time.After(m.Slow):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
