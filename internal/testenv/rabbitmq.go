package testenv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// MQ is a virtual host of its own on a RabbitMQ broker. Its Management works on the whole broker.
type MQ struct {
	Management
	// URL is the AMQP URL, with user, password and virtual host.
	URL string
	// VHost is the name of the virtual host.
	VHost string
}

// RabbitMQOptions says how a private broker differs from the usual one.
type RabbitMQOptions struct {
	// Config are further lines of rabbitmq.conf, such as "heartbeat = 2".
	Config []string
	// Plugins are enabled beside those that every broker has.
	Plugins []string
	// TLS, if not nil, adds a TLS listener that asks for a client certificate of this authority; see
	// RabbitMQServer.TLSURL.
	TLS *TLS
	// AllCPUs lets the broker use all CPUs, as for a benchmark. Otherwise it gets one: Erlang's threads wake each
	// other thousands of times a second, and where that has to cross CPUs of a virtual machine it makes a start
	// take four times as long.
	AllCPUs bool
	// Root is the root file system of the broker's programs; "/" is this machine's. Default that of [Root].
	Root string
}

// RabbitMQServer is a private broker with the plugins for management and consistent hash exchanges. Its virtual host
// "/" is there from the start.
type RabbitMQServer struct {
	Management
	// Port is the AMQP port on 127.0.0.1; it stays the same over restarts. TLSPort is 0 without TLS.
	Port, TLSPort int

	opts                     RabbitMQOptions
	dir                      string
	root                     string // "" is this machine's
	epmdPort, distPort, mgmt int
	node                     string
	cookie                   string
	first                    *RabbitMQServer // of its cluster, nil for the first and without one

	mu         sync.Mutex // guards proc and epmd
	proc, epmd *process
}

// rabbitmqBin is the folder with rabbitmq-server.
func rabbitmqBin() string { return cmp.Or(os.Getenv(RabbitMQBin), "/usr/lib/rabbitmq/bin") }

// OpenRabbitMQ makes a virtual host on the broker of WAYBILL_TEST_RABBITMQ or, without it, on the shared broker, which
// it starts if needed. The caller must Close the result.
func OpenRabbitMQ(ctx context.Context) (*MQ, error) {
	if amqpURL := os.Getenv("WAYBILL_TEST_RABBITMQ"); amqpURL != "" {
		m, err := managementFor(amqpURL, os.Getenv("WAYBILL_TEST_RABBITMQ_MANAGEMENT"))
		if err != nil {
			return nil, err
		}
		return answers(ctx, "WAYBILL_TEST_RABBITMQ", func(ctx context.Context) (*MQ, error) { return openVHost(ctx, m, amqpURL) })
	}
	s, err := sharedRabbitMQ()
	if err != nil {
		return nil, err
	}
	return s.OpenVHost(ctx)
}

var sharedRabbitMQ = sync.OnceValues(func() (*RabbitMQServer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return StartRabbitMQ(ctx, RabbitMQOptions{})
})

// StartRabbitMQ starts a private broker and returns when it accepts AMQP connections and management requests. The
// caller must Close it.
func StartRabbitMQ(ctx context.Context, opts RabbitMQOptions) (*RabbitMQServer, error) {
	return startRabbitMQ(ctx, opts, nil)
}

func startRabbitMQ(ctx context.Context, opts RabbitMQOptions, first *RabbitMQServer) (*RabbitMQServer, error) {
	root := strings.TrimSuffix(cmp.Or(opts.Root, serversRoot()), "/")
	if server := filepath.Join(root+"/", rabbitmqBin(), "rabbitmq-server"); !isFile(server) {
		return nil, fmt.Errorf("waybill/testenv: rabbitmq: %w: no %s: run `make servers`, or set %s to its folder, or WAYBILL_TEST_RABBITMQ to the URL of a running broker", ErrUnavailable, server, RabbitMQBin)
	}
	dir, err := newDir("rabbitmq", nil)
	if err != nil {
		return nil, err
	}
	s := &RabbitMQServer{opts: opts, root: root, dir: dir, node: randomName("waybill"), cookie: randomName("cookie"), first: first}
	s.User, s.Password = "waybill", randomName("pw-")
	if first != nil {
		s.User, s.Password, s.cookie = first.User, first.Password, first.cookie
	}
	// Between finding the free ports and binding them, another process may take one: try again with others.
	for attempt := 0; ; attempt++ {
		err = s.configure()
		if err == nil {
			err = s.start(ctx)
		}
		if err == nil {
			return s, nil
		}
		if attempt == 1 || ctx.Err() != nil {
			_ = s.Close()
			return nil, err
		}
		s.endAll()
	}
}

