package testenv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// PG is an empty database of its own on a PostgreSQL server.
type PG struct {
	// DSN is the connection URL of the database, as its superuser (or the user of WAYBILL_TEST_POSTGRES). It holds
	// a password.
	DSN string
	// Database is the name of the database.
	Database string

	admin string
}

// PostgresOptions says how a private server differs from the usual one.
type PostgresOptions struct {
	// Settings are passed as -c name=value and win over ours (fsync=on, wal_level=logical, max_connections=200).
	Settings map[string]string
	// TLS, if not nil, makes the server refuse connections without TLS or without a client certificate of this
	// authority.
	TLS *TLS
	// Clock gives the server a clock of its own, which SetClock sets.
	Clock bool
	// Disk, if not 0, gives the server a disk of its own with so many bytes, at least 150 MB, which FillDisk fills.
	// Only root can.
	Disk int
}

// PostgresServer is a private PostgreSQL server.
type PostgresServer struct {
	// Password is that of the superuser "postgres". Other users need the password they were created with.
	Password string
	// Port is the TCP port on 127.0.0.1; it stays the same over restarts.
	Port int

	opts PostgresOptions
	bin  string
	as   *account
	dir  string

	mu   sync.Mutex // guards proc
	proc *process
}

// OpenPostgres makes an empty database on the server of WAYBILL_TEST_POSTGRES or, without it, on the shared server,
// which it starts if needed. The caller must Close the result.
func OpenPostgres(ctx context.Context) (*PG, error) {
	if dsn := os.Getenv("WAYBILL_TEST_POSTGRES"); dsn != "" {
		return answers(ctx, "WAYBILL_TEST_POSTGRES", func(ctx context.Context) (*PG, error) { return createDatabase(ctx, dsn) })
	}
	s, err := sharedPostgres()
	if err != nil {
		return nil, err
	}
	return s.CreateDatabase(ctx)
}

var sharedPostgres = sync.OnceValues(func() (*PostgresServer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return StartPostgres(ctx, PostgresOptions{})
})

