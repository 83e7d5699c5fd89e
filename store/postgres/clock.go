package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// highWaterSQL is the highest stamp the outbox remembers: the mark that settling leaves, and the stamps of what has
// one of the newest 1,000 numbers, on routes that are or were served and on those of $1. So it reads a bounded number
// of pages, however many dead rows there are.
const highWaterSQL = `
SELECT greatest(0, (SELECT value FROM {meta} WHERE name = {hlc_name}), (
    SELECT max(n.hlc) FROM (SELECT ro.route FROM {routes} ro UNION SELECT unnest($1::text[])) r
    CROSS JOIN LATERAL (
        SELECT o.hlc FROM {outbox} o
        WHERE o.route = r.route AND o.seq > {last} - 1000
        ORDER BY o.seq DESC LIMIT 1000
    ) n))`

// seedSQL is what a process asks before its first work: the clock's mark, the version that it must know, and whether
// ids are unique, which not every insert would find out. Its parameter is for highWaterSQL.
const seedSQL = `
SELECT (` + highWaterSQL + `), (SELECT coalesce(max(value), 0) FROM {meta} WHERE name = {compatible}), EXISTS (
    SELECT FROM pg_index x
    WHERE x.indrelid = {outbox_text}::regclass AND x.indisunique AND x.indisvalid AND x.indnatts = 2
      AND coalesce(pg_get_expr(x.indpred, x.indrelid), 'own_id') = 'own_id'
      AND (SELECT count(*) FROM pg_attribute a
           WHERE a.attrelid = x.indrelid AND a.attnum = ANY (x.indkey) AND a.attname IN ('route', 'id')) = 2)`

// markSQL is the last statement of its transaction, and waits for nobody.
const markSQL = `
UPDATE {meta} SET value = $1
WHERE name = (SELECT m.name FROM {meta} m WHERE m.name = {hlc_name} AND m.value < $1 FOR NO KEY UPDATE SKIP LOCKED)`

const restoredSQL = `UPDATE {meta} SET value = value + 1 WHERE name = {epoch}`

type clockStatements struct{ mark, restored string }

func newClockStatements(n schema.Names) clockStatements {
	return clockStatements{mark: n.SQL(markSQL), restored: n.SQL(restoredSQL)}
}

// markEvery is how often at most a process writes the clock's mark.
const markEvery = time.Second

// markDue reports whether the mark is to be written now. Of several calls at once one is told so.
func (o *Outbox) markDue(stamp int64) bool {
	if stamp <= 0 {
		return false
	}
	now, last := time.Now().UnixNano(), o.marked.Load()
	return now-last >= int64(markEvery) && o.marked.CompareAndSwap(last, now)
}

// queueMark queues the clock's mark for stamp, if it is time.
func (o *Outbox) queueMark(b *batch, stamp int64) {
	if o.markDue(stamp) {
		b.Queue(b.sql.clock.mark, stamp)
	}
}

// seeded reads what seedSQL answers.
func (s *stager) seeded(scan func(...any) error) (hlc.Timestamp, error) {
	var mark int64
	var least int
	var unique bool
	if err := scan(&mark, &least, &unique); err != nil {
		return 0, err
	}
	if err := schema.TooOld(s.table, least, schema.Newest(schema.PartOutbox)); err != nil {
		return 0, err
	}
	if !unique {
		return 0, dberr.Misconfigured("stage", "outbox %s: %s", s.table, dberr.NoUniqueIndex)
	}
	return hlc.Timestamp(mark), nil
}

// HighWater returns the highest HLC stamp that the outbox remembers: of what has one of its newest 1,000 sequences
// or, for what was published since, in a mark that settling writes at most once a second. Routes that nobody has ever
// served do not count, but for the default route and for those of the first Stage.
func (o *Outbox) HighWater(ctx context.Context) (hlc.Timestamp, error) {
	var mark hlc.Timestamp
	err := o.transact(ctx, "read the clock's mark", readSQL, func(b *batch) {
		b.Queue(o.stager.sql.seed, []string{waybill.DefaultRoute}).QueryRow(func(row pgx.Row) (err error) {
			mark, err = o.stager.seeded(row.Scan)
			return err
		})
	})
	return mark, err
}

// Seed raises the outbox's clock above what the outbox remembers. The first Stage does it anyway, with one statement
// more in the caller's transaction; a process that calls Seed at start spares it. It fails as an outage if the mark is
// too far ahead of the wall clock, as Stage then does; see package hlc.
func (o *Outbox) Seed(ctx context.Context) error {
	mark, err := o.HighWater(ctx)
	if err != nil {
		return err
	}
	return o.stager.seed(mark)
}

// Clock returns the clock that stamps what is staged.
func (o *Outbox) Clock() *hlc.Clock { return o.stager.stamper.Clock() }

var _ core.ClockSeeder = (*Outbox)(nil)

// Restored says that the database was restored to an earlier time: members that ran before join anew. A restore to
// another timeline need not be declared.
func (o *Outbox) Restored(ctx context.Context) error {
	return o.transact(ctx, "declare a restore", writeSQL, func(b *batch) {
		b.Queue(b.sql.clock.restored)
	})
}
