package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// lockPartitionSQL is a statement of its own, so that releasePartitionSQL sees what those did who had the lock.
const lockPartitionSQL = `SELECT FROM {partitions} un WHERE un.route = $1 AND un.from_slot = $2 FOR NO KEY UPDATE`

// releasePartitionSQL is all or nothing: it compares what should be held, or be held no more, with what of it could be
// locked. It says 1 done, 2 locked, 3 not self's in this term. A route of which the partitions are gone has their
// greatest term. Rows are looked up one by one, and self's holds in the index of holds: a plan that was made for a
// small table would go over all rows of the route.
//
//	un      the partition, if it is self's in this term
//	o       the records of out that are as they were
//	wanted  the rows to change: o is to be held, and self's other holds end
//	l       those of wanted that could be locked
//	can     a row if these are all
//	h, g    the change of the records and of the partition
const releasePartitionSQL = `
WITH un AS MATERIALIZED (
    SELECT un.slots FROM {partitions} un
    WHERE un.route = $2 AND un.from_slot = $3 AND un.to_slot = $4 AND un.owner = $1 AND un.term = $10 AND ` + aliveSQL + `
), o AS MATERIALIZED (
    SELECT r.seq FROM un, unnest($6::text[], $7::bigint[], $8::text[], $9::bigint[]) AS u(route, seq, id, version)
    CROSS JOIN LATERAL (
        SELECT r.seq FROM {outbox} r
        WHERE u.route = $2 AND r.route = $2 AND r.seq = u.seq AND r.id = u.id AND r.version = u.version AND r.settled_at IS NULL
          AND (un.slots >> r.slot::int) & '1' = 1 AND ` + holderSQL + ` IN (0, $1::bigint)
        LIMIT 1
    ) r
), wanted AS MATERIALIZED (
    SELECT o.seq, true AS out FROM o
    UNION ALL
    SELECT r.seq, false FROM un, {outbox} r
    WHERE r.hold = $1 AND r.hold <> 0 AND (r.route = $2) IS TRUE AND (un.slots >> r.slot::int) & '1' = 1 AND r.seq NOT IN (SELECT o.seq FROM o)
), l AS MATERIALIZED (
    SELECT r.at, w.out FROM wanted w CROSS JOIN LATERAL (
        SELECT r.ctid AS at FROM {outbox} r WHERE r.route = $2 AND r.seq = w.seq LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
    ) r
), can AS MATERIALIZED (
    SELECT FROM un WHERE (SELECT count(*) FROM l) = (SELECT count(*) FROM wanted)
), h AS (
    UPDATE {outbox} r SET hold = CASE WHEN l.out THEN $1::bigint ELSE 0 END,
        held_since = CASE WHEN NOT l.out THEN NULL WHEN r.hold = $1 THEN r.held_since ELSE clock_timestamp() END
    FROM l WHERE r.ctid = l.at AND EXISTS (SELECT FROM can)
), g AS (
    UPDATE {partitions} un SET owner = 0, term = un.term + 1, read_after = CASE WHEN $11::text` + sameLifeSQL + ` THEN $5 ELSE un.read_after END
    WHERE un.route = $2 AND un.from_slot = $3 AND un.owner = $1 AND EXISTS (SELECT FROM can)
)
SELECT CASE WHEN EXISTS (SELECT FROM can) THEN 1 WHEN EXISTS (SELECT FROM un) THEN 2
            WHEN coalesce((SELECT un.term FROM {partitions} un WHERE un.route = $2 AND un.from_slot = $3 AND un.to_slot = $4),
                          (SELECT ro.term FROM {routes} ro WHERE ro.route = $2 AND ro.partitions = 0), 0) > $10 THEN 1
            ELSE 3 END`

type releasePartitionStatements struct{ lockPartition, release string }

func newReleasePartitionStatements(n schema.Names) releasePartitionStatements {
	return releasePartitionStatements{lockPartition: n.SQL(lockPartitionSQL), release: n.SQL(releasePartitionSQL)}
}

// ReleasePartition writes holds of self for exactly the records of out in the partition and frees it, or reports that
// one of them, or of self's other holds in the partition, is locked.
func (o *Outbox) ReleasePartition(ctx context.Context, self core.Session, partition core.PartitionState, out []core.Ref) (bool, error) {
	var now time.Time
	var answer int
	c, u := refs(out), partition.Partition
	err := o.transact(ctx, "release a partition", writeSQL, func(b *batch) {
		b.fence(self, &now)
		b.Queue(b.sql.release.lockPartition, u.Route, int16(u.From))
		b.Queue(b.sql.release.release, int64(self), u.Route, int16(u.From), int16(u.To), partition.ReadAfter,
			c.routes, c.seqs, c.ids, c.versions, partition.Term, partition.StoreEpoch).
			QueryRow(func(row pgx.Row) error { return row.Scan(&answer) })
	})
	if err == nil && (now.IsZero() || answer == 3) {
		err = core.NewFencedError("waybill/postgres: release a partition", self)
	}
	return err == nil && answer == 1, err
}
