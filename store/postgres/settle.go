package postgres

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
)

// A claim's records share a token, so published ones are deleted by (sequences, token). The array is sorted, and a
// multi-row write locks in that order. If they are all of the claim and stand close together, their range will do, which
// spares a search for each. Which ones it were comes back only if it were not all, $3 of them.
const (
	someSQL  = `seq = ANY ($1::bigint[])`
	rangeSQL = `seq BETWEEN ($1::bigint[])[1] AND ($1::bigint[])[2]`
)

// settlePublishedSQL deletes, or with a retention of published records keeps them.
func settlePublishedSQL(which string, keep bool) string { //nolint:revive // two variants of one statement
	write := `DELETE FROM {outbox}`
	if keep {
		write = `UPDATE {outbox} SET state = 3, lease_until = NULL, lease_token = 0, settled_at = clock_timestamp()`
	}
	return `
WITH d AS (
    ` + write + ` WHERE ` + which + ` AND lease_token = $2 AND settled_at IS NULL RETURNING seq
)
SELECT count(*), CASE WHEN count(*) < $3 THEN array_agg(d.seq) END FROM d`
}

const settleOthersSQL = `
UPDATE {outbox} o
SET state = s.state, lease_until = NULL, lease_token = 0, attempts = o.attempts + s.attempt, reason = s.reason,
    holds = o.holds OR NOT s.final, maybe_sent = o.maybe_sent OR s.unknown,
    due_at = CASE WHEN s.wait > 0 THEN clock_timestamp() + s.wait * interval '1 microsecond' END,
    settled_at = CASE WHEN s.final THEN clock_timestamp() END,
    last_error = CASE WHEN s.error <> '' THEN s.error ELSE o.last_error END,
    last_error_at = CASE WHEN s.error <> '' THEN clock_timestamp() ELSE o.last_error_at END
FROM (
    SELECT u.* FROM unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::int[], $5::text[], $6::text[], $7::bigint[], $8::boolean[], $9::boolean[])
        AS u(seq, token, state, attempt, reason, error, wait, final, unknown)
    JOIN {outbox} l ON l.seq = u.seq AND l.lease_token = u.token AND l.settled_at IS NULL
    ORDER BY l.seq FOR UPDATE OF l
) s
WHERE o.seq = s.seq AND o.lease_token = s.token
RETURNING o.seq`

const extendSQL = `
UPDATE {outbox} o
SET lease_until = clock_timestamp() + $3 * interval '1 microsecond'
FROM (
    SELECT l.seq, l.lease_token FROM unnest($1::bigint[], $2::bigint[]) AS u(seq, token)
    JOIN {outbox} l ON l.seq = u.seq AND l.lease_token = u.token AND l.settled_at IS NULL
    ORDER BY l.seq FOR UPDATE OF l
) s
WHERE o.seq = s.seq AND o.lease_token = s.lease_token
RETURNING o.seq`

// Settle persists outcomes in one transaction and one round trip, whatever they are: published records are deleted, or
// kept if Options.Retention says so, the others updated. A record whose token is no longer the outcome's is left alone,
// and its slot is ErrLeaseLost. If the database cannot be reached every slot holds the outage; nothing is known then,
// and Settle may simply be called again: what had been settled is then reported as ErrLeaseLost.
func (o *Outbox) Settle(ctx context.Context, outcomes []core.Outcome) core.Results {
	results := make(core.Results, len(outcomes))
	if len(outcomes) == 0 {
		return results
	}
	if err := o.ready(ctx); err != nil {
		return core.AllFailed(len(outcomes), err)
	}
	published := map[int64][]int64{} // sequences by token
	others := make([]*core.Outcome, 0)
	var stamp int64
	for i := range outcomes {
		out := &outcomes[i]
		if out.Event() == core.EventNone {
			results[i] = core.Invalid("waybill/postgres: settle", "outcome: is zero; build it with core.Published, Retry, Abandon or Release")
			continue
		}
		if out.State() == core.StatePublished {
			published[out.Token()] = append(published[out.Token()], out.Seq())
			stamp = max(stamp, out.Stamp())
		} else {
			others = append(others, out)
		}
	}
	var done map[settled]bool
	var whole map[int64]bool // tokens of which all was settled
	err := o.transact(ctx, "settle", func(b *pgx.Batch) {
		done, whole = map[settled]bool{}, make(map[int64]bool, len(published))
		for _, token := range sortedKeys(published) {
			seqs := published[token]
			slices.Sort(seqs)
			sql, args := o.settleSome, seqs
			if o.claims.whole(token, seqs) {
				sql, args = o.settleRange, []int64{seqs[0], seqs[len(seqs)-1]}
			}
			b.Queue(sql, args, token, len(seqs)).QueryRow(func(row pgx.Row) error {
				var n int
				var some []int64
				if err := row.Scan(&n, &some); err != nil {
					return err
				}
				whole[token] = n == len(seqs)
				for _, seq := range some {
					done[settled{seq, token}] = true
				}
				return nil
			})
		}
		if len(others) > 0 {
			o.queueOthers(b, others, done)
		}
		if o.markDue(stamp) {
			b.Queue(o.mark, stamp)
		}
	})
	if err != nil {
		return core.AllFailed(len(outcomes), err)
	}
	for i := range outcomes {
		key := settled{outcomes[i].Seq(), outcomes[i].Token()}
		switch {
		case results[i] != nil, outcomes[i].State() == core.StatePublished && whole[key.token]:
		case done[key]:
			delete(done, key) // a second outcome for one record is stale
		default:
			results[i] = &core.Error{Op: "waybill/postgres: settle", Class: core.ClassRejected, Err: core.ErrLeaseLost}
		}
	}
	if o.claims.settled(outcomes, len(others) > 0) {
		o.waiter.wake()
	}
	return results
}

