package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// figures are counted from business rows and effect rows, never from Waybill's own tables or counters.
type figures struct {
	orders, effects, arrivals                    int64
	lost, doubled, phantoms, unheard, inversions int64
}

// countFigures counts. Not an inversion is the one message that was on its way to the reader when the broker was
// killed: after that a quorum queue hands out the next one before it takes that back. It is marked as redelivered and
// comes right behind it.
func countFigures(ctx context.Context, pool *pgxpool.Pool) (f figures, err error) {
	return f, pool.QueryRow(ctx, `
SELECT (SELECT count(*) FROM orders),
       (SELECT count(*) FROM bills),
       (SELECT count(*) FROM arrivals),
       (SELECT count(*) FROM orders o WHERE NOT EXISTS (SELECT FROM bills b WHERE b.order_id = o.id)),
       (SELECT count(*) - count(DISTINCT order_id) FROM bills),
       (SELECT count(*) FROM bills b WHERE NOT EXISTS (SELECT FROM orders o WHERE o.id = b.order_id)),
       (SELECT count(*) FROM orders o WHERE NOT EXISTS (SELECT FROM arrivals a WHERE a.customer = o.customer AND a.n = o.n)),
       (SELECT count(*) FROM (
            SELECT n < lag(n) OVER c AND NOT (again AND i = lag(i) OVER c + 1) AS inverted
            FROM (SELECT DISTINCT ON (customer, n) customer, n, i, again
                  FROM (SELECT *, row_number() OVER (ORDER BY pos) AS i FROM arrivals) a ORDER BY customer, n, i) firsts
            WINDOW c AS (PARTITION BY customer ORDER BY i)) steps
        WHERE inverted)`).
		Scan(&f.orders, &f.effects, &f.arrivals, &f.lost, &f.doubled, &f.phantoms, &f.unheard, &f.inversions)
}

// settled waits until every order was billed and heard of, or no order makes progress any more.
func settled(ctx context.Context, pool *pgxpool.Pool, patience time.Duration) error {
	var last figures
	since := time.Now()
	for {
		f, err := countFigures(ctx, pool)
		if err == nil && f.lost == 0 && f.unheard == 0 {
			return nil
		}
		if err == nil && f != last {
			last, since = f, time.Now()
		}
		if time.Since(since) > patience {
			return errors.Join(err, ctx.Err()) // the report will say what is missing
		}
		if pause(ctx); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (f figures) report(t *tally, took time.Duration) error {
	fmt.Printf(`
  orders committed        %6d
  messages staged         %6d   (one in the transaction of each order)
  published               %6d   (as far as relays lived to say so)
  delivered               %6d   (to billing)
  duplicates suppressed   %6d
  effects                 %6d
  arrivals at the audit   %6d
  lost                    %6d
  doubled                 %6d
  without an order        %6d
  unheard by the audit    %6d
  per-key inversions      %6d

%d processes killed, %d faults, %.0f s.
`, f.orders, f.orders, t.published.Load(), t.delivered.Load(), t.duplicates.Load(), f.effects, f.arrivals,
		f.lost, f.doubled, f.phantoms, f.unheard, f.inversions, t.kills.Load(), t.faults.Load(), took.Seconds())
	if f.orders == 0 || f.lost+f.doubled+f.phantoms+f.unheard+f.inversions != 0 {
		return errors.New("the table above must show orders, and 0 from \"lost\" down")
	}
	return nil
}
