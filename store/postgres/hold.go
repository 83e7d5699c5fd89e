package postgres

import (
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// A Hold has two parts in one transaction: records that are named, each with an answer of its own, and the next records
// without a key. Neither waits for a lock: a record that a transaction has locked is passed over, and the answer says
// so. The partition's owner or the holder alone may hold a named record; the next ones go to any member.

const (
	// holdSQL writes a hold of $1.
	holdSQL = `hold = $1, held_since = CASE WHEN r.hold = $1 THEN r.held_since ELSE clock_timestamp() END`

	// namedSQL holds records that are named, and says for each what it found: see core.HoldStatus.
	namedSQL = `
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
SELECT u.n, CASE WHEN w.seq IS NOT NULL THEN {hold_granted} WHEN EXISTS (
        SELECT FROM {outbox} r
        WHERE r.route = u.route AND r.seq = u.seq AND r.id = u.id AND r.version = u.version AND r.settled_at IS NULL
          AND (r.hold = $1 OR ` + ownsSQL + `)
    ) THEN {hold_locked} ELSE {hold_gone} END,
    coalesce(w.deliveries, 0)
FROM u LEFT JOIN w ON w.route = u.route AND w.seq = u.seq`

	keylessSQL = `r.key = '' AND r.due_at IS NULL AND r.settled_at IS NULL AND ($3::bigint >> r.slot::int) & '1' = 1 AND ` + aliveSQL + `
      AND r.seq <> ALL ($5::bigint[])`
)

// nextSQL holds the next records without a key: first those that self holds and does not know of, then the passed ones,
// then those of the range without a hold. Rows without a number are records that it met and did not take.
//
//	own   what self holds
//	p     those that were passed
//	asked those of p that no other session holds
//	next  those of the range, up to N in all
//	w     the held ones, as far as the bytes go
var nextSQL = `
WITH own AS MATERIALIZED (
    SELECT r.ctid AS at, r.seq, octet_length(r.body) AS size FROM {outbox} r
    WHERE r.route = $2 AND r.seq > $8 AND r.seq <= $9 AND (r.retry OR r.hold <> 0) AND r.seq > 0
      AND r.hold + 0 = $1 AND ` + keylessSQL + ` AND r.seq <> ALL ($10::bigint[])
    ORDER BY r.seq LIMIT $4 FOR NO KEY UPDATE SKIP LOCKED
), p AS MATERIALIZED (
    SELECT x.* FROM unnest($10::bigint[]) AS p(seq) CROSS JOIN LATERAL (
        SELECT r.ctid AS at, r.seq FROM {outbox} r WHERE r.route = $2 AND r.seq = p.seq AND ` + keylessSQL + ` LIMIT 1
    ) x
), asked AS MATERIALIZED (
    SELECT r.ctid AS at, r.seq, octet_length(r.body) AS size FROM p JOIN {outbox} r ON r.ctid = p.at
    WHERE ` + keylessSQL + ` AND (r.hold = $1 OR ` + holderSQL + ` = 0)
    ORDER BY r.seq LIMIT greatest($4 - (SELECT count(*) FROM own), 0) FOR NO KEY UPDATE OF r SKIP LOCKED
), next AS MATERIALIZED (
    SELECT r.ctid AS at, r.seq, octet_length(r.body) AS size FROM {outbox} r
    WHERE r.route = $2 AND r.seq > $8 AND r.seq <= $9 AND ` + keylessSQL + ` AND r.hold <> $1 AND r.seq <> ALL ($10::bigint[])
      AND ` + holderSQL + ` = 0
    ORDER BY r.seq LIMIT greatest($4 - (SELECT count(*) FROM own) - (SELECT count(*) FROM asked), 0) FOR NO KEY UPDATE SKIP LOCKED
), c AS MATERIALIZED (
    SELECT a.at, row_number() OVER w AS nr, sum(a.size) OVER w AS sum
    FROM (SELECT own.*, 0 AS turn FROM own UNION ALL SELECT asked.*, 1 FROM asked UNION ALL SELECT next.*, 2 FROM next) a
    WINDOW w AS (ORDER BY a.turn, a.seq ROWS UNBOUNDED PRECEDING)
), w AS (
    UPDATE {outbox} r SET ` + holdSQL + `, deliveries = r.deliveries + ($7::boolean AND r.hold <> $1)::int
    FROM c WHERE r.ctid = c.at AND (c.sum <= $6 OR c.nr = 1)
    RETURNING c.nr, ` + recordSQL + `, r.body
)
SELECT w.* FROM w
UNION ALL
SELECT NULL, m.seq, ` + noRecordSQL + ` FROM (
    SELECT p.seq FROM p WHERE p.seq NOT IN (SELECT w.seq FROM w)
    UNION ALL
    (SELECT r.seq FROM {outbox} r
     WHERE r.route = $2 AND r.seq > $8 AND r.seq <= (SELECT CASE WHEN count(*) = $4 THEN least($9, max(w.seq)) ELSE $9 END FROM w)
       AND ` + keylessSQL + ` AND r.seq <> ALL ($10::bigint[]) AND r.seq NOT IN (SELECT w.seq FROM w)
     ORDER BY r.seq LIMIT $11)
) m`

// noRecordSQL stands for the columns of a record behind its number, and its body.
var noRecordSQL = strings.Repeat("NULL, ", len((*Outbox)(nil).reader().dest)-3) + "NULL"

type holdStatements struct{ named, next string }

func newHoldStatements(n schema.Names) holdStatements {
	return holdStatements{named: n.SQL(namedSQL), next: n.SQL(nextSQL)}
}

// Hold writes holds. A record that an application's transaction has locked is answered as such, without waiting for it.
// The answer has the named records in their order, then the next ones in the order in which nextSQL took them, and last
// the sequences that it met and did not take.
func (o *Outbox) Hold(ctx context.Context, self core.Session, want core.HoldRequest) ([]core.HoldResult, error) {
	var now time.Time
	type found struct {
		nr int
		core.HoldResult
	}
	var named []core.HoldResult
	var next []found
	var met []int64
	err := o.transact(ctx, "hold", writeSQL, func(b *batch) {
		named, next, met = make([]core.HoldResult, len(want.Refs)), nil, nil
		b.fence(self, &now)
		if c := refs(want.Refs); len(c.n) > 0 {
			b.each(func(rows pgx.Rows) error {
				var n int
				var t core.HoldResult
				if err := rows.Scan(&n, (*uint8)(&t.Status), &t.Deliveries); err != nil {
					return err
				}
				t.Ref = want.Refs[n]
				named[n] = t
				return nil
			}, b.sql.hold.named, int64(self), c.n, c.routes, c.seqs, c.ids, c.versions, want.CountDelivery)
		}
		if want.KeylessLimit > 0 {
			d := o.reader()
			if want.UpToSeq == 0 {
				want.AfterSeq, want.UpToSeq, want.ExtraSeqs, want.SkippedLimit = math.MinInt64, math.MaxInt64, nil, 0
			}
			b.each(func(rows pgx.Rows) error {
				if rows.RawValues()[0] == nil {
					var seq int64
					err := rows.Scan(append([]any{nil, &seq}, make([]any, len(d.dest)-2)...)...)
					met = append(met, seq)
					return err
				}
				r, err := d.read(rows, now)
				if err == nil {
					r.Route = want.KeylessSlots.Route
					record := *r
					next = append(next, found{d.n, core.HoldResult{Ref: r.Ref, Status: core.HoldGranted, Record: &record, Deliveries: r.Deliveries}})
				}
				return err
			}, b.sql.hold.next, int64(self), want.KeylessSlots.Route, bits(want.KeylessSlots.Slots), want.KeylessLimit, refs(want.ExcludeRefs).seqs,
				orAll(want.Bytes), want.CountDelivery, want.AfterSeq, want.UpToSeq, notNil(want.ExtraSeqs), want.SkippedLimit)
		}
	})
	if err != nil {
		return nil, err
	}
	if now.IsZero() {
		return nil, core.NewFencedError("waybill/postgres: hold", self)
	}
	slices.SortFunc(next, func(x, y found) int { return x.nr - y.nr }) // they come in any order
	answer := slices.Clone(named)
	for i := range next {
		answer = append(answer, next[i].HoldResult)
	}
	slices.Sort(met)
	for _, seq := range met {
		answer = append(answer, core.HoldResult{Ref: core.Ref{Route: want.KeylessSlots.Route, Seq: seq}, Status: core.HoldSkipped})
	}
	return answer, nil
}