// configure chooses the ports and writes the files of the node.
func (s *RabbitMQServer) configure() error {
	for _, port := range []*int{&s.Port, &s.TLSPort, &s.epmdPort, &s.distPort, &s.mgmt} {
		var err error
		if *port, err = freePort(); err != nil {
			return err
		}
	}
	if s.first != nil { // whose name server knows all nodes
		freed(s.epmdPort)
		s.epmdPort = s.first.epmdPort
	}
	s.ManagementURL = "http://" + loopback(s.mgmt)
	if s.opts.TLS == nil {
		freed(s.TLSPort)
		s.TLSPort = 0
	}
	conf := []string{
		"listeners.tcp.1 = " + loopback(s.Port),
		"management.tcp.ip = 127.0.0.1",
		"management.tcp.port = " + strconv.Itoa(s.mgmt),
		"default_user = " + s.User,
		"default_pass = " + s.Password,
		"vm_memory_high_watermark.absolute = " + memoryLimit,
		"disk_free_limit.absolute = " + diskLimit,
		"log.file = false", "log.console = true", // all of it goes to Log
		"collect_statistics_interval = 250", // the management API is at most this many milliseconds behind
	}
	if s.opts.TLS != nil {
		if err := s.opts.TLS.copyServer(s.dir, nil); err != nil {
			return err
		}
		conf = append(conf,
			"listeners.ssl.1 = "+loopback(s.TLSPort),
			"ssl_options.cacertfile = "+filepath.Join(s.dir, "ca.pem"),
			"ssl_options.certfile = "+filepath.Join(s.dir, "server.pem"),
			"ssl_options.keyfile = "+filepath.Join(s.dir, "server.key"),
			"ssl_options.verify = verify_peer",
			"ssl_options.fail_if_no_peer_cert = true")
	}
	conf = append(conf, s.opts.Config...)
	plugins := append([]string{"rabbitmq_management", "rabbitmq_consistent_hash_exchange"}, s.opts.Plugins...)
	_ = os.Remove(filepath.Join(s.dir, ".erlang.cookie")) // its mode forbids writing
	for name, content := range map[string]string{
		"rabbitmq.conf": strings.Join(conf, "\n") + "\n", "enabled_plugins": "[" + strings.Join(plugins, ",") + "].\n", ".erlang.cookie": s.cookie,
	} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o600); err != nil {
			return fmt.Errorf("waybill/testenv: rabbitmq: %w", err)
		}
	}
	if err := os.Chmod(filepath.Join(s.dir, ".erlang.cookie"), 0o400); err != nil {
		return fmt.Errorf("waybill/testenv: rabbitmq: %w", err)
	}
	return nil
}

