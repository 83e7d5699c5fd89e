package testenv_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
)

func TestMain(m *testing.M) {
	if os.Getenv("WAYBILL_TESTENV_OWNER") != "" {
		owner()
	}
	_ = flag.Set("test.parallel", "8") // they wait for servers; a flag of the command line wins
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background), goleak.IgnoreAnyFunction(testenv.IdleMongoDB))
}

// owner prints the folder of its servers, starts a broker there, and waits to be killed, at the latest while that
// starts.
func owner() {
	ctx := context.Background()
	pg, err := testenv.StartPostgres(ctx, testenv.PostgresOptions{Disk: 150 << 20})
	if errors.Is(err, testenv.ErrUnavailable) {
		pg, err = testenv.StartPostgres(ctx, testenv.PostgresOptions{})
	}
	if err == nil {
		fmt.Println("ready", filepath.Dir(filepath.Dir(pg.Log())))
		if _, err = testenv.StartRabbitMQ(ctx, testenv.RabbitMQOptions{}); err == nil {
			select {}
		}
	}
	fmt.Println("failed", err)
	os.Exit(1)
}

// startOwner starts another test run, which starts servers. It returns the run and its folder.
func startOwner(t *testing.T) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "WAYBILL_TESTENV_OWNER=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, _ := bufio.NewReader(out).ReadString('\n')
	fields := strings.Fields(line)
	if strings.Contains(line, testenv.ErrUnavailable.Error()) {
		tier.Missing(t, "%s", line)
	}
	if len(fields) != 2 || fields[0] != "ready" {
		t.Fatalf("the owner says: %s", line)
	}
	return cmd, fields[1]
}

// Two runs at once do not disturb each other: each has a folder, ports and processes of its own, and those of one live
// on when the other is killed.
func TestTwoRunsAtOnce(t *testing.T) {
	tier.Nightly(t, "starts three servers of each kind: 10 s of computing")
	t.Parallel()
	needLinux(t)
	killed, gone := startOwner(t)
	_, kept := startOwner(t)
	if gone == kept {
		t.Fatalf("both are in %s", kept)
	}
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait()
	eventually(t, func() error { return nothingLeft(t, gone) })
	startOwner(t) // which looks for what others have left
	eventually(t, func() error {
		for _, part := range []string{"postgres", "beam.smp", "epmd"} {
			if found := processesWith(t, kept); !slices.ContainsFunc(found, func(cmd string) bool { return strings.Contains(cmd, part) }) {
				return fmt.Errorf("no %s of the other run: %q", part, found)
			}
		}
		return nil
	})
}

// nothingLeft is an error if a run left something behind: its folder, processes, mounts.
func nothingLeft(t *testing.T, dir string) error {
	t.Helper()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s is still there", dir)
	}
	if left := processesWith(t, dir); len(left) > 0 {
		return fmt.Errorf("still running: %q", left)
	}
	if mounts, _ := os.ReadFile("/proc/mounts"); strings.Contains(string(mounts), dir+"/") {
		return fmt.Errorf("something is still mounted below %s", dir)
	}
	return nil
}

func TestNothingIsLeftAfterTheOwnerWasKilled(t *testing.T) {
	t.Parallel()
	needLinux(t)
	cmd, dir := startOwner(t)
	mounts, _ := os.ReadFile("/proc/mounts")
	mounted := strings.Contains(string(mounts), dir+"/")
	eventually(t, func() error {
		if found := processesWith(t, dir); !slices.ContainsFunc(found, func(cmd string) bool { return strings.Contains(cmd, "beam.smp") }) || len(found) < 3 {
			return fmt.Errorf("no postmaster, broker or epmd: %q", found)
		}
		return nil
	})
	startStray(t, dir)
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, func() error { return nothingLeft(t, dir) })
	if !mounted {
		tier.Missing(t, "the owner could not mount a disk: that mounts go is not tested")
	}
}

