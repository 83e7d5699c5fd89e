package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/rules"
)

const (
	// cleanBatch bounds the rows of each kind that one call of Clean touches: expired, published, abandoned,
	// cancelled.
	cleanBatch = 1000
)

const (
	electText = `UPDATE waybill_meta
		SET owner = ?1, value = ?2 + ?3
		WHERE name = 'cleaner' AND (owner = ?1 OR value NOT BETWEEN ?2 AND ?2 + ?4)`

	// expiredText selects records that expired while they wait. Other ready records are left to the owner of their
	// partition, if there is one. Of a record that was inserted by hand the database does not know the partition.
	expiredText = `SELECT ` + rowSQL + ` FROM waybill_outbox r INDEXED BY waybill_outbox_expires
		WHERE r.expires_at IS NOT NULL AND r.settled_at IS NULL AND r.expires_at <= ?1 AND r.hold = 0
		AND (r.due_at IS NOT NULL
			OR NOT EXISTS (SELECT 1 FROM waybill_outbox_partitions u WHERE u.route = r.route AND u.owner <> 0
				AND (r.slot IS NULL OR u.from_slot <= r.slot AND u.to_slot > r.slot)))
		ORDER BY r.expires_at LIMIT ?2`

	purgeText = `DELETE FROM waybill_outbox AS r WHERE r.seq IN (
		SELECT seq FROM waybill_outbox INDEXED BY waybill_outbox_settled
		WHERE CASE WHEN reason IS NULL THEN {class_published} WHEN reason IN {cancelled_or_replaced} THEN {class_cancelled} ELSE {class_abandoned} END = ?1
		AND settled_at IS NOT NULL AND settled_at <= ?2 AND state = ?3 ORDER BY settled_at LIMIT ?4) RETURNING ` + purgedSQL
	purgedSQL = `seq, route, id, version, coalesce(slot, -1), key, state, hold, coalesce(due_at, 0), due_at IS NOT NULL,
		blocks, cancellable,
		maybe_sent, attempts, deliveries, crashes, coalesce(reason, '')`
)

// keeps reports whether published records stay when they are settled.
func (s *Store) keeps() bool {
	return !core.RetentionPublished.DroppedAtOnce(s.opts.Retention)
}

var _ core.Cleaner = (*Store)(nil)

// Clean keeps the file small; see [core.Cleaner]. One call abandons up to 1,000 messages that expired while they waited
// for a time, or are due in partitions without an owner. It deletes up to 1,000 records each of those published,
// abandoned and cancelled whose retention has expired. It is one transaction, so it holds SQLite's write lock for some
// milliseconds. The lease is a row of the meta table, from a millisecond to an hour long. SQLite uses the space again;
// only VACUUM returns it to the disk.
func (s *Store) Clean(ctx context.Context, owner string, lease time.Duration) (core.Cleaned, error) {
	if err := core.CheckClean(owner, lease); err != nil {
		return core.Cleaned{}, err
	}
	var done core.Cleaned
	err := s.write(ctx, "clean", func(w *work) (bool, error) {
		c := cleaner{work: w}
		if err := c.run(ctx, core.ErrorText(errors.New(owner)), lease); err != nil {
			return false, err
		}
		done = c.done
		return done.Leader, nil
	})
	if err != nil {
		return core.Cleaned{}, err
	}
	return done, nil
}

// cleaner is one call of Clean in its transaction.
type cleaner struct {
	*work
	done core.Cleaned
}

func (c *cleaner) run(ctx context.Context, owner string, lease time.Duration) error {
	n, err := c.exec(ctx, electText, owner, c.now, micros(lease), core.MaxCleanLease.Microseconds())
	if err != nil || n == 0 {
		return err
	}
	c.done = core.Cleaned{Leader: true, Deleted: map[core.CleanedKind]int{}}
	if err := c.expire(ctx); err != nil {
		return err
	}
	for _, class := range core.RetentionClasses() {
		if keep := class.KeptFor(c.s.opts.Retention); keep != waybill.Forever {
			if err := c.purge(ctx, class, c.now-keep.Microseconds()); err != nil {
				return err
			}
		}
	}
	return nil
}

// expire abandons expired records, and tells the owners of keys that were blocked.
func (c *cleaner) expire(ctx context.Context) error {
	var expired []row
	err := c.each(ctx, func(rows *sql.Rows) (bool, error) {
		var r row
		err := r.scan(rows)
		expired = append(expired, r)
		return true, err
	}, expiredText, c.now, cleanBatch)
	if err != nil {
		return err
	}
	for i := range expired {
		r := &expired[i]
		u, err := c.partition(ctx, r)
		if err != nil {
			return err
		}
		if err := c.abandon(ctx, r, u, waybill.ReasonExpired); err != nil {
			return err
		}
		if _, tells := rules.Sweeps(&r.Row, u); tells {
			if err := c.tell(ctx, core.NoticeKey, r); err != nil {
				return err
			}
		}
	}
	c.done.Expired = len(expired)
	c.done.More = c.done.Expired >= cleanBatch
	return nil
}

// purge deletes the oldest rows of class that were settled by until. A key that one of them blocked goes on.
func (c *cleaner) purge(ctx context.Context, class core.RetentionClass, until int64) error {
	total := 0
	var freed []row
	err := c.each(ctx, func(rows *sql.Rows) (bool, error) {
		var r row
		var reason waybill.Reason
		if err := r.scan(rows, &reason); err != nil {
			return false, err
		}
		c.done.Deleted[core.CleanedKind{State: r.State, Reason: reason}]++
		if total++; rules.Tells(&r.Row) {
			freed = append(freed, r)
		}
		return true, nil
	}, purgeText, int64(class), until, int64(class.State()), cleanBatch)
	if err != nil {
		return err
	}
	for i := range freed {
		if err := c.tell(ctx, core.NoticeKey, &freed[i]); err != nil {
			return err
		}
	}
	c.done.More = c.done.More || total >= cleanBatch
	return nil
}
