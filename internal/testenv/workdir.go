package testenv

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/waybill-go/waybill/internal/tier"
)

const rootPrefix = "waybill-testenv-"

// Dir is the environment variable that names where private servers keep their files. Without it that is a file system
// in memory for tests, if it has room, and the folder for temporary files for benchmarks.
const Dir = "WAYBILL_TEST_DIR"

// Root is the environment variable that names a root file system in which PostgreSQL and RabbitMQ are installed and
// run, such as one of a newer distribution that scripts/newer made. [Dir] must be there under the same path. Without
// it they are those of this machine.
const Root = "WAYBILL_TEST_ROOT"

// PostgresBin and RabbitMQBin are the environment variables that name the folder of a server's programs: initdb and
// postgres, rabbitmq-server and rabbitmqctl, such as sbin of RabbitMQ's generic Unix build. With [Root] they are paths
// in it. Without them the servers are those of the distribution, PostgreSQL in its highest version.
const (
	PostgresBin = "WAYBILL_TEST_POSTGRES_BIN"
	RabbitMQBin = "WAYBILL_TEST_RABBITMQ_BIN"
)

func serversRoot() string { return os.Getenv(Root) }

// inRoot returns where a path of the servers' file system is on this machine.
func inRoot(path string) string { return filepath.Join(serversRoot(), path) }

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// InMemory returns a folder of a file system in memory that has so many bytes left, or "" if there is none: a value for
// [Dir]. There a fresh database costs half as much, and a SIGKILL leaves as much behind as on a disk.
func InMemory(room uint64) string {
	const dir = "/dev/shm"
	if left(dir) < room {
		return ""
	}
	return dir
}

// baseDir is in memory for tests, if there is room for one package's servers. Benchmarks measure servers on a disk.
func baseDir() string {
	if dir := os.Getenv(Dir); dir != "" {
		return dir
	}
	if bench := flag.Lookup("test.bench"); bench != nil && bench.Value.String() == "" {
		if dir := InMemory(2 << 30); dir != "" {
			return dir
		}
	}
	return os.TempDir()
}

// certificates is the folder of throwaway certificates, the only one that is no server's.
const certificates = "tls"

// root is this process's folder for everything that its servers write: <base>/waybill-testenv-<pid>-<random>.
type root struct {
	dir   string
	guard *os.File // while it is open, the guard leaves the folder alone
}

var workRoot = sync.OnceValues(func() (root, error) {
	base := baseDir()
	removeStale(base)
	dir, err := os.MkdirTemp(base, rootPrefix+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return root{}, fmt.Errorf("waybill/testenv: %w", err)
	}
	// A server may run as another user, which must be able to pass through.
	if err := os.Chmod(dir, 0o711); err != nil {
		return root{}, fmt.Errorf("waybill/testenv: %w", err)
	}
	guard, err := startGuard(dir)
	return root{dir: dir, guard: guard}, err
})

// newDir makes a folder for one server. Its mode is 0700; owner, if not nil, becomes its owner.
func newDir(name string, owner *account) (string, error) {
	if tier.NoServers() && name != certificates {
		return "", fmt.Errorf("waybill/testenv: %s: %w: %s=none, unset it and run `make servers`", name, ErrUnavailable, tier.VariableServers)
	}
	r, err := workRoot()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(r.dir, name+"-")
	if err != nil {
		return "", fmt.Errorf("waybill/testenv: %w", err)
	}
	return dir, owner.own(dir)
}

// removeStale removes the folders of processes that are gone and could not clean up, as after a crash of the machine.
func removeStale(base string) {
	dirs, _ := filepath.Glob(filepath.Join(base, rootPrefix+"*"))
	for _, dir := range dirs {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), rootPrefix), "-")
		if n, err := strconv.Atoi(pid); err == nil && !alive(n) {
			removeSharedMemoryIn(dir)
			unmountIn(dir)
			_ = os.RemoveAll(dir)
		}
	}
}

// removeSharedMemoryIn removes what killed PostgreSQL servers below a process's folder left in the kernel.
func removeSharedMemoryIn(dir string) {
	files, _ := filepath.Glob(filepath.Join(dir, "postgres-*", "data", "postmaster.pid"))
	for _, f := range files {
		removeSharedMemory(f)
	}
}

// taken holds the reservations of this process's ports.
var taken = struct {
	sync.Mutex
	ports map[int]net.Listener
}{ports: map[int]net.Listener{}}

// freePort finds a free loopback port and reserves it until freed: it is below the ephemeral range, so that no outgoing
// connection takes it while its server restarts, and no other test does, in this process or in another one.
func freePort() (int, error) {
	for range 200 {
		port := 20000 + mathrand.IntN(12000)
		lock, ok := reserve(port)
		if !ok {
			continue
		}
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			_ = lock.Close()
			continue
		}
		stopListening(l)
		taken.Lock()
		taken.ports[port] = lock
		taken.Unlock()
		return port, nil
	}
	return 0, errors.New("waybill/testenv: no free port between 20000 and 32000 on 127.0.0.1")
}

// freed ends the reservation of ports; 0 stands for none.
func freed(ports ...int) {
	taken.Lock()
	defer taken.Unlock()
	for _, port := range ports {
		if lock := taken.ports[port]; lock != nil {
			_ = lock.Close()
			delete(taken.ports, port)
		}
	}
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// randomName returns prefix and 12 random hexadecimal digits.
func randomName(prefix string) string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + hex.EncodeToString(b[:])
}

// tail returns the end of a log file, for an error message.
func tail(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return string(b[max(0, len(b)-4000):])
}
