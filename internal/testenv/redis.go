package testenv

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// RedisBin is the environment variable that names the folder with redis-server. Without it that is the distribution's;
// with [Root] it is a path in it.
const RedisBin = "WAYBILL_TEST_REDIS_BIN"

// RedisOptions says how a private Redis differs from the usual one.
type RedisOptions struct {
	// Config are further lines of redis.conf, such as "maxmemory 10mb".
	Config []string
	// TLS, if not nil, adds a TLS port that asks for a client certificate of this authority; see
	// RedisServer.TLSURL.
	TLS *TLS
}

// RedisServer is a private Redis that appends every command to a file and syncs it (appendfsync always).
type RedisServer struct {
	// Port is the port on 127.0.0.1; it stays the same over restarts. TLSPort is 0 without TLS.
	Port, TLSPort int

	dir     string
	busPort int

	mu   sync.Mutex // guards proc
	proc *process
}

// Redis returns the URL of the server of WAYBILL_TEST_REDIS or, without it, of the shared server, which it starts if
// needed. Tests share its keys: each takes names of its own.
func Redis(tb TB) string {
	tb.Helper()
	if url := os.Getenv("WAYBILL_TEST_REDIS"); url != "" {
		return url
	}
	s, err := sharedRedis()
	if err != nil {
		unavailable(tb, err)
		return ""
	}
	return s.URL()
}

var sharedRedis = sync.OnceValues(func() (*RedisServer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return StartRedis(ctx, RedisOptions{})
})

// OwnRedis starts a private Redis for this test alone (a tenth of a second), and removes it at the end of the test.
func OwnRedis(tb TB, opts RedisOptions) *RedisServer {
	tb.Helper()
	return own(tb, func(ctx context.Context) (*RedisServer, error) { return StartRedis(ctx, opts) })
}

// OwnRedisCluster starts n private servers that share the slots of a cluster, and removes them at the end of the test.
func OwnRedisCluster(tb TB, n int) []*RedisServer {
	tb.Helper()
	nodes := make([]*RedisServer, n)
	for i := range nodes {
		nodes[i] = OwnRedis(tb, RedisOptions{Config: []string{"cluster-enabled yes", "cluster-node-timeout 2000"}})
	}
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	if err := joinCluster(ctx, nodes); err != nil {
		tb.Fatalf("waybill/testenv: redis cluster: %v", err)
	}
	return nodes
}

