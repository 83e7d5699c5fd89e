package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
)

// messyClaims is how many claims do not try the front alone after one that met something else there, or somebody.
const messyClaims = 20

// claimFront claims all that is at the front of the view's only range, if that is all there is: see frontSQL. If not, the
// answer says that it is not clean, and nothing was claimed.
func (o *Outbox) claimFront(ctx context.Context, req *core.ClaimRequest, v *view) (*answer, error) {
	_, token := o.claims.token(req.Session)
	var a *answer
	err := o.transactWith(ctx, "claim", setClaimSQL, func(b *pgx.Batch) {
		a = &answer{rows: make([]int64, 1), last: make([]int64, 1), least: make([]int64, 1), remaining: make([]int64, 1), open: make([]int64, 1)}
		b.Queue(o.claims.promote, v.names).Query(v.readPromoted)
		b.Queue(o.claims.front, v.routes[0], v.lo[0], v.records, v.bytes, v.keyed[0]).QueryRow(func(row pgx.Row) error {
			return row.Scan(&a.rows[0], &a.last[0], &a.least[0], &a.clean, &a.keyed, nil, &a.timerIn, &a.sequence, &a.xmin, &a.xmax, &a.took, &a.now)
		})
		b.Queue(o.claims.takeFront, v.routes[0], v.lo[0], v.records, v.keyed[0], req.Owner, token, micros(req.Lease)).Query(func(rows pgx.Rows) error {
			a.records = make([]core.Record, 0, a.rows[0])
			return a.readRecords(rows, nil, o.opts.Source)
		})
	})
	if err != nil {
		return nil, err
	}
	a.open[0] = a.last[0]
	if a.clean && int64(len(a.records)) < a.rows[0] { // somebody was faster: which rows are left is not known
		a.remaining[0] = a.least[0]
	}
	if !a.clean || a.remaining[0] > 0 {
		o.claims.messy(v, a.keyed)
	}
	a.lease(token, req.Lease)
	return a, nil
}

// readPromoted notes which rows came in line.
func (v *view) readPromoted(rows pgx.Rows) error {
	var route string
	var seq int64
	for rows.Next() {
		if err := rows.Scan(&route, &seq); err != nil {
			return err
		}
		if least, ok := v.promoted[route]; !ok || seq < least {
			v.promoted[route] = seq
		}
	}
	return rows.Err()
}

// messy makes this claim, and some after it, look at each row.
func (c *claimer) messy(v *view, keyed bool) { //nolint:revive // what was there, not a mode
	c.mu.Lock()
	defer c.mu.Unlock()
	c.general, v.simple = messyClaims, false
	if keyed {
		c.minding(v)
	}
}
