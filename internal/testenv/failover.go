package testenv

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
)

// Replicate makes a replica that holds the commits up to now and follows no further, as one does that lags behind.
func (s *PostgresServer) Replicate(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.backUp(ctx, s.Addr(), s.replica())
}

// backUp copies the server at the address from, which has the password of s, into the folder to. Options are those of
// pg_basebackup.
func (s *PostgresServer) backUp(ctx context.Context, from, to string, options ...string) error {
	host, port, err := net.SplitHostPort(from)
	if err != nil {
		return fmt.Errorf("waybill/testenv: postgres: %w", err)
	}
	env := []string{"PGPASSWORD=" + s.Password, "LANG=C.UTF-8", "PATH=/usr/bin:/bin"}
	options = append([]string{
		"--pgdata", to, "--host", host, "--port", port,
		"--username", "postgres", "--no-password", "--checkpoint", "fast", "--wal-method", "stream",
	}, options...)
	return run(ctx, s.as, s.dir, env, filepath.Join(s.bin, "pg_basebackup"), options...)
}

// StartStandby starts a hot standby that follows the server at once (streaming replication). It connects to the address
// through, such as that of a proxy before the server. The caller must Close it.
func (s *PostgresServer) StartStandby(ctx context.Context, through string) (*PostgresServer, error) {
	dir, err := newDir("postgres", s.as)
	if err != nil {
		return nil, err
	}
	standby := &PostgresServer{Password: s.Password, opts: s.opts, bin: s.bin, as: s.as, dir: dir}
	err = standby.backUp(ctx, through, standby.data(), "--write-recovery-conf")
	if err == nil {
		err = standby.begin(ctx)
	}
	if err != nil {
		_ = standby.Close()
		return nil, err
	}
	return standby, nil
}

func (s *PostgresServer) replica() string { return filepath.Join(s.dir, "replica") }

// FailOver kills the server and starts the replica in its place, on its port, where it is promoted. Commits after
// Replicate are gone, and a new timeline begins. It returns when the replica accepts writes.
func (s *PostgresServer) FailOver(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.kill()
	for _, step := range []func() error{
		func() error { return os.RemoveAll(s.data()) },
		func() error { return os.Rename(s.replica(), s.data()) },
		func() error { return os.WriteFile(filepath.Join(s.data(), "standby.signal"), nil, 0o644) },
		func() error { return s.as.own(filepath.Join(s.data(), "standby.signal")) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("waybill/testenv: postgres: fail-over: %w", err)
		}
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	return s.Promote(ctx)
}

// Promote makes a primary of a standby. It returns when the server accepts writes.
func (s *PostgresServer) Promote(ctx context.Context) error {
	return execPostgres(ctx, s.DSN("postgres"), "SELECT pg_promote(true, 30)")
}

// Pooler is a PgBouncer that shares connections by transaction.
type Pooler struct {
	s    *PostgresServer
	port int
	dir  string
	proc *process
}

// StartPooler starts a pooler before the server, with at most size connections for each database. The caller must Close
// it.
func (s *PostgresServer) StartPooler(ctx context.Context, size int) (*Pooler, error) {
	const bin = "/usr/sbin/pgbouncer"
	if _, err := os.Stat(bin); err != nil {
		return nil, fmt.Errorf("%w: no PgBouncer: run scripts/servers, which installs it: %w", ErrUnavailable, err)
	}
	dir, err := newDir("pgbouncer", s.as)
	if err != nil {
		return nil, err
	}
	p := &Pooler{s: s, dir: dir}
	if p.port, err = freePort(); err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%d user=postgres password=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = %d
max_client_conn = 500
server_login_retry = 1
`, s.Port, s.Password, p.port, size)
	// From 1.21 on it can keep prepared statements. Most are older, or do not.
	if help, _ := exec.CommandContext(ctx, bin, "--version").Output(); !regexp.MustCompile(`PgBouncer 1\.([0-9]|1[0-9]|20)\.`).Match(help) {
		config += "max_prepared_statements = 0\n"
	}
	file := filepath.Join(dir, "pgbouncer.ini")
	if err = os.WriteFile(file, []byte(config), 0o600); err == nil {
		err = s.as.own(file)
	}
	if err == nil {
		p.proc, err = start(s.as.here(), dir, filepath.Join(dir, "log"), []string{"PATH=/usr/bin:/bin"}, bin, file)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		err = poll(ctx, p.proc.done, func(ctx context.Context) error {
			conn, err := pgx.Connect(ctx, p.DSN("postgres"))
			if err != nil {
				return err
			}
			return conn.Close(ctx)
		})
	}
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("waybill/testenv: pgbouncer: %w", err)
	}
	return p, nil
}

// DSN returns the connection URL of a database behind the pooler, for a client that prepares no statements.
func (p *Pooler) DSN(database string) string {
	return "postgres://postgres@" + loopback(p.port) + "/" + database + "?sslmode=disable&default_query_exec_mode=exec"
}

// Close ends the pooler. It may be called more than once.
func (p *Pooler) Close() {
	if p.proc != nil {
		p.proc.kill()
	}
	freed(p.port)
	_ = os.RemoveAll(p.dir)
}

// NewPooler starts a pooler before a server, and ends it at the end of the test.
func NewPooler(tb TB, s *PostgresServer, size int) *Pooler {
	tb.Helper()
	p, err := s.StartPooler(tb.Context(), size)
	if err != nil {
		unavailable(tb, err)
		return nil
	}
	tb.Cleanup(p.Close)
	return p
}
