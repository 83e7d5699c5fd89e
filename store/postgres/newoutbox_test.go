package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/store/postgres"
)

// BenchmarkNewOutbox is what a process pays at its start: one stamper, and each statement rendered once.
func BenchmarkNewOutbox(b *testing.B) {
	pool, err := pgxpool.New(b.Context(), "postgres://nobody@localhost/nothing") // it does not connect
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := postgres.NewOutbox(pool, postgres.Options{Source: "/test"}); err != nil {
			b.Fatal(err)
		}
	}
}
