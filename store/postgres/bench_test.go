package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres"
)

// rawTable is what somebody without this package would write: an id, a topic, a key, headers and a body, claimed by a
// partial index.
const rawTable = `
CREATE TABLE IF NOT EXISTS raw_outbox (
	seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id uuid NOT NULL UNIQUE, topic text NOT NULL, key text NOT NULL,
	headers json NOT NULL, body bytea NOT NULL, created_at timestamptz NOT NULL DEFAULT now(), leased_until timestamptz
) WITH (fillfactor = 45);
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
			msgs := make([]core.Message, n)
			for i := range msgs {
				msgs[i] = core.RawMessage("t.x", "application/json", body, core.Key(fmt.Sprint("key-", i)))
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

func stageSQL(ctx context.Context, db *sql.DB, s core.Stager[*sql.Tx], msgs []core.Message) error {
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

const (
	rawLease = `
WITH c AS (SELECT seq FROM raw_outbox WHERE leased_until IS NULL AND seq > $1 ORDER BY seq LIMIT $2 FOR UPDATE SKIP LOCKED)
UPDATE raw_outbox o SET leased_until = now() + interval '1 minute' FROM c WHERE o.seq = c.seq
RETURNING o.seq, o.id, o.topic, o.key, o.headers, o.body`
	rawDelete = `DELETE FROM raw_outbox WHERE seq = ANY ($1)`
)

// BenchmarkDrain measures claiming and settling a backlog in batches of n, in one goroutine, beside a hand-written lease
// and delete, and reports messages a second and the ratio.
func BenchmarkDrain(b *testing.B) {
	for _, keys := range []int{0, 1000} {
		for _, n := range []int{100, 500} {
			b.Run(fmt.Sprintf("keys=%d/batch=%d", keys, n), func(b *testing.B) {
				o, pool := newOutbox(b, postgres.Options{})
				exec(b, pool, rawTable)
				const rows = 20_000
				var ours, raw time.Duration
				for range b.N {
					fill(b, pool, rows, keys)
					ours += timed(b, func() error { return drain(b.Context(), o, n, rows) })
					raw += timed(b, func() error { return rawDrain(b.Context(), pool, n, rows) })
				}
				b.ReportMetric(float64(b.N*rows)/ours.Seconds(), "msg/s")
				b.ReportMetric(float64(b.N*rows)/raw.Seconds(), "raw-msg/s")
				b.ReportMetric(raw.Seconds()/ours.Seconds(), "share-of-raw")
			})
		}
	}
}

// fill writes rows to both outboxes, with keys different keys, or none.
func fill(tb testing.TB, pool *pgxpool.Pool, rows, keys int) {
	tb.Helper()
	key := "''"
	if keys > 0 {
		key = fmt.Sprintf("'key-' || i %% %d", keys)
	}
	exec(tb, pool, `INSERT INTO waybill.waybill_outbox (topic, key, body) SELECT 't.x', `+key+`, convert_to(repeat('x', 256), 'UTF8') FROM generate_series(1, $1) i`, rows)
	exec(tb, pool, `INSERT INTO raw_outbox (id, topic, key, headers, body)
		SELECT gen_random_uuid(), 't.x', `+key+`, '{}', convert_to(repeat('x', 256), 'UTF8') FROM generate_series(1, $1) i`, rows)
	exec(tb, pool, `ANALYZE`)
}

func drain(ctx context.Context, o *postgres.Outbox, batch, rows int) error {
	for done := 0; done < rows; {
		c, err := o.Claim(ctx, request(batch))
		if err != nil {
			return err
		}
		outcomes := make([]core.Outcome, len(c.Records))
		for i := range c.Records {
			outcomes[i] = core.Published(&c.Records[i])
		}
		if err := o.Settle(ctx, outcomes).FirstErr(); err != nil {
			return err
		}
		done += len(c.Records)
	}
	return nil
}

func rawDrain(ctx context.Context, pool *pgxpool.Pool, batch, rows int) error {
	last := int64(0)
	for done := 0; done < rows; {
		r, err := pool.Query(ctx, rawLease, last, batch)
		if err != nil {
			return err
		}
		var seqs []int64
		for r.Next() {
			var seq int64
			var id uuid.UUID
			var topic, key string
			var headers, body []byte
			if err := r.Scan(&seq, &id, &topic, &key, &headers, &body); err != nil {
				return err
			}
			seqs, last = append(seqs, seq), max(last, seq)
		}
		if err := r.Err(); err != nil {
			return err
		}
		if _, err := pool.Exec(ctx, rawDelete, seqs); err != nil {
			return err
		}
		done += len(seqs)
	}
	return nil
}
