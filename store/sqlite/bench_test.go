package sqlite

import (
	"context"
	"database/sql"
	"strconv"
	"testing"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/inboxtest"
	"github.com/waybill-go/waybill/core/storetest"
)

func BenchmarkStore(b *testing.B) {
	storetest.Benchmark(b, func(b *testing.B) storetest.Harness {
		b.Helper()
		return harness{open(b, Options{})}
	})
}

func BenchmarkInbox(b *testing.B) {
	inboxtest.Benchmark(b, func(b *testing.B) inboxtest.Harness[*sql.Tx] {
		b.Helper()
		return newInboxHarness(b)
	})
}

var batches = []int{1, 100, 500}

// The raw limit of staging: a hand-written insert of the same columns with one index, prepared, without checks, stamps or
// JSON, in a transaction of n rows.
func BenchmarkRawInsert(b *testing.B) {
	for _, n := range batches {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			db := rawTable(b)
			for b.Loop() {
				rawInsert(b, db, n)
			}
			b.ReportMetric(float64(b.N)*float64(n)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

// The raw limit of claiming and settling: mark n rows and read them in one transaction, delete them in another.
func BenchmarkRawUpdateDelete(b *testing.B) {
	for _, n := range batches {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			db := rawTable(b)
			left := 0
			for b.Loop() {
				if left < n {
					b.StopTimer()
					rawInsert(b, db, 5000)
					left += 5000
					b.StartTimer()
				}
				if err := rawClaim(b.Context(), db, n); err != nil {
					b.Fatal(err)
				}
				if _, err := db.ExecContext(b.Context(), "DELETE FROM raw WHERE state = 2"); err != nil {
					b.Fatal(err)
				}
				left -= n
			}
			b.ReportMetric(float64(b.N)*float64(n)/b.Elapsed().Seconds(), "msg/s")
		})
	}
}

func rawClaim(ctx context.Context, db *sql.DB, n int) error {
	rows, err := db.QueryContext(ctx, `UPDATE raw SET state = 2, lease = 1 WHERE seq IN (SELECT seq FROM raw WHERE state = 1 ORDER BY seq LIMIT ?)
		RETURNING seq, route, id, topic, key, attrs, body`, n)
	if err != nil {
		return err
	}
	defer rows.Close()
	var seq int64
	var text [5]string
	var body []byte
	for rows.Next() {
		if err := rows.Scan(&seq, &text[0], &text[1], &text[2], &text[3], &text[4], &body); err != nil {
			return err
		}
	}
	return rows.Err()
}

func rawTable(b *testing.B) *sql.DB {
	b.Helper()
	db := open(b, Options{}).DB()
	run(b, db, `CREATE TABLE raw (seq INTEGER PRIMARY KEY, route TEXT, id TEXT, topic TEXT, key TEXT, state INTEGER, lease INTEGER, attrs TEXT, body BLOB);
		CREATE INDEX raw_state ON raw (state)`)
	return db
}

func rawInsert(b *testing.B, db *sql.DB, n int) {
	b.Helper()
	tx, err := db.BeginTx(b.Context(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer tx.Rollback()
	stmt, err := tx.PrepareContext(b.Context(), "INSERT INTO raw (route, id, topic, key, state, lease, attrs, body) VALUES ('default', ?, 'orders.placed', 'key', 1, 0, ?, ?)")
	if err != nil {
		b.Fatal(err)
	}
	defer stmt.Close()
	attrs, body := `{"a":{"type":"orders.placed","source":"/orders","time":"2026-01-02T03:04:05Z"}}`, make([]byte, 100)
	for range n {
		if _, err := stmt.ExecContext(b.Context(), core.NewID(), attrs, body); err != nil {
			b.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		b.Fatal(err)
	}
}
