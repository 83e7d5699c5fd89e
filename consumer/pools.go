package consumer

import (
	"context"
	"log/slog"

	"github.com/waybill-go/waybill"
)

// warnOfPools says which pools have fewer connections than the handlers that may run at a time.
func (c *Consumer) warnOfPools(ctx context.Context, subs []*registration) {
	type need struct {
		pool     waybill.Pool
		handlers int
	}
	var order []any
	needs := map[any]*need{}
	for _, reg := range subs {
		seen := map[any]bool{} // a handler has one connection, whichever handler it is
		for _, h := range reg.handlers {
			if h.Pool == nil {
				continue
			}
			p := h.Pool()
			if p.ID == nil || seen[p.ID] {
				continue
			}
			seen[p.ID] = true
			if needs[p.ID] == nil {
				needs[p.ID] = &need{pool: p}
				order = append(order, p.ID)
			}
			needs[p.ID].handlers += reg.sub.Concurrency
		}
	}
	for _, id := range order {
		if n := needs[id]; n.pool.Max > 0 && n.pool.Max < n.handlers {
			c.opts.Logger.WarnContext(ctx, "the connection pool of the inbox is smaller than the handlers that may run at a time, so they wait for each other; "+
				"raise its size, or lower Concurrency", slog.String("event", "consumer.pool_small"),
				slog.Int("connections", n.pool.Max), slog.Int("handlers", n.handlers))
		}
	}
}
