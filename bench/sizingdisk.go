package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/store/postgres"
)

// disk measures what a waiting record takes on the disk of Postgres: table and indexes.
func (z *sizer) disk(ctx context.Context, b *strings.Builder) error {
	b.WriteString("\n### Disk while the broker is down\n\n| bytes of a body | bytes a waiting record | GB an hour at 100/s | at 1,000/s |\n|---|---|---|---|\n")
	for _, size := range bodySizes {
		per, err := z.bytesPerRecord(ctx, size, z.some(min(100_000, 100<<20/size)))
		if err != nil {
			return err
		}
		gb := per * 3600 / 1e9
		fmt.Fprintf(b, "| %d | %s | %.2f | %.1f |\n", size, rounded(per), gb*100, gb*1000)
	}
	return nil
}

func (z *sizer) bytesPerRecord(ctx context.Context, size, n int) (float64, error) {
	db, err := z.env.database(ctx, postgres.Options{})
	if err != nil {
		return 0, err
	}
	defer db.close(ctx)
	body := make([]byte, size)
	_, _ = rand.Read(body) // what cannot be compressed
	for i := 0; i < n; i += 100 {
		msgs := make([]waybill.Message, min(100, n-i))
		for j := range msgs {
			msgs[j] = waybill.RawMessage("orders.placed", "application/json", body, waybill.Key(fmt.Sprintf("customer-%d", (i+j)%1000)))
		}
		err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { _, err := db.outbox.Stage(ctx, tx, msgs...); return err })
		if err != nil {
			return 0, err
		}
	}
	bytes, err := outboxSize(ctx, db)
	return bytes / float64(n), err
}

// backlog drains what waits after a long night.
func (z *sizer) backlog(ctx context.Context, b *strings.Builder, raw rawLimits) error {
	c := cell{name: "backlog", messages: 2_000_000, args: []string{"--paced", "0"}}
	if err := z.run(ctx, &c); err != nil {
		return err
	}
	rate := c.got.Drain.PerSecond
	fmt.Fprintf(b, "\n### A night's backlog\n\n%s waiting records drain in %.0f s: %s messages/s, %.2f of raw, %d came again.\n",
		rounded(float64(c.got.Staged)), float64(c.got.Staged)/rate, rounded(rate), rate/raw.publish, c.got.Again)
	return nil
}
