package waybillmysql_test

// Settings of a server with which a store would stand still, or lose what it has promised, asked one by one.

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill"
	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
	"github.com/waybill-go/waybill/core"
)

// ownServer starts a server for one test, and returns it with a connection of its administrator.
func ownServer(t *testing.T, flags ...string) (*server, *sql.DB) {
	t.Helper()
	s, err := startServer(flags...)
	missing(t, err)
	t.Cleanup(func() { s.kill(); _ = os.RemoveAll(s.dir) })
	admin, err := sql.Open("mysql", s.dsn(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close() })
	return s, admin
}

// Connections that do not commit by themselves, or begin the next transaction at once, leave locks behind, so that
// nothing is ever read. Open sets them right, wherever they were set wrong; Check refuses them in a pool of the
// application.
func TestConnectionsThatKeepTransactions(t *testing.T) {
	t.Parallel()
	server, admin := ownServer(t, "--skip-log-bin")
	exec := func(text string) {
		t.Helper()
		if _, err := admin.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ global, params, back string }{
		{"SET GLOBAL autocommit = 0", "", "SET GLOBAL autocommit = 1"},
		{"SET GLOBAL completion_type = 1", "", "SET GLOBAL completion_type = 0"},
		{"SET GLOBAL completion_type = 2", "", "SET GLOBAL completion_type = 0"},
		{"DO 0", "?autocommit=0&binlog_format=STATEMENT", "DO 0"}, // the format of a log that is not there
		{"DO 0", "?completion_type=1", "DO 0"},
	} {
		dsn := newDatabase(t, server.dsn) + c.params
		exec(c.global)
		s := openAt(t, dsn, waybillmysql.Options{})
		if err := s.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Check(t.Context()); err != nil {
			t.Errorf("%s%s: the check after Open: %v", c.global, c.params, err)
		}
		if err := stage(t.Context(), s, []waybill.Message{waybill.RawMessage("t", "", nil)}); err != nil {
			t.Fatal(err)
		}
		self := core.Member{Session: 1, Name: "m", Heartbeats: 1, Routes: []core.ServedRoute{{Route: waybill.DefaultRoute, InitialPartitions: 1}}}
		partition := core.Partition{Route: waybill.DefaultRoute, To: core.NumSlots}
		if _, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: self, Join: true, Transfers: []core.Transfer{{Partition: partition, To: 1}}}); err != nil {
			t.Fatal(err)
		}
		part := core.RouteSlots{Route: waybill.DefaultRoute, Slots: core.AllSlots}
		for n := range 3 {
			page, err := s.Read(t.Context(), 1, core.ReadRequest{Slots: []core.RouteSlots{part}, Ranges: []core.Range{{RouteSlots: part, UpToSeq: 1 << 62}}})
			if err != nil || len(page.Ranges[0].Records) != 1 {
				t.Fatalf("%s%s: read %d: %v", c.global, c.params, n, err)
			}
		}
		var locked int // what another connection cannot lock
		if err := admin.QueryRowContext(t.Context(), `SELECT 256 - COUNT(*) FROM (SELECT g FROM `+database(t, dsn)+`.waybill_outbox_marks FOR UPDATE SKIP LOCKED) free`).Scan(&locked); err != nil || locked > 0 {
			t.Errorf("%s%s: %d rows stay locked, %v", c.global, c.params, locked, err)
		}
		pool, err := sql.Open("mysql", dsn)
		if err != nil {
			t.Fatal(err)
		}
		given, err := waybillmysql.New(pool, waybillmysql.Options{Source: "/test"})
		if err != nil {
			t.Fatal(err)
		}
		if err := given.Check(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "autocommit") {
			t.Errorf("%s%s: the check after New: %v", c.global, c.params, err)
		}
		_ = pool.Close()
		exec(c.back)
	}
}

func database(t *testing.T, dsn string) string {
	t.Helper()
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return c.DBName
}

