package postgres_test

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background))
}

func openPool(tb testing.TB, dsn string) *pgxpool.Pool {
	tb.Helper()
	return openPoolWith(tb, dsn, func(cfg *pgxpool.Config) { cfg.MaxConns = 24 })
}

func exec(tb testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	tb.Helper()
	if _, err := pool.Exec(tb.Context(), sql, args...); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
}

func query[T any](tb testing.TB, pool *pgxpool.Pool, sql string, args ...any) T {
	tb.Helper()
	var v T
	if err := pool.QueryRow(tb.Context(), sql, args...).Scan(&v); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return v
}

// row returns a row that is due at once.
func row(route, id, key string) core.StagedRow {
	return core.StagedRow{
		Route: route, Envelope: waybill.Envelope{
			ID: id, Topic: "t.x", Type: "t.x", Source: "/test", Key: key, ContentType: "text/plain", Time: time.Now().UTC().Truncate(time.Microsecond), Body: []byte("body " + id),
		},
	}
}

// stage commits rows in a transaction of their own.
func stageRows(tb testing.TB, pool *pgxpool.Pool, s *postgres.Outbox, rows ...core.StagedRow) {
	tb.Helper()
	err := pgx.BeginFunc(tb.Context(), pool, func(tx pgx.Tx) error { return s.StageRows(tb.Context(), tx, rows...) })
	if err != nil {
		tb.Fatal(err)
	}
}

func newSession() core.Session { return core.Session(rand.Int64N(1<<62) + 1) }

// join makes a member that owns all of route.
func join(tb testing.TB, s *postgres.Outbox, route string, partitions int) core.Session {
	tb.Helper()
	self := newSession()
	m := core.Member{Session: self, Name: "test", Heartbeats: 1, Lease: time.Hour, Routes: []core.ServedRoute{{Route: route, InitialPartitions: partitions}}, Capacity: 1, FreeCapacity: 1}
	r, err := s.Heartbeat(tb.Context(), core.HeartbeatRequest{Self: m, Join: true})
	if err != nil {
		tb.Fatal(err)
	}
	var moves []core.Transfer
	for _, u := range r.Partitions {
		if u.Partition.Route == route {
			moves = append(moves, core.Transfer{Partition: u.Partition, From: u.Owner, To: self})
		}
	}
	if _, err := s.Heartbeat(tb.Context(), core.HeartbeatRequest{Self: m, Transfers: moves}); err != nil {
		tb.Fatal(err)
	}
	return self
}

// partitionsOf returns the partitions of route.
func partitionsOf(tb testing.TB, o *postgres.Outbox, route string) []core.PartitionState {
	tb.Helper()
	r, err := o.Heartbeat(tb.Context(), core.HeartbeatRequest{})
	if err != nil {
		tb.Fatal(err)
	}
	return slices.DeleteFunc(r.Partitions, func(u core.PartitionState) bool { return u.Partition.Route != route })
}

func all(route string) core.RouteSlots { return core.RouteSlots{Route: route, Slots: core.AllSlots} }

// read reads a route from its beginning.
func read(tb testing.TB, s *postgres.Outbox, self core.Session, route string) core.ReadResult {
	tb.Helper()
	p, err := s.Read(tb.Context(), self, core.ReadRequest{Slots: []core.RouteSlots{all(route)}, Ranges: []core.Range{{RouteSlots: all(route), UpToSeq: 1 << 62, Limit: 10_000}}})
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func settleBy(tb testing.TB, s *postgres.Outbox, self core.Session, outcomes ...core.Outcome) core.Results {
	tb.Helper()
	return s.Settle(tb.Context(), self, outcomes)
}

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
func newOutbox(tb testing.TB, opts postgres.Options) (*postgres.Outbox, *pgxpool.Pool) {
	tb.Helper()
	pool := newPool(tb)
	return outboxOn(tb, pool, opts), pool
}

func outboxOn(tb testing.TB, pool *pgxpool.Pool, opts postgres.Options) *postgres.Outbox {
	tb.Helper()
	if opts.Source == "" {
		opts.Source = "/test"
	}
	o, err := postgres.NewOutbox(pool, opts)
	if err != nil {
		tb.Fatal(err)
	}
	return started(tb, o)
}

// started migrates o, and closes it at the end of the test.
func started(tb testing.TB, o *postgres.Outbox) *postgres.Outbox {
	tb.Helper()
	if err := o.Migrate(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = o.Close(context.Background()) })
	return o
}

