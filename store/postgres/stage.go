package postgres

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

// stager is what the stagers of all drivers share: the statements, the stamper, and whether the clock was seeded.
type stager struct {
	stamper     *core.Stamper
	single      map[due]string // one message: the common case, at half the cost
	plain       string         // nothing is scheduled: two arrays less
	timed       string
	first       string // seedSQL
	newest      int    // version of the schema that this program knows
	keyed       string // some have a dedupe key; see keyedSQL
	replacing   string // and some of these replace another
	holders     string
	unstageText string
	cancelText  string
	table       string // for errors
	clockSeeded atomic.Bool
}

func newStager(opts *Options, n names) (*stager, error) {
	stamper, err := opts.stamper()
	if err != nil {
		return nil, err
	}
	newest, err := newestOutbox(n)
	if err != nil {
		return nil, err
	}
	keep := opts.Retention.Of(core.StateAbandoned, core.ReasonCancelled) != 0
	s := &stager{
		stamper: stamper, single: map[due]string{},
		plain: n.sql(insertSQL(!opts.NotifyOff, false)), timed: n.sql(insertSQL(!opts.NotifyOff, true)),
		keyed: n.sql(keyedSQL(!opts.NotifyOff, false, keep)), replacing: n.sql(keyedSQL(!opts.NotifyOff, true, keep)),
		holders: n.sql(holdersSQL), unstageText: n.sql(unstageSQL), cancelText: n.sql(cancelSQL(keep)),
		first: n.sql(seedSQL), newest: newest, table: n.sql("{outbox}"),
	}
	for _, d := range []due{atOnce, delayed, scheduled} {
		s.single[d] = n.sql(insertOneSQL(!opts.NotifyOff, d))
	}
	return s, nil
}

// due is when a message is.
type due uint8

const (
	atOnce    due = iota
	delayed       // so long from now by the database's clock
	scheduled     // at a time
)

func dueOf(r *core.StagedRow) due {
	switch {
	case !r.DeliverAt.IsZero():
		return scheduled
	case r.Delay > 0:
		return delayed
	}
	return atOnce
}

// insertSQL writes any number of rows in one statement. What it returns tells new rows from duplicates.
func insertSQL(notify, timed bool) string { //nolint:revive // four variants of one statement
	s := insertBeginSQL
	values := `
SELECT r.route, r.id, r.topic, r.key, r.type, r.source, r.content_type, r.correlation_id, r.trace_parent, r.occurred_at, r.hlc, r.expires_at,
       nullif(r.attrs, '')::json, r.body`
	from := `
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
            $10::timestamptz[], $11::bigint[], $12::timestamptz[], $13::text[], $14::bytea[]`
	names := `)
     AS r(route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body`
	if timed {
		s += ", due_at, ready_since"
		values += ", CASE WHEN d.at > clock_timestamp() THEN d.at END, greatest(d.at, clock_timestamp())"
		from += ", $15::timestamptz[], $16::bigint[]"
		names += `, at, delay)
CROSS JOIN LATERAL (SELECT coalesce(r.at, clock_timestamp() + nullif(r.delay, 0) * interval '1 microsecond') AS at) d`
	} else {
		names += ")"
	}
	return s + ")" + values + from + names + `
ON CONFLICT (route, id) DO NOTHING
RETURNING route, id, ` + wakeSQL(notify, timed)
}

const insertBeginSQL = `
INSERT INTO {outbox} (route, id, topic, key, type, source, content_type, correlation_id, trace_parent, occurred_at, hlc, expires_at, attrs, body`

// insertOneSQL is insertSQL for one row. What it returns is only that there is a new one.
func insertOneSQL(notify bool, when due) string {
	columns := `$1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text, $10::timestamptz, $11::bigint,
       $12::timestamptz, nullif($13::text, '')::json, $14::bytea`
	names := ""
	if when != atOnce {
		names = ", due_at, ready_since"
	}
	switch when {
	case delayed:
		columns += ", clock_timestamp() + $15::bigint * interval '1 microsecond', clock_timestamp() + $15::bigint * interval '1 microsecond'"
	case scheduled:
		columns += ", CASE WHEN $15::timestamptz > clock_timestamp() THEN $15::timestamptz END, greatest($15::timestamptz, clock_timestamp())"
	case atOnce:
	}
	return insertBeginSQL + names + `)
VALUES (` + columns + `)
ON CONFLICT (route, id) DO NOTHING
RETURNING ` + wakeSQL(notify, when != atOnce)
}

