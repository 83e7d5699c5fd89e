package testenv

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// kafkaVersion is the version of Apache Kafka that scripts/kafka gets.
const kafkaVersion = "4.3.1"

// KafkaVariable names running brokers, as host:port with commas between them, to be used instead.
const KafkaVariable = "WAYBILL_TEST_KAFKA"

// KafkaOptions are the settings of a private Kafka. The zero value is one node on which everything is allowed for which
// there is no rule.
type KafkaOptions struct {
	// Nodes is 1 or 3; default 1. Each node is a broker and a controller. Of three, two must have each message, and
	// rules do not bind those who connect to Addr.
	Nodes int
	// Passwords are of users, who connect to SASLAddr by SCRAM-SHA-256. With users, nothing is allowed without a
	// rule, but for those who connect to Addr: they may do everything.
	Passwords map[string]string
}

// KafkaServer is a private Apache Kafka.
type KafkaServer struct {
	opts  KafkaOptions
	dir   string
	id    string
	nodes []*kafkaNode

	mu sync.Mutex // guards the processes of the nodes
}

// kafkaNode is a node of a Kafka. Its ports stay the same over restarts.
type kafkaNode struct {
	dir                    string
	port, controller, sasl int
	proc                   *process
}

// OwnKafka starts a private Kafka for this test alone (5 to 10 s, three nodes 10 to 20), and removes it at its end.
func OwnKafka(tb TB, opts KafkaOptions) *KafkaServer {
	tb.Helper()
	return own(tb, func(ctx context.Context) (*KafkaServer, error) { return StartKafka(ctx, opts) })
}

