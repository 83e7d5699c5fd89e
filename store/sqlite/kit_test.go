package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/outboxtest"
	"github.com/waybill-go/waybill/internal/sharedtest"
)

func TestMain(m *testing.M) {
	if runChild() {
		return
	}
	goleak.VerifyTestMain(m)
}

// quiet is the logger of tests that look at no log.
var quiet = slog.New(slog.DiscardHandler)

// clock is a time that tests move.
type clock struct{ us atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.us.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixMicro())
	return c
}

func (c *clock) Now() time.Time          { return time.UnixMicro(c.us.Load()) }
func (c *clock) advance(d time.Duration) { c.us.Add(d.Microseconds()) }

func open(tb testing.TB, opts Options) *Store {
	tb.Helper()
	return openAt(tb, filepath.Join(tb.TempDir(), "test?100%.db"), opts)
}

func openAt(tb testing.TB, path string, opts Options) *Store {
	tb.Helper()
	if opts.Source == "" {
		opts.Source = "/test"
	}
	opts.AutoMigrate = true
	opts.Logger = cmp.Or(opts.Logger, quiet)
	s, err := Open(tb.Context(), path, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(context.WithoutCancel(tb.Context())); err != nil {
			tb.Error(err)
		}
	})
	return s
}

func raw(id, key string, opts ...waybill.MessageOption) waybill.Message {
	return waybill.RawMessage("orders.placed", "text/plain", []byte("body of "+id), append(opts, waybill.ID(id), waybill.Key(key))...)
}

func stage(tb testing.TB, s *Store, msgs ...waybill.Message) []waybill.Staged {
	tb.Helper()
	staged, err := tryStage(tb.Context(), s, msgs...)
	if err != nil {
		tb.Fatal(err)
	}
	return staged
}

func tryStage(ctx context.Context, s *Store, msgs ...waybill.Message) ([]waybill.Staged, error) {
	tx, err := s.DB().BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	staged, err := s.Stage(ctx, tx, msgs...)
	if err != nil {
		return nil, err
	}
	return staged, tx.Commit()
}

func run(tb testing.TB, db *sql.DB, text string, args ...any) {
	tb.Helper()
	if _, err := db.ExecContext(tb.Context(), text, args...); err != nil {
		tb.Fatal(err)
	}
}

func all(route string) core.RouteSlots { return core.RouteSlots{Route: route, Slots: core.AllSlots} }

