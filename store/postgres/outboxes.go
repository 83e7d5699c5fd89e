package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outboxes"
	"github.com/waybill-go/waybill/store/postgres/internal/conns"
	"github.com/waybill-go/waybill/store/postgres/internal/dberr"
	"github.com/waybill-go/waybill/store/postgres/internal/listen"
	"github.com/waybill-go/waybill/store/postgres/internal/schema"
)

// outboxPage is how many outboxes one Look answers. The statement locks two sequences of each: the lock table of a
// server with the default settings has room for some thousand locks.
const outboxPage = 250

// outboxesSQL are the numbers that the outboxes of a page have drawn: those in the schemas $2, and in the schemas that
// are like one of $3 and have a sequence with the name $4; $5 is the name of the one for notices. A number is read
// live: a transaction that drew it may be open. If a schema, a sequence or a right is missing, the outbox itself says
// so later. The statement waits for a locked sequence for a moment only, as the first thing that it does says. $7
// leaves out the sequences that another transaction is about to drop or to change. The last column is the owner of a
// schema if it is none of schema.TrustedSQL.
var outboxesSQL = schema.Qualified(`
WITH page AS MATERIALIZED (
    SELECT x.name, n.nspowner AS owner, s.oid AS seq, t.oid AS notices
    FROM (SELECT set_config('lock_timeout', '50ms', true) AS waits OFFSET 0) l
    JOIN (
        SELECT u.name COLLATE "C" FROM unnest($2::text[]) AS u(name)
        UNION
        SELECT n.nspname::text COLLATE "C" FROM pg_namespace n
        WHERE n.nspname LIKE ANY ($3::text[]) AND EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = $4 AND c.relkind = 'S')
    ) x ON l.waits <> '' AND x.name > $1
    LEFT JOIN pg_namespace n ON n.nspname = x.name::name
    LEFT JOIN pg_class s ON s.relnamespace = n.oid AND s.relname = $4 AND s.relkind = 'S'
    LEFT JOIN pg_class t ON t.relnamespace = n.oid AND t.relname = $5 AND t.relkind = 'S'
    ORDER BY x.name LIMIT $6
)
SELECT p.name,
       CASE WHEN f.free AND has_sequence_privilege(p.seq, 'SELECT') THEN coalesce(pg_sequence_last_value(p.seq), 0) ELSE 0 END,
       CASE WHEN f.free AND has_sequence_privilege(p.notices, 'SELECT') THEN coalesce(pg_sequence_last_value(p.notices), 0) ELSE 0 END,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
       CASE WHEN p.owner IN (` + schema.TrustedSQL("$8") + `) THEN '' ELSE coalesce(pg_get_userbyid(p.owner)::text, '') END AS owner
FROM page p CROSS JOIN LATERAL (
    SELECT NOT ($7 AND EXISTS (SELECT FROM pg_locks l WHERE l.relation IN (p.seq, p.notices)
        AND l.mode IN ('AccessExclusiveLock', 'ExclusiveLock', 'ShareRowExclusiveLock', 'ShareLock'))) AS free
) f
ORDER BY p.name`)

// peekSQL is what waits on the routes $1. A record beyond the bound of its route is one that a new owner would read. A
// retry and a hold are found by their own indexes. A notice or a member without a process waits for a relay, too. The
// statement draws a transaction id: transactions that drew a number before have a smaller one. The greatest id of the
// snapshot would not do, which is that of a transaction that has ended.
const peekSQL = `
SELECT EXISTS (SELECT FROM unnest($1::text[]) AS p(route) CROSS JOIN LATERAL (
           SELECT coalesce((SELECT min(un.read_after) FROM {partitions} un WHERE un.route = p.route),
                           (SELECT ro.read_after FROM {routes} ro WHERE ro.route = p.route), 0) AS after OFFSET 0) b
       CROSS JOIN LATERAL (
           SELECT r.seq FROM {outbox} r
           WHERE r.route = p.route AND r.seq > b.after AND r.due_at IS NULL AND r.settled_at IS NULL ORDER BY r.seq LIMIT 1) x)
    OR EXISTS (SELECT FROM {outbox} r WHERE r.hold <> 0 AND r.route = ANY ($1::text[]))
    OR EXISTS (SELECT FROM {notices} c WHERE c.route = ANY ($1::text[]))
    OR EXISTS (SELECT FROM {members} me WHERE me.routes && $1::text[]),
    EXISTS (SELECT FROM (SELECT me.*, ` + presenceLostSQL + ` AS lost FROM {members} me) me
            WHERE NOT me.lost AND me.renewed_at > clock_timestamp() - me.lease::float8 * interval '1 microsecond' AND me.routes && $1::text[]),
    (SELECT CASE WHEN min(d.due_at) IS NULL THEN -1
                 ELSE greatest(ceil(extract(epoch FROM min(d.due_at) - clock_timestamp()) * '1000000')::bigint, 0) END
     FROM unnest($1::text[]) AS p(route) CROSS JOIN LATERAL (
        (SELECT r.due_at FROM {outbox} r
         WHERE r.route = p.route AND r.due_at IS NOT NULL AND NOT r.retry AND r.settled_at IS NULL ORDER BY r.due_at LIMIT 1)
        UNION ALL
        (SELECT r.due_at FROM {outbox} r WHERE r.route = p.route AND r.due_at IS NOT NULL AND r.retry ORDER BY r.due_at LIMIT 1)
     ) d),
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint, pg_current_xact_id()::text::bigint`

