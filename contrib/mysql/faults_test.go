package waybillmysql_test

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybill-go/waybill"
	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
)

// DB-26: what each error of the server and of the driver means.
func TestErrorClasses(t *testing.T) {
	t.Parallel()
	for class, numbers := range map[string][]uint16{
		"again":         {1020, 1213, 1412, 1614, 3101},
		"outage":        {1021, 1037, 1038, 1040, 1041, 1047, 1053, 1114, 1129, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1205, 1226, 1290, 1317, 1836, 1927, 1969, 2006, 2013, 3024, 3100, 3572, 4031},
		"misconfigured": {1044, 1045, 1046, 1049, 1054, 1064, 1130, 1142, 1143, 1146, 1176, 1227, 1251, 1370, 1665, 1698, 1820, 1862},
		"too large":     {1118, 1153, 1301, 1406, 3140},
		"rejected":      {1062},
		"unknown":       {1048, 1264, 1452, 1644},
	} {
		for _, n := range numbers {
			checkClass(t, class, &mysql.MySQLError{Number: n, Message: "says the server"})
		}
	}
	for class, errs := range map[string][]error{
		"outage": {
			context.Canceled, context.DeadlineExceeded, driver.ErrBadConn, mysql.ErrInvalidConn, mysql.ErrMalformPkt, sql.ErrConnDone, io.EOF,
			io.ErrUnexpectedEOF, &net.OpError{Op: "dial", Err: errors.New("refused")},
		},
		"too large": {mysql.ErrPktTooLarge},
		"unknown":   {sql.ErrTxDone, errors.New("some other")},
	} {
		for _, err := range errs {
			checkClass(t, class, err)
		}
	}
	if err := waybillmysql.Classify("test", nil); err != nil {
		t.Errorf("no error became %v", err)
	}
	fenced := core.NewFencedError("test", 1)
	if got := waybillmysql.Classify("test", fenced); !errors.Is(got, core.ErrFenced) || waybill.ClassOf(got) != waybill.ClassRejected {
		t.Errorf("an error with a class became %v", got)
	}
}

func checkClass(t *testing.T, class string, cause error) {
	t.Helper()
	err := waybillmysql.Classify("test", fmt.Errorf("around it: %w", cause))
	got := waybill.ClassOf(err).String()
	switch {
	case errors.Is(err, waybill.ErrRetryTx) && got == "outage":
		got = "again"
	case errors.Is(err, waybill.ErrMisconfigured) && got == "outage":
		got = "misconfigured"
	case got == "permanent" && waybill.ReasonOf(err) == waybill.ReasonTooLarge:
		got = "too large"
	}
	if got != class || !errors.Is(err, cause) {
		t.Errorf("%v: %q, want %q, and the cause must be reached: %v", cause, got, class, err)
	}
}

// lose makes the server end tx by a deadlock, which it returns.
func lose(ctx context.Context, db *sql.DB, tx *sql.Tx) error {
	other, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer other.Rollback()
	step := func(tx *sql.Tx, text string) error { _, err := tx.ExecContext(ctx, text); return err }
	if err := errors.Join(step(tx, `UPDATE locks SET v = v + 1 WHERE n = 1`), step(other, `UPDATE locks SET v = v + 1 WHERE n > 1`)); err != nil {
		return err
	}
	waiting := make(chan error, 1)
	go func() { waiting <- step(other, `UPDATE locks SET v = v + 1 WHERE n = 1`) }()
	err = step(tx, `UPDATE locks SET v = v + 1 WHERE n = 2`)
	if err == nil { // the other one lost
		err = errors.New("the server ended the other transaction")
	}
	if e := <-waiting; e != nil && number(err) != 1213 {
		err = errors.Join(err, e)
	}
	return err
}

func number(err error) uint16 {
	if me := new(mysql.MySQLError); errors.As(err, &me) {
		return me.Number
	}
	return 0
}

