package kafka_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybill-go/waybill/contrib/kafka"
	"github.com/waybill-go/waybill/core/transporttest"
	"github.com/waybill-go/waybill/internal/killtest"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
)

func TestMain(m *testing.M) {
	killtest.Main(runRole)
	_ = flag.Set("test.parallel", "8") // the tests wait for brokers; a flag of the command line wins
	m.Run()
}

// fake is a broker in this process, with its data in a directory of the test.
type fake struct {
	tb   testing.TB
	dir  string
	opts []kfake.Opt

	mu      sync.Mutex
	port    int
	cluster *kfake.Cluster
}

func startFake(tb testing.TB, opts ...kfake.Opt) *fake {
	tb.Helper()
	f := &fake{tb: tb, dir: tb.TempDir(), opts: opts}
	if err := f.start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { f.cluster.Close() })
	return f
}

func (f *fake) start() error {
	opts := append([]kfake.Opt{kfake.NumBrokers(1), kfake.DataDir(f.dir)}, f.opts...)
	if f.port != 0 {
		opts = append(opts, kfake.Ports(f.port))
	}
	c, err := kfake.NewCluster(opts...)
	if err != nil {
		return err
	}
	f.cluster = c
	_, port, err := net.SplitHostPort(c.ListenAddrs()[0])
	if err == nil {
		_, err = fmt.Sscan(port, &f.port)
	}
	return err
}

func (f *fake) restart(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cluster.Close()
	return f.start()
}

func (f *fake) address() string { return fmt.Sprintf("127.0.0.1:%d", f.port) }

// refuse has the broker refuse what is published, or everything that is written.
func (f *fake) refuse(_ context.Context, what transporttest.Refused) (func() error, error) {
	if what == transporttest.RefuseLarge {
		return nil, transporttest.ErrNotDeclared
	}
	faults := []kfake.Fault{{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.PolicyViolation, Count: -1}}
	if what == transporttest.RefuseAll {
		faults = append(faults, kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.GroupAuthorizationFailed, Count: -1})
	}
	h := f.cluster.Fault(faults...)
	return func() error { h.Remove(); return nil }, nil
}

// cable is a link that can be cut: it takes bytes, and drops them; or only the brokers' answers. Neither side notices
// before it is healed.
type cable struct {
	mu        sync.Mutex
	cut, deaf bool
	conns     map[*conn]bool
}

func (c *cable) dial(ctx context.Context, network, address string) (net.Conn, error) {
	up, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut {
		_ = up.Close()
		return nil, errors.New("the link is cut")
	}
	x := &conn{Conn: up, c: c}
	if c.conns == nil {
		c.conns = map[*conn]bool{}
	}
	c.conns[x] = true
	return x, nil
}

type conn struct {
	net.Conn
	c *cable
}

// dead reports whether bytes of a direction are dropped.
func (x *conn) dead(down bool) bool {
	x.c.mu.Lock()
	defer x.c.mu.Unlock()
	return x.c.cut || down && x.c.deaf
}

func (x *conn) Write(b []byte) (int, error) {
	if x.dead(false) {
		return len(b), nil
	}
	return x.Conn.Write(b)
}

func (x *conn) Read(b []byte) (int, error) {
	for {
		n, err := x.Conn.Read(b)
		if err != nil || !x.dead(true) {
			return n, err
		}
	}
}

func (x *conn) Close() error {
	x.c.mu.Lock()
	delete(x.c.conns, x)
	x.c.mu.Unlock()
	return x.Conn.Close()
}

// deafen has the answers lost, until set heals the link.
func (c *cable) deafen() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deaf = true
}

// set cuts the link, or heals it: then the connections end, since they have lost something.
func (c *cable) set(cut bool) {
	c.mu.Lock()
	conns := c.conns
	if c.cut = cut; !cut {
		c.conns, c.deaf = nil, false
	}
	c.mu.Unlock()
	if !cut {
		for x := range conns {
			_ = x.Conn.Close()
		}
	}
}

