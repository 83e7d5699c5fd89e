package postgres

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/check"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// stager is what the stagers of all drivers share: the statements, the stamper, and whether the clock was seeded.
type stager struct {
	stamper     *core.Stamper
	sql         stageStatements
	notify      bool   // as Options.DisableNotify says
	table       string // for errors
	logger      func() *slog.Logger
	clockSeeded atomic.Bool
}

// stageStatements are the texts of staging and cancelling. They are rendered once.
type stageStatements struct {
	seed                               string
	inserts                            map[insertForm]string
	keyed, replacing, holders, unstage string
	taken                              string
	cancel                             string
	raise                              string // for errors
}

func newStageStatements(n schema.Names, opts *Options) stageStatements {
	notify := !opts.DisableNotify
	keep := !core.RetentionCancelled.DroppedAtOnce(opts.Retention) // cancelled messages
	s := stageStatements{
		seed: n.SQL(seedSQL), inserts: map[insertForm]string{},
		keyed: n.SQL(keyedSQL(notify)), replacing: n.SQL(replacingSQL(notify, keep)),
		holders: n.SQL(holdersSQL), unstage: n.SQL(unstageSQL),
		taken:  n.SQL(takenSQL),
		cancel: n.SQL(cancelSQL(keep)),
		raise:  n.SQL("SELECT setval({sequence_text}, (SELECT max(seq) FROM {outbox}))"),
	}
	for _, d := range []due{atOnce, delayed, scheduled} {
		for b := range 8 {
			f := insertForm{due: d, one: b&1 != 0, fresh: b&2 != 0, notify: b&4 != 0}
			if !f.notify || notify {
				s.inserts[f] = n.SQL(f.sql())
			}
		}
	}
	return s
}

func newStager(opts *Options, stamper *core.Stamper, n schema.Names) *stager {
	return &stager{stamper: stamper, sql: newStageStatements(n, opts), notify: !opts.DisableNotify, table: n.SQL("{outbox}"), logger: opts.logger}
}

// replan, as the first argument of a statement, asks to plan it anew: a cached plan may be from when the table was so
// small that it was best to read all of it. It is for statements that look something up in a transaction whose settings
// are not ours.
type replan struct{}

// queryFunc runs a statement in the caller's transaction and hands each row's scan function to each.
type queryFunc func(ctx context.Context, sql string, args []any, each func(scan func(...any) error) error) error