func heartbeat(tb testing.TB, s *Store, m core.HeartbeatRequest) core.Membership {
	tb.Helper()
	r, err := s.Heartbeat(tb.Context(), m)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

var sessions atomic.Int64

// join makes a member that owns all of the routes.
func join(tb testing.TB, s *Store, routes ...string) core.Member {
	tb.Helper()
	m := core.Member{Session: core.Session(sessions.Add(1)), Name: "tester", Heartbeats: 1, Lease: 10 * time.Second, Capacity: 1, FreeCapacity: 1}
	for _, r := range routes {
		m.Routes = append(m.Routes, core.ServedRoute{Route: r, InitialPartitions: 2})
	}
	r := heartbeat(tb, s, core.HeartbeatRequest{Self: m, Join: true})
	var moves []core.Transfer
	for _, u := range r.Partitions {
		for _, route := range routes {
			if u.Partition.Route == route {
				moves = append(moves, core.Transfer{Partition: u.Partition, From: u.Owner, To: m.Session})
			}
		}
	}
	heartbeat(tb, s, core.HeartbeatRequest{Self: m, Transfers: moves})
	return m
}

// page reads a route from its beginning.
func page(tb testing.TB, s *Store, self core.Session, route string) core.ReadResult {
	tb.Helper()
	p, err := s.Read(tb.Context(), self, core.ReadRequest{
		Slots: []core.RouteSlots{all(route)}, NewlyOwned: []core.RouteSlots{all(route)}, BlockingRoutes: []string{route},
		Ranges: []core.Range{{RouteSlots: all(route), UpToSeq: 1 << 62}},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func read(tb testing.TB, s *Store, self core.Session, route string) []core.Record {
	tb.Helper()
	return page(tb, s, self, route).Ranges[0].Records
}

func get(tb testing.TB, s *Store, self core.Session, route, id string) *core.Record {
	tb.Helper()
	for _, r := range read(tb, s, self, route) {
		if r.ID == id {
			return &r
		}
	}
	tb.Fatalf("%s is not ready", id)
	return nil
}

func settle(tb testing.TB, s *Store, self core.Session, out ...core.Outcome) {
	tb.Helper()
	if err := s.Settle(tb.Context(), self, out).FirstErr(); err != nil {
		tb.Fatal(err)
	}
}

func ids(records []core.Record) string {
	var out strings.Builder
	for i := range records {
		out.WriteString(records[i].ID + " ")
	}
	return out.String()
}

// harness is the suite's harness around two stores on one file, as two processes have it.
type harness struct {
	store, second *Store
	dir           string
}

func (h *harness) Store() core.OutboxStore                          { return h.store }
func (h *harness) Reopen(context.Context) (core.OutboxStore, error) { return h.second, nil }
func (h *harness) SingleWriter() bool                               { return true }

func (h *harness) Begin(ctx context.Context) (outboxtest.Tx, error) { return h.begin(ctx) }

func (h *harness) begin(ctx context.Context) (*testTx, error) {
	tx, err := h.store.DB().BeginTx(ctx, nil)
	return &testTx{sharedtest.SQLTx{Tx: tx}, h.store}, err
}

func (h *harness) Records(ctx context.Context, route string) (out []outboxtest.Stored, err error) {
	rows, err := h.store.DB().QueryContext(ctx, h.store.sql(`SELECT id, state, attempts, crashes, coalesce(reason, ''), coalesce(error, '') FROM waybill_outbox WHERE route = ?`), route)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r outboxtest.Stored
		if err := rows.Scan(&r.ID, &r.State, &r.Attempts, &r.Crashes, &r.Reason, &r.LastError); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, rows.Err()
}

var saves atomic.Int64

// Save copies the file; the database goes back to the copy, and the epoch is raised.
func (h *harness) Save(ctx context.Context) (func(context.Context) error, error) {
	path := filepath.Join(h.dir, fmt.Sprintf("saved%d.db", saves.Add(1)))
	if _, err := h.store.DB().ExecContext(ctx, "VACUUM INTO ?", path); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		conn, err := h.store.DB().Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.ExecContext(ctx, "ATTACH ? AS saved", path); err != nil {
			return err
		}
		var text strings.Builder
		text.WriteString("BEGIN IMMEDIATE;")
		for _, t := range needed {
			name := h.store.opts.Prefix + t.table
			fmt.Fprintf(&text, "DELETE FROM %s; INSERT INTO %s SELECT * FROM saved.%s;", name, name, name)
		}
		text.WriteString("DELETE FROM sqlite_sequence; INSERT INTO sqlite_sequence SELECT * FROM saved.sqlite_sequence; UPDATE waybill_meta SET value = value + 1 WHERE name = 'epoch'; COMMIT")
		if _, err := conn.ExecContext(ctx, h.store.sql(text.String())); err != nil {
			return err
		}
		_, err = conn.ExecContext(ctx, "DETACH saved")
		return err
	}, nil
}

type testTx struct {
	sharedtest.SQLTx
	store *Store
}

func (t *testTx) Stage(ctx context.Context, rows ...core.StagedRow) error {
	_, err := t.store.StageRows(ctx, t.Tx, rows...)
	return err
}

// Redrive requeues one record, as Store.Redrive does, in the transaction.
func (t *testTx) Redrive(ctx context.Context, route, id string) error {
	w := &work{s: t.store, tx: t.Tx, now: t.store.now()}
	r, err := w.lookup(ctx, []any{new([]byte)}, inspectText, route, id)
	if err == nil && r == nil {
		err = admin.NoRecord("test", route, id)
	}
	if err != nil {
		return err
	}
	return w.requeue(ctx, new(pending), &r.row)
}

// Tell writes a notice, as DecideHead does.
func (t *testTx) Tell(ctx context.Context, c core.Notice) error {
	_, err := t.ExecContext(ctx, t.store.sql(`INSERT INTO waybill_outbox_notices (kind, route, slot, key, id, seq, reason) VALUES (?, ?, ?, ?, ?, ?, ?)`),
		int64(c.Kind), c.Route, int64(c.Slot), c.Key, c.ID, c.Seq, string(c.Reason))
	return err
}
