//go:build unix

package badday_test

import (
	"context"
	"slices"
	"testing"

	"github.com/waybill-go/waybill/internal/testenv"
)

// OP-17: a cluster of three loses the leader of the queue, then its majority, then gets both back. Nothing that it
// confirmed is lost, and the relay goes on.
func TestClusterLosesItsMajority(t *testing.T) {
	t.Parallel()
	c := testenv.OwnRabbitMQCluster(t, 3, testenv.RabbitMQOptions{})
	d := onRabbitMQ(t, member{Broker: c.Nodes[0].AMQPURL("/"), Hosts: c.Addrs()[1:]})
	d.declare()
	d.pause(testenv.DefinitionsOnDisk)
	d.start(consumes)
	d.start(relays)
	d.produce(2)
	// leader waits until as many members as there are nodes run, and returns the one that leads.
	leader := func(nodes ...*testenv.RabbitMQServer) *testenv.RabbitMQServer {
		t.Helper()
		var q testenv.QuorumQueue
		d.until("one of them leads the queue, and all are members", func() bool {
			var err error
			q, err = c.Queue(t.Context(), nodes[0], "/", queueName)
			return err == nil && q.Online == len(nodes) && slices.Contains(nodes, q.Leader)
		})
		return q.Leader
	}
	t.Cleanup(func() {
		for _, n := range c.Nodes {
			if q, err := c.Queue(context.WithoutCancel(t.Context()), n, "/", queueName); t.Failed() {
				t.Logf("%s: %+v, %v", n.Addr(), q, err)
			}
		}
	})
	for range times() {
		d.flows("messages flow", 50)
		first := leader(c.Nodes...)
		first.Kill()
		d.flows("messages flow under another leader", 100)
		rest := slices.DeleteFunc(slices.Clone(c.Nodes), func(n *testenv.RabbitMQServer) bool { return n == first })
		second := leader(rest...)
		second.Kill()
		waiting := max(d.unsettled(), 0)
		d.until("messages wait in the outbox", func() bool { return d.unsettled() > waiting+100 })
		for _, n := range []*testenv.RabbitMQServer{second, first} {
			if err := n.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			d.flows("messages flow again", 100)
		}
	}
	d.ends(excused{})
	d.nobodyWasBlamed()
}
