package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
)

const rowsSQL = `
INSERT INTO {outbox} (` + insertedSQL + `, due_at, ready_since, own_id, dedupe_key)
SELECT r.route, r.id, r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent, r.occurred_at, r.hlc, r.expires_at,
       nullif(r.attrs, '')::json, r.body, r.slot, r.cancellable OR r.dedupe_key <> '', CASE WHEN d.at > clock_timestamp() THEN d.at END, greatest(d.at, clock_timestamp()), r.own_id, r.dedupe_key
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::timestamptz[], $11::bigint[],
            $12::timestamptz[], $13::text[], $14::bytea[], $15::bigint[], $16::boolean[], $17::timestamptz[], $18::bigint[], $19::boolean[], $20::text[])
     AS r(` + insertedSQL + `, at, delay, own_id, dedupe_key)
CROSS JOIN LATERAL (SELECT coalesce(r.at, clock_timestamp() + nullif(r.delay, 0) * interval '1 microsecond') AS at) d
ON CONFLICT DO NOTHING`

// StageRows writes rows in tx as they are, for tests and measurements: it stamps nothing and wakes no relay. A row is
// left out if its id is there already on its route, unless it is fresh, or if a live row has its dedupe key on its
// route and topic.
func (o *Outbox) StageRows(ctx context.Context, tx pgx.Tx, rows ...core.StagedRow) error {
	if len(rows) == 0 {
		return nil
	}
	n := len(rows)
	own, dedupe := make([]bool, n), make([]string, n)
	for i, r := range rows {
		own[i], dedupe[i] = !r.GeneratedID, r.DedupeKey
	}
	args, _, err := columns(rows)
	if err != nil {
		return err
	}
	at, delay := times(rows)
	if _, err = tx.Exec(ctx, o.names.SQL(rowsSQL), append(args, at, delay, own, dedupe)...); err != nil {
		return o.stager.failure("stage", err)
	}
	return nil
}
