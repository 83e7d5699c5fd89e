package testenv

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// kafkaVersion is the version of Apache Kafka that scripts/kafka gets.
const kafkaVersion = "4.3.1"

// KafkaVariable names running brokers, as host:port with commas between them, to be used instead.
const KafkaVariable = "WAYBILL_TEST_KAFKA"

// KafkaServer is a private Apache Kafka of one node. It has an authorizer that allows everything for which there is no
// rule.
type KafkaServer struct {
	// Port is the port on 127.0.0.1; it stays the same over restarts.
	Port int

	dir            string
	controllerPort int

	mu   sync.Mutex // guards proc
	proc *process
}

// OwnKafka starts a private Kafka for this test alone (5 to 10 s), and removes it at the end of the test.
func OwnKafka(tb TB) *KafkaServer {
	tb.Helper()
	s, err := StartKafka(tb.Context())
	if err != nil {
		unavailable(tb, err)
		return nil
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// StartKafka starts a private Kafka and returns when it takes connections. It may not know its topics yet: ask until it
// lists itself. The caller must Close it.
func StartKafka(ctx context.Context) (*KafkaServer, error) {
	libs, err := kafkaLibs()
	if err != nil {
		return nil, err
	}
	dir, err := newDir("kafka", nil)
	if err != nil {
		return nil, err
	}
	s := &KafkaServer{dir: dir}
	if err = s.configure(ctx, libs); err == nil {
		err = s.start(ctx, libs)
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

// Of the two compilers of Java the quick one does.
var javaOptions = []string{"-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}

func (s *KafkaServer) configure(ctx context.Context, libs string) error {
	for _, port := range []*int{&s.Port, &s.controllerPort} {
		var err error
		if *port, err = freePort(); err != nil {
			return err
		}
	}
	conf := []string{
		"process.roles=broker,controller", "node.id=1", "controller.quorum.voters=1@" + loopback(s.controllerPort),
		"listeners=PLAINTEXT://" + loopback(s.Port) + ",CONTROLLER://" + loopback(s.controllerPort), "advertised.listeners=PLAINTEXT://" + loopback(s.Port),
		"controller.listener.names=CONTROLLER", "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
		"log.dirs=" + filepath.Join(s.dir, "data"), "offsets.topic.replication.factor=1", "offsets.topic.num.partitions=4",
		"transaction.state.log.replication.factor=1", "transaction.state.log.min.isr=1", "share.coordinator.state.topic.replication.factor=1",
		"share.coordinator.state.topic.min.isr=1", "group.initial.rebalance.delay.ms=0", "auto.create.topics.enable=false",
		"broker.session.timeout.ms=2000", "broker.heartbeat.interval.ms=500", "log.segment.bytes=16777216", "log.index.size.max.bytes=65536",
		"authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", "allow.everyone.if.no.acl.found=true",
	}
	if err := os.WriteFile(s.config(), []byte(strings.Join(conf, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("waybill/testenv: kafka: %w", err)
	}
	logging := []string{
		"rootLogger.level=WARN", "rootLogger.appenderRef.c.ref=C", "appender.c.type=Console", "appender.c.name=C", "appender.c.layout.type=PatternLayout",
		"appender.c.layout.pattern=[%d] %p %m (%c)%n",
	}
	if err := os.WriteFile(filepath.Join(s.dir, "log4j2.properties"), []byte(strings.Join(logging, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("waybill/testenv: kafka: %w", err)
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id) // it never fails
	id[0] &= 0x7f        // the id must not begin with a dash
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	args := append([]string{"-Xmx128m"}, javaOptions...)
	args = append(args, "-cp", libs, "kafka.tools.StorageTool", "format", "-t", base64.RawURLEncoding.EncodeToString(id), "-c", s.config())
	if out, err := exec.CommandContext(ctx, "java", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("waybill/testenv: kafka: format: %w\n%s", err, out)
	}
	return nil
}

func (s *KafkaServer) config() string { return filepath.Join(s.dir, "server.properties") }

func (s *KafkaServer) start(ctx context.Context, libs string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	java, err := exec.LookPath("java")
	if err != nil {
		return fmt.Errorf("waybill/testenv: kafka: %w", err)
	}
	args := append([]string{"-Xmx512m"}, javaOptions...)
	args = append(args, "-Dlog4j2.configurationFile="+filepath.Join(s.dir, "log4j2.properties"), "-cp", libs, "kafka.Kafka", s.config())
	env := []string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8", "HOME=" + s.dir}
	if s.proc, err = start(nil, s.dir, s.Log(), env, java, args...); err != nil {
		return err
	}
	err = poll(ctx, s.proc.done, func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.Addr())
		if err == nil {
			_ = c.Close()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("waybill/testenv: kafka: start: %w\n%s", err, tail(s.Log()))
	}
	return nil
}

// Addr returns host:port.
func (s *KafkaServer) Addr() string { return loopback(s.Port) }

// Log returns the path of the server's log file.
func (s *KafkaServer) Log() string { return filepath.Join(s.dir, "kafka.log") }

// Restart starts the server again on the same port and data, after killing it as a crash does, and returns when it
// takes connections.
func (s *KafkaServer) Restart(ctx context.Context) error {
	libs, err := kafkaLibs()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.kill()
	return s.start(ctx, libs)
}

// Close kills the server and removes its data. It may be called more than once.
func (s *KafkaServer) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		s.proc.kill()
	}
	freed(s.Port, s.controllerPort)
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("waybill/testenv: kafka: %w", err)
	}
	return nil
}
