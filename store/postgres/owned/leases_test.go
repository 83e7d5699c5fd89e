package owned_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
	"github.com/waybill-go/waybill/core/storetest"
	"github.com/waybill-go/waybill/store/postgres/owned"
)

// leases shows an outbox as a store of the row leases that package storetest asks for, as one member that owns
// everything and holds what it hands out. So the checks of what applications and operators see can be run.
type leases struct {
	*owned.Outbox
	tb   testing.TB
	mu   sync.Mutex
	out  map[int64]handedOut // by token
	last int64
}

type handedOut struct {
	outbox.Record
	session int64
}

func (l *leases) Traits() core.StoreTraits {
	return core.StoreTraits{KeyOrder: true, Durable: true, SharedAcrossProcesses: true}
}

func (l *leases) Claim(ctx context.Context, req core.ClaimRequest) (c core.Claim, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return c, err
	}
	var routes []string
	look := outbox.Look{Limit: 1000, Bytes: req.MaxBytes}
	for _, r := range req.Routes {
		routes = append(routes, r.Route)
		look.Fresh = append(look.Fresh, all(r.Route))
		look.Ranges = append(look.Ranges, outbox.Range{Part: all(r.Route), To: 1 << 62, Limit: 10_000})
		if r.BlockAfterAbandon {
			look.Blocks = append(look.Blocks, r.Route)
		}
	}
	self := session(l.tb, l.Outbox, routes...)
	d, err := l.Due(ctx, self, look.Fresh, 10_000)
	if err != nil {
		return c, err
	}
	c.NextIn = d.NextIn
	p, err := l.Read(ctx, self, look)
	if err != nil {
		return c, err
	}
	found := d.Retries
	for _, rs := range p.Ranges {
		found = append(found, rs.Records...)
	}
	slices.SortFunc(found, func(x, y outbox.Record) int { return int(x.Seq - y.Seq) })
	busy := map[[2]string]bool{}
	for _, w := range p.Waiting {
		if w.Key != "" && !slices.ContainsFunc(d.Retries, func(r outbox.Record) bool { return r.Seq == w.Seq }) {
			busy[[2]string{w.Route, w.Key}] = true
		}
	}
	for _, o := range l.out {
		if o.Envelope.Key != "" && (req.Session == 0 || o.session != req.Session) {
			busy[[2]string{o.Route, o.Envelope.Key}] = true
		}
	}
	var refs []outbox.Ref
	var take []outbox.Record
	for _, r := range found {
		held := false
		for _, o := range l.out {
			held = held || o.Seq == r.Seq && o.Route == r.Route
		}
		if !held && !busy[[2]string{r.Route, r.Envelope.Key}] && len(take) < req.MaxRecords {
			take, refs = append(take, r), append(refs, r.Ref)
		}
	}
	taken, err := l.Take(ctx, self, outbox.Want{Refs: refs})
	if err != nil {
		return c, err
	}
	for i, r := range take {
		key := [2]string{r.Route, r.Envelope.Key}
		if taken[i].Grip != outbox.Gripped || busy[key] {
			busy[key] = busy[key] || r.Envelope.Key != "" // what is locked holds its key
			continue
		}
		l.last++
		l.out[l.last] = handedOut{r, req.Session}
		c.Records = append(c.Records, core.Record{
			Envelope: r.Envelope, Route: r.Route, Seq: r.Seq, Attempts: r.Attempts, Crashes: r.Crashes, Age: r.Age, Failed: r.Failed, Err: r.Err,
			Lease: core.Lease{Token: l.last, Remaining: req.Lease},
		})
	}
	c.More = len(c.Records) == req.MaxRecords
	return c, nil
}

func (l *leases) Settle(ctx context.Context, outcomes []core.Outcome) core.Results {
	l.mu.Lock()
	defer l.mu.Unlock()
	results := make(core.Results, len(outcomes))
	for i := range outcomes {
		o := &outcomes[i]
		r, ok := l.out[o.Token()]
		if !ok {
			results[i] = core.ErrLeaseLost
			continue
		}
		var err error
		if o.Error() != "" {
			err = errors.New(o.Error())
		}
		var out outbox.Outcome
		switch o.Event() { //nolint:exhaustive // the others are no outcomes
		case core.EventConfirmed:
			out = outbox.Published(&r.Record)
		case core.EventRejected:
			out = outbox.Retry(&r.Record, err, o.RetryIn())
		case core.EventReleased:
			out = outbox.Release(&r.Record, o.RetryIn(), o.Unknown())
		default:
			out = outbox.Abandon(&r.Record, o.Reason(), err)
		}
		for results[i] = outbox.ErrBusy; errors.Is(results[i], outbox.ErrBusy); {
			results[i] = l.Outbox.Settle(ctx, session(l.tb, l.Outbox), []outbox.Outcome{out})[0]
		}
		if results[i] == nil {
			delete(l.out, o.Token())
		}
	}
	return results
}

