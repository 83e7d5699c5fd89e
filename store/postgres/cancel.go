package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/check"
)

// Cancel runs in the caller's transaction, so its answer is true when that commits. The row's lock makes it certain: a
// relay holds a record that can be cancelled before it sends it, and that hold passes over a locked record. A key whose
// row changed between the look and the lock is asked for again.

var (
	_ waybill.Canceller[pgx.Tx]  = (*Outbox)(nil)
	_ waybill.Canceller[*sql.Tx] = (*sqlStager)(nil)
)

// newest is among how many of the newest numbers a message is looked for whose id Waybill made and that is simply
// due: no index has these ids.
const newest = "10000"

// cancelSQL cancels messages.
//
//	k  the keys; made says that the id may be one of ours
//	f  the live messages that they name, by index
//	m  the same for ids that no index has
//	l  those that can be cancelled, locked in the order of sequences
//	x  the cancellation, and c, the notices for the owners
//
// A message that changed hands between f and l answers null, and is asked for again.
func cancelSQL(keep bool) string {
	return `
WITH k AS MATERIALIZED (
    SELECT k.*, k.id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7' AS made
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS k(route, id, topic, dedupe_key, n)
), i AS MATERIALIZED (
    SELECT k.n, ` + foundSQL + `, ` + statusSQL + ` AS status FROM k CROSS JOIN LATERAL ` + byIDSQL + ` o WHERE k.id <> ''
    UNION ALL
    SELECT r.n, ` + foundSQL + `, ` + statusSQL + ` AS status FROM k r ` + holderOfSQL + ` WHERE r.dedupe_key <> ''
), m AS MATERIALIZED (
    SELECT DISTINCT k.route FROM k WHERE k.made AND k.n NOT IN (SELECT i.n FROM i)
), f AS MATERIALIZED (
    SELECT i.* FROM i
    UNION ALL
    SELECT k.n, ` + foundSQL + `, ` + statusSQL + ` AS status
    FROM m CROSS JOIN LATERAL (
        SELECT ` + lookedUpSQL + ` FROM {outbox} o
        WHERE o.route = m.route AND o.seq > {last} - ` + newest + ` AND o.due_at IS NULL AND o.settled_at IS NULL AND NOT o.own_id
        ORDER BY o.seq DESC LIMIT ` + newest + `
    ) o JOIN k ON k.route = o.route AND k.id = o.id AND k.made
), t AS MATERIALIZED (
    SELECT f.* FROM (
        SELECT DISTINCT f.route, f.seq, f.id, f.version, f.hold, f.slot, f.key, f.tell
        FROM f WHERE f.status <> {in_flight} ORDER BY f.route, f.seq
    ) f ` + lockFoundSQL + `
), ` + cancelRecordsSQL(waybill.ReasonCancelled, keep) + `
SELECT f.n, CASE WHEN f.status = {in_flight} OR t.seq IS NOT NULL THEN f.status END
FROM f LEFT JOIN t ON t.route = f.route AND t.seq = f.seq`
}

// maxLooks bounds how often Cancel asks again for a message that changes hands while it looks.
const maxLooks = 20

// Cancel cancels staged messages in tx, by id or by dedupe key, in one statement; see [waybill.Canceller]. It
// cancels scheduled messages, those that wait for a retry, and those that were staged as cancellable, which a dedupe
// key implies; other messages that are due are in flight, as are those that a relay holds. Until tx ends the cancelled
// messages are not handed out, and later messages of their keys wait. Keys that name the same message get the same
// answer. Cancel waits only for other transactions that have locked the same message. A message is either handed out or
// cancelled, unless the answer is waybill.CancelUncertain. The role needs what [Migrations.Grants] gives a canceller.
//
// A message that is due, whose id Waybill made and that is not cancellable is known by its id only as long as fewer
// than 10,000 were staged after it; from then on it is not found.
func (o *Outbox) Cancel(ctx context.Context, tx pgx.Tx, keys ...waybill.CancelKey) ([]waybill.CancelStatus, error) {
	if check.Nil(tx) {
		return nil, waybill.Invalid("waybill/postgres: cancel",
			"tx: is nil; pass the open pgx.Tx with which the cancelling is to be decided")
	}
	if err := o.ready(ctx); err != nil {
		return nil, err
	}
	return o.stager.cancel(ctx, keys, pgxQuery(tx))
}

// Cancel is [Outbox.Cancel] for database/sql. Find it with core.As[waybill.Canceller[*sql.Tx]].
func (s *sqlStager) Cancel(ctx context.Context, tx *sql.Tx, keys ...waybill.CancelKey) ([]waybill.CancelStatus, error) {
	if tx == nil {
		return nil, waybill.Invalid("waybill/postgres: cancel",
			"tx: is nil; pass the open *sql.Tx with which the cancelling is to be decided")
	}
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	return s.cancel(ctx, keys, sqlQuery(tx))
}

// cancel is Cancel for any driver.
func (s *stager) cancel(ctx context.Context, keys []waybill.CancelKey, query queryFunc) ([]waybill.CancelStatus, error) {
	keys, err := core.CheckCancelKeys(ctx, keys)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	out := make([]waybill.CancelStatus, len(keys))
	ask := make([]int, len(keys))
	for i := range ask {
		ask[i] = i
	}
	for look := 0; len(ask) > 0; look++ {
		if look == maxLooks {
			return nil, &waybill.Error{Op: "waybill/postgres: cancel", Class: waybill.ClassOutage, Err: errors.New(
				"a message changes hands faster than it can be cancelled, or is of a source that the role may not cancel for (Roles.Sources): roll back and try again")}
		}
		if ask, err = s.cancelOnce(ctx, keys, ask, out, query); err != nil {
			return nil, s.failure("cancel", err)
		}
	}
	return out, nil
}

// cancelOnce answers keys[ask] and returns those to ask for again.
func (s *stager) cancelOnce(
	ctx context.Context, keys []waybill.CancelKey, ask []int, out []waybill.CancelStatus, query queryFunc,
) ([]int, error) {
	n := len(ask)
	text := make([]string, 4*n)
	col := func(i int) []string { return text[i*n : (i+1)*n : (i+1)*n] }
	for i, j := range ask {
		col(0)[i], col(1)[i], col(2)[i], col(3)[i] = keys[j].Route, keys[j].ID, keys[j].Topic, keys[j].DedupeKey
	}
	var again []int
	err := query(ctx, s.sql.cancel, []any{replan{}, col(0), col(1), col(2), col(3)}, func(scan func(...any) error) error {
		var at int64
		var status *int
		if err := scan(&at, &status); err != nil {
			return err
		}
		if j := ask[at-1]; status == nil {
			again = append(again, j)
		} else {
			out[j] = waybill.CancelStatus(*status)
		}
		return nil
	})
	slices.SortFunc(again, cmp.Compare[int])
	return again, err
}