// With a binary log of statements MySQL refuses most writes of a store. Check says so, and so does the class of the
// error; the other formats do.
func TestBinaryLog(t *testing.T) {
	t.Parallel()
	server, err := startServer("--log-bin=binlog", "--server-id=1", "--sync-binlog=1")
	missing(t, err)
	t.Cleanup(func() { server.kill(); _ = os.RemoveAll(server.dir) })
	dsn := newDatabase(t, server.dsn)
	if err := openAt(t, dsn, waybillmysql.Options{}).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for n, format := range []string{"ROW", "MIXED", "STATEMENT"} {
		s := openAt(t, fmt.Sprintf("%s?binlog_format=%s", dsn, format), waybillmysql.Options{})
		err := s.Check(t.Context())
		if format != "STATEMENT" && err != nil || format == "STATEMENT" && (!errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "binlog_format")) {
			t.Errorf("%s: the check: %v", format, err)
		}
		_, err = s.Heartbeat(t.Context(), core.HeartbeatRequest{Join: true, Self: core.Member{
			Session: core.Session(n + 1), Name: format, Heartbeats: 1, Routes: []core.ServedRoute{{Route: waybill.DefaultRoute, InitialPartitions: 1}},
		}})
		// MariaDB writes them to the log as they are, which is no better.
		if err != nil && (format != "STATEMENT" || !errors.Is(err, waybill.ErrMisconfigured)) || err == nil && format == "STATEMENT" && root != "" {
			t.Errorf("%s: a member joins: %v", format, err)
		}
	}
}

// DB-29: a server that answers a commit before its logs are on the disk forgets it when its machine stops. Check
// refuses that, unless it is allowed.
func TestUnsyncedLogs(t *testing.T) {
	t.Parallel()
	server, admin := ownServer(t, "--log-bin=binlog", "--server-id=1", "--sync-binlog=1", "--binlog-format=ROW")
	s := openAt(t, newDatabase(t, server.dsn), waybillmysql.Options{})
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	allowing := openAt(t, newDatabase(t, server.dsn), waybillmysql.Options{AllowUnsafeSettings: true})
	if err := allowing.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ set, back, refused string }{
		{"DO 0", "DO 0", ""},
		{"SET GLOBAL innodb_flush_log_at_trx_commit = 0", "SET GLOBAL innodb_flush_log_at_trx_commit = 1", "innodb_flush_log_at_trx_commit"},
		{"SET GLOBAL innodb_flush_log_at_trx_commit = 2", "SET GLOBAL innodb_flush_log_at_trx_commit = 1", "innodb_flush_log_at_trx_commit"},
		{"SET GLOBAL sync_binlog = 0", "SET GLOBAL sync_binlog = 1", "sync_binlog"},
		{"SET GLOBAL sync_binlog = 100", "SET GLOBAL sync_binlog = 1", "sync_binlog"},
	} {
		if _, err := admin.ExecContext(t.Context(), c.set); err != nil {
			t.Fatal(err)
		}
		err := s.Check(t.Context())
		if c.refused == "" && err != nil || c.refused != "" && (!errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), c.refused)) {
			t.Errorf("%s: %v", c.set, err)
		}
		if err := allowing.Check(t.Context()); err != nil {
			t.Errorf("%s, which is allowed: %v", c.set, err)
		}
		if _, err := admin.ExecContext(t.Context(), c.back); err != nil {
			t.Fatal(err)
		}
	}
}

// Messages that fit into a packet by themselves fit together, too: a batch is larger than the server's limit, and none
// of its messages is. Check refuses a server whose limit is below that of the store.
func TestPacketLimit(t *testing.T) {
	t.Parallel()
	server, _ := ownServer(t, "--skip-log-bin", "--max-allowed-packet=1M")
	dsn := newDatabase(t, server.dsn)
	for _, params := range []string{"", "?interpolateParams=true"} {
		s := openAt(t, dsn+params, waybillmysql.Options{})
		if err := s.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		batch := make([]waybill.Message, 30)
		for i := range batch {
			// A zero byte is two bytes when it is interpolated.
			batch[i] = waybill.RawMessage("t", "", bytes.Repeat([]byte{0}, 100<<10))
		}
		if err := stage(t.Context(), s, batch); err != nil {
			t.Errorf("%s: a batch whose messages fit: %v", params, err)
		}
		if err := s.Check(t.Context()); err != nil {
			t.Errorf("%s: the check: %v", params, err)
		}
		large := openAt(t, dsn+params, waybillmysql.Options{Limits: waybill.Limits{MaxMessageBytes: 1 << 20}})
		if err := large.Check(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "max_allowed_packet") {
			t.Errorf("%s: the check of a store for messages above the limit: %v", params, err)
		}
	}
}