// After a deadlock the server has rolled everything back, and commits what is written then by itself. A handler that
// swallows the deadlock and writes on must have no effect without a mark. DB-26.
func TestSwallowedDeadlock(t *testing.T) {
	t.Parallel()
	h := newInboxHarness(t)
	db := h.store.DB()
	for _, text := range []string{`CREATE TABLE locks (n INT PRIMARY KEY, v INT) ENGINE = InnoDB`} {
		if _, err := db.Exec(text); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 100 { // the server ends the transaction that has changed less
		if _, err := db.Exec(`INSERT INTO locks VALUES (?, 0)`, n+1); err != nil {
			t.Fatal(err)
		}
	}
	key := core.InboxKey{Consumer: "c", Source: "/s", ID: "1"}
	runs := 0
	status, err := h.store.Do(t.Context(), key, func(ctx context.Context, tx *sql.Tx) error {
		if runs++; runs > 2 {
			return h.Effect(ctx, tx, "third")
		}
		if err := h.Effect(ctx, tx, "before"); err != nil {
			return err
		}
		if err := lose(ctx, db, tx); number(err) != 1213 {
			t.Errorf("no deadlock: %v", err)
		}
		return h.Effect(ctx, tx, "after")
	})
	if status != core.InboxNew || err != nil || runs != 3 {
		t.Errorf("a handler that swallowed two deadlocks: %s, %v, after %d runs", status, err, runs)
	}
	for name, want := range map[string]int{"before": 0, "after": 0, "third": 1} {
		if n, err := h.Effects(t.Context(), name); n != want || err != nil {
			t.Errorf("%d effects %q, %v; want %d", n, name, err, want)
		}
	}
	// The connections that did that commit by themselves again.
	for range 20 {
		var on int
		if err := db.QueryRow(`SELECT @@autocommit`).Scan(&on); err != nil || on != 1 {
			t.Fatalf("autocommit is %d, %v", on, err)
		}
	}
}

// login returns a store of a login with these privileges in the database of s.
func login(t *testing.T, s *waybillmysql.Store, name, grants string) *waybillmysql.Store {
	t.Helper()
	var database string
	if err := s.DB().QueryRow(`SELECT DATABASE()`).Scan(&database); err != nil {
		t.Fatal(err)
	}
	cfg, err := mysql.ParseDSN(dsnOf(t, database))
	if err != nil {
		t.Fatal(err)
	}
	user := name + "_" + database
	for _, text := range append([]string{"CREATE USER '" + user + "'@'%'"}, strings.Split(grants, ";\n")...) {
		text = strings.NewReplacer("shop.", database+".", "'service'", "'"+user+"'").Replace(strings.TrimSpace(text))
		if text == "" {
			continue
		}
		if _, err := s.DB().Exec(strings.TrimSuffix(text, ";")); err != nil {
			t.Fatal(text, err)
		}
	}
	t.Cleanup(func() {
		if _, err := s.DB().Exec("DROP USER '" + user + "'@'%'"); err != nil {
			t.Error(err)
		}
	})
	cfg.User, cfg.Passwd = user, ""
	return openAt(t, cfg.FormatDSN(), waybillmysql.Options{})
}

// DB-26: a login with the privileges of doc.go can do everything, and one without a privilege learns what to do.
func TestGrants(t *testing.T) {
	t.Parallel()
	s := open(t, waybillmysql.Options{})
	login := func(name, grants string) *waybillmysql.Store {
		t.Helper()
		return login(t, s, name, grants)
	}
	producer, all := login("p", waybillmysql.ProducerGrants), login("r", waybillmysql.ServiceGrants)
	if err := all.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	msgs := []waybill.Message{
		waybill.RawMessage("t", "", nil), waybill.RawMessage("t", "", nil, waybill.ID("1")),
		waybill.RawMessage("t", "", nil, waybill.ID("1")), waybill.RawMessage("t", "", nil, waybill.Key("k"), waybill.Replace("d")),
	}
	for range 2 {
		if err := stage(t.Context(), producer, msgs); err != nil {
			t.Fatal(err)
		}
	}
	tx, err := producer.DB().Begin()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := producer.Cancel(t.Context(), tx, waybill.CancelKey{Topic: "t", DedupeKey: "d"}); err != nil || got[0] != waybill.CancelDone {
		t.Error(got, err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	self := core.Member{Session: 1, Name: "m", Heartbeats: 1, Routes: []core.ServedRoute{{Route: waybill.DefaultRoute, InitialPartitions: 1}}}
	partition := core.Partition{Route: waybill.DefaultRoute, To: core.NumSlots}
	if _, err := all.Heartbeat(t.Context(), core.HeartbeatRequest{Self: self, Join: true, Transfers: []core.Transfer{{Partition: partition, To: 1}}}); err != nil {
		t.Fatal(err)
	}
	part := core.RouteSlots{Route: waybill.DefaultRoute, Slots: core.AllSlots}
	page, err := all.Read(t.Context(), 1, core.ReadRequest{Slots: []core.RouteSlots{part}, Ranges: []core.Range{{RouteSlots: part, UpToSeq: 1 << 62}}})
	if err != nil || len(page.Ranges[0].Records) != 3 {
		t.Fatal(len(page.Ranges), err)
	}
	rs := page.Ranges[0].Records
	if err := all.Settle(t.Context(), 1, []core.Outcome{core.Published(&rs[0]), core.Retry(&rs[1], nil, 0)}).FirstErr(); err != nil {
		t.Error(err)
	}
	if _, err := all.Due(t.Context(), 1, []core.RouteSlots{part}, 10); err != nil {
		t.Error(err)
	}
	if _, err := all.Clean(t.Context(), "m", core.MinCleanLease); err != nil {
		t.Error(err)
	}
	if _, err := all.Do(t.Context(), core.InboxKey{Consumer: "c", Source: "s", ID: "i"}, func(context.Context, *sql.Tx) error { return nil }); err != nil {
		t.Error(err)
	}
	if err := producer.Check(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("the check of a login that may not relay: %v", err)
	}
	if err := all.Migrate(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("a login that may not create tables migrates: %v", err)
	}
}

// DB-07 DB-26: Check finds everything that is missing, and names the cure.
func TestCheck(t *testing.T) {
	t.Parallel()
	s := openAt(t, newDatabase(t, func(database string) string { return dsnOf(t, database) }), waybillmysql.Options{})
	expect := func(when string) {
		t.Helper()
		if err := s.Check(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "Migrate") {
			t.Errorf("%s: %v", when, err)
		}
	}
	expect("without tables")
	for range 2 {
		if err := s.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{
		`ALTER TABLE waybill_outbox_partitions DROP COLUMN term`, `ALTER TABLE waybill_outbox_partitions ADD COLUMN term BIGINT`,
		`UPDATE waybill_meta SET value = 2 WHERE name = 'version'`,
	} {
		if _, err := s.DB().Exec(text); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text, "ADD") {
			expect(text)
		}
	}
	dsn := newDatabase(t, func(database string) string { return dsnOf(t, database) }) + "?auto_increment_increment=2"
	if err := openAt(t, dsn, waybillmysql.Options{}).Check(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) ||
		!strings.Contains(err.Error(), "auto_increment_increment") {
		t.Errorf("as with several primaries: %v", err)
	}
	for version, want := range map[string]bool{
		"10.11.19-MariaDB-0+deb12u1": true, "10.6.0-MariaDB": true, "10.5.9-MariaDB": false, "5.5.5-10.6.3-MariaDB": true, "11.4.2-MariaDB": true,
		"8.0.36": true, "8.0.0": false, "5.7.44-log": false, "8.4.0": true, "9.1.0": true, "8.0.13-cluster": true, "8.0.12": false, "": false,
	} {
		if got := waybillmysql.Recent(version); got != want {
			t.Errorf("version %q is recent: %v", version, got)
		}
	}
}

// cutConn is a connection that fails, as all of its kind, when left writes were made.
type cutConn struct {
	net.Conn
	left *atomic.Int64
}

func (c cutConn) Write(b []byte) (int, error) {
	if c.left.Add(-1) < 0 {
		return 0, errors.Join(net.ErrClosed, c.Close())
	}
	return c.Conn.Write(b)
}

// A server that goes away in the middle of a check is an outage, in each of its statements: a relay waits for it, and
// must not end as misconfigured. DB-26.
func TestCheckOfALostServer(t *testing.T) {
	t.Parallel()
	var left atomic.Int64
	mysql.RegisterDialContext("cut", func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		return cutConn{conn, &left}, err
	})
	dsn := newDatabase(t, func(database string) string { return dsnOf(t, database) })
	if err := openAt(t, dsn, waybillmysql.Options{}).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for n := range int64(100) {
		left.Store(n)
		s := openAt(t, strings.Replace(dsn, "@tcp(", "@cut(", 1), waybillmysql.Options{})
		err := s.Check(t.Context())
		if err == nil && n > 5 {
			return
		}
		if waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrMisconfigured) {
			t.Errorf("lost after %d packets: %v", n, err)
		}
	}
	t.Error("no check came to its end")
}

// DB-26: options and data source names are checked, and no password is shown.
func TestOpenChecksItsInput(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{"", "root:secret@tcp(h:1)/", "root:secret@bad(h", "root:secret"} {
		_, err := waybillmysql.Open(dsn, waybillmysql.Options{Source: "/test"})
		if !errors.Is(err, waybill.ErrInvalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", dsn, err)
		}
	}
	if _, err := waybillmysql.Open("root@tcp(h:1)/d", waybillmysql.Options{}); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("no source: %v", err)
	}
	if _, err := waybillmysql.New(nil, waybillmysql.Options{Source: "/test"}); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("no database: %v", err)
	}
	s := openAt(t, "root@tcp(127.0.0.1:1)/d", waybillmysql.Options{})
	if err := s.Check(t.Context()); waybill.ClassOf(err) != waybill.ClassOutage || errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("nobody answers: %v", err)
	}
	_, err1 := s.Stage(t.Context(), nil, waybill.RawMessage("t", "", nil))
	_, err2 := s.Cancel(t.Context(), nil)
	_, err3 := s.Mark(t.Context(), nil, core.InboxKey{Consumer: "c", Source: "s", ID: "i"})
	for _, err := range []error{err1, err2, err3} {
		if !errors.Is(err, waybill.ErrInvalid) {
			t.Errorf("no transaction: %v", err)
		}
	}
}

