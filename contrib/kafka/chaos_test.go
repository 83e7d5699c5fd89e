package kafka_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/contrib/kafka"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/killtest"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/relay"
)

// chaos is a service over three nodes: a relay, and two consumers with an inbox.
type chaos struct {
	*three
	t     *testing.T
	opts  kafka.Options
	books *killtest.Books
	ctx   context.Context //nolint:containedctx // of the test
	relay *relay.Relay
	eaten *consumer.Consumer // one of the consumers
	work  sync.WaitGroup

	counted int // messages whose copies were counted
}

var chaosSub = waybill.Subscription{Queue: killtest.Queue, Bindings: killtest.Bindings, InOrder: true, Prefetch: 600}

// as returns a passive transport of a user.
func (c *chaos) as(user string) *kafka.Transport {
	c.t.Helper()
	opts := c.opts
	opts.Passive, opts.Client = true, as(user)
	bus, err := kafka.Dial(c.t.Context(), c.SASLAddr(), opts)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = bus.Close(context.WithoutCancel(c.t.Context())) })
	return bus
}

// engine is a relay or a consumer.
type engine interface {
	Run(ctx context.Context) error
	Health(ctx context.Context) waybill.Health
}

// run runs an engine until ctx ends.
func (c *chaos) run(ctx context.Context, what string, engine engine) {
	c.work.Go(func() {
		if err := engine.Run(ctx); err != nil {
			c.t.Errorf("%s: %v", what, err)
		}
	})
}

// consume begins one more consumer.
func (c *chaos) consume(ctx context.Context) *consumer.Consumer {
	c.t.Helper()
	x, err := killtest.NewConsumer(c.books.Effects, c.as("consumer"), chaosSub)
	if err != nil {
		c.t.Fatal(err)
	}
	c.run(ctx, "consumer", x)
	return x
}

// rights returns the rights of a user on a topic or group.
func (c *chaos) rights(user, name string) (list []kafka.Right) {
	c.t.Helper()
	all, err := kafka.NewTopology(c.opts, kafka.Users{Relay: "relay", Consumer: "consumer"}, core.SubscriptionOf(&chaosSub))
	if err != nil {
		c.t.Fatal(err)
	}
	return slices.DeleteFunc(all.Rights, func(r kafka.Right) bool { return user != "" && (r.User != user || r.Name != name) })
}

// names waits until the health of an engine names a condition.
func (c *chaos) names(engine engine, words ...string) error {
	patience.Until(c.t, "health names "+strings.Join(words, ", "), func() bool {
		text := engine.Health(c.t.Context()).String()
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
	})
	return nil
}

// leader returns the node that leads the first partition of the bus, and coordinator the one that has the group.
func (c *chaos) leader() int { return int(c.partition(c.t, c.opts.Bus).Leader) - 1 }

func (c *chaos) coordinator() int {
	group := c.opts.Bus + "." + killtest.Queue
	return int(c.admin.FindGroupCoordinators(c.t.Context(), group)[group].NodeID) - 1
}

// move gives each partition the nodes from another one on, and has the first of them lead it.
func (c *chaos) move(from, nodes int) error {
	var to kadm.AlterPartitionAssignmentsReq
	for p := range c.opts.Partitions {
		list := make([]int32, nodes)
		for i := range list {
			list[i] = int32((from+p+i)%3) + 1
		}
		to.Assign(c.opts.Bus, int32(p), list)
	}
	res, err := c.admin.AlterPartitionAssignments(c.t.Context(), to)
	if err = errors.Join(err, res.Error()); err != nil {
		return err
	}
	patience.Until(c.t, "the partitions have moved", func() bool {
		moving, err := c.admin.ListPartitionReassignments(c.t.Context(), nil)
		return err == nil && len(moving) == 0
	})
	_, err = c.admin.ElectLeaders(c.t.Context(), kadm.ElectPreferredReplica, nil)
	return err
}