// StartPostgres starts a private server and returns when it accepts connections. The caller must Close it.
func StartPostgres(ctx context.Context, opts PostgresOptions) (*PostgresServer, error) {
	bin, err := postgresBin()
	if err != nil {
		return nil, err
	}
	as, err := unprivileged("postgres")
	if err != nil {
		return nil, err
	}
	tmpl, err := postgresTemplate(bin, as)
	if err != nil {
		return nil, err
	}
	dir, err := newDir("postgres", as)
	if err != nil {
		return nil, err
	}
	s := &PostgresServer{Password: tmpl.password, opts: opts, bin: bin, as: as, dir: dir}
	if opts.Disk > 0 {
		err = mountDisk(dir, opts.Disk, as)
	}
	if err == nil {
		err = s.create(ctx, tmpl.dir)
	}
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

func (s *PostgresServer) create(ctx context.Context, template string) error {
	if err := run(ctx, s.as, s.dir, os.Environ(), "cp", "-a", template, s.data()); err != nil {
		return err
	}
	// SCRAM costs the race detector 17 ms a connection: it is for the servers whose connections are about security.
	host, method := "host", "password"
	if s.opts.TLS != nil {
		host, method = "hostssl", "scram-sha-256"
		if err := s.opts.TLS.copyServer(s.data(), s.as); err != nil {
			return err
		}
	}
	hba := "local all all trust\n" + host + " all all 127.0.0.1/32 " + method + map[bool]string{true: " clientcert=verify-ca"}[s.opts.TLS != nil] + "\n" +
		host + " replication all 127.0.0.1/32 " + method + "\n"
	if err := os.WriteFile(filepath.Join(s.data(), "pg_hba.conf"), []byte(hba), 0o644); err != nil {
		return fmt.Errorf("waybill/testenv: postgres: %w", err)
	}
	return s.begin(ctx)
}

// begin starts the server on a port of its own.
func (s *PostgresServer) begin(ctx context.Context) error {
	// Between finding a free port and binding it, another process may take it: try again with another one.
	for attempt := 0; ; attempt++ {
		port, err := freePort()
		if err != nil {
			return err
		}
		s.Port = port
		err = s.start(ctx)
		if err == nil || attempt == 2 || ctx.Err() != nil {
			return err
		}
		freed(port)
	}
}

func (s *PostgresServer) data() string { return filepath.Join(s.dir, "data") }

func (s *PostgresServer) start(ctx context.Context) error {
	settings := map[string]string{
		"listen_addresses": "127.0.0.1", "port": strconv.Itoa(s.Port), "unix_socket_directories": s.dir,
		"fsync": "on", "wal_level": "logical", "max_connections": "200", "max_wal_senders": "20", "max_replication_slots": "20",
		// files in the data folder: nothing stays in /dev/shm after a SIGKILL
		"dynamic_shared_memory_type": "mmap",
	}
	if s.opts.TLS != nil {
		maps.Copy(settings, map[string]string{"ssl": "on", "ssl_cert_file": "server.pem", "ssl_key_file": "server.key", "ssl_ca_file": "ca.pem"})
	}
	maps.Copy(settings, s.opts.Settings)
	args := []string{"-D", s.data()}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	env := []string{"LANG=C.UTF-8", "PATH=/usr/bin:/bin"}
	if s.opts.Clock {
		lib, err := fakeTime()
		if err != nil {
			return err
		}
		env = append(env, "LD_PRELOAD="+lib, "FAKETIME_TIMESTAMP_FILE="+s.clock(), "FAKETIME_CACHE_DURATION=1", "FAKETIME_DONT_FAKE_MONOTONIC=1")
		if _, err := os.Stat(s.clock()); err != nil {
			if err := s.SetClock(0); err != nil {
				return err
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var err error
	for range 50 { // after a SIGKILL the last backends may hold the shared memory for a moment
		if s.proc, err = start(s.as, s.dir, s.Log(), env, filepath.Join(s.bin, "postgres"), args...); err != nil {
			return err
		}
		if err = poll(ctx, s.proc.done, s.ping); err == nil {
			return nil
		}
		s.proc.kill()
		select {
		case <-ctx.Done():
			return fmt.Errorf("waybill/testenv: postgres: start: %w\n%s", err, tail(s.Log()))
		case <-time.After(50 * time.Millisecond):
		}
	}
	return fmt.Errorf("waybill/testenv: postgres: start: %w\n%s", err, tail(s.Log()))
}

func (s *PostgresServer) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("waybill/testenv: postgres: %w", err)
	}
	return conn.Close(ctx)
}

// Addr returns host:port, for a proxy.
func (s *PostgresServer) Addr() string { return loopback(s.Port) }

// Log returns the path of the server's log file.
func (s *PostgresServer) Log() string { return filepath.Join(s.dir, "postgres.log") }

// DSN returns the connection URL of a database of this server, as the superuser. With TLS it names the files of the
// certificates.
func (s *PostgresServer) DSN(database string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword("postgres", s.Password), Host: s.Addr(), Path: "/" + database}
	q := url.Values{"sslmode": {"disable"}}
	if t := s.opts.TLS; t != nil {
		q = url.Values{"sslmode": {"verify-full"}, "sslrootcert": {t.CAFile}, "sslcert": {t.ClientCertFile}, "sslkey": {t.ClientKeyFile}}
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// CreateDatabase makes an empty database on this server. It ends with the server; Close drops it earlier.
func (s *PostgresServer) CreateDatabase(ctx context.Context) (*PG, error) {
	return createDatabase(ctx, s.DSN("postgres"))
}

// Kill ends the server and all its backends with SIGKILL, as a crash does. Data stay.
func (s *PostgresServer) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.kill()
}

// Stop ends the server as an operator does (fast shutdown: open transactions are rolled back). Data stay.
func (s *PostgresServer) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.stop(sigInt, 20*time.Second)
}

// Restart starts the server again on the same port and data, after stopping it if it runs, and returns when it accepts
// connections.
func (s *PostgresServer) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.stop(sigInt, 20*time.Second)
	return s.start(ctx)
}

// Running reports whether the server runs. One that cannot recover from a crash ends by itself.
func (s *PostgresServer) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.proc.ended()
}

// Reload makes the server read its certificate again. Open connections stay.
func (s *PostgresServer) Reload() error {
	if t := s.opts.TLS; t != nil {
		if err := t.copyServer(s.data(), s.as); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.signal(sigHup)
	return nil
}

// Pause freezes the server and all its backends (SIGSTOP): connections stay open and nothing answers.
func (s *PostgresServer) Pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.signalAll(sigStop)
}