// A process that freezes in the middle of a Heartbeat keeps its locks only until the server ends its connection. DB-26.
func TestFrozenHeartbeat(t *testing.T) {
	t.Parallel()
	s := open(t, waybillmysql.Options{})
	tx, err := s.Own().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	var n int
	if err := tx.QueryRow(`SELECT 1 FROM waybill_meta WHERE name = 'heartbeat' FOR UPDATE`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	self := core.Member{Session: 1, Name: "m", Heartbeats: 1, Routes: []core.ServedRoute{{Route: waybill.DefaultRoute, InitialPartitions: 1}}}
	refused := 0
	patience.Until(t, "the member has joined", func() bool {
		got, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: self, Join: true})
		if err != nil {
			if refused++; waybill.ClassOf(err) != waybill.ClassOutage {
				t.Fatal(err)
			}
		}
		return got.IsMember
	})
	if refused == 0 {
		t.Error("nothing was locked")
	}
}

// DB-26: a settle neither waits for a neighbour that a transaction has locked, nor fails because of it. The server
// locks the row behind a range, too.
func TestSettleBesideALockedRecord(t *testing.T) {
	t.Parallel()
	const n = 1200 // more than the server takes as a list
	s, sent := counted(t)
	msgs := make([]waybill.Message, n)
	for i := range msgs {
		msgs[i] = waybill.RawMessage("t", "", nil)
	}
	if err := stage(t.Context(), s, msgs); err != nil {
		t.Fatal(err)
	}
	self := core.Member{Session: 1, Name: "m", Heartbeats: 1, Routes: []core.ServedRoute{{Route: waybill.DefaultRoute, InitialPartitions: 1}}}
	partition := core.Partition{Route: waybill.DefaultRoute, To: core.NumSlots}
	if _, err := s.Heartbeat(t.Context(), core.HeartbeatRequest{Self: self, Join: true, Transfers: []core.Transfer{{Partition: partition, To: 1}}}); err != nil {
		t.Fatal(err)
	}
	part := core.RouteSlots{Route: waybill.DefaultRoute, Slots: core.AllSlots}
	page, err := s.Read(t.Context(), 1, core.ReadRequest{Slots: []core.RouteSlots{part}, Ranges: []core.Range{{RouteSlots: part, UpToSeq: 1 << 62, Limit: n}}})
	if err != nil || len(page.Ranges[0].Records) != n {
		t.Fatal(page, err)
	}
	rs := page.Ranges[0].Records
	// Some of them stand aside.
	if _, err := s.Hold(t.Context(), 1, core.HoldRequest{Refs: []core.Ref{rs[1].Ref, rs[20].Ref, rs[n-1].Ref}}); err != nil {
		t.Fatal(err)
	}
	tx, err := s.DB().Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	for _, table := range [...]string{"waybill_outbox", "waybill_outbox_aside"} {
		var seq int64
		if err := tx.QueryRow(`SELECT seq FROM `+table+` WHERE seq = ? FOR UPDATE`, rs[n-1].Seq).Scan(&seq); err != nil {
			t.Fatal(err)
		}
	}
	var outcomes [2][]core.Outcome
	for i := range n - 1 {
		if i < 10 || i > 1100 { // with the neighbour of the one that is locked
			outcomes[0] = append(outcomes[0], core.Published(&rs[i]))
		} else {
			outcomes[1] = append(outcomes[1], core.Published(&rs[i]))
		}
	}
	outcomes[0][0] = core.Retry(&rs[0], nil, 0) // so that the records are looked at first
	for i, os := range outcomes {
		before := sent.Load()
		err := s.Settle(t.Context(), 1, os).FirstErr()
		if n := sent.Load() - before; err != nil || n > int64(2-i) {
			t.Errorf("%d round trips, want at most %d, %v", n, 2-i, err)
		}
	}
	var left int
	if err := s.DB().QueryRow(`SELECT COUNT(*) FROM waybill_outbox`).Scan(&left); err != nil || left != 2 {
		t.Errorf("%d records are left, %v; want the one to try again and the one that is locked", left, err)
	}
}