// storm has consumers come and go, until ctx ends.
func (c *chaos) storm(ctx context.Context) error {
	var storm sync.WaitGroup
	for range 3 {
		storm.Go(func() {
			for ctx.Err() == nil {
				guest, leave := context.WithCancel(ctx)
				x := c.consume(guest)
				patience.Until(c.t, "a guest is in the group", func() bool { return x.Health(ctx).Ready || ctx.Err() != nil })
				leave()
			}
		})
	}
	storm.Wait()
	return nil
}

// limit gives relay and consumers quotas of so many bytes a second and node; 0 = none.
func (c *chaos) limit(rate float64) error {
	var all []kadm.AlterClientQuotaEntry
	for user, key := range map[string]string{"relay": "producer_byte_rate", "consumer": "consumer_byte_rate"} {
		all = append(all, kadm.AlterClientQuotaEntry{
			Entity: kadm.ClientQuotaEntity{{Type: "user", Name: &user}}, Ops: []kadm.AlterClientQuotaOp{{Key: key, Value: rate, Remove: rate == 0}},
		})
	}
	res, err := c.admin.AlterClientQuotas(c.t.Context(), all)
	for _, r := range res {
		err = errors.Join(err, r.Err)
	}
	return err
}

// deleteBus deletes the topic of the bus, when all messages have had their effect, and has an operator make it anew.
func (c *chaos) deleteBus() (func() error, error) {
	ctx := c.t.Context()
	if err := c.books.Reach(c.ctx, c.books.Staged()); err != nil {
		return nil, err
	}
	c.copies()
	_, err := c.admin.DeleteTopic(ctx, c.opts.Bus)
	return func() error {
		if err := c.names(c.relay, c.opts.Bus, "does not exist"); err != nil {
			return err
		}
		return dial(c.t, c.Addr(), c.opts).Declare(ctx, core.SubscriptionOf(&chaosSub))
	}, err
}

// strike is a fault.
type strike struct {
	name string
	// begin begins the fault, waits until health names it, and returns its end. of: the work goes on without it.
	begin func() (end func() error, err error)
	// stops: no message gets through meanwhile.
	stops bool
}

func (c *chaos) strikes() []strike {
	kill := func(which func() int) func() (func() error, error) {
		return func() (func() error, error) {
			node := which()
			c.Kill(node)
			return func() error { return c.Start(c.t.Context(), node) }, nil
		}
	}
	freeze := func(which func() int) func() (func() error, error) {
		return func() (func() error, error) {
			node := which()
			c.Freeze(node)
			return func() error { c.Thaw(node); return nil }, nil
		}
	}
	during := func(fn func(context.Context) error) func() (func() error, error) {
		return func() (func() error, error) {
			ctx, stop := context.WithCancel(c.t.Context())
			ended := make(chan error, 1)
			go func() { ended <- fn(ctx) }()
			return func() error { stop(); return <-ended }, nil
		}
	}
	deny := func(user, name string, names func() error) func() (func() error, error) {
		return func() (func() error, error) {
			rights := c.rights(user, name)
			s := &strict{c.KafkaServer, c.admin}
			return func() error { return errors.Join(names(), s.grant(c.t.Context(), rights)) }, s.revoke(c.t.Context(), rights)
		}
	}
	slow := func() (func() error, error) {
		return func() error { return c.limit(0) }, c.limit(20_000)
	}
	bus, group := c.opts.Bus, c.opts.Bus+"."+killtest.Queue
	return []strike{
		{"the leader is killed", kill(c.leader), false},
		{"the leader stands still", freeze(c.leader), false},
		{"the coordinator is killed", kill(c.coordinator), false},
		{"the coordinator stands still", freeze(c.coordinator), false},
		{"partitions move", func() (func() error, error) { // a node loses them, and gets them back
			return func() error { return c.move(1, 3) }, c.move(0, 2)
		}, false},
		{"consumers come and go", during(c.storm), false},
		{"quotas slow all of them down", slow, false},
		{"the relay may not write", deny("relay", bus, func() error { return c.names(c.relay, "TOPIC_AUTHORIZATION_FAILED", "rights") }), true},
		{"the consumers may not read", deny("consumer", bus, func() error { return c.names(c.eaten, "TOPIC_AUTHORIZATION_FAILED", "rights") }), true},
		{"the consumers lose their group", deny("consumer", group, func() error { return c.names(c.eaten, "GROUP_AUTHORIZATION_FAILED", "rights") }), true},
		{"the bus is deleted", c.deleteBus, true},
	}
}

