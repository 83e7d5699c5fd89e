package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// servers are private ones, children of this process, so that nothing else uses them and their CPU time can be read.
type servers struct {
	pg  *testenv.PostgresServer
	mq  *testenv.RabbitMQServer
	url string

	proxy *testenv.Proxy // before Postgres; nil = none
}

func openServers(ctx context.Context) (*servers, error) {
	s := &servers{}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) { s.pg, err = testenv.StartPostgres(gctx, testenv.PostgresOptions{}); return err })
	g.Go(func() (err error) {
		s.mq, err = testenv.StartRabbitMQ(gctx, testenv.RabbitMQOptions{AllCPUs: true, Config: []string{"vm_memory_high_watermark.absolute = 4GB"}})
		return err
	})
	if err := g.Wait(); err != nil {
		s.close()
		return nil, err
	}
	s.url = s.mq.AMQPURL("/")
	return s, nil
}

func (s *servers) close() {
	if s.pg != nil {
		_ = s.pg.Close() // ending anyway
	}
	if s.mq != nil {
		_ = s.mq.Close() // ending anyway
	}
}

// database is a fresh database with Waybill's schema and the benchmarks' business table.
type database struct {
	pg     *testenv.PG
	pool   *pgxpool.Pool
	outbox *postgres.Outbox
}

func (s *servers) database(ctx context.Context, opts postgres.Options) (*database, error) {
	pg, err := s.pg.CreateDatabase(ctx)
	if err != nil {
		return nil, err
	}
	dsn := pg.DSN
	if s.proxy != nil {
		dsn = s.proxy.URL(dsn)
	}
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 32
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	d := &database{pg: pg, pool: pool}
	if d.outbox, err = d.open(opts); err == nil {
		err = d.outbox.Migrate(ctx)
	}
	if err == nil {
		var marks *postgres.Inbox
		if marks, err = postgres.NewInbox(pool, postgres.InboxOptions{}); err == nil {
			err = marks.Migrate(ctx)
		}
	}
	if err == nil {
		_, err = pool.Exec(ctx, `
CREATE TABLE business (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, what text NOT NULL);
CREATE TABLE effects (id text NOT NULL);
CREATE TABLE hand_marks (consumer text, source text, id text, handled_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (consumer, source, id));
CREATE INDEX ON hand_marks (consumer, handled_at); -- to delete old marks by
CREATE TABLE hand_outbox (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id uuid NOT NULL UNIQUE, topic text NOT NULL, key text,
  headers jsonb, body bytea NOT NULL, created_at timestamptz NOT NULL DEFAULT clock_timestamp(), published_at timestamptz);
CREATE INDEX ON hand_outbox (seq) WHERE published_at IS NULL`)
	}
	if err != nil {
		d.close(ctx)
		return nil, err
	}
	return d, nil
}

// open returns another outbox over the same tables.
func (d *database) open(opts postgres.Options) (*postgres.Outbox, error) {
	opts.Source = "/bench"
	return postgres.NewOutbox(d.pool, opts)
}

func (d *database) close(ctx context.Context) {
	d.pool.Close()
	_ = d.pg.Close(ctx) // the server ends with us
}

func (s *servers) bus(ctx context.Context) (*rabbitmq.Transport, error) {
	return rabbitmq.Dial(ctx, s.url, rabbitmq.Options{Exchange: "bench"})
}

// queue declares a fresh quorum queue bound to the exchange for everything, and returns how to end it.
func (s *servers) queue(ctx context.Context, name string) (drop func() error, err error) {
	bus, err := s.bus(ctx) // declares the exchange
	if err != nil {
		return nil, err
	}
	if err := bus.Close(ctx); err != nil {
		return nil, err
	}
	conn, err := amqp.Dial(s.url)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // done with it
	ch, err := conn.Channel()
	if err == nil {
		_, err = ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	}
	if err == nil {
		err = ch.QueueBind(name, "#", "bench", false, nil)
	}
	return func() error { return s.drop(name) }, err
}

// drop deletes a queue.
func (s *servers) drop(name string) error {
	conn, err := amqp.Dial(s.url)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // done with it
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	_, err = ch.QueueDelete(name, false, false, false)
	return err
}

// expect fails unless a queue holds exactly n messages: a benchmark that loses or doubles measures nothing.
func (s *servers) expect(name string, n int) error {
	conn, err := amqp.Dial(s.url)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // only looked
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
	if err != nil {
		return err
	}
	if q.Messages != n {
		return fmt.Errorf("queue %s holds %d messages, expected %d", name, q.Messages, n)
	}
	return nil
}
