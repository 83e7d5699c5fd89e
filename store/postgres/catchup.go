package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
)

// A claim puts a bounded number of rows in line, and what is due and not in line holds its key. When much came due at once, as during an
// outage, claims that find key after key held would take longer than to put all in line: so that is done first, in larger steps, and for a
// bounded time a claim.
const (
	promoteStep = 500
	catchUpStep = 5000
	catchUpTime = 250 * time.Millisecond
)

// promotion is what of a route came in line.
type promotion struct {
	least int64 // sequence
	rows  int
}

// catchUp puts in line what is due on the routes of req of which there was more than the claims before put there.
func (o *Outbox) catchUp(ctx context.Context, req *core.ClaimRequest) error {
	if req.Alone {
		return nil
	}
	for end := time.Now().Add(catchUpTime); time.Now().Before(end); {
		routes := o.claims.late(req)
		if len(routes) == 0 {
			return nil
		}
		var promoted map[string]promotion
		err := o.transactWith(ctx, "claim", setClaimSQL, func(b *pgx.Batch) {
			promoted = map[string]promotion{}
			b.Queue(o.claims.promote, routes, catchUpStep).Query(func(rows pgx.Rows) error { return readPromoted(rows, promoted) })
		})
		if err != nil {
			return err
		}
		o.claims.caughtUp(routes, promoted)
	}
	return nil
}

func readPromoted(rows pgx.Rows, promoted map[string]promotion) error {
	var route string
	var seq int64
	for rows.Next() {
		if err := rows.Scan(&route, &seq); err != nil {
			return err
		}
		p := promoted[route]
		if p.rows == 0 || seq < p.least {
			p.least = seq
		}
		p.rows++
		promoted[route] = p
	}
	return rows.Err()
}

// late returns the routes of req of which more is due.
func (c *claimer) late(req *core.ClaimRequest) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var routes []string
	for i := range req.Routes {
		if r := &req.Routes[i]; r.Order == core.OrderPerKey && c.position(req, r.Route).late {
			routes = append(routes, r.Route)
		}
	}
	return routes
}

// caughtUp notes what came in line.
func (c *claimer) caughtUp(routes []string, promoted map[string]promotion) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, route := range routes {
		c.at[route].promoted(promoted[route], catchUpStep)
	}
}

// promoted notes that did came in line, of at most so many rows. Those behind the front are found by a lap.
func (p *position) promoted(did promotion, most int) {
	p.late = did.rows >= most
	p.dirty = p.dirty || did.rows > 0 && did.least <= p.front
}
