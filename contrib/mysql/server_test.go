package waybillmysql_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	waybillmysql "github.com/waybill-go/waybill/contrib/mysql"
	"github.com/waybill-go/waybill/internal/tier"
)

// root names a root file system with a MySQL server (scripts/mysql), which is used instead of MariaDB.
var root = os.Getenv("WAYBILL_TEST_MYSQL_ROOT")

// server is a private MariaDB or MySQL, with its data in a folder of its own.
type server struct {
	dir      string
	port     int
	settings []string
	mu       sync.Mutex
	cmd      *exec.Cmd
}

const install = "install it (on Debian: sudo scripts/servers), or set WAYBILL_TEST_MYSQL to user:password@tcp(host:port)/, a login that may create databases"

// startServer starts a server that ends with this process, however it ends. With settings of its own it has a binary
// log unless they say otherwise.
func startServer(settings ...string) (*server, error) {
	parent := os.Getenv("WAYBILL_TEST_DIR")
	if root != "" {
		parent = "/tmp" // which is the same in the root
	}
	dir, err := os.MkdirTemp(parent, "waybill-mysql")
	if err != nil {
		return nil, err
	}
	s := &server{dir: dir, settings: settings}
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, err
	}
	if err := s.install(); err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.port = l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return nil, err
	}
	return s, s.start()
}

// install fills the data folder.
func (s *server) install() error {
	if root != "" {
		// with --skip-name-resolve no client over TCP is root@localhost
		users := "CREATE USER IF NOT EXISTS 'root'@'%';\nGRANT ALL ON *.* TO 'root'@'%' WITH GRANT OPTION;\n"
		if err := os.WriteFile(filepath.Join(s.dir, "init.sql"), []byte(users), 0o600); err != nil {
			return err
		}
		if out, err := run(s.command("--initialize-insecure")); err != nil {
			return fmt.Errorf("MySQL in %s makes no data folder: %w\n%s", root, err, out)
		}
		return nil
	}
	in := bytes.NewBufferString("CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n")
	for _, name := range []string{"mysql_system_tables", "mysql_performance_tables", "mysql_system_tables_data"} {
		text, err := os.ReadFile(filepath.Join("/usr/share/mysql", name+".sql"))
		if err != nil {
			return fmt.Errorf("no MariaDB server is here: %s (%w)", install, err)
		}
		in.Write(text)
	}
	cmd := s.command("--bootstrap", "--innodb-flush-log-at-trx-commit=0")
	cmd.Stdin = in
	if out, err := run(cmd); err != nil {
		return fmt.Errorf("MariaDB makes no data folder: %s: %w\n%s", install, err, out)
	}
	return nil
}

func (s *server) command(args ...string) *exec.Cmd {
	all := append([]string{
		"--no-defaults", "--user=root", "--datadir=" + filepath.Join(s.dir, "data"), "--innodb-buffer-pool-size=256M", "--tmpdir=" + s.dir,
	}, args...)
	if root != "" {
		all = append([]string{root, "/usr/sbin/mysqld"}, append(all, "--innodb-redo-log-capacity=128M")...)
		cmd := exec.Command("chroot", all...)
		cmd.SysProcAttr = withParent()
		return cmd
	}
	all = append(all, "--innodb-log-file-size=64M")
	path := "/usr/sbin/mariadbd"
	if _, err := os.Stat(path); err != nil {
		path = "mariadbd"
	}
	cmd := exec.Command(path, all...)
	cmd.SysProcAttr = withParent()
	return cmd
}

// forks runs all children on one thread that never ends: Pdeathsig fires when that thread does.
var forks = sync.OnceValue(func() chan func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for fn := range c {
			fn()
		}
	}()
	return c
})

func begin(cmd *exec.Cmd) error {
	done := make(chan error)
	forks() <- func() { done <- cmd.Start() }
	return <-done
}

func run(cmd *exec.Cmd) ([]byte, error) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := begin(cmd); err != nil {
		return nil, err
	}
	err := cmd.Wait()
	return out.Bytes(), err
}

// start starts a server whose data is there, and waits until it answers.
func (s *server) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{
		"--port=" + strconv.Itoa(s.port), "--bind-address=127.0.0.1", "--socket=" + filepath.Join(s.dir, "s.sock"), "--pid-file=" + filepath.Join(s.dir, "pid"),
		"--skip-name-resolve", "--max-connections=400", "--innodb-flush-log-at-trx-commit=1", "--performance-schema=OFF",
	}
	if root != "" {
		args = append(args, "--mysqlx=OFF", "--secure-file-priv=NULL", "--init-file="+filepath.Join(s.dir, "init.sql"))
	}
	if len(s.settings) == 0 {
		args = append(args, "--skip-log-bin")
	}
	s.cmd = s.command(append(args, s.settings...)...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := begin(s.cmd); err != nil {
		return err
	}
	db, err := sql.Open("mysql", s.dsn(""))
	if err != nil {
		return err
	}
	defer db.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for range 3000 {
		if db.Ping() == nil {
			return nil
		}
		<-tick.C
	}
	text, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	return fmt.Errorf("the server does not answer on port %d\n%s", s.port, text)
}

// kill ends the server as a crash does.
func (s *server) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

func (s *server) dsn(database string) string {
	return fmt.Sprintf("root@tcp(127.0.0.1:%d)/%s", s.port, database)
}

// shared is the server of all tests but those that kill one.
var shared struct {
	once sync.Once
	own  *server
	dsn  func(database string) string
	err  error
}

func dsnOf(tb testing.TB, database string) string {
	tb.Helper()
	shared.once.Do(func() {
		if given := os.Getenv("WAYBILL_TEST_MYSQL"); given != "" {
			cfg, err := mysql.ParseDSN(given)
			shared.err = err
			shared.dsn = func(database string) string {
				c := cfg.Clone()
				c.DBName = database
				return c.FormatDSN()
			}
			return
		}
		if shared.own, shared.err = startServer(); shared.err == nil {
			shared.dsn = shared.own.dsn
		}
	})
	missing(tb, shared.err)
	return shared.dsn(database)
}

// missing ends the test if there is no server.
func missing(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tier.Missing(tb, "%v", err)
	}
}

var databases atomic.Int64

// newDatabase returns the data source name of a database without tables.
func newDatabase(tb testing.TB, dsn func(database string) string) string {
	tb.Helper()
	admin, err := sql.Open("mysql", dsn(""))
	if err != nil {
		tb.Fatal(err)
	}
	name := fmt.Sprintf("w%d_%d", os.Getpid(), databases.Add(1))
	if _, err := admin.Exec("CREATE DATABASE " + name); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if _, err := admin.Exec("DROP DATABASE " + name); err != nil && !errors.Is(err, mysql.ErrInvalidConn) {
			tb.Log(err)
		}
		_ = admin.Close()
	})
	return dsn(name)
}

// open returns a store on a database of its own, with tables.
func open(tb testing.TB, opts waybillmysql.Options) *waybillmysql.Store {
	tb.Helper()
	s := openAt(tb, newDatabase(tb, func(database string) string { return dsnOf(tb, database) }), opts)
	if err := s.Migrate(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return s
}

func openAt(tb testing.TB, dsn string, opts waybillmysql.Options) *waybillmysql.Store {
	tb.Helper()
	if opts.Source == "" {
		opts.Source = "/test"
	}
	s, err := waybillmysql.Open(dsn, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

func TestMain(m *testing.M) {
	if child() {
		return
	}
	code := m.Run()
	if shared.own != nil {
		shared.own.kill()
		_ = os.RemoveAll(shared.own.dir)
	}
	os.Exit(code)
}
