package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill/core"
)

const (
	// cleanBatch bounds the rows of each kind that one call of Clean touches: expired, published, abandoned, withdrawn.
	cleanBatch = 1000
	// maxCleanLease bounds the cleaner's lease, so that a lease far in the future, left by a clock that was wrong, is
	// known to be none.
	maxCleanLease = time.Hour
)

// The first column of the index of settled rows.
const (
	classPublished = 0
	classAbandoned = 1
	classWithdrawn = 2
)

// What is leased is its relay's, dead or alive: the next claim decides.
const sweepText = `UPDATE waybill_outbox SET state = 5, hold = 0, wake_at = NULL, reason = 'expired', settled_at = ?1 WHERE seq IN (
	SELECT seq FROM waybill_outbox INDEXED BY waybill_outbox_expires
	WHERE expires_at IS NOT NULL AND settled_at IS NULL AND expires_at <= ?1 AND state IN (1, 4) ORDER BY expires_at LIMIT ?2)`

const purgeText = `DELETE FROM waybill_outbox WHERE seq IN (
	SELECT seq FROM waybill_outbox INDEXED BY waybill_outbox_settled
	WHERE CASE WHEN reason IS NULL THEN 0 WHEN reason IN ('cancelled', 'replaced') THEN 2 ELSE 1 END = ?1
	AND settled_at IS NOT NULL AND settled_at <= ?2 AND state = ?3 ORDER BY settled_at LIMIT ?4) RETURNING state, coalesce(reason, '')`

// keeps reports whether published records stay when they are settled.
func (s *Store) keeps() bool { return s.opts.Retention.Of(core.StatePublished, core.ReasonNone) != 0 }

var _ core.Cleaner = (*Store)(nil)

// Clean keeps the file small; see [core.Cleaner]. One call abandons up to 1,000 messages that expired while they waited,
// and deletes up to 1,000 records each of those published, abandoned and withdrawn whose time in Options.Retention is
// over. It is one transaction, and so holds SQLite's write lock for some milliseconds. The lease is a row of the meta
// table, from a millisecond to an hour long. The space is used again; SQLite returns it to the disk with VACUUM only.
func (s *Store) Clean(ctx context.Context, owner string, lease time.Duration) (core.Cleaned, error) {
	var p []string
	if owner == "" {
		p = append(p, "owner: is empty; name the process that cleans")
	}
	if lease < time.Millisecond || lease > maxCleanLease {
		p = append(p, fmt.Sprintf("lease: %s is not between a millisecond and %s", lease, maxCleanLease))
	}
	if err := core.Invalid("waybill/sqlite: clean", p...); err != nil {
		return core.Cleaned{}, err
	}
	if _, err := s.prepared(ctx, "clean"); err != nil { // migrates if that was asked for
		return core.Cleaned{}, err
	}
	var done core.Cleaned
	err := s.write(ctx, "clean", func(tx *sql.Tx) (bool, error) {
		c := cleaner{store: s, tx: tx, now: s.now()}
		if err := c.run(ctx, core.ErrorText(errors.New(owner)), lease); err != nil {
			return false, err
		}
		done = c.done
		return done.Elected, nil
	})
	if err != nil {
		return core.Cleaned{}, err
	}
	if done.Expired > 0 {
		s.Wake() // a key may be free now
	}
	return done, nil
}

// cleaner is one call of Clean in its transaction.
type cleaner struct {
	store *Store
	tx    *sql.Tx
	now   int64
	done  core.Cleaned
}

func (c *cleaner) run(ctx context.Context, owner string, lease time.Duration) error {
	n, err := c.change(ctx, c.store.text.elect, owner, c.now, max(lease.Microseconds(), 1), maxCleanLease.Microseconds())
	if err != nil || n == 0 {
		return err
	}
	c.done = core.Cleaned{Elected: true, Deleted: map[core.CleanedKind]int{}}
	if c.done.Expired, err = c.change(ctx, c.store.text.sweep, c.now, cleanBatch); err != nil {
		return err
	}
	if c.done.Expired > 0 {
		for _, l := range c.store.scans.laps { // what waited for them is found by a lap
			l.done = time.Time{}
		}
	}
	c.done.More = c.done.Expired >= cleanBatch
	for class, of := range [...]struct {
		state  core.State
		reason core.Reason
	}{classPublished: {core.StatePublished, core.ReasonNone}, classAbandoned: {core.StateAbandoned, core.ReasonRejected}, classWithdrawn: {core.StateAbandoned, core.ReasonCancelled}} {
		if keep := c.store.opts.Retention.Of(of.state, of.reason); keep != core.Forever {
			if err := c.purge(ctx, class, of.state, c.now-keep.Microseconds()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *cleaner) change(ctx context.Context, text string, args ...any) (int, error) {
	res, err := c.tx.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}

// purge deletes the oldest rows of class that were settled by until.
func (c *cleaner) purge(ctx context.Context, class int, state core.State, until int64) error {
	rows, err := c.tx.QueryContext(ctx, c.store.text.purge, class, until, int64(state), cleanBatch)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	total := 0
	for rows.Next() {
		var kind core.CleanedKind
		if err := rows.Scan(&kind.State, &kind.Reason); err != nil {
			return err
		}
		c.done.Deleted[kind]++
		total++
	}
	c.done.More = c.done.More || total >= cleanBatch
	return rows.Err()
}
