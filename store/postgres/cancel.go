package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
)

var (
	_ core.Canceller[pgx.Tx]  = (*Outbox)(nil)
	_ core.Canceller[*sql.Tx] = (*sqlStager)(nil)
)

// cancelSQL withdraws messages. It locks, in the order of sequences, only those that no relay holds: a claim holds such a
// lock for the length of a round trip, a lease is no lock. A row that was claimed, settled or withdrawn between f and t
// is missing in t: it answers null, and is asked for again.
//
//	k  the keys
//	f  the live messages that they name
//	t  those to withdraw, locked
//	x  the withdrawal
func cancelSQL(keep bool) string {
	return `
WITH k AS (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS k(route, id, topic, dedupe_key, n)
), f AS MATERIALIZED (
    SELECT k.n, o.seq, o.leased FROM k CROSS JOIN LATERAL (
        SELECT o.seq, o.lease_until IS NOT NULL AS leased FROM {outbox} o WHERE o.route = k.route AND o.id = k.id AND o.settled_at IS NULL LIMIT 1
    ) o WHERE k.id <> ''
    UNION ALL
    SELECT k.n, o.seq, o.leased FROM k CROSS JOIN LATERAL (
        SELECT o.seq, o.lease_until IS NOT NULL AS leased FROM {outbox} o
        WHERE o.route = k.route AND o.topic = k.topic AND o.dedupe_key = k.dedupe_key AND o.dedupe_key <> '' AND o.settled_at IS NULL LIMIT 1
    ) o WHERE k.dedupe_key <> ''
), t AS MATERIALIZED (
    SELECT o.seq, CASE WHEN o.maybe_sent OR o.crashes > 0 THEN 2 ELSE 1 END AS status
    FROM {outbox} o WHERE o.seq = ANY (ARRAY(SELECT f.seq FROM f WHERE NOT f.leased)) AND o.settled_at IS NULL AND o.lease_until IS NULL
    ORDER BY o.seq FOR UPDATE
), x AS (` + withdrawSQL(core.ReasonCancelled, keep) + `
    WHERE o.seq = ANY (ARRAY(SELECT t.seq FROM t)) RETURNING 1
)
SELECT f.n, CASE WHEN f.leased THEN 3 ELSE t.status END FROM f LEFT JOIN t ON t.seq = f.seq`
}

// maxLooks bounds how often Cancel asks again for a message that changes hands while it looks.
const maxLooks = 20

// Cancel withdraws staged messages in tx, by id or by dedupe key, in one statement; see [core.Canceller]. Until tx ends
// they cannot be claimed, and later messages of their keys wait. Keys that name the same message get the same answer.
// It waits for no lease, but for another transaction that withdraws the same message. If a claim and a cancel meet,
// exactly one of them has the message. The role needs what [Migrations.Grants] gives a canceller.
func (o *Outbox) Cancel(ctx context.Context, tx pgx.Tx, keys ...core.CancelKey) ([]core.CancelStatus, error) {
	if core.IsNil(tx) {
		return nil, core.Invalid("waybill/postgres: cancel", "tx: is nil; pass the open pgx.Tx with which the cancelling is to be decided")
	}
	if err := o.ready(ctx); err != nil {
		return nil, err
	}
	return o.stager.cancel(ctx, keys, pgxQuery(tx))
}

// Cancel is [Outbox.Cancel] for database/sql. Find it with core.As[core.Canceller[*sql.Tx]].
func (s *sqlStager) Cancel(ctx context.Context, tx *sql.Tx, keys ...core.CancelKey) ([]core.CancelStatus, error) {
	if tx == nil {
		return nil, core.Invalid("waybill/postgres: cancel", "tx: is nil; pass the open *sql.Tx with which the cancelling is to be decided")
	}
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	return s.cancel(ctx, keys, sqlQuery(tx))
}

// cancel is Cancel for any driver.
func (s *stager) cancel(ctx context.Context, keys []core.CancelKey, query queryFunc) ([]core.CancelStatus, error) {
	keys, err := core.CheckCancelKeys(keys)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	out := make([]core.CancelStatus, len(keys))
	ask := make([]int, len(keys))
	for i := range ask {
		ask[i] = i
	}
	for look := 0; len(ask) > 0; look++ {
		if look == maxLooks {
			return nil, &core.Error{Op: "waybill/postgres: cancel", Class: core.ClassOutage, Err: errors.New(
				"a message changes hands faster than it can be cancelled: roll back and try again")}
		}
		if ask, err = s.cancelOnce(ctx, keys, ask, out, query); err != nil {
			return nil, s.failure("cancel", err)
		}
	}
	return out, nil
}

// cancelOnce answers keys[ask] and returns those to ask for again.
func (s *stager) cancelOnce(ctx context.Context, keys []core.CancelKey, ask []int, out []core.CancelStatus, query queryFunc) ([]int, error) {
	n := len(ask)
	text := make([]string, 4*n)
	col := func(i int) []string { return text[i*n : (i+1)*n : (i+1)*n] }
	for i, j := range ask {
		col(0)[i], col(1)[i], col(2)[i], col(3)[i] = keys[j].Route, keys[j].ID, keys[j].Topic, keys[j].DedupeKey
	}
	var again []int
	err := query(ctx, s.cancelText, []any{replan{}, col(0), col(1), col(2), col(3)}, func(scan func(...any) error) error {
		var at int64
		var status *int
		if err := scan(&at, &status); err != nil {
			return err
		}
		if j := ask[at-1]; status == nil {
			again = append(again, j)
		} else {
			out[j] = core.CancelStatus(*status)
		}
		return nil
	})
	slices.SortFunc(again, cmp.Compare[int])
	return again, err
}