type settled struct{ seq, token int64 }

func (o *Outbox) queueOthers(b *pgx.Batch, others []*core.Outcome, done map[settled]bool) {
	slices.SortStableFunc(others, func(a, b *core.Outcome) int { return cmp.Compare(a.Seq(), b.Seq()) })
	n := len(others)
	seqs, tokens, states, attempts := make([]int64, n), make([]int64, n), make([]int16, n), make([]int32, n)
	reasons, errs, waits, final, unknown := make([]string, n), make([]string, n), make([]int64, n), make([]bool, n), make([]bool, n)
	byseq := make(map[int64]int64, n)
	for i, out := range others {
		seqs[i], tokens[i], states[i] = out.Seq(), out.Token(), int16(out.State())
		if out.CountsAttempt() {
			attempts[i] = 1
		}
		reasons[i], errs[i], final[i], unknown[i] = string(out.Reason()), out.Error(), out.State().Terminal(), out.Unknown()
		if out.RetryIn() > 0 && !final[i] {
			waits[i] = micros(out.RetryIn())
		}
		byseq[out.Seq()] = out.Token()
	}
	b.Queue(o.settleOthers, seqs, tokens, states, attempts, reasons, errs, waits, final, unknown).Query(func(rows pgx.Rows) error {
		var seq int64
		for rows.Next() {
			if err := rows.Scan(&seq); err != nil {
				return err
			}
			done[settled{seq, byseq[seq]}] = true
		}
		return rows.Err()
	})
}

// markDue reports whether stamp should be written as the clock's mark now. One settle a second does.
func (o *Outbox) markDue(stamp int64) bool {
	now, last := time.Now().UnixNano(), o.marked.Load()
	return stamp > 0 && now-last >= int64(markEvery) && o.marked.CompareAndSwap(last, now)
}

// ExtendLeases makes the leases of records last lease from now, by the database's clock.
func (o *Outbox) ExtendLeases(ctx context.Context, records []core.Record, lease time.Duration) core.Results {
	n := len(records)
	if n == 0 {
		return nil
	}
	seqs, tokens := make([]int64, n), make([]int64, n)
	byseq := make(map[int64]int64, n)
	for i := range records {
		seqs[i], tokens[i] = records[i].Seq, records[i].Lease.Token
		byseq[seqs[i]] = tokens[i]
	}
	var done map[int64]bool
	err := o.transact(ctx, "extend leases", func(b *pgx.Batch) {
		done = make(map[int64]bool, n)
		b.Queue(o.extend, seqs, tokens, micros(lease)).Query(func(rows pgx.Rows) error {
			var seq int64
			for rows.Next() {
				if err := rows.Scan(&seq); err != nil {
					return err
				}
				done[seq] = true
			}
			return rows.Err()
		})
	})
	if err != nil {
		return core.AllFailed(n, err)
	}
	results := make(core.Results, n)
	for i := range records {
		if !done[seqs[i]] {
			results[i] = &core.Error{Op: "waybill/postgres: extend lease", Class: core.ClassRejected, Err: core.ErrLeaseLost}
		}
	}
	return results
}

func sortedKeys(m map[int64][]int64) []int64 {
	keys := make([]int64, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
