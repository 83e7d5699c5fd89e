package postgres

import (
	"context"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/admin/audit"
)

var _ audit.Recorder = (*Outbox)(nil)

const auditSQL = `
INSERT INTO {audit} (act, phase, who, via, origin, action, target, filter, ids, before, after, result)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`

const auditLogSQL = `
SELECT number, at, role, act, phase, who, via, origin, action, target, filter, ids, before, after, result
FROM {audit} WHERE number < $1 ORDER BY number DESC LIMIT $2`

// AppendAudit adds a line to the audit record; see [audit.Recorder]. The roles of Migrations.Grants can add lines, and
// neither change nor delete them; the owner of the table can.
func (o *Outbox) AppendAudit(ctx context.Context, e audit.Entry) error {
	e, err := e.Check()
	if err != nil {
		return err
	}
	return o.transact(ctx, "audit", writeSQL, func(b *batch) {
		b.Queue(b.sql.admin.audit, e.Act, e.Phase, e.User, e.Via, e.From, e.Action, e.Target, e.Filter, e.IDs, e.Before, e.After, e.Result)
	})
}

// ListAudit lists the audit record; see [audit.Recorder].
func (o *Outbox) ListAudit(ctx context.Context, before int64, limit int) (entries []audit.Entry, err error) {
	if before <= 0 {
		before = math.MaxInt64
	}
	err = o.transact(ctx, "list the audit record", readSQL, func(b *batch) {
		entries = nil
		b.each(func(rows pgx.Rows) error {
			var e audit.Entry
			err := rows.Scan(&e.Number, &e.At, &e.Role, &e.Act, &e.Phase, &e.User, &e.Via, &e.From, &e.Action, &e.Target, &e.Filter, &e.IDs, &e.Before, &e.After, &e.Result)
			entries = append(entries, e)
			return err
		}, b.sql.admin.auditLog, before, min(max(limit, 1), admin.MaxPageLimit))
	})
	return entries, err
}