func (s *RabbitMQServer) env() []string {
	in := func(name string) string { return filepath.Join(s.dir, name) }
	path := "/usr/bin:/bin:/usr/sbin:/sbin"
	if os.Getenv(RabbitMQBin) != "" && s.root == "" {
		path = os.Getenv("PATH") // with an Erlang that fits it
	}
	return []string{
		"PATH=" + path, "LANG=C.UTF-8", "HOME=" + s.dir,
		"ERL_EPMD_PORT=" + strconv.Itoa(s.epmdPort), "ERL_EPMD_ADDRESS=127.0.0.1",
		// the start script then execs the virtual machine: the child's pid is the broker's
		"RUNNING_UNDER_SYSTEMD=1",
		"RABBITMQ_CONF_ENV_FILE=/dev/null", "RABBITMQ_NODENAME=" + s.nodeName(),
		"RABBITMQ_NODE_PORT=" + strconv.Itoa(s.Port), "RABBITMQ_DIST_PORT=" + strconv.Itoa(s.distPort),
		"RABBITMQ_MNESIA_BASE=" + in("mnesia"), "RABBITMQ_LOG_BASE=" + in("log"), "RABBITMQ_PID_FILE=" + in("pid"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + in("enabled_plugins"), "RABBITMQ_CONFIG_FILE=" + in("rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + in("advanced.config"), "RABBITMQ_FEATURE_FLAGS_FILE=" + in("feature_flags"),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
	}
}

// start starts the node, and its name server (epmd) when that is not running: without an epmd of ours Erlang leaves a
// daemon behind.
func (s *RabbitMQServer) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	var err error
	if s.first == nil && (s.epmd == nil || s.epmd.ended()) {
		epmd := "/usr/bin/epmd"
		if s.root == "" {
			if epmd, err = exec.LookPath("epmd"); err != nil {
				return fmt.Errorf("waybill/testenv: rabbitmq: %w: no epmd (Erlang) found", ErrUnavailable)
			}
		}
		if s.epmd, err = start(brokerIn(s.root), s.dir, s.Log(), s.env(), epmd, "-port", strconv.Itoa(s.epmdPort), "-address", "127.0.0.1"); err != nil {
			return err
		}
		if err := poll(ctx, s.epmd.done, func(ctx context.Context) error { return dial(ctx, s.epmdPort, "") }); err != nil {
			return fmt.Errorf("waybill/testenv: rabbitmq: epmd: %w\n%s", err, tail(s.Log()))
		}
	}
	begin := startOnOneCPU
	if s.opts.AllCPUs {
		begin = start
	}
	if s.proc, err = begin(brokerIn(s.root), s.dir, s.Log(), s.env(), filepath.Join(rabbitmqBin(), "rabbitmq-server")); err != nil {
		return err
	}
	err = poll(ctx, s.proc.done, func(ctx context.Context) error {
		if err := dial(ctx, s.Port, "AMQP\x00\x00\x09\x01"); err != nil {
			return err
		}
		if s.opts.TLS != nil { // its listener comes after the other
			if err := dial(ctx, s.TLSPort, ""); err != nil {
				return err
			}
		}
		return s.Do(ctx, "GET", "/api/whoami", nil, nil)
	})
	if err != nil {
		return fmt.Errorf("waybill/testenv: rabbitmq: start: %w\n%s", err, tail(s.Log()))
	}
	return nil
}

// dial connects to a loopback port. With a greeting it also waits for the first byte of the answer, which must be 1: an
// AMQP method frame.
func dial(ctx context.Context, port int, greeting string) error {
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "tcp", loopback(port))
	if err != nil {
		return fmt.Errorf("waybill/testenv: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if greeting == "" {
		return nil
	}
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.WriteString(conn, greeting); err != nil {
		return fmt.Errorf("waybill/testenv: %w", err)
	}
	var b [1]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil || b[0] != 1 {
		return fmt.Errorf("waybill/testenv: no AMQP answer on port %d: %w", port, err)
	}
	return nil
}

// Addr returns host:port of the AMQP listener, for a proxy.
func (s *RabbitMQServer) Addr() string { return loopback(s.Port) }

// Log returns the path of the broker's log file.
func (s *RabbitMQServer) Log() string { return filepath.Join(s.dir, "rabbitmq.log") }

// AMQPURL returns the AMQP URL of a virtual host, "/" for the default one.
func (s *RabbitMQServer) AMQPURL(vhost string) string {
	return vhostURL(url.URL{Scheme: "amqp", User: url.UserPassword(s.User, s.Password), Host: s.Addr()}, vhost)
}

// TLSURL returns the amqps URL of a virtual host. Client certificates go into the TLS configuration, see TLS.Client.
func (s *RabbitMQServer) TLSURL(vhost string) string {
	return vhostURL(url.URL{Scheme: "amqps", User: url.UserPassword(s.User, s.Password), Host: loopback(s.TLSPort)}, vhost)
}

// OpenVHost makes a virtual host on this broker. It ends with the broker; Close deletes it earlier.
func (s *RabbitMQServer) OpenVHost(ctx context.Context) (*MQ, error) {
	return openVHost(ctx, s.Management, s.AMQPURL("/"))
}

// Ctl runs rabbitmqctl on the broker (half a second or more).
func (s *RabbitMQServer) Ctl(ctx context.Context, args ...string) error {
	return run(ctx, brokerIn(s.root), s.dir, s.env(), filepath.Join(rabbitmqBin(), "rabbitmqctl"), append([]string{"-n", s.nodeName(), "-q"}, args...)...)
}

// Reload makes the broker read its certificate again. Open connections stay.
func (s *RabbitMQServer) Reload(ctx context.Context) error {
	if t := s.opts.TLS; t != nil {
		if err := t.copyServer(s.dir, nil); err != nil {
			return err
		}
	}
	return s.Ctl(ctx, "eval", "ssl:clear_pem_cache().")
}

// DefinitionsOnDisk is how long a broker takes at most until a declared object is on its disk. A younger one, a queue
// with its messages as well as an exchange or a binding, may be gone after a kill (seen with RabbitMQ 3.10).
const DefinitionsOnDisk = 3 * time.Second

// Kill ends the broker with SIGKILL, as a crash does. Data stay, but for objects that were declared less than
// [DefinitionsOnDisk] before.
func (s *RabbitMQServer) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.kill()
}