// TR-14: a relay and consumers with an inbox over three nodes, to which all that happens for which brokers are known.
// Each message has its effect once, those of a key in order, and at most two copies. Health names what an operator must
// repair, and everything goes on by itself when the fault is over.
func TestChaos(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "kills, freezes and hinders three nodes in ten ways: five minutes")
	x := startThree(t, "relay", "consumer")
	c := &chaos{three: x, t: t, opts: options()}
	c.opts.Replicas, c.opts.MinInSync = 3, 2
	if err := dial(t, x.Addr(), c.opts).Declare(t.Context(), core.SubscriptionOf(&chaosSub)); err != nil {
		t.Fatal(err)
	}
	if err := (&strict{x.KafkaServer, x.admin}).grant(t.Context(), c.rights("", "")); err != nil {
		t.Fatal(err)
	}
	c.ctx, c.books = killtest.OpenBooks(t, t.TempDir())
	ctx, stop := context.WithCancel(t.Context())
	defer c.work.Wait()
	defer stop()
	var err error
	if c.relay, err = killtest.NewRelay(c.books.Outbox, c.as("relay")); err != nil {
		t.Fatal(err)
	}
	c.run(ctx, "relay", c.relay)
	c.eaten = c.consume(ctx)
	c.consume(ctx)
	for _, s := range c.strikes() {
		c.during(s)
	}
	if t.Failed() {
		return
	}
	if err := c.books.Compare(t.Context(), t, true); err != nil {
		t.Fatal(err)
	}
	c.copies()
}

const chaosPart = 400 // messages

// during stages messages before a fault, while it lasts, and after it.
func (c *chaos) during(s strike) {
	t := c.t
	t.Helper()
	c.whole(t, c.opts.Bus)
	fatal := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v\n%s%s", s.name, err, c.relay.Health(t.Context()), c.eaten.Health(t.Context()))
		}
	}
	before := c.books.Staged()
	fatal(c.books.Stage(t.Context(), chaosPart))
	fatal(c.books.Reach(c.ctx, before+chaosPart/4))
	t.Logf("%s, after %d messages", s.name, before+chaosPart/4)
	end, err := s.begin()
	fatal(err)
	fatal(c.books.Stage(t.Context(), chaosPart))
	if !s.stops {
		fatal(c.books.Reach(c.ctx, before+chaosPart*3/2))
	}
	fatal(end())
	fatal(c.books.Reach(c.ctx, before+2*chaosPart))
	patience.Until(t, "health is fine after "+s.name, func() bool {
		return c.relay.Health(t.Context()).Ready && c.eaten.Health(t.Context()).Ready
	})
}

// copies counts the copies of the messages on the log, which are all that came after the last count.
func (c *chaos) copies() {
	c.whole(c.t, c.opts.Bus)
	copies, twice := map[string]int{}, 0
	for _, id := range stored(c.t, c.Addr(), c.opts.Bus) {
		copies[id]++
	}
	for id, n := range copies {
		if n > 2 {
			c.t.Errorf("%s has %d copies", id, n)
		} else if n == 2 {
			twice++
		}
	}
	if n := c.books.Staged() - c.counted; len(copies) != n {
		c.t.Errorf("the log has %d messages of %d", len(copies), n)
	}
	c.counted += len(copies)
	c.t.Logf("%d messages, %d of them with two copies", len(copies), twice)
}
