package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/store/postgres"
)

// rawTable is the table that a program without this package would write: an id, a topic, a key, headers and a body.
const rawTable = `
CREATE TABLE IF NOT EXISTS raw_outbox (
	seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id uuid NOT NULL UNIQUE, topic text NOT NULL, key text NOT NULL,
	headers json NOT NULL, body bytea NOT NULL, created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS raw_outbox_key ON raw_outbox (key, seq)`

const rawInsert = `INSERT INTO raw_outbox (id, topic, key, headers, body)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::json[], $5::bytea[])`

func rawStage(ctx context.Context, tx pgx.Tx, n int, body []byte) error {
	ids, topics, keys, headers, bodies := make([]uuid.UUID, n), make([]string, n), make([]string, n), make([]string, n), make([][]byte, n)
	for i := range n {
		ids[i], topics[i], keys[i], headers[i], bodies[i] = uuid.Must(uuid.NewV7()), "t.x", fmt.Sprint("key-", i), `{"source":"/bench"}`, body
	}
	_, err := tx.Exec(ctx, rawInsert, ids, topics, keys, headers, bodies)
	return err
}

// BenchmarkStage measures one transaction with n messages beside a hand-written array insert of the same number, taken
// in turns, and reports the ratio of their times.
func BenchmarkStage(b *testing.B) {
	o, pool := newOutbox(b, postgres.Options{})
	exec(b, pool, rawTable)
	db := stdlib.OpenDBFromPool(pool)
	b.Cleanup(func() { _ = db.Close() })
	body := make([]byte, 256)
	for _, n := range []int{1, 10, 100, 500} {
		b.Run(fmt.Sprintf("messages=%d", n), func(b *testing.B) {
			msgs := make([]waybill.Message, n)
			for i := range msgs {
				msgs[i] = waybill.RawMessage("t.x", "application/json", body, waybill.Key(fmt.Sprint("key-", i)))
			}
			var ours, raw, viaSQL time.Duration
			for range b.N {
				raw += timed(b, func() error {
					return pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error { return rawStage(b.Context(), tx, n, body) })
				})
				ours += timed(b, func() error {
					return pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error {
						_, err := o.Stage(b.Context(), tx, msgs...)
						return err
					})
				})
				viaSQL += timed(b, func() error { return stageSQL(b.Context(), db, o.SQL(), msgs) })
			}
			b.ReportMetric(float64(ours.Microseconds())/float64(b.N), "µs/stage")
			b.ReportMetric(float64(raw.Microseconds())/float64(b.N), "µs/raw")
			b.ReportMetric(ours.Seconds()/raw.Seconds(), "ratio")
			b.ReportMetric(viaSQL.Seconds()/raw.Seconds(), "ratio-sql")
		})
	}
}

func stageSQL(ctx context.Context, db *sql.DB, s waybill.Stager[*sql.Tx], msgs []waybill.Message) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := s.Stage(ctx, tx, msgs...); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

func timed(tb testing.TB, fn func() error) time.Duration {
	tb.Helper()
	began := time.Now()
	if err := fn(); err != nil {
		tb.Fatal(err)
	}
	return time.Since(began)
}

// BenchmarkDedupe measures what dedupe keys cost where they are used, and where they are not: staging plain messages
// with and without the index, messages with keys, and replacements, taken in turns.
func BenchmarkDedupe(b *testing.B) {
	with, pool := newOutbox(b, postgres.Options{})
	without := outboxOn(b, pool, postgres.Options{Table: "bare"})
	exec(b, pool, `DROP INDEX waybill.bare_dedupe`)
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprintf("messages=%d", n), func(b *testing.B) {
			var bare, plain, keyed, replaced time.Duration
			stageAll := func(o *postgres.Outbox, opts func(i int) waybill.MessageOption) time.Duration {
				msgs := make([]waybill.Message, n)
				for i := range msgs {
					msgs[i] = waybill.RawMessage("t.x", "application/json", make([]byte, 256), opts(i))
				}
				return timed(b, func() error {
					return pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error {
						_, err := o.Stage(b.Context(), tx, msgs...)
						return err
					})
				})
			}
			none := func(int) waybill.MessageOption { return waybill.Priority(0) }
			for range b.N {
				bare += stageAll(without, none)
				plain += stageAll(with, none)
				keyed += stageAll(with, func(int) waybill.MessageOption { return waybill.DedupeKey(waybill.NewID()) })
				replaced += stageAll(with, func(i int) waybill.MessageOption { return waybill.Replace(fmt.Sprint("k", i)) })
			}
			b.ReportMetric(float64(plain.Microseconds())/float64(b.N), "µs/plain")
			b.ReportMetric(plain.Seconds()/bare.Seconds(), "plain/bare")
			b.ReportMetric(keyed.Seconds()/plain.Seconds(), "keyed/plain")
			b.ReportMetric(replaced.Seconds()/plain.Seconds(), "replaced/plain")
		})
	}
}
