package conns_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/store/postgres/internal/conns"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background))
}

// sources are all kinds of them, each of one connection.
func sources(t *testing.T) map[string]conns.Source {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(testenv.Postgres(t).DSN)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 1
	open := func() *pgxpool.Pool {
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		return pool
	}
	db, fromPool := stdlib.OpenDB(*cfg.ConnConfig), stdlib.OpenDBFromPool(open())
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = errors.Join(db.Close(), fromPool.Close()) })
	return map[string]conns.Source{"pgx": conns.Pool(open()), "sql": conns.SQL(db), "sql from a pool": conns.SQL(fromPool)}
}

func pid(t *testing.T, s conns.Source) (pid uint32, status byte) {
	t.Helper()
	err := s.Use(t.Context(), func(conn *pgx.Conn) error {
		pid, status = conn.PgConn().PID(), conn.PgConn().TxStatus()
		_, err := conn.Exec(t.Context(), "SELECT 1")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return pid, status
}

func TestUse(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, s := range sources(t) {
		first, _ := pid(t, s)
		if err := s.Use(t.Context(), func(*pgx.Conn) error { return boom }); !errors.Is(err, boom) {
			t.Errorf("%s: %v", name, err)
		}
		if again, _ := pid(t, s); again != first {
			t.Errorf("%s: a connection that was idle did not go back", name)
		}
		leave := func(conn *pgx.Conn) error { _, err := conn.Exec(t.Context(), "BEGIN"); return err }
		if err := s.Use(t.Context(), leave); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if again, status := pid(t, s); again == first || status != 'I' {
			t.Errorf("%s: a connection in a transaction went back", name)
		}
		func() {
			defer func() { _ = recover() }()
			_ = s.Use(t.Context(), func(*pgx.Conn) error { panic(boom) })
		}()
		pid(t, s) // it does not wait for ever
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Use(ended, func(*pgx.Conn) error { t.Error("used"); return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOwn(t *testing.T) {
	t.Parallel()
	for name, s := range sources(t) {
		ctx, cancel := context.WithCancel(t.Context())
		conn, end, err := s.Own(ctx)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		cancel() // of the making only
		own := conn.PgConn().PID()
		if _, err := conn.Exec(t.Context(), "LISTEN here"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if name == "pgx" { // beside the pool
			pid(t, s)
		} else {
			short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			if err := s.Use(short, func(*pgx.Conn) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: the connection was given twice: %v", name, err)
			}
			cancel()
		}
		end(t.Context())
		if !conn.IsClosed() {
			t.Errorf("%s: it is open", name)
		}
		if again, _ := pid(t, s); again == own {
			t.Errorf("%s: it went back", name)
		}
	}
}

func TestBegin(t *testing.T) {
	t.Parallel()
	for name, s := range sources(t) {
		for _, commit := range []bool{true, false} {
			tx, err := s.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.Serializable})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			var level string
			if err := tx.QueryRow(t.Context(), "SHOW transaction_isolation").Scan(&level); err != nil || level != "serializable" {
				t.Errorf("%s: %s %v", name, level, err)
			}
			if commit {
				err = tx.Commit(t.Context())
			} else {
				err = tx.Rollback(t.Context())
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if err := tx.Rollback(t.Context()); !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("%s: %v", name, err)
			}
			if _, status := pid(t, s); status != 'I' {
				t.Errorf("%s: in a transaction", name)
			}
		}
		if _, err := s.BeginTx(t.Context(), pgx.TxOptions{BeginQuery: "begin garbage"}); err == nil {
			t.Errorf("%s: begun", name)
		}
		pid(t, s) // it was given back
	}
}
