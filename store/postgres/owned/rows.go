package owned

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/core"
)

// Store is an Outbox.
type Store = Outbox

// New is NewOutbox for programs that stage rows, and need no Source.
func New(pool *pgxpool.Pool, opts Options) (*Outbox, error) {
	if opts.Source == "" {
		opts.Source = "/rows"
	}
	return NewOutbox(pool, opts)
}

// Row is one row to stage.
type Row struct {
	core.StagedRow
	// Withdrawable: it may be cancelled or replaced although it is due. A dedupe key implies it.
	Withdrawable bool
}

const rowsSQL = `
INSERT INTO {outbox} (` + insertedSQL + `, due_at, ready_since, own_id, dedupe_key, withdrawable)
SELECT r.route, r.id, r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent, r.occurred_at, r.hlc, r.expires_at,
       nullif(r.attrs, '')::json, r.body, CASE WHEN d.at > clock_timestamp() THEN d.at END, greatest(d.at, clock_timestamp()), r.own_id, r.dedupe_key, r.withdrawable
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::timestamptz[], $11::bigint[],
            $12::timestamptz[], $13::text[], $14::bytea[], $15::timestamptz[], $16::bigint[], $17::boolean[], $18::text[], $19::boolean[])
     AS r(` + insertedSQL + `, at, delay, own_id, dedupe_key, withdrawable)
CROSS JOIN LATERAL (SELECT coalesce(r.at, clock_timestamp() + nullif(r.delay, 0) * interval '1 microsecond') AS at) d
ON CONFLICT DO NOTHING`

// StageRows writes rows in tx as they are, for tests and measurements: it stamps nothing and wakes nobody. A row is
// left out if its id is there already on its route, unless it is fresh, or if a live row has its dedupe key on its
// route and topic.
func (o *Outbox) StageRows(ctx context.Context, tx pgx.Tx, rows ...Row) error {
	if len(rows) == 0 {
		return nil
	}
	n := len(rows)
	staged, own, dedupe, withdrawable := make([]core.StagedRow, n), make([]bool, n), make([]string, n), make([]bool, n)
	for i, r := range rows {
		staged[i], own[i], dedupe[i], withdrawable[i] = r.StagedRow, !r.Fresh, r.DedupeKey, r.Withdrawable || r.DedupeKey != ""
	}
	args, _, err := columns(staged)
	if err != nil {
		return err
	}
	at, delay := times(staged)
	if _, err = tx.Exec(ctx, o.names.sql(rowsSQL), append(args, at, delay, own, dedupe, withdrawable)...); err != nil {
		return o.stager.failure("stage", err)
	}
	return nil
}