// StartKafka starts a private Kafka and returns when it takes connections. It may not know its topics yet: ask until it
// lists all nodes. The caller must Close it.
func StartKafka(ctx context.Context, opts KafkaOptions) (*KafkaServer, error) {
	if _, err := kafkaLibs(); err != nil {
		return nil, err
	}
	dir, err := newDir("kafka", nil)
	if err != nil {
		return nil, err
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id) // it never fails
	id[0] &= 0x7f        // the id must not begin with a dash
	s := &KafkaServer{opts: opts, dir: dir, id: base64.RawURLEncoding.EncodeToString(id)}
	for i := range max(opts.Nodes, 1) {
		s.nodes = append(s.nodes, &kafkaNode{dir: filepath.Join(dir, fmt.Sprint("n", i+1))})
	}
	ctx, cancel := context.WithTimeout(ctx, 6*time.Minute)
	defer cancel()
	err = s.reserve()
	for _, step := range []func(context.Context, int) error{s.configure, s.launch, s.awaitPort} {
		if err == nil {
			err = s.each(ctx, step)
		}
	}
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// kafkaLibs returns the folder with Kafka's archives.
func kafkaLibs() (string, error) {
	cache, err := os.UserCacheDir()
	if err == nil {
		dir := filepath.Join(cache, "waybill", "kafka-"+kafkaVersion)
		if isFile(filepath.Join(dir, ".ready")) {
			if _, err := exec.LookPath("java"); err == nil {
				return filepath.Join(dir, "*"), nil
			}
		}
	}
	return "", fmt.Errorf("waybill/testenv: kafka: %w: no Java, or no Kafka %s in the cache: run scripts/kafka, or set %s to the addresses of running brokers",
		ErrUnavailable, kafkaVersion, KafkaVariable)
}

// each does a step for all nodes at once.
func (s *KafkaServer) each(ctx context.Context, step func(ctx context.Context, node int) error) error {
	errs := make([]error, len(s.nodes))
	var wg sync.WaitGroup
	for i := range s.nodes {
		wg.Go(func() {
			if errs[i] = step(ctx, i); errs[i] != nil {
				errs[i] = fmt.Errorf("waybill/testenv: kafka: node %d: %w", i+1, errs[i])
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s *KafkaServer) reserve() error {
	for _, n := range s.nodes {
		for _, port := range []*int{&n.port, &n.controller, &n.sasl} {
			var err error
			if *port, err = freePort(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Of the two compilers of Java the quick one does.
func (s *KafkaServer) java(ctx context.Context, memory string, args ...string) (*exec.Cmd, error) {
	libs, err := kafkaLibs()
	if err != nil {
		return nil, err
	}
	args = append([]string{memory, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", libs}, args...)
	return exec.CommandContext(ctx, "java", args...), nil
}

func (s *KafkaServer) configure(ctx context.Context, node int) error {
	n, copies := s.nodes[node], min(len(s.nodes), 3)
	atLeast := max(copies-1, 1)
	voters := make([]string, len(s.nodes))
	for i, v := range s.nodes {
		voters[i] = fmt.Sprintf("%d@%s", i+1, loopback(v.controller))
	}
	listeners := "PLAINTEXT://" + loopback(n.port) + ",SASL_PLAINTEXT://" + loopback(n.sasl)
	conf := []string{
		"process.roles=broker,controller", fmt.Sprint("node.id=", node+1), "controller.quorum.voters=" + strings.Join(voters, ","),
		"listeners=" + listeners + ",CONTROLLER://" + loopback(n.controller), "advertised.listeners=" + listeners,
		"controller.listener.names=CONTROLLER", "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
		"sasl.enabled.mechanisms=SCRAM-SHA-256",
		"listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;",
		"log.dirs=" + filepath.Join(n.dir, "data"), "offsets.topic.num.partitions=4", fmt.Sprint("offsets.topic.replication.factor=", copies),
		fmt.Sprint("default.replication.factor=", copies), fmt.Sprint("min.insync.replicas=", atLeast),
		fmt.Sprint("transaction.state.log.replication.factor=", copies), fmt.Sprint("transaction.state.log.min.isr=", atLeast),
		fmt.Sprint("share.coordinator.state.topic.replication.factor=", copies), fmt.Sprint("share.coordinator.state.topic.min.isr=", atLeast),
		"group.initial.rebalance.delay.ms=0", "auto.create.topics.enable=false",
		"broker.session.timeout.ms=2000", "broker.heartbeat.interval.ms=500", "log.segment.bytes=16777216", "log.index.size.max.bytes=65536",
		"authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		fmt.Sprint("allow.everyone.if.no.acl.found=", len(s.opts.Passwords) == 0),
	}
	if len(s.opts.Passwords) > 0 || len(s.nodes) > 1 { // nodes ask each other before they know the rules
		conf = append(conf, "super.users=User:ANONYMOUS")
	}
	logging := []string{
		"rootLogger.level=WARN", "rootLogger.appenderRef.c.ref=C", "appender.c.type=Console", "appender.c.name=C", "appender.c.layout.type=PatternLayout",
		"appender.c.layout.pattern=[%d] %p %m (%c)%n",
	}
	err := os.Mkdir(n.dir, 0o700)
	for name, lines := range map[string][]string{n.config(): conf, n.logging(): logging} {
		if err == nil {
			err = os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o600)
		}
	}
	if err != nil {
		return err
	}
	args := []string{"kafka.tools.StorageTool", "format", "-t", s.id, "-c", n.config()}
	for user, password := range s.opts.Passwords {
		args = append(args, "--add-scram", fmt.Sprintf("SCRAM-SHA-256=[name=%s,password=%s]", user, password))
	}
	cmd, err := s.java(ctx, "-Xmx128m", args...)
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("format: %w\n%s", err, out)
	}
	return nil
}

func (n *kafkaNode) config() string  { return filepath.Join(n.dir, "server.properties") }
func (n *kafkaNode) logging() string { return filepath.Join(n.dir, "log4j2.properties") }
func (n *kafkaNode) log() string     { return filepath.Join(n.dir, "kafka.log") }

// launch starts a node's process.
func (s *KafkaServer) launch(ctx context.Context, node int) error {
	n, memory := s.nodes[node], "-Xmx512m"
	if len(s.nodes) > 1 {
		memory = "-Xmx256m"
	}
	cmd, err := s.java(ctx, memory, "-Dlog4j2.configurationFile="+n.logging(), "kafka.Kafka", n.config())
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	env := []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8", "HOME=" + n.dir}
	n.proc, err = start(nil, n.dir, n.log(), env, cmd.Path, cmd.Args[1:]...)
	return err
}

// awaitPort waits until a node takes connections.
func (s *KafkaServer) awaitPort(ctx context.Context, node int) error {
	n := s.nodes[node]
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute) // beside much else
	defer cancel()
	err := poll(ctx, n.proc.done, func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", loopback(n.port))
		if err == nil {
			_ = c.Close()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("start: %w\n%s", err, tail(n.log()))
	}
	return nil
}

// Addr returns host:port of all nodes, with commas between them.
func (s *KafkaServer) Addr() string { return s.addresses(func(n *kafkaNode) int { return n.port }) }

// SASLAddr is Addr for the users of the options.
func (s *KafkaServer) SASLAddr() string { return s.addresses(func(n *kafkaNode) int { return n.sasl }) }

func (s *KafkaServer) addresses(port func(*kafkaNode) int) string {
	list := make([]string, len(s.nodes))
	for i, n := range s.nodes {
		list[i] = loopback(port(n))
	}
	return strings.Join(list, ",")
}

// Nodes returns the number of nodes. Node i has the id i+1.
func (s *KafkaServer) Nodes() int { return len(s.nodes) }

// Kill ends a node as a crash does.
func (s *KafkaServer) Kill(node int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[node].proc.kill()
}

// Freeze has a node stand still, with its connections open. Thaw lets it go on.
func (s *KafkaServer) Freeze(node int) { s.signal(node, sigStop) }

// Thaw ends Freeze.
func (s *KafkaServer) Thaw(node int) { s.signal(node, sigCont) }

func (s *KafkaServer) signal(node int, sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[node].proc.signal(sig)
}

// Start starts a node again that was killed, on the same ports and data, and returns when it takes connections.
func (s *KafkaServer) Start(ctx context.Context, node int) error {
	if err := s.launch(ctx, node); err != nil {
		return err
	}
	return s.awaitPort(ctx, node)
}

// Close kills the nodes and removes their data. It may be called more than once.
func (s *KafkaServer) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		if n.proc != nil {
			n.proc.kill()
		}
		freed(n.port, n.controller, n.sasl)
	}
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("waybill/testenv: kafka: %w", err)
	}
	return nil
}