// Resume lets a paused server go on.
func (s *PostgresServer) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.signalAll(sigCont)
}

// Close kills the server and removes its data. It may be called more than once.
func (s *PostgresServer) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		s.proc.kill()
	}
	freed(s.Port)
	removeSharedMemory(filepath.Join(s.data(), "postmaster.pid"))
	unmountIn(s.dir)
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("waybill/testenv: postgres: %w", err)
	}
	return nil
}

// Close drops the database, also when connections to it are open. It may be called more than once.
func (p *PG) Close(ctx context.Context) error {
	return execPostgres(ctx, p.admin, "DROP DATABASE IF EXISTS "+pgx.Identifier{p.Database}.Sanitize()+" WITH (FORCE)")
}

func createDatabase(ctx context.Context, admin string) (*PG, error) {
	u, err := url.Parse(admin)
	if err != nil || u.Host == "" {
		return nil, errors.New("waybill/testenv: postgres: WAYBILL_TEST_POSTGRES must be a URL such as postgres://user:password@127.0.0.1:5432/postgres")
	}
	name := randomName("waybill_test_")
	if err := execPostgres(ctx, admin, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" TEMPLATE template0"); err != nil {
		return nil, err
	}
	u.Path = "/" + name
	return &PG{DSN: u.String(), Database: name, admin: admin}, nil
}

func execPostgres(ctx context.Context, dsn, sql string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("waybill/testenv: postgres: connect: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("waybill/testenv: postgres: %w", err)
	}
	return nil
}

type template struct{ dir, password string }

var (
	templateMu    sync.Mutex
	templateCache *template
)

// postgresTemplate runs initdb once a process; every server gets a copy of its result.
func postgresTemplate(bin string, as *account) (*template, error) {
	templateMu.Lock()
	defer templateMu.Unlock()
	if templateCache != nil {
		return templateCache, nil
	}
	dir, err := newDir("postgres-template", as)
	if err != nil {
		return nil, err
	}
	t := &template{dir: filepath.Join(dir, "data"), password: randomName("pw-")}
	pwfile := filepath.Join(dir, "password")
	if err := os.WriteFile(pwfile, []byte(t.password+"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("waybill/testenv: postgres: %w", err)
	}
	if err := as.own(pwfile); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = run(ctx, as, dir, []string{"LANG=C.UTF-8", "PATH=/usr/bin:/bin"}, filepath.Join(bin, "initdb"),
		"-D", t.dir, "-U", "postgres", "-A", "scram-sha-256", "--pwfile="+pwfile, "-E", "UTF8", "--no-locale", "--no-sync")
	if err != nil {
		return nil, err
	}
	templateCache = t
	return t, nil
}

// postgresBin finds the folder of the server's programs: that of [PostgresBin], else the newest of Debian's, else that
// of initdb in the PATH.
func postgresBin() (string, error) {
	if bin := os.Getenv(PostgresBin); bin != "" {
		if !isFile(inRoot(filepath.Join(bin, "initdb"))) {
			return "", fmt.Errorf("waybill/testenv: postgres: %w: no initdb in %s, which %s names", ErrUnavailable, inRoot(bin), PostgresBin)
		}
		return bin, nil
	}
	best, version := "", 0
	found, _ := filepath.Glob(serversRoot() + "/usr/lib/postgresql/*/bin/initdb")
	for _, f := range found {
		bin := filepath.Dir(strings.TrimPrefix(f, serversRoot()))
		if v, err := strconv.Atoi(filepath.Base(filepath.Dir(bin))); err == nil && v > version {
			best, version = bin, v
		}
	}
	if best != "" {
		return best, nil
	}
	if f, err := exec.LookPath("initdb"); err == nil && serversRoot() == "" {
		if f, err = filepath.EvalSymlinks(f); err == nil {
			return filepath.Dir(f), nil
		}
	}
	return "", fmt.Errorf("waybill/testenv: postgres: %w: no initdb found: run `make servers`, or set %s to its folder, or WAYBILL_TEST_POSTGRES to the URL of a running server", ErrUnavailable, PostgresBin)
}