// stage is Stage for any driver. The insert of messages without dedupe keys is the last statement, and write may run it
// later: then duplicates are not reported. The steps:
//
//  1. The first call of the process seeds the clock from the outbox.
//  2. Messages become rows, one for each of their routes, with stamps.
//  3. Rows of which some have a dedupe key go another way (dedupe.go).
//  4. One insert, in the form that fits all rows, leaves out ids that are there.
//  5. If a row was left out, its id must be of the same source.
func (s *stager) stage(ctx context.Context, msgs []waybill.Message, query, write queryFunc) (staged []waybill.Staged, err error) {
	if len(msgs) == 0 {
		return nil, nil
	}
	ctx, span := s.stamper.StartSpan(ctx, len(msgs))
	defer func() { core.EndSpan(span, err) }()
	if err := s.seedOnce(ctx, msgs, query); err != nil {
		return nil, err
	}
	rows, err := s.stamper.Stamp(ctx, msgs)
	if err != nil {
		return nil, err
	}
	if anyKeyed(rows) {
		return s.stageKeyed(ctx, rows, query)
	}
	form, args, err := s.statement(rows)
	if err != nil {
		return nil, err
	}
	staged = make([]waybill.Staged, len(rows))
	for i := range rows {
		staged[i] = waybill.Staged{ID: rows[i].Envelope.ID, Route: rows[i].Route, Duplicate: !form.fresh}
	}
	// The new rows come back in input order, so each belongs to the next input with its name.
	next := 0
	err = write(ctx, s.sql.inserts[form], args, func(scan func(...any) error) error {
		if form.one {
			staged[0].Duplicate = false
			return nil
		}
		var route, id string
		if err := scan(&route, &id); err != nil {
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
	if err == nil {
		err = s.refuseTaken(ctx, rows, func(i int) bool { return staged[i].Duplicate }, write)
	}
	if err != nil {
		return nil, s.failure("stage", err)
	}
	return staged, nil
}

// seedOnce raises the clock above what the outbox remembers, before the first stamp of the process.
func (s *stager) seedOnce(ctx context.Context, msgs []waybill.Message, query queryFunc) error {
	if s.clockSeeded.Load() {
		return nil
	}
	routes := []string{waybill.DefaultRoute}
	for i := range msgs {
		for _, r := range msgs[i].Routes {
			routes = append(routes, waybill.LaneRoute(r, msgs[i].Lane))
		}
	}
	slices.Sort(routes)
	var m mark
	err := query(ctx, s.sql.seed, []any{replan{}, slices.Compact(routes)}, func(scan func(...any) error) (err error) {
		m, err = s.seeded(scan)
		return err
	})
	if err != nil {
		return s.failure("stage: read the clock's mark", err)
	}
	s.seed(ctx, m)
	return nil
}

// takenSQL fails if a message of another source has an id. Its answer is not read where staging is the last that a
// transaction does. Its error names the route and the id; see [dberr.IDTaken].
const takenSQL = `
SELECT ('` + dberr.TakenMark + `' || r.route || E'\x1f' || r.id || E'\x1f')::boolean
FROM unnest($1::text[], $2::text[], $3::text[]) AS r(route, id, source) CROSS JOIN LATERAL (
    SELECT o.source FROM {outbox} o WHERE o.route = r.route AND o.id = r.id AND o.own_id LIMIT 1
) o WHERE o.source <> r.source LIMIT 1`

// refuseTaken fails if one of the rows that were left out has the id of a message of another source.
func (s *stager) refuseTaken(ctx context.Context, rows []core.StagedRow, leftOut func(i int) bool, query queryFunc) error {
	var routes, ids, sources []string
	for i := range rows {
		if leftOut(i) {
			routes, ids, sources = append(routes, rows[i].Route), append(ids, rows[i].Envelope.ID), append(sources, rows[i].Envelope.Source)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return query(ctx, s.sql.taken, []any{routes, ids, sources}, func(func(...any) error) error { return nil })
}

func (s *stager) failure(op string, err error) error {
	if e := dberr.IDTaken(op, err); e != nil {
		return e
	}
	if e := dberr.NotOpen(op, err); e != nil {
		return e
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == uniqueViolation && strings.HasSuffix(e.ConstraintName, "_pkey") {
		return dberr.Misconfigured(op, "the sequence of outbox %s gives numbers that are there already, as if it was set back: "+
			"set it above the greatest one: %s (%w)", s.table, s.sql.raise, err)
	}
	if dberr.Class(err) == waybill.ClassPermanent {
		op += ": outbox " + s.table
	}
	return dberr.Failure(op, err)
}

// uniqueViolation is the SQLSTATE of a number or a name that is there already.
const uniqueViolation = "23505"

func errNoTx(kind string) error {
	return waybill.Invalid("waybill/postgres: stage", "tx: is nil; pass the open "+kind+" in which the business rows are written")
}

// Stage writes msgs in tx, one row a message and route, in one statement for any number of them. A message is reported
// as a duplicate if the outbox held its route and id already, where the program chose the id, if the call itself names
// it twice, or if a live message has its dedupe key. To replace a message takes more rights than to stage, see
// [Migrations.Grants]. The first Stage of a process makes one statement more, to learn above which stamp its clock must
// go on (see [Outbox.Seed]), and that the index is there which makes ids unique.
//
// If tx sits on a savepoint that is rolled back, the messages are gone with it and no relay was woken. A statement that
// failed earlier in tx, or a tx that ended, makes Stage fail.
func (o *Outbox) Stage(ctx context.Context, tx pgx.Tx, msgs ...waybill.Message) ([]waybill.Staged, error) {
	if check.Nil(tx) {
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
