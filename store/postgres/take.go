package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

const (
	// holdSQL writes a hold of $1.
	holdSQL = `hold = $1, held_since = CASE WHEN r.hold = $1 THEN r.held_since ELSE clock_timestamp() END`

	// takeSQL holds records that are named, and says for each what it found: see core.Grip.
	takeSQL = `
WITH u AS MATERIALIZED (
    SELECT * FROM unnest($2::int[], $3::text[], $4::bigint[], $5::text[], $6::bigint[]) AS u(n, route, seq, id, version)
), l AS MATERIALIZED (
    SELECT r.ctid AS at FROM u JOIN {outbox} r ON r.route = u.route AND r.seq = u.seq
    WHERE r.id = u.id AND r.version = u.version AND r.settled_at IS NULL AND ` + aliveSQL + `
      AND (r.hold = $1 OR ` + holderSQL + ` = 0 AND ` + ownsSQL + `)
    FOR NO KEY UPDATE OF r SKIP LOCKED
), w AS (
    UPDATE {outbox} r SET ` + holdSQL + `, deliveries = r.deliveries + ($7::boolean AND r.hold <> $1)::int
    FROM l WHERE r.ctid = l.at
    RETURNING r.route, r.seq, r.deliveries
)
SELECT u.n, CASE WHEN w.seq IS NOT NULL THEN {grip_held} WHEN EXISTS (
        SELECT FROM {outbox} r
        WHERE r.route = u.route AND r.seq = u.seq AND r.id = u.id AND r.version = u.version AND r.settled_at IS NULL
          AND (r.hold = $1 OR ` + ownsSQL + `)
    ) THEN {grip_locked} ELSE {grip_gone} END,
    coalesce(w.deliveries, 0)
FROM u LEFT JOIN w ON w.route = u.route AND w.seq = u.seq`

	// nextSQL holds the next records without a key: first what self holds and does not know of, then what nobody
	// holds.
	nextSQL = `
WITH own AS MATERIALIZED (
    SELECT r.ctid AS at, r.seq, octet_length(r.body) AS size FROM {outbox} r
    WHERE r.hold = $1 AND r.hold <> 0 AND r.route = $2 AND ` + keylessSQL + ` AND r.seq NOT IN (SELECT unnest($5::bigint[]))
    ORDER BY r.seq LIMIT $4 FOR NO KEY UPDATE SKIP LOCKED
), next AS MATERIALIZED (
    SELECT r.ctid AS at, r.seq, octet_length(r.body) AS size FROM {outbox} r
    WHERE r.route = $2 AND ` + keylessSQL + ` AND ` + holderSQL + ` = 0
    ORDER BY r.seq LIMIT greatest($4 - (SELECT count(*) FROM own), 0) FOR NO KEY UPDATE SKIP LOCKED
), c AS MATERIALIZED (
    SELECT a.at, row_number() OVER w AS nr, sum(a.size) OVER w AS sum
    FROM (SELECT own.*, 0 AS turn FROM own UNION ALL SELECT next.*, 1 FROM next) a
    WINDOW w AS (ORDER BY a.turn, a.seq ROWS UNBOUNDED PRECEDING)
)
UPDATE {outbox} r SET ` + holdSQL + `, deliveries = r.deliveries + ($7::boolean AND r.hold <> $1)::int
FROM c WHERE r.ctid = c.at AND (c.sum <= $6 OR c.nr = 1)
RETURNING c.nr, ` + recordSQL + `, r.body`

	keylessSQL = `r.key = '' AND r.due_at IS NULL AND r.settled_at IS NULL AND ($3::bigint >> r.slot) & 1 = 1 AND ` + aliveSQL
)

type takeStatements struct{ take, next string }

func newTakeStatements(n schema.Names) takeStatements {
	return takeStatements{take: n.SQL(takeSQL), next: n.SQL(nextSQL)}
}

// Take writes holds. A record that is locked by somebody's transaction is answered as such, without waiting for it.
func (o *Outbox) Take(ctx context.Context, self core.Session, want core.Want) ([]core.Taken, error) {
	var now time.Time
	type found struct {
		nr int
		core.Taken
	}
	var taken []core.Taken
	var next []found
	err := o.transact(ctx, "take", writeSQL, func(b *batch) {
		taken, next = make([]core.Taken, len(want.Refs)), nil
		b.fence(self, &now)
		if c := refs(want.Refs); len(c.n) > 0 {
			b.each(func(rows pgx.Rows) error {
				var n int
				var t core.Taken
				if err := rows.Scan(&n, (*uint8)(&t.Grip), &t.Deliveries); err != nil {
					return err
				}
				t.Ref = want.Refs[n]
				taken[n] = t
				return nil
			}, b.sql.take.take, int64(self), c.n, c.routes, c.seqs, c.ids, c.versions, want.Deliver)
		}
		if want.N > 0 {
			d := o.reader()
			b.each(func(rows pgx.Rows) error {
				r, err := d.read(rows, now)
				if err == nil {
					r.Route = want.Part.Route
					record := *r
					next = append(next, found{d.n, core.Taken{Ref: r.Ref, Grip: core.GripHeld, Record: &record, Deliveries: r.Deliveries}})
				}
				return err
			}, b.sql.take.next, int64(self), want.Part.Route, bits(want.Part.Slots), want.N, refs(want.Out).seqs,
				orAll(want.Bytes), want.Deliver)
		}
	})
	if err != nil {
		return nil, err
	}
	if now.IsZero() {
		return nil, core.Fenced("waybill/postgres: take", self)
	}
	slices.SortFunc(next, func(x, y found) int { return x.nr - y.nr }) // they come in any order
	answer := slices.Clone(taken)
	for i := range next {
		answer = append(answer, next[i].Taken)
	}
	return answer, nil
}