// wakeSQL is a column of what an insert returns. Only while a relay sleeps does it notify; a notification belongs to the
// transaction and its savepoints, so a rollback wakes nobody.
func wakeSQL(notify, timed bool) string { //nolint:revive // variants of one expression
	if !notify {
		return "NULL::boolean"
	}
	soon := ""
	if timed { // first, since it is cheap; a relay that sleeps finds out in time about what is due later
		soon = "(due_at IS NULL OR due_at < clock_timestamp() + interval '1 second') AND "
	}
	return "CASE WHEN " + soon + "(SELECT w.last_value > date_part('epoch', clock_timestamp()) * 1000 FROM {wake} w) THEN pg_notify({channel}, route) IS NOT NULL END"
}

// statement returns the statement for rows without dedupe keys and its arguments: one value a column, or one array.
func (s *stager) statement(rows []core.StagedRow) (string, []any, error) {
	if len(rows) == 1 {
		args, err := values(&rows[0])
		when := dueOf(&rows[0])
		switch when {
		case delayed:
			args = append(args, microseconds(rows[0].Delay))
		case scheduled:
			args = append(args, rows[0].DeliverAt)
		case atOnce:
		}
		return s.single[when], args, err
	}
	args, timed, err := columns(rows)
	if err != nil || !timed {
		return s.plain, args, err
	}
	at, delay := times(rows)
	return s.timed, append(args, at, delay), nil
}

// values returns the row's columns.
func values(r *core.StagedRow) ([]any, error) {
	e := &r.Envelope
	attrs, err := encodeAttrs(e)
	if err != nil {
		return nil, err
	}
	kind, body := e.Type, e.Body
	if kind == e.Topic {
		kind = ""
	}
	if body == nil {
		body = []byte{}
	}
	var expires *time.Time
	if !e.Expires.IsZero() {
		expires = &e.Expires
	}
	return []any{
		r.Route, e.ID, e.Topic, e.Key, kind, e.Source, e.ContentType, e.CorrelationID, e.TraceParent, e.Time, int64(e.HLC), expires, attrs, body,
	}, nil
}

// columns returns one array a column, and whether any row is scheduled.
func columns(rows []core.StagedRow) (args []any, timed bool, err error) {
	n := len(rows)
	text := make([]string, 10*n) // one allocation for all text columns
	col := func(i int) []string { return text[i*n : (i+1)*n : (i+1)*n] }
	occurred, stamps, expires, bodies := make([]time.Time, n), make([]int64, n), make([]*time.Time, n), make([][]byte, n)
	for i := range rows {
		e := &rows[i].Envelope
		text[i], text[n+i], text[2*n+i], text[3*n+i] = rows[i].Route, e.ID, e.Topic, e.Key
		if e.Type != e.Topic {
			text[4*n+i] = e.Type
		}
		text[5*n+i], text[6*n+i], text[7*n+i], text[8*n+i] = e.Source, e.ContentType, e.CorrelationID, e.TraceParent
		attrs, err := encodeAttrs(e)
		if err != nil {
			return nil, false, err
		}
		text[9*n+i] = attrs
		occurred[i], stamps[i], bodies[i] = e.Time, int64(e.HLC), e.Body
		if e.Body == nil {
			bodies[i] = []byte{}
		}
		if !e.Expires.IsZero() {
			expires[i] = &e.Expires
		}
		timed = timed || dueOf(&rows[i]) != atOnce
	}
	return []any{col(0), col(1), col(2), col(3), col(4), col(5), col(6), col(7), col(8), occurred, stamps, expires, col(9), bodies}, timed, nil
}

// times returns the columns of rows some of which are scheduled.
func times(rows []core.StagedRow) (at []*time.Time, delay []int64) {
	at, delay = make([]*time.Time, len(rows)), make([]int64, len(rows))
	for i := range rows {
		if !rows[i].DeliverAt.IsZero() {
			at[i] = &rows[i].DeliverAt
		}
		delay[i] = microseconds(rows[i].Delay)
	}
	return at, delay
}

// microseconds returns d in microseconds, at least one if it is positive.
func microseconds(d time.Duration) int64 {
	if d > 0 {
		return max(d.Microseconds(), 1)
	}
	return d.Microseconds()
}

// replan, as the first argument of a statement, asks to plan it anew: a cached plan may be from when the table was so small
// that it was best to read all of it. It is for statements that look something up, in a transaction of which the settings
// are not ours.
type replan struct{}

// queryFunc runs a statement in the caller's transaction and hands each row's scan function to each.
type queryFunc func(ctx context.Context, sql string, args []any, each func(scan func(...any) error) error) error

