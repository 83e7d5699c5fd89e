package owned_test

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outbox"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres/owned"
)

// newPool returns a pool on a fresh database.
func newPool(tb testing.TB) *pgxpool.Pool {
	tb.Helper()
	return openPool(tb, testenv.Postgres(tb).DSN)
}

func openPoolWith(tb testing.TB, dsn string, change func(cfg *pgxpool.Config)) *pgxpool.Pool {
	tb.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		tb.Fatal(err)
	}
	change(cfg)
	pool, err := pgxpool.NewWithConfig(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	return pool
}

// newOutbox returns a migrated outbox on a fresh database.
func newOutbox(tb testing.TB, opts owned.Options) (*owned.Outbox, *pgxpool.Pool) {
	tb.Helper()
	pool := newPool(tb)
	return outboxOn(tb, pool, opts), pool
}

func outboxOn(tb testing.TB, pool *pgxpool.Pool, opts owned.Options) *owned.Outbox {
	tb.Helper()
	if opts.Source == "" {
		opts.Source = "/test"
	}
	o := storeOn(tb, pool, opts)
	tb.Cleanup(func() { _ = o.Close(context.Background()) })
	return o
}

// stage commits msgs in a transaction of their own.
func stage(tb testing.TB, pool *pgxpool.Pool, o *owned.Outbox, msgs ...core.Message) []core.Staged {
	tb.Helper()
	var staged []core.Staged
	err := pgx.BeginFunc(tb.Context(), pool, func(tx pgx.Tx) (err error) {
		staged, err = o.Stage(tb.Context(), tx, msgs...)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return staged
}

func message(opts ...core.MessageOption) core.Message {
	return core.RawMessage("t.x", "text/plain", []byte("body"), opts...)
}

func queryInt(tb testing.TB, pool *pgxpool.Pool, sql string, args ...any) int64 {
	tb.Helper()
	return query[int64](tb, pool, sql, args...)
}

// eventually polls cond until it holds.
func eventually(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			tb.Fatal("not in time: " + what)
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-tb.Context().Done():
			tb.Fatal(tb.Context().Err())
		}
	}
}

// request is what a claim asks for.
type request struct {
	n      int
	routes []string
}

// want asks for n records of the default route.
func want(n int) request { return request{n, []string{core.DefaultRoute}} }

// claimed is the answer to a claim.
type claimed struct{ Records []outbox.Record }

// sessions are those of claim, by outbox.
var sessions sync.Map

// session returns the session of o that owns all of routes.
func session(tb testing.TB, o *owned.Outbox, routes ...string) outbox.Session {
	tb.Helper()
	s, _ := sessions.LoadOrStore(o, newSession())
	self := s.(outbox.Session)
	r, err := o.Meet(tb.Context(), outbox.Meeting{})
	if err != nil {
		tb.Fatal(err)
	}
	m := outbox.Member{Session: self, Name: "storetest", Beat: 1, Lease: 10 * time.Second, Handlers: 1, Free: 1}
	known := false
	for _, v := range r.Members {
		if v.Session == self {
			known, m.Serves, m.Beat = true, v.Serves, v.Beat+1
		}
	}
	for _, route := range routes {
		if !slices.ContainsFunc(m.Serves, func(sv outbox.Serving) bool { return sv.Route == route }) {
			m.Serves, known = append(m.Serves, outbox.Serving{Route: route, Units: 1}), false
		}
	}
	if known {
		return self
	}
	if r, err = o.Meet(tb.Context(), outbox.Meeting{Self: m, Join: true}); err != nil {
		tb.Fatal(err)
	}
	var moves []outbox.Move
	for _, u := range r.Units {
		if u.Owner == 0 && slices.Contains(routes, u.Unit.Route) {
			moves = append(moves, outbox.Move{Unit: u.Unit, To: self})
		}
	}
	if _, err := o.Meet(tb.Context(), outbox.Meeting{Self: m, Moves: moves}); err != nil {
		tb.Fatal(err)
	}
	return self
}

// claim hands out up to n records that are due, retries first, as one member that owns everything: it holds them.
func claim(tb testing.TB, o *owned.Outbox, q request) claimed {
	tb.Helper()
	c, err := tryClaim(tb.Context(), o, session(tb, o, q.routes...), q)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func tryClaim(ctx context.Context, o *owned.Outbox, self outbox.Session, q request) (c claimed, err error) {
	look := outbox.Look{Limit: 1000}
	for _, r := range q.routes {
		look.Parts = append(look.Parts, all(r))
		look.Ranges = append(look.Ranges, outbox.Range{Part: all(r), To: 1 << 62, Limit: 10_000})
	}
	d, err := o.Due(ctx, self, look.Parts, q.n)
	if err != nil {
		return c, err
	}
	found := d.Retries
	p, err := o.Read(ctx, self, look)
	if err != nil {
		return c, err
	}
	for _, rs := range p.Ranges {
		for _, r := range rs.Records {
			if r.Holder == 0 {
				found = append(found, r)
			}
		}
	}
	slices.SortFunc(found, func(x, y outbox.Record) int { return cmp.Compare(x.Seq, y.Seq) })
	found = found[:min(len(found), q.n)]
	refs := make([]outbox.Ref, len(found))
	for i := range found {
		refs[i] = found[i].Ref
	}
	taken, err := o.Take(ctx, self, outbox.Want{Refs: refs})
	for i := range taken {
		if taken[i].Grip == outbox.Gripped {
			c.Records = append(c.Records, found[i])
		}
	}
	return c, err
}

func settle(tb testing.TB, o *owned.Outbox, outcomes ...outbox.Outcome) {
	tb.Helper()
	if err := o.Settle(tb.Context(), session(tb, o), outcomes).FirstErr(); err != nil {
		tb.Fatal(err)
	}
}