func joinCluster(ctx context.Context, nodes []*RedisServer) error {
	const slots = 16384
	for i, node := range nodes {
		if err := node.Do(ctx, "CLUSTER", "ADDSLOTSRANGE", i*slots/len(nodes), (i+1)*slots/len(nodes)-1); err != nil {
			return err
		}
		if err := nodes[0].Do(ctx, "CLUSTER", "MEET", "127.0.0.1", node.Port, node.busPort); err != nil {
			return err
		}
	}
	for _, node := range nodes {
		err := poll(ctx, node.proc.done, func(ctx context.Context) error {
			info, err := node.ask(ctx, "CLUSTER", "INFO")
			if err != nil {
				return err
			}
			text, _ := info.(string)
			if strings.Contains(text, "cluster_state:ok") && strings.Contains(text, "cluster_known_nodes:"+strconv.Itoa(len(nodes))) {
				return nil
			}
			return fmt.Errorf("not joined: %s", text)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// StartRedis starts a private Redis and returns when it answers. The caller must Close it.
func StartRedis(ctx context.Context, opts RedisOptions) (*RedisServer, error) {
	server := filepath.Join(cmp.Or(os.Getenv(RedisBin), "/usr/bin"), "redis-server")
	if !isFile(inRoot(server)) {
		return nil, fmt.Errorf("waybill/testenv: redis: %w: no %s: run `make servers`, or set %s to its folder, or WAYBILL_TEST_REDIS to the URL of a running server",
			ErrUnavailable, inRoot(server), RedisBin)
	}
	dir, err := newDir("redis", nil)
	if err != nil {
		return nil, err
	}
	s := &RedisServer{dir: dir}
	// Between finding the free ports and binding them, another process may take one: try again with others.
	for attempt := 0; ; attempt++ {
		err = s.configure(opts)
		if err == nil {
			err = s.start(ctx, server)
		}
		if err == nil {
			return s, nil
		}
		if attempt == 1 || ctx.Err() != nil {
			_ = s.Close()
			return nil, err
		}
		s.end()
	}
}

func (s *RedisServer) configure(opts RedisOptions) error {
	ports := []*int{&s.Port, &s.busPort}
	if opts.TLS != nil {
		ports = append(ports, &s.TLSPort)
	}
	for _, port := range ports {
		var err error
		if *port, err = freePort(); err != nil {
			return err
		}
	}
	conf := []string{
		"bind 127.0.0.1", "port " + strconv.Itoa(s.Port), "cluster-port " + strconv.Itoa(s.busPort), "dir " + s.dir,
		"daemonize no", "appendonly yes", "appendfsync always", `save ""`,
	}
	if opts.TLS != nil {
		if err := opts.TLS.copyServer(s.dir, nil); err != nil {
			return err
		}
		conf = append(conf, "tls-port "+strconv.Itoa(s.TLSPort), "tls-ca-cert-file "+filepath.Join(s.dir, "ca.pem"),
			"tls-cert-file "+filepath.Join(s.dir, "server.pem"), "tls-key-file "+filepath.Join(s.dir, "server.key"), "tls-auth-clients yes")
	}
	conf = append(conf, opts.Config...)
	if err := os.WriteFile(filepath.Join(s.dir, "redis.conf"), []byte(strings.Join(conf, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("waybill/testenv: redis: %w", err)
	}
	return nil
}

func (s *RedisServer) start(ctx context.Context, server string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var err error
	env := []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8", "HOME=" + s.dir}
	if s.proc, err = start(brokerIn(serversRoot()), s.dir, s.Log(), env, server, filepath.Join(s.dir, "redis.conf")); err != nil {
		return err
	}
	if err := poll(ctx, s.proc.done, func(ctx context.Context) error { return s.Do(ctx, "PING") }); err != nil {
		return fmt.Errorf("waybill/testenv: redis: start: %w\n%s", err, tail(s.Log()))
	}
	return nil
}

// Do sends one command to the server.
func (s *RedisServer) Do(ctx context.Context, args ...any) error {
	_, err := s.ask(ctx, args...)
	return err
}

func (s *RedisServer) ask(ctx context.Context, args ...any) (any, error) {
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), MaxRetries: -1, DisableIdentity: true, PoolSize: 1})
	defer func() { _ = c.Close() }()
	v, err := c.Do(ctx, args...).Result()
	if err != nil {
		return nil, fmt.Errorf("waybill/testenv: redis: %v: %w", args[0], err)
	}
	return v, nil
}

// Addr returns host:port, for a proxy.
func (s *RedisServer) Addr() string { return loopback(s.Port) }

// URL returns the URL of database 0.
func (s *RedisServer) URL() string { return "redis://" + s.Addr() + "/0" }

// TLSURL returns the rediss URL. Client certificates go into the TLS configuration, see TLS.Client.
func (s *RedisServer) TLSURL() string { return "rediss://" + loopback(s.TLSPort) + "/0" }

// Log returns the path of the server's log file.
func (s *RedisServer) Log() string { return filepath.Join(s.dir, "redis.log") }

// Kill ends the server with SIGKILL, as a crash does. Data stay.
func (s *RedisServer) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.kill()
}

// Restart starts the server again on the same ports and data, after killing it if it runs, and returns when it has
// loaded them.
func (s *RedisServer) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.kill()
	return s.start(ctx, s.proc.cmd.Path)
}

// Pause freezes the server (SIGSTOP): connections stay open and nothing answers.
func (s *RedisServer) Pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.signal(sigStop)
}

// Resume lets a paused server go on.
func (s *RedisServer) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.signal(sigCont)
}

// Close kills the server and removes its data. It may be called more than once.
func (s *RedisServer) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("waybill/testenv: redis: %w", err)
	}
	return nil
}

func (s *RedisServer) end() {
	if s.proc != nil {
		s.proc.kill()
	}
	freed(s.Port, s.TLSPort, s.busPort)
}
