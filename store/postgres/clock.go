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

// stampBoundSQL is the highest stamp that counts for the clock's mark, hlc.MaxMark of the database's time: neither a
// machine whose clock is fast nor a forged stamp becomes the mark of every process.
const stampBoundSQL = `((date_part('epoch', clock_timestamp() + interval '1 minute') * '1000')::bigint << 16 | '65535')`

// stampsSQL are the stamps that the outbox remembers: the mark that settling leaves, and those of the records with the
// newest 1,000 numbers, on routes that are or were served and on those of $1. So it reads a bounded number of pages,
// however many dead rows there are.
const stampsSQL = `
    SELECT m.value AS hlc FROM {meta} m WHERE m.name = {hlc_name}
    UNION ALL
    SELECT n.hlc FROM (SELECT ro.route FROM {routes} ro UNION SELECT unnest($1::text[])) r
    CROSS JOIN LATERAL (
        SELECT o.hlc FROM {outbox} o
        WHERE o.route = r.route AND o.seq > {last} - 1000
        ORDER BY o.seq DESC LIMIT 1000
    ) n`

// seedSQL is what a process asks before its first work: the highest stamp that counts, the highest one at all, the
// version that it must know, and whether ids are unique, which not every insert would find out. Its parameter is for
// stampsSQL. A server with quote_all_identifiers quotes the column in the index's condition.
const seedSQL = `
SELECT coalesce(max(s.hlc) FILTER (WHERE s.hlc BETWEEN 0 AND b.at), 0), coalesce(max(s.hlc), 0),
       (SELECT coalesce(max(value), 0) FROM {meta} WHERE name = {compatible}), EXISTS (
    SELECT FROM pg_index x
    WHERE x.indrelid = {outbox_text}::regclass AND x.indisunique AND x.indisvalid AND x.indnatts = 2
      AND trim('"' FROM coalesce(pg_get_expr(x.indpred, x.indrelid), 'own_id')) = 'own_id'
      AND (SELECT count(*) FROM pg_attribute a
           WHERE a.attrelid = x.indrelid AND a.attnum = ANY (x.indkey) AND a.attname IN ('route', 'id')) = 2)
FROM (SELECT ` + stampBoundSQL + ` AS at) b, (` + stampsSQL + `) s`

// markSQL raises the mark to the highest of $1 that counts, and returns it. A mark that is too far ahead itself, such
// as after the database's clock was set back, it lowers. It is the last statement of its transaction, and waits for no
// other.
const markSQL = `
WITH b AS MATERIALIZED (SELECT ` + stampBoundSQL + ` AS at),
x AS MATERIALIZED (SELECT max(u) AS stamp FROM unnest($1::bigint[]) u, b WHERE u BETWEEN 1 AND b.at),
w AS (
    UPDATE {meta} SET value = x.stamp FROM x
    WHERE name = (SELECT m.name FROM {meta} m, x, b WHERE m.name = {hlc_name} AND (m.value < x.stamp OR m.value > b.at AND x.stamp > 0)
                  FOR NO KEY UPDATE OF m SKIP LOCKED)
    RETURNING value)
SELECT coalesce((SELECT value FROM w), (SELECT value FROM {meta} WHERE name = {hlc_name}), 0)`

const restoredSQL = `UPDATE {meta} SET value = value + 1 WHERE name = {epoch}`

type clockStatements struct{ mark, restored string }

func newClockStatements(n schema.Names) clockStatements {
	return clockStatements{mark: n.SQL(markSQL), restored: n.SQL(restoredSQL)}
}

// markLag is how far the mark may be behind the highest stamp that was settled.
const markLag = time.Second

// queueMark queues the clock's mark for the published ones among the outcomes whose indexes are in at, if the mark that
// this process knows is too far behind them. The age of that mark would not do: a record that was published a moment
// ago may be an hour old.
func (o *Outbox) queueMark(b *batch, outcomes []core.Outcome, at []int) {
	var highest hlc.Timestamp
	for _, i := range at {
		if outcomes[i].Event() == core.EventConfirmed {
			highest = max(highest, hlc.Timestamp(outcomes[i].HLC()))
		}
	}
	if highest.Millis() < o.marked.Load()+markLag.Milliseconds() {
		return
	}
	stamps := make([]int64, 0, len(at))
	for _, i := range at {
		if outcomes[i].Event() == core.EventConfirmed {
			stamps = append(stamps, outcomes[i].HLC())
		}
	}
	var mark hlc.Timestamp
	b.Queue(b.sql.clock.mark, stamps).QueryRow(func(row pgx.Row) error { return row.Scan((*int64)(&mark)) })
	b.committed = func() { o.marked.Store(mark.Millis()) }
}

// mark is what seedSQL says about stamps: the highest one that counts, and the highest one at all.
type mark struct{ counts, highest hlc.Timestamp }

// seeded reads what seedSQL answers.
func (s *stager) seeded(scan func(...any) error) (m mark, err error) {
	var least int
	var unique bool
	if err := scan((*int64)(&m.counts), (*int64)(&m.highest), &least, &unique); err != nil {
		return m, err
	}
	if err := schema.TooOld(s.table, least, schema.Newest(schema.PartOutbox)); err != nil {
		return m, err
	}
	if !unique {
		return m, dberr.Misconfigured("stage", "outbox %s: %s", s.table, dberr.NoUniqueIndex)
	}
	return m, nil
}

// seed raises the clock above the mark, or as far as it can go: a wrong clock somewhere stops no transaction here. It
// tells about stamps that are too far ahead.
func (s *stager) seed(ctx context.Context, m mark) {
	err := s.stamper.Clock().SeedCapped(m.counts)
	s.clockSeeded.Store(true)
	if m.highest <= m.counts && err == nil {
		return
	}
	s.logger().WarnContext(ctx, "a stamp of the outbox is too far ahead: this process stages with lower ones; "+
		"check the clocks of the machines that stage, of this machine, and of the database's", "event", "postgres.stamp_ahead",
		"outbox", s.table, "stamp", m.highest, "stamped", m.highest.Time())
}

func (o *Outbox) mark(ctx context.Context) (m mark, err error) {
	err = o.transact(ctx, "read the clock's mark", readSQL, func(b *batch) {
		b.Queue(o.stager.sql.seed, []string{waybill.DefaultRoute}).QueryRow(func(row pgx.Row) (err error) {
			m, err = o.stager.seeded(row.Scan)
			return err
		})
	})
	return m, err
}

// HighWater returns the highest HLC stamp that the outbox remembers: of the records with its newest 1,000 sequences or,
// for records published since, in a mark that is at most a second behind the highest stamp that was settled. Routes
// that were never served do not count, but for the default route and for those of the first Stage. A stamp that is
// further ahead of the database's clock than hlc.DefaultMaxDrift does not count.
func (o *Outbox) HighWater(ctx context.Context) (hlc.Timestamp, error) {
	m, err := o.mark(ctx)
	return m.counts, err
}

// Seed raises the outbox's clock above what the outbox remembers. The first Stage does it anyway, with one statement
// more in the caller's transaction; a process that calls Seed at start spares it. If this machine's clock is further
// behind than the clock's MaxDrift, the clock is raised as far as it can, and the log tells.
func (o *Outbox) Seed(ctx context.Context) error {
	m, err := o.mark(ctx)
	if err == nil {
		o.stager.seed(ctx, m)
	}
	return err
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