var _ outboxes.All = (*Outboxes)(nil)

// Schemas are the schemas of many outboxes.
type Schemas struct {
	// Names are their names. A * in a name stands for any characters: a schema like it counts as soon as it has the
	// tables of an outbox.
	Names []string
	// Owners are roles whose schemas are served, besides superusers, the owner of the database and the relay's own
	// role. The owner of a schema can have code of its own run with the rights of the relay, in all schemas. So
	// name no role of a tenant.
	Owners []string
}

// Outboxes are the outboxes of many schemas of one database, over one pool. A Look costs one statement for 250 schemas.
// The relays of the outboxes poll, and have one connection that shows that their process is there. Make it with
// [NewOutboxes].
type Outboxes struct {
	pool         *pgxpool.Pool
	opts         Options
	owners       []string
	table        string
	names, likes []string
	presence     *listen.Waiter
	mu           sync.Mutex
	token        int64
	lost         <-chan struct{}
	end          context.CancelFunc
	shown        int           // how many members show the token
	acquiring    chan struct{} // one at a time
}

// NewOutboxes returns the outboxes in these schemas of a database. Options.Schema is not used, and neither are the
// notifications, as with Options.DisableNotify.
func NewOutboxes(pool *pgxpool.Pool, schemas Schemas, opts Options) (*Outboxes, error) {
	var problems []string
	if pool == nil {
		problems = append(problems, "pool: is nil; pass an open *pgxpool.Pool")
	}
	for _, s := range schemas.Names {
		for _, p := range schema.CheckNames(s, "", "") {
			problems = append(problems, strings.Replace(p, "Schema: ", fmt.Sprintf("Schemas: %q ", s), 1))
		}
	}
	if len(schemas.Names) == 0 {
		problems = append(problems, "Schemas: has no names; name the schemas, such as tenant_*")
	}
	opts.Schema, opts.DisableNotify = "", true
	if e := new(waybill.InvalidError); errors.As(opts.Validate(), &e) {
		problems = append(problems, e.Problems...)
	}
	if opts.AutoMigrate {
		problems = append(problems, "AutoMigrate: is not offered for many schemas; migrate each of them")
	}
	if err := waybill.Invalid("waybill/postgres: outboxes", problems...); err != nil {
		return nil, err
	}
	o := &Outboxes{pool: pool, opts: opts, owners: append([]string{}, schemas.Owners...), names: []string{}, likes: []string{}, acquiring: make(chan struct{}, 1)}
	n := newNames("", opts.Table, "")
	o.table = n.Outbox
	o.presence = listen.New(listen.Options{Conns: conns.Pool(pool), Names: n, Logger: o.opts.logger})
	for _, s := range schemas.Names {
		if strings.Contains(s, "*") {
			o.likes = append(o.likes, strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`, "*", "%").Replace(s))
		} else if !slices.Contains(o.names, s) {
			o.names = append(o.names, s)
		}
	}
	return o, nil
}

// Look returns the numbers that the next 250 outboxes have drawn; see [outboxes.All]. It waits for no lock. Of an
// outbox whose sequences are locked it says nothing new. It refuses a schema whose owner is not trusted; see [Schemas].
func (o *Outboxes) Look(ctx context.Context, after string) (outboxes.Page, error) {
	page, err := o.look(ctx, after, false)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && (pgErr.Code == "55P03" || pgErr.Code == "XX000") { // locked, or dropped meanwhile
		page, err = o.look(ctx, after, true)
	}
	return page, dberr.Failure("look", err)
}

func (o *Outboxes) look(ctx context.Context, after string, skipLocked bool) (page outboxes.Page, err error) {
	rows, err := o.pool.Query(ctx, outboxesSQL, after, o.names, o.likes, o.table+"_seq", o.table+"_notices_seq", outboxPage, skipLocked, o.owners)
	if err != nil {
		return page, err
	}
	page.Outboxes, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (d outboxes.Drawn, err error) {
		var owner string
		if err = row.Scan(&d.Name, &d.Last, &d.LastNotice, &page.Xmin, &owner); owner != "" {
			d.Refused = distrusted("look", d.Name, "the schema", owner).Error()
		}
		return d, err
	})
	page.More = len(page.Outboxes) == outboxPage
	return page, err
}

// distrusted is the error of an outbox that is not served because of its owner.
func distrusted(op, name, what, owner string) error {
	return dberr.Misconfigured(op, "role %s owns %s of outbox %s, and could run its own code with the rights of the relay in all outboxes: "+
		"give it to the owner of the database, or name the role in Owners if you trust it", owner, what, name)
}

// Peek returns the state of one schema; see [outboxes.All]. It is an error that matches waybill.ErrMisconfigured if the
// owner of the schema, or of a table in it, is not trusted; see [Schemas].
func (o *Outboxes) Peek(ctx context.Context, name string, routes []string) (s outboxes.State, err error) {
	n := newNames(name, o.opts.Table, "")
	owner, what, err := n.Stranger(ctx, o.pool, o.owners)
	if err != nil {
		return s, dberr.Failure("peek", err)
	}
	if owner != "" {
		return s, distrusted("peek", name, what, owner)
	}
	one := &Outbox{conns: conns.Pool(o.pool)}
	err = one.transact(ctx, "peek", readSQL, func(b *batch) {
		b.Queue(n.SQL(peekSQL), routes).QueryRow(func(row pgx.Row) error {
			var in int64
			err := row.Scan(&s.Work, &s.Served, &in, &s.Xmin, &s.Xmax)
			s.NextIn = time.Duration(min(in, math.MaxInt64/int64(time.Microsecond))) * time.Microsecond
			s.Work = s.Work || in == 0
			return err
		})
	})
	return s, err
}

// Open returns the outbox of one schema.
func (o *Outboxes) Open(name string) (core.OutboxStore, error) {
	opts := o.opts
	opts.Schema = name
	outbox, err := NewOutbox(o.pool, opts)
	if err != nil {
		return nil, err
	}
	return &oneOfMany{outbox, o}, nil
}

// oneOfMany is one of the outboxes. Its relay shows the presence that all of them share.
type oneOfMany struct {
	*Outbox
	all *Outboxes
}

var _ core.Presence = (*oneOfMany)(nil)

// Acquire returns the token of the process; see [core.Presence]. The connection ends when no relay shows it any more.
func (o *oneOfMany) Acquire(ctx context.Context) (token int64, lost <-chan struct{}, err error) {
	return o.all.acquire(ctx)
}

func (o *Outboxes) acquire(ctx context.Context) (token int64, lost <-chan struct{}, err error) {
	select {
	case o.acquiring <- struct{}{}:
		defer func() { <-o.acquiring }()
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	}
	o.mu.Lock()
	shown := o.shown > 0 && !isClosed(o.lost)
	token, lost = o.token, o.lost
	o.mu.Unlock()
	if !shown {
		held, end := context.WithCancel(context.WithoutCancel(ctx))
		if token, lost, err = o.presence.Acquire(held); err != nil || token == 0 {
			end()
			return token, lost, err
		}
		o.mu.Lock()
		o.token, o.lost, o.end, o.shown = token, lost, end, 0
		o.mu.Unlock()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.shown++
	context.AfterFunc(ctx, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.token != token {
			return // it was lost, and another one was taken
		}
		if o.shown--; o.shown == 0 {
			o.end()
		}
	})
	return token, lost, nil
}

// isClosed reports whether a channel is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
