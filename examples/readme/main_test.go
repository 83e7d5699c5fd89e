package main

// The first run of the README's program is what a reader sees first of Waybill: it bills its order, and complains about
// nothing that the reader would have to look up.

import (
	"bytes"
	"context"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
)

// slow matches the warnings of a machine that stands still for seconds. They say nothing about the program.
var slow = regexp.MustCompile(`event=relay\.(lease_lost|presence_lost|presence_failed|publish_overdue)`)

// The program works on an empty database and an empty broker, and its first run warns about nothing.
func TestFirstRunWarnsAboutNothing(t *testing.T) {
	dsn := testenv.Postgres(t).DSN
	t.Setenv("POSTGRES_URL", dsn)
	t.Setenv("RABBITMQ_URL", testenv.RabbitMQ(t).URL)
	var warnings bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&warnings, &slog.HandlerOptions{Level: slog.LevelWarn})))
	defer slog.SetDefault(before)
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- connect(ctx) }()
	patience.Until(t, "the order is billed", func() bool {
		var bills int
		err := pool.QueryRow(ctx, "SELECT count(*) FROM bills").Scan(&bills) // the program makes the table
		return err == nil && bills == 1 || len(ended) > 0
	})
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(warnings.String()) {
		if !slow.MatchString(line) {
			t.Error(line)
		}
	}
}