// stage commits msgs in a transaction of their own.
func stage(tb testing.TB, pool *pgxpool.Pool, o *postgres.Outbox, msgs ...waybill.Message) []waybill.Staged {
	tb.Helper()
	var staged []waybill.Staged
	err := pgx.BeginFunc(tb.Context(), pool, func(tx pgx.Tx) (err error) {
		staged, err = o.Stage(tb.Context(), tx, msgs...)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return staged
}

func message(opts ...waybill.MessageOption) waybill.Message {
	return waybill.RawMessage("t.x", "text/plain", []byte("body"), opts...)
}

func queryInt(tb testing.TB, pool *pgxpool.Pool, sql string, args ...any) int64 {
	tb.Helper()
	return query[int64](tb, pool, sql, args...)
}

// request is what a holdNext asks for.
type request struct {
	n      int
	routes []string
}

// want asks for n records of the default route.
func want(n int) request { return request{n, []string{waybill.DefaultRoute}} }

// held is the answer to a holdNext.
type held struct{ Records []core.Record }

// sessions are those of holdNext, by outbox.
var sessions sync.Map

// session returns the session of o that owns all of routes.
func session(tb testing.TB, o *postgres.Outbox, routes ...string) core.Session {
	tb.Helper()
	s, _ := sessions.LoadOrStore(o, newSession())
	self := s.(core.Session)
	r, err := o.Heartbeat(tb.Context(), core.HeartbeatRequest{})
	if err != nil {
		tb.Fatal(err)
	}
	m := core.Member{Session: self, Name: "test", Heartbeats: 1, Lease: time.Hour, Capacity: 1, FreeCapacity: 1}
	known := false
	for _, v := range r.Members {
		if v.Session == self {
			known, m.Routes, m.Heartbeats = true, v.Routes, v.Heartbeats+1
		}
	}
	for _, route := range routes {
		if !slices.ContainsFunc(m.Routes, func(sv core.ServedRoute) bool { return sv.Route == route }) {
			m.Routes, known = append(m.Routes, core.ServedRoute{Route: route, InitialPartitions: 1}), false
		}
	}
	if known {
		return self
	}
	if r, err = o.Heartbeat(tb.Context(), core.HeartbeatRequest{Self: m, Join: true}); err != nil {
		tb.Fatal(err)
	}
	var moves []core.Transfer
	for _, u := range r.Partitions {
		if u.Owner == 0 && slices.Contains(routes, u.Partition.Route) {
			moves = append(moves, core.Transfer{Partition: u.Partition, To: self})
		}
	}
	if _, err := o.Heartbeat(tb.Context(), core.HeartbeatRequest{Self: m, Transfers: moves}); err != nil {
		tb.Fatal(err)
	}
	return self
}

// holdNext hands out up to n records that are due, retries first, as one member that owns everything: it holds them.
func holdNext(tb testing.TB, o *postgres.Outbox, q request) held {
	tb.Helper()
	c, err := tryHoldNext(tb.Context(), o, session(tb, o, q.routes...), q)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func tryHoldNext(ctx context.Context, o *postgres.Outbox, self core.Session, q request) (c held, err error) {
	request := core.ReadRequest{BlockingLimit: 1000}
	for _, r := range q.routes {
		request.Slots = append(request.Slots, all(r))
		request.Ranges = append(request.Ranges, core.Range{RouteSlots: all(r), UpToSeq: 1 << 62, Limit: 10_000})
	}
	d, err := o.Due(ctx, self, request.Slots, q.n)
	if err != nil {
		return c, err
	}
	found := d.Retries
	p, err := o.Read(ctx, self, request)
	if err != nil {
		return c, err
	}
	for _, rs := range p.Ranges {
		for _, r := range rs.Records {
			if r.HeldBy == 0 {
				found = append(found, r)
			}
		}
	}
	slices.SortFunc(found, func(x, y core.Record) int { return cmp.Compare(x.Seq, y.Seq) })
	found = found[:min(len(found), q.n)]
	refs := make([]core.Ref, len(found))
	for i := range found {
		refs[i] = found[i].Ref
	}
	taken, err := o.Hold(ctx, self, core.HoldRequest{Refs: refs})
	for i := range taken {
		if taken[i].Status == core.HoldGranted {
			c.Records = append(c.Records, found[i])
		}
	}
	return c, err
}

func settle(tb testing.TB, o *postgres.Outbox, outcomes ...core.Outcome) {
	tb.Helper()
	if err := o.Settle(tb.Context(), session(tb, o), outcomes).FirstErr(); err != nil {
		tb.Fatal(err)
	}
}
