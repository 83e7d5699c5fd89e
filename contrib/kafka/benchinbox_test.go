package kafka_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/contrib/kafka"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

// services is a database in which each message has an effect, written by Waybill and by hand.
type services struct {
	pool    *pgxpool.Pool
	address string
	opts    kafka.Options
	bus     *kafka.Transport
	box     *inbox.Inbox[pgx.Tx]
	bare    *kgo.Client
}

func startServices(b *testing.B) *services {
	b.Helper()
	s := &services{address: node(b), opts: options()}
	pool, err := pgxpool.New(b.Context(), testenv.Postgres(b).DSN+"&pool_max_conns=12")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	s.pool = pool
	m, err := postgres.NewMigrations(postgres.MigrationOptions{Source: "/bench"})
	if err == nil {
		err = m.Up(b.Context(), pool)
	}
	if err == nil {
		_, err = pool.Exec(b.Context(), `
			CREATE TABLE effects (id text NOT NULL);
			CREATE TABLE hand_marks (consumer text, source text, id text, handled_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (consumer, source, id));
			CREATE INDEX ON hand_marks (consumer, handled_at)`)
	}
	if err != nil {
		b.Fatal(err)
	}
	marks, err := postgres.NewInbox(pool, postgres.InboxOptions{})
	if err == nil {
		s.box, err = inbox.New(marks, "bench", inbox.Options{})
	}
	if err != nil {
		b.Fatal(err)
	}
	s.bus = dial(b, s.address, s.opts)
	s.bare = bare(b, s.address, kgo.ConsumerGroup(s.opts.Bus+".bare"), kgo.ConsumeTopics(s.opts.Bus), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	return s
}

// fill publishes n messages with ids of their own.
func (s *services) fill(b *testing.B, n int) {
	b.Helper()
	for range n / benchSize {
		batch := benchBatch()
		for i := range batch {
			batch[i].ID = fmt.Sprintf("%s%07d", batch[i].ID[:29], busCount.Add(1)%1e7)
			batch[i].Key = batch[i].ID
		}
		if err := s.bus.Publish(b.Context(), batch).FirstErr(); err != nil {
			b.Fatal(err)
		}
	}
}

// byHand is what a team writes by hand: it polls up to 500 records, handles them, and commits them. handle handles a
// part of them, so many at a time.
func (s *services) byHand(b *testing.B, n, part, workers int, handle func(context.Context, pgx.Tx, []*kgo.Record) error) time.Duration {
	b.Helper()
	started := time.Now()
	for left := n; left > 0; {
		records := s.bare.PollRecords(b.Context(), 500).Records()
		left -= len(records)
		group, ctx := errgroup.WithContext(b.Context())
		group.SetLimit(workers)
		for rest := records; len(rest) > 0; {
			some := rest[:min(part, len(rest))]
			rest = rest[len(some):]
			group.Go(func() error {
				return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return handle(ctx, tx, some) })
			})
		}
		err := group.Wait()
		if err == nil {
			err = s.bare.CommitRecords(b.Context(), records...)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(started)
}

// byWaybill runs a consumer until it has handled n messages.
func (s *services) byWaybill(b *testing.B, n, workers int, handler waybill.Handler) time.Duration {
	b.Helper()
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	var handled atomic.Int64
	started := sync.OnceValue(time.Now) // not before the group has let it in
	var ended time.Time
	count := func(done int) {
		if handled.Add(int64(done)) == int64(n) {
			ended = time.Now()
			stop()
		}
	}
	single, batch := handler.Handle, handler.Batch
	handler.Handle = func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		started()
		status, err := single(ctx, d)
		if err == nil {
			count(1)
		}
		return status, err
	}
	if batch != nil {
		handler.Batch = func(ctx context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
			started()
			statuses, err := batch(ctx, ds)
			count(len(statuses))
			return statuses, err
		}
	}
	c, err := consumer.New(s.bus, consumer.Options{Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		err = c.Handle(waybill.Subscription{Queue: "q", Bindings: []string{"a"}, Concurrency: workers}, handler)
	}
	if err != nil {
		b.Fatal(err)
	}
	if err := c.Run(ctx); err != nil {
		b.Fatal(err)
	}
	return ended.Sub(started())
}

// BenchmarkConsumeWithInbox compares a consumer with an inbox on Postgres with a loop by hand that does the same: a
// mark and an effect in one transaction, for one message and ten at a time, or for a hundred and two at a time. Each
// message has a key of its own, since the loop by hand keeps no order. Neither measure has the time in which a group
// lets a member in.
func BenchmarkConsumeWithInbox(b *testing.B) {
	const mark = `INSERT INTO hand_marks (consumer, source, id) SELECT 'bench', * FROM unnest($1::text[], $2::text[]) ON CONFLICT DO NOTHING`
	byHand := func(ctx context.Context, tx pgx.Tx, records []*kgo.Record) error {
		sources, ids := make([]string, len(records)), make([]string, len(records))
		for i, rec := range records {
			e := kafka.Decode(rec)
			sources[i], ids[i] = e.Source, e.ID
		}
		tag, err := tx.Exec(ctx, mark, sources, ids)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO effects (id) SELECT unnest($1::text[])`, ids)
		return err
	}
	topic := waybill.NewTopic("a", waybill.Bytes("application/json"))
	for name, c := range map[string]struct {
		n, part, workers int
		handler          func(*inbox.Inbox[pgx.Tx]) waybill.Handler
	}{
		"single": {10_000, 1, 10, func(box *inbox.Inbox[pgx.Tx]) waybill.Handler {
			return inbox.Handler(box, topic, func(ctx context.Context, tx pgx.Tx, _ []byte) error {
				_, err := tx.Exec(ctx, `INSERT INTO effects (id) VALUES ($1)`, "an effect")
				return err
			})
		}},
		"batch": {40_000, 100, 2, func(box *inbox.Inbox[pgx.Tx]) waybill.Handler {
			return inbox.BatchHandler(box, topic, func(ctx context.Context, tx pgx.Tx, items []inbox.Item[[]byte]) error {
				ids := make([]string, len(items))
				for i := range items {
					ids[i] = items[i].Delivery.Envelope.ID
				}
				_, err := tx.Exec(ctx, `INSERT INTO effects (id) SELECT unnest($1::text[])`, ids)
				return err
			}, inbox.BatchOptions{})
		}},
	} {
		b.Run(name, func(b *testing.B) {
			s := startServices(b)
			s.fill(b, c.n)
			s.byHand(b, c.n, c.part, c.workers, byHand)
			s.byWaybill(b, c.n, c.workers, c.handler(s.box))
			var theirs, ours time.Duration
			for b.Loop() {
				s.fill(b, c.n)
				theirs += s.byHand(b, c.n, c.part, c.workers, byHand)
				ours += s.byWaybill(b, c.n, c.workers, c.handler(s.box))
			}
			report(b, c.n, theirs, ours)
		})
	}
}