var busCount atomic.Int64

// busName returns a name that the broker has not seen.
func busName() string { return fmt.Sprintf("t%dx%d", time.Now().UnixNano(), busCount.Add(1)) }

func dial(tb testing.TB, address string, opts kafka.Options) *kafka.Transport {
	tb.Helper()
	t, err := kafka.Dial(tb.Context(), address, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = t.Close(context.WithoutCancel(tb.Context())) })
	return t
}

// tools are the client's own.
type tools struct {
	*kadm.Client
	client *kgo.Client
}

// ask returns tools for the broker at address.
func ask(tb testing.TB, address string) *tools {
	tb.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(address, ",")...), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return &tools{kadm.NewClient(c), c}
}

// ready waits until brokers list so many nodes.
func ready(ctx context.Context, admin *tools, nodes int) error {
	ctx, cancel := context.WithTimeout(ctx, patience.For(patience.Limit))
	defer cancel()
	for {
		list, err := admin.ListBrokers(ctx)
		if err == nil && len(list) == nodes {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
	}
}

var sharedNode struct {
	sync.Mutex
	address string
}

// node returns the address of a real broker: that of WAYBILL_TEST_KAFKA, or one that this process shares.
func node(tb testing.TB) string {
	tb.Helper()
	if address := os.Getenv(testenv.KafkaVariable); address != "" {
		return address
	}
	sharedNode.Lock()
	defer sharedNode.Unlock()
	if sharedNode.address == "" {
		// It ends with the process.
		s, err := testenv.StartKafka(context.WithoutCancel(tb.Context()), testenv.KafkaOptions{})
		if errors.Is(err, testenv.ErrUnavailable) {
			tier.Missing(tb, "%v", err)
		} else if err != nil {
			tb.Fatal(err)
		}
		if err := ready(tb.Context(), ask(tb, s.Addr()), 1); err != nil {
			tb.Fatal(err)
		}
		sharedNode.address = s.Addr()
	}
	return sharedNode.address
}

// denied returns a Refuse for a real broker: rules that deny everybody to write to the topics of a bus. A rule for a
// topic ends that everything is allowed, so others are needed. Settles alone cannot be refused: a member without the
// right to commit leaves the group.
func denied(admin *tools, bus string) func(context.Context, transporttest.Refused) (func() error, error) {
	return func(ctx context.Context, what transporttest.Refused) (func() error, error) {
		if what != transporttest.RefuseMessages {
			return nil, transporttest.ErrNotDeclared
		}
		rule := func() *kadm.ACLBuilder {
			return kadm.NewACLs().ResourcePatternType(kadm.ACLPatternPrefixed).Topics(bus)
		}
		rules := []*kadm.ACLBuilder{
			rule().Operations(kadm.OpRead, kadm.OpDescribe, kadm.OpDescribeConfigs, kadm.OpCreate).Allow("User:*").AllowHosts(),
			rule().Operations(kadm.OpWrite).Deny("User:*").DenyHosts(),
		}
		for _, rule := range rules {
			res, err := admin.CreateACLs(ctx, rule)
			for _, r := range res {
				err = errors.Join(err, r.Err)
			}
			if err != nil {
				return nil, err
			}
		}
		undo := func() error {
			var errs []error
			for _, rule := range rules {
				_, err := admin.DeleteACLs(context.WithoutCancel(ctx), rule)
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		}
		for ctx.Err() == nil { // until the rules are in force
			rec := &kgo.Record{Topic: bus, Headers: []kgo.RecordHeader{{Key: "ce_topic", Value: []byte("of-nobody")}}}
			if err := admin.client.ProduceSync(ctx, rec).FirstErr(); errors.Is(err, kerr.TopicAuthorizationFailed) {
				return undo, nil
			}
		}
		return undo, ctx.Err()
	}
}
