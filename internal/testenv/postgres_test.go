package testenv_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/waybill-go/waybill/internal/testenv"
)

func TestPostgresPerTestDatabase(t *testing.T) {
	t.Parallel()
	for range 3 {
		conn := connect(t, testenv.Postgres(t).DSN) // still open when the database is dropped
		if _, err := conn.Exec(t.Context(), "CREATE TABLE only_mine (id int)"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPostgresKeepsDataOverKillAndRestart(t *testing.T) {
	t.Parallel()
	s := testenv.OwnPostgres(t, testenv.PostgresOptions{Settings: map[string]string{"max_connections": "33"}})
	conn := connect(t, s.DSN("postgres"))
	var settings string
	if err := conn.QueryRow(t.Context(), "SELECT concat_ws(' ', current_setting('fsync'), current_setting('wal_level'), current_setting('max_connections'))").Scan(&settings); err != nil {
		t.Fatal(err)
	}
	if settings != "on logical 33" {
		t.Errorf("settings are %s", settings)
	}
	if _, err := conn.Exec(t.Context(), "CREATE TABLE kept (id int); INSERT INTO kept VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	for i, end := range []func(){s.Kill, s.Stop, s.Kill, func() {}} {
		end()
		if i < 3 {
			if _, err := pgx.Connect(t.Context(), s.DSN("postgres")); err == nil {
				t.Fatalf("end %d: the server still accepts connections", i)
			}
		}
		begin := time.Now()
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("end %d: restarted in %v", i, time.Since(begin))
		var n int
		if err := connect(t, s.DSN("postgres")).QueryRow(t.Context(), "SELECT count(*) FROM kept").Scan(&n); err != nil || n != 1 {
			t.Fatalf("end %d: %d rows, %v", i, n, err)
		}
	}
}

func TestPostgresPauseFreezesBackendsToo(t *testing.T) {
	t.Parallel()
	s := testenv.OwnPostgres(t, testenv.PostgresOptions{})
	conn := connect(t, s.DSN("postgres"))
	s.Pause()
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", conn.PgConn().PID()))
	if err != nil || !strings.Contains(string(state), "State:\tT") {
		t.Errorf("the backend of a paused server is not stopped: %v\n%s", err, state)
	}
	s.Resume()
	if _, err := conn.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Error(err)
	}
	s.Pause() // Close must cope
}

func TestPostgresPasswordsCount(t *testing.T) {
	t.Parallel()
	s := testenv.OwnPostgres(t, testenv.PostgresOptions{})
	s.Password = "wrong"
	_, err := pgx.Connect(t.Context(), s.DSN("postgres"))
	if pgErr := new(pgconn.PgError); !errors.As(err, &pgErr) || pgErr.Code != "28P01" {
		t.Errorf("a wrong password: %v", err)
	}
}

func TestPostgresTLS(t *testing.T) {
	t.Parallel()
	own, other := testenv.NewTLS(t), testenv.NewTLS(t)
	s := testenv.OwnPostgres(t, testenv.PostgresOptions{TLS: own})
	conn := connect(t, s.DSN("postgres"))
	var encrypted bool
	if err := conn.QueryRow(t.Context(), "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").Scan(&encrypted); err != nil || !encrypted {
		t.Fatalf("ssl %v, %v", encrypted, err)
	}
	db, err := s.CreateDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	connect(t, db.DSN)
	base := "postgres://postgres:" + s.Password + "@" + s.Addr() + "/postgres?"
	for name, params := range map[string]string{
		"without TLS":                "sslmode=disable",
		"without a certificate":      "sslmode=verify-full&sslrootcert=" + own.CAFile,
		"another client authority":   "sslmode=verify-full&sslrootcert=" + own.CAFile + "&sslcert=" + other.ClientCertFile + "&sslkey=" + other.ClientKeyFile,
		"another server's authority": "sslmode=verify-full&sslrootcert=" + other.CAFile + "&sslcert=" + own.ClientCertFile + "&sslkey=" + own.ClientKeyFile,
	} {
		if conn, err := pgx.Connect(t.Context(), base+params); err == nil {
			_ = conn.Close(t.Context())
			t.Errorf("%s: connected", name)
		}
	}
}