// stage is Stage for any driver. The insert of messages without dedupe keys is the last statement, and may run later: then
// all are told as duplicates.
func (s *stager) stage(ctx context.Context, msgs []core.Message, query, insert queryFunc) (staged []core.Staged, err error) {
	if len(msgs) == 0 {
		return nil, nil
	}
	ctx, span := s.stamper.Start(ctx, len(msgs))
	defer func() { core.EndSpan(span, err) }()
	if err := s.seedOnce(ctx, query); err != nil {
		return nil, err
	}
	rows, err := s.stamper.Stamp(ctx, msgs)
	if err != nil {
		return nil, err
	}
	if anyKeyed(rows) {
		return s.stageKeyed(ctx, rows, query)
	}
	sql, args, err := s.statement(rows)
	if err != nil {
		return nil, err
	}
	staged = make([]core.Staged, len(rows))
	for i := range rows {
		staged[i] = core.Staged{ID: rows[i].Envelope.ID, Route: rows[i].Route, Duplicate: true}
	}
	// The new rows come back in input order, so each belongs to the next input with its name.
	next := 0
	err = insert(ctx, sql, args, func(scan func(...any) error) error {
		if len(rows) == 1 {
			staged[0].Duplicate = false
			return nil
		}
		var route, id string
		if err := scan(&route, &id, nil); err != nil {
			return err
		}
		for ; next < len(staged); next++ {
			if staged[next].ID == id && staged[next].Route == route {
				staged[next].Duplicate = false
				next++
				return nil
			}
		}
		return errors.New("the database returned a row that was not staged")
	})
	if err != nil {
		return nil, s.failure("stage", err)
	}
	return staged, nil
}

// seedOnce raises the clock above what the outbox remembers, before the first stamp of the process.
func (s *stager) seedOnce(ctx context.Context, query queryFunc) error {
	if s.clockSeeded.Load() {
		return nil
	}
	var mark hlc.Timestamp
	err := query(ctx, s.first, nil, func(scan func(...any) error) (err error) {
		mark, err = s.seeded(scan)
		return err
	})
	if err != nil {
		return s.failure("stage: read the clock's mark", err)
	}
	return s.seed(mark)
}

func (s *stager) seed(mark hlc.Timestamp) error {
	if err := s.stamper.Clock().Seed(mark); err != nil {
		return &core.Error{Op: "waybill/postgres: seed the clock from the outbox", Class: core.ClassOutage, Err: err}
	}
	s.clockSeeded.Store(true)
	return nil
}

func (s *stager) failure(op string, err error) error {
	if e := notOpen(op, err); e != nil {
		return e
	}
	if class(err) == core.ClassPermanent {
		op += ": outbox " + s.table
	}
	return failure(op, err)
}

func errNoTx(kind string) error {
	return core.Invalid("waybill/postgres: stage", "tx: is nil; pass the open "+kind+" in which the business rows are written")
}

// Stage writes msgs in tx, one row a message and route, in one statement whatever their number. It reports as
// duplicates what the outbox held already under the same route and id, or what the call itself named twice, and a message
// with a dedupe key of which there is a live one. To replace a message takes more rights than to stage, see
// [Migrations.Grants]; one that a relay holds keeps that relay's settle waiting until tx ends, so be quick. The first
// Stage of a process makes one statement more, to learn above which stamp its clock must go on; see [Outbox.Seed].
//
// If tx sits on a savepoint that is rolled back, the messages are gone with it and nobody was woken. A statement that
// failed earlier in tx, or a tx that ended, makes Stage fail.
func (o *Outbox) Stage(ctx context.Context, tx pgx.Tx, msgs ...core.Message) ([]core.Staged, error) {
	if core.IsNil(tx) {
		return nil, errNoTx("pgx.Tx")
	}
	if err := o.ready(ctx); err != nil {
		return nil, err
	}
	query := pgxQuery(tx)
	return o.stager.stage(ctx, msgs, query, query)
}

func pgxQuery(tx pgx.Tx) queryFunc {
	return func(ctx context.Context, sql string, args []any, each func(func(...any) error) error) error {
		if len(args) > 0 && args[0] == any(replan{}) {
			args = args[1:]
			if c := tx.Conn(); c != nil && c.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
				args = append([]any{pgx.QueryExecModeCacheDescribe}, args...)
			}
		}
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := each(rows.Scan); err != nil {
				return err
			}
		}
		return rows.Err()
	}
}