type leasesHarness struct {
	pool  *pgxpool.Pool
	store *leases
	db    *sql.DB // not nil: stages through database/sql
}

func newLeases(tb testing.TB, o *owned.Outbox) *leases {
	tb.Helper()
	return &leases{Outbox: o, tb: tb, out: map[int64]handedOut{}}
}

func (h *leasesHarness) Store() core.OutboxStore { return h.store }

func (h *leasesHarness) Begin(ctx context.Context) (storetest.Tx, error) {
	if h.db != nil {
		tx, err := h.db.BeginTx(ctx, nil)
		return &sqlTx{h.store.SQL(), tx}, err
	}
	tx, err := h.pool.Begin(ctx)
	return &pgxTx{testTx{tx: tx}, h.store.Outbox}, err
}

func (h *leasesHarness) Corrupt(ctx context.Context, route string, seq int64) error {
	_, err := h.pool.Exec(ctx, `UPDATE waybill.waybill_outbox SET attrs = '"not an object"' WHERE route = $1 AND seq = $2`, route, seq)
	return err
}

func (h *leasesHarness) Records(ctx context.Context, route string) ([]storetest.StoredRecord, error) {
	rs, err := (&harness{pool: h.pool, store: h.store.Outbox}).Records(ctx, route)
	out := make([]storetest.StoredRecord, len(rs))
	for i, r := range rs {
		out[i] = storetest.StoredRecord(r)
	}
	return out, err
}

// WithRetention makes the harness a storetest.Retainer.
func (h *leasesHarness) WithRetention(_ context.Context, r core.Retention) (storetest.Harness, error) {
	o, err := owned.NewOutbox(h.pool, owned.Options{Source: "/test", Retention: r})
	if err != nil {
		return nil, err
	}
	s, _ := sessions.Load(h.store.Outbox)
	if s != nil {
		sessions.Store(o, s)
	}
	l := newLeases(h.store.tb, o)
	return &leasesHarness{h.pool, l, h.db}, nil
}

type pgxTx struct {
	testTx
	outbox *owned.Outbox
}

// withdrawable makes all that was staged as the checks take it to be.
const withdrawable = "UPDATE waybill.waybill_outbox SET withdrawable = true WHERE NOT withdrawable"

func (t *pgxTx) Stage(ctx context.Context, msgs ...core.Message) ([]core.Staged, error) {
	staged, err := t.outbox.Stage(ctx, t.tx, msgs...)
	if err == nil {
		_, err = t.tx.Exec(ctx, withdrawable)
	}
	return staged, err
}

func (t *pgxTx) Cancel(ctx context.Context, keys ...core.CancelKey) ([]core.CancelStatus, error) {
	return t.outbox.Cancel(ctx, t.tx, keys...)
}

type sqlTx struct {
	stager core.Stager[*sql.Tx]
	tx     *sql.Tx
}

func (t *sqlTx) Stage(ctx context.Context, msgs ...core.Message) ([]core.Staged, error) {
	staged, err := t.stager.Stage(ctx, t.tx, msgs...)
	if err == nil {
		_, err = t.tx.ExecContext(ctx, withdrawable)
	}
	return staged, err
}

func (t *sqlTx) Cancel(ctx context.Context, keys ...core.CancelKey) ([]core.CancelStatus, error) {
	c, ok := core.As[core.Canceller[*sql.Tx]](t.stager)
	if !ok {
		return nil, core.ErrUnsupported
	}
	return c.Cancel(ctx, t.tx, keys...)
}
func (t *sqlTx) Commit(context.Context) error { return t.tx.Commit() }
func (t *sqlTx) Rollback(context.Context) error {
	if err := t.tx.Rollback(); !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	return nil
}

// notOurs are the checks of leases, and those that are told otherwise by the contract of package outbox.
var notOurs = []string{
	"claim", "lease", "key-", "suspects", "attempts", "stale", "settled-token", "expired-lease", "model", "route-order", "order-", "next-in",
	"best-effort", "hlc-order", "cancel-of-leased", "cancel-says-maybe", "redrive-remembers", "clean-never-deletes", "clean-sweeps", "clean-frees",
}

func TestOutboxSuite(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"pgx", "sql"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			o, pool := newOutbox(t, owned.Options{})
			h := &leasesHarness{pool: pool, store: newLeases(t, o)}
			if driver == "sql" {
				h.db = stdlib.OpenDBFromPool(pool)
				t.Cleanup(func() { _ = h.db.Close() })
			}
			for _, c := range storetest.Checks() {
				if slices.ContainsFunc(notOurs, func(p string) bool { return strings.HasPrefix(c.Name, p) }) {
					continue
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				err := c.Run(ctx, h)
				cancel()
				switch {
				case errors.Is(err, storetest.ErrNotDeclared):
					t.Logf("%s: not declared", c.Name)
				case err != nil:
					t.Errorf("%s: %v", c.Name, err)
				}
			}
		})
	}
}