// A Hold locks the records that it takes, and no others that it finds: members of other slots and stagers need them.
func TestHoldLocksWhatItTakes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		want    func(seqs []int64) core.HoldRequest
		skipped int // of the other four
	}{
		"the limit": {func([]int64) core.HoldRequest { return core.HoldRequest{KeylessLimit: 2} }, 0},
		"bytes":     {func([]int64) core.HoldRequest { return core.HoldRequest{KeylessLimit: 5, Bytes: 25} }, 4},
		"bytes, with one beside the range": {func(seqs []int64) core.HoldRequest {
			return core.HoldRequest{KeylessLimit: 3, Bytes: 25, AfterSeq: seqs[2], ExtraSeqs: seqs[:1]}
		}, 2},
		"the limit, with one beside the range": {func(seqs []int64) core.HoldRequest {
			return core.HoldRequest{KeylessLimit: 2, AfterSeq: seqs[2], ExtraSeqs: seqs[:1]}
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			holdLocks(t, c.want, c.skipped)
		})
	}
}

func holdLocks(t *testing.T, request func(seqs []int64) core.HoldRequest, wantSkipped int) {
	t.Helper()
	s := open(t, waybillmysql.Options{})
	msgs := make([]waybill.Message, 6)
	for i := range msgs {
		msgs[i] = waybill.RawMessage("t", "", make([]byte, 10))
	}
	if err := stage(t.Context(), s, msgs); err != nil {
		t.Fatal(err)
	}
	const self = core.Session(1)
	var seqs []int64
	for _, r := range ownAll(t, s, self) {
		seqs = append(seqs, r.Seq)
	}
	want := request(seqs)
	want.KeylessSlots, want.UpToSeq, want.SkippedLimit = core.RouteSlots{Route: waybill.DefaultRoute, Slots: core.AllSlots}, 1<<40, 4
	gate, err := s.DB().Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close()
	count := func(text string) (n int) {
		t.Helper()
		if err := gate.QueryRowContext(t.Context(), text).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	// The Hold waits where it writes: it has all its locks then.
	if count(`SELECT GET_LOCK(DATABASE(), 0)`) != 1 {
		t.Fatal("somebody has the lock")
	}
	if _, err := s.DB().Exec(`CREATE TRIGGER gate BEFORE UPDATE ON waybill_outbox FOR EACH ROW DO GET_LOCK(DATABASE(), 600)`); err != nil {
		t.Fatal(err)
	}
	var got []core.HoldResult
	held := make(chan error, 1)
	go func() {
		var err error
		got, err = s.Hold(t.Context(), self, want)
		held <- err
	}()
	patience.Until(t, "the Hold writes", func() bool {
		return count(`SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND STATE = 'User lock'`) > 0
	})
	if n := count(`SELECT COUNT(*) FROM (SELECT seq FROM waybill_outbox FORCE INDEX (PRIMARY) FOR UPDATE SKIP LOCKED) free`); n != 4 {
		t.Errorf("%d of six records are free beside a Hold of two, want 4", n)
	}
	count(`SELECT RELEASE_LOCK(DATABASE())`)
	if err := <-held; err != nil {
		t.Fatal(err)
	}
	var taken, skipped int
	for _, r := range got {
		if r.Status == core.HoldGranted {
			taken++
		} else {
			skipped++
		}
	}
	if taken != 2 || skipped != wantSkipped {
		t.Errorf("%d records were taken and %d not, want 2 and %d", taken, skipped, wantSkipped)
	}
}

// An outcome that the database refuses fails alone, and the others are stored once.
func TestRefusedOutcomeFailsAlone(t *testing.T) {
	t.Parallel()
	s := open(t, waybillmysql.Options{})
	if err := stage(t.Context(), s, rawMessages("a", "refused", "b", "published", "abandoned")); err != nil {
		t.Fatal(err)
	}
	const self = core.Session(1)
	records := ownAll(t, s, self)
	if _, err := s.DB().Exec(`CREATE TRIGGER refuse BEFORE UPDATE ON waybill_outbox FOR EACH ROW
		IF NEW.id = 'refused' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused here'; END IF`); err != nil {
		t.Fatal(err)
	}
	outcomes := make([]core.Outcome, len(records))
	for i := range records {
		switch r := &records[i]; r.ID {
		case "published":
			outcomes[i] = core.Published(r)
		case "abandoned":
			outcomes[i] = core.Abandon(r, waybill.ReasonRejected, errors.New("never"))
		default:
			outcomes[i] = core.Retry(r, errors.New("no"), time.Hour)
		}
	}
	for i, err := range s.Settle(t.Context(), self, outcomes) {
		if id := records[i].ID; (err != nil) != (id == "refused") || err != nil && !strings.Contains(err.Error(), "refused here") {
			t.Errorf("%s: %v", id, err)
		}
	}
	rows, err := s.DB().Query(`SELECT id, attempts, version FROM waybill_outbox`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	now := map[string][2]int64{}
	for rows.Next() {
		var id string
		var at [2]int64
		if err := rows.Scan(&id, &at[0], &at[1]); err != nil {
			t.Fatal(err)
		}
		now[id] = at
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	for i := range records {
		r := &records[i]
		at, there := now[r.ID]
		want := [2]int64{int64(r.Attempts) + 1, r.Version + 1}
		switch r.ID {
		case "refused":
			want = [2]int64{int64(r.Attempts), r.Version}
		case "published":
			want = [2]int64{}
		}
		if at != want || there == (r.ID == "published") {
			t.Errorf("%s has %d attempts and version %d, want %v", r.ID, at[0], at[1], want)
		}
	}
}

func rawMessages(ids ...string) (out []waybill.Message) {
	for _, id := range ids {
		out = append(out, waybill.RawMessage("t", "", nil, waybill.ID(id)))
	}
	return out
}

// Published records are settled in one round trip, which leaves nothing behind if a part of it fails. Then they are
// settled one by one, and so is each of them.
func TestSettleAtOnceIsWholeOrNothing(t *testing.T) {
	t.Parallel()
	const refuse = `CREATE TRIGGER refuse BEFORE %s FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused here'`
	for name, c := range map[string]struct {
		trigger     string
		trips       int64
		left, aside int // of five records, three of which are held
	}{
		"all is well":                 {"", 1, 0, 0},
		"no row aside can be deleted": {fmt.Sprintf(refuse, "DELETE ON waybill_outbox_aside"), 1000, 3, 3},
		"no mark can be written":      {fmt.Sprintf(refuse, "INSERT ON waybill_meta"), 1000, 5, 3},
		"the first try is a deadlock": { // the try, its end, and another one
			`CREATE TRIGGER refuse BEFORE DELETE ON waybill_outbox FOR EACH ROW
			IF @tried IS NULL THEN SET @tried = 1; SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213; END IF`, 3, 0, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, sent := counted(t)
			if err := stage(t.Context(), s, rawMessages("1", "2", "3", "4", "5")); err != nil {
				t.Fatal(err)
			}
			const self = core.Session(1)
			records := ownAll(t, s, self)
			refs, outcomes := make([]core.Ref, len(records)), make([]core.Outcome, len(records))
			for i := range records {
				refs[i], outcomes[i] = records[i].Ref, core.Published(&records[i])
			}
			if _, err := s.Hold(t.Context(), self, core.HoldRequest{Refs: refs[:3]}); err != nil {
				t.Fatal(err)
			}
			if c.trigger != "" {
				if _, err := s.DB().Exec(c.trigger); err != nil {
					t.Fatal(err)
				}
			}
			before, failed := sent.Load(), 0
			for _, err := range s.Settle(t.Context(), self, outcomes) {
				if err != nil {
					failed++
				}
			}
			if n := sent.Load() - before; failed != c.left || n > c.trips {
				t.Errorf("%d outcomes failed, in %d round trips, want %d in at most %d", failed, n, c.left, c.trips)
			}
			for table, want := range map[string]int{"waybill_outbox": c.left, "waybill_outbox_aside WHERE seq > 0": c.aside} {
				var n int
				if err := s.DB().QueryRow(`SELECT COUNT(*) FROM ` + table).Scan(&n); err != nil || n != want {
					t.Errorf("%d rows are left in %s, want %d, %v", n, table, want, err)
				}
			}
		})
	}
}

// heardConn tells of each write before it is made.
type heardConn struct {
	net.Conn
	tell func(text []byte)
}

func (c heardConn) Write(b []byte) (int, error) {
	c.tell(b)
	return c.Conn.Write(b)
}

// A Due takes the records in another transaction than it finds them in, and looks at them again there: a record can
// have changed meanwhile, and the member can have lost the partition.
func TestDueLooksAgain(t *testing.T) {
	t.Parallel()
	var meanwhile func()
	network := "heard" + strconv.FormatInt(networks.Add(1), 10)
	mysql.RegisterDialContext(network, func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		return heardConn{conn, func(text []byte) {
			if meanwhile != nil && bytes.Contains(text, []byte("SKIP LOCKED")) {
				meanwhile()
			}
		}}, err
	})
	t.Cleanup(func() { mysql.DeregisterDialContext(network) })
	dsn := newDatabase(t, func(database string) string { return dsnOf(t, database) })
	s, other := openAt(t, strings.Replace(dsn, "@tcp(", "@"+network+"(", 1), waybillmysql.Options{}), openAt(t, dsn, waybillmysql.Options{})
	if err := other.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	const self, successor = core.Session(1), core.Session(2)
	if err := stage(t.Context(), other, rawMessages("1", "2")); err != nil {
		t.Fatal(err)
	}
	var failed []core.Outcome
	for _, r := range ownAll(t, other, self) {
		failed = append(failed, core.Retry(&r, errors.New("no"), time.Microsecond))
	}
	timers := rawMessages("3", "4")
	for i := range timers {
		timers[i] = waybill.RawMessage("t", "", nil, waybill.ID(timers[i].ID), waybill.Delay(time.Microsecond))
	}
	if err := errors.Join(other.Settle(t.Context(), self, failed).FirstErr(), stage(t.Context(), other, timers)); err != nil {
		t.Fatal(err)
	}
	due := func(first func()) (got core.DueResult) {
		t.Helper()
		ran := false
		meanwhile = func() { meanwhile, ran = nil, true; first() }
		got, err := s.Due(t.Context(), self, []core.RouteSlots{{Route: waybill.DefaultRoute, Slots: core.AllSlots}}, 10)
		if err != nil || !ran {
			t.Fatalf("the Due was not met between its look and its locks: %v", err)
		}
		return got
	}
	got := due(func() {
		if _, err := other.DB().Exec(`UPDATE waybill_outbox SET version = version + 1 WHERE id IN ('1', '3')`); err != nil {
			t.Error(err)
		}
	})
	if len(got.Retries) != 1 || got.Retries[0].ID != "2" || got.TimersReady != 1 || got.NextIn != 0 {
		t.Errorf("with a retry and a timer that change, %d retries come, %d timers, and the next in %s; want one of each, and others at once", len(got.Retries), got.TimersReady, got.NextIn)
	}
	got = due(func() { ownAll(t, other, successor) })
	if len(got.Retries)+got.TimersReady != 0 {
		t.Errorf("a member gets %d retries and %d timers of a partition that another one owns", len(got.Retries), got.TimersReady)
	}
	var n int
	if err := other.DB().QueryRow(`SELECT COUNT(*) FROM waybill_outbox WHERE id IN ('1', '3') AND hold = 0 AND due_at > 0`).Scan(&n); err != nil || n != 2 {
		t.Errorf("%d records are as they were, want the two that changed, %v", n, err)
	}
}