// Stop ends the broker as an operator does (up to 7 s). Data stay.
func (s *RabbitMQServer) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.stop(sigTerm, 20*time.Second)
}

// Restart starts the broker again on the same ports and data, after killing it if it runs, and returns when it accepts
// connections. The leaders of recovered quorum queues may need a little longer: poll.
func (s *RabbitMQServer) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.kill()
	var errs []error
	for range 3 { // as its supervisor would
		err := s.start(ctx)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
		if s.proc == nil || ctx.Err() != nil {
			break
		}
		s.proc.kill()
	}
	return errors.Join(errs...)
}

// Pause freezes the broker (SIGSTOP): connections stay open and nothing answers.
func (s *RabbitMQServer) Pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.signal(sigStop)
}

// Resume lets a paused broker go on.
func (s *RabbitMQServer) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.signal(sigCont)
}

// Close kills the broker and removes its data. It may be called more than once.
func (s *RabbitMQServer) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endAll()
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("waybill/testenv: rabbitmq: %w", err)
	}
	return nil
}

func (s *RabbitMQServer) endAll() {
	for _, p := range []*process{s.proc, s.epmd} {
		if p != nil {
			p.kill()
		}
	}
	freed(s.Port, s.TLSPort, s.distPort, s.mgmt)
	if s.first == nil {
		freed(s.epmdPort)
	}
}

// URLFor returns the AMQP URL of the virtual host for another user.
func (m *MQ) URLFor(user, password string) string {
	u, err := url.Parse(m.URL)
	if err != nil {
		return m.URL
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}

// Close deletes the virtual host with its queues and connections. It may be called more than once.
func (m *MQ) Close(ctx context.Context) error { return m.DeleteVHost(ctx, m.VHost) }

func openVHost(ctx context.Context, m Management, amqpURL string) (*MQ, error) {
	u, err := url.Parse(amqpURL)
	if err != nil || u.Host == "" {
		return nil, errRabbitURL
	}
	vhost := randomName("waybill-test-")
	if err := m.CreateVHost(ctx, vhost); err != nil {
		return nil, err
	}
	return &MQ{Management: m, URL: vhostURL(*u, vhost), VHost: vhost}, nil
}

func vhostURL(u url.URL, vhost string) string {
	u.Path, u.RawPath = "/"+vhost, "/"+url.PathEscape(vhost)
	return u.String()
}