// processesWith returns the command lines of running processes whose environment, command line or working folder names
// dir.
func processesWith(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		cmdline, _ := os.ReadFile(p + "/cmdline") // empty for a zombie
		environ, _ := os.ReadFile(p + "/environ")
		cwd, _ := os.Readlink(p + "/cwd")
		if len(cmdline) > 0 && strings.Contains(string(cmdline)+string(environ)+cwd, dir) {
			found = append(found, strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return found
}

// startStray starts a name server as a broker does whose own one has just been killed: no signal tells it that the
// owner is gone.
func startStray(t *testing.T, dir string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	stray := exec.Command("epmd", "-daemon")
	stray.Env = append(os.Environ(), fmt.Sprintf("ERL_EPMD_PORT=%d", port), "ERL_EPMD_ADDRESS=127.0.0.1", "HOME="+dir+"/rabbitmq-x")
	if out, err := stray.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	eventually(t, func() error {
		if !slices.ContainsFunc(processesWith(t, dir), func(cmd string) bool { return strings.Contains(cmd, "epmd -daemon") }) {
			return errors.New("no stray name server")
		}
		return nil
	})
}

func TestAMissingServerIsNoOtherError(t *testing.T) {
	for servers, want := range map[string]string{"required": "fatal", "optional": "skip", "none": "skip"} {
		t.Setenv(tier.VariableServers, servers)
		tb := &fakeTB{TB: t}
		testenv.Unavailable(tb, fmt.Errorf("no such server: %w", testenv.ErrUnavailable))
		if tb.outcome != want {
			t.Errorf("%s=%q: %s, want %s", tier.VariableServers, servers, tb.outcome, want)
		}
	}
	tb := &fakeTB{TB: t}
	testenv.Unavailable(tb, errors.New("it is there and does not work"))
	if tb.outcome != "fatal" {
		t.Errorf("another error: %s, want fatal", tb.outcome)
	}
}

// Servers of any folder are used, and a wrong folder is named with its variable.
func TestServersOfAFolder(t *testing.T) { // RM-11
	tier.Nightly(t, "starts servers of its own while no other test runs: 10 s")
	needLinux(t)
	t.Setenv("WAYBILL_TEST_POSTGRES", "")
	t.Setenv("WAYBILL_TEST_RABBITMQ", "")
	for _, variable := range []string{testenv.PostgresBin, testenv.RabbitMQBin} {
		t.Setenv(variable, "/nowhere")
	}
	_, pg := testenv.StartPostgres(t.Context(), testenv.PostgresOptions{})
	_, mq := testenv.StartRabbitMQ(t.Context(), testenv.RabbitMQOptions{})
	for variable, err := range map[string]error{testenv.PostgresBin: pg, testenv.RabbitMQBin: mq} {
		if !errors.Is(err, testenv.ErrUnavailable) || !strings.Contains(err.Error(), variable) || !strings.Contains(err.Error(), "/nowhere") {
			t.Errorf("%s=/nowhere: %v", variable, err)
		}
	}

	for variable, program := range map[string]string{testenv.PostgresBin: "/usr/lib/postgresql/*/bin/initdb", testenv.RabbitMQBin: "/usr/lib/rabbitmq/lib/*/sbin/rabbitmq-server"} {
		found, _ := filepath.Glob(filepath.Join(os.Getenv(testenv.Root), program))
		if len(found) == 0 {
			tier.Missing(t, "no %s", program)
		}
		t.Setenv(variable, strings.TrimPrefix(filepath.Dir(found[0]), os.Getenv(testenv.Root)))
	}
	testenv.OwnPostgres(t, testenv.PostgresOptions{})
	testenv.OwnRabbitMQ(t, testenv.RabbitMQOptions{})
}

type fakeTB struct {
	testing.TB
	outcome string
}

func (f *fakeTB) Skipf(string, ...any)  { f.outcome = "skip" }
func (f *fakeTB) Fatalf(string, ...any) { f.outcome = "fatal" }

func TestTheEnvironmentVariableWins(t *testing.T) {
	s := testenv.OwnPostgres(t, testenv.PostgresOptions{})
	t.Setenv("WAYBILL_TEST_POSTGRES", s.DSN("postgres"))
	db, err := testenv.OpenPostgres(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(db.DSN, s.Addr()) {
		t.Errorf("the database is not on %s", s.Addr())
	}
	if err := db.Close(t.Context()); err != nil {
		t.Error(err)
	}
	t.Setenv("WAYBILL_TEST_POSTGRES", "host=localhost")
	if _, err := testenv.OpenPostgres(t.Context()); err == nil || !strings.Contains(err.Error(), "WAYBILL_TEST_POSTGRES") {
		t.Errorf("a DSN that is no URL: %v", err)
	}
	t.Setenv("WAYBILL_TEST_RABBITMQ", "localhost")
	if _, err := testenv.OpenRabbitMQ(t.Context()); err == nil || !strings.Contains(err.Error(), "WAYBILL_TEST_RABBITMQ") {
		t.Errorf("an address that is no URL: %v", err)
	}
}

// A server that accepts connections and never answers fails the test soon, and does not hang it.
func TestASilentServerIsNoServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	testenv.AnswerWithin(t, 200*time.Millisecond)
	t.Setenv("WAYBILL_TEST_POSTGRES", "postgres://u:p@"+l.Addr().String()+"/postgres?sslmode=disable")
	if _, err := testenv.OpenPostgres(t.Context()); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "WAYBILL_TEST_POSTGRES") {
		t.Errorf("postgres: %v", err)
	}
	t.Setenv("WAYBILL_TEST_RABBITMQ", "amqp://u:p@"+l.Addr().String()+"/")
	t.Setenv("WAYBILL_TEST_RABBITMQ_MANAGEMENT", "http://"+l.Addr().String())
	if _, err := testenv.OpenRabbitMQ(t.Context()); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "WAYBILL_TEST_RABBITMQ") {
		t.Errorf("rabbitmq: %v", err)
	}
}

func needLinux(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/proc/self"); err != nil {
		t.Skip("private servers need Linux")
	}
}

// eventually calls check until it returns nil. If it returns the same error for too long, that fails the test.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	patience.Moving(t, "the check passes", func() (string, bool) {
		err := check()
		return fmt.Sprint(err), err == nil
	})
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}
