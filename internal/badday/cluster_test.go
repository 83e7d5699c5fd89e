//go:build unix

package badday_test

import (
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
	for range times() {
		d.flows("messages flow", 50)
		asked := c.Nodes[0]
		leader, err := c.Leader(t.Context(), asked, "/", queueName)
		if err != nil {
			t.Fatal(err)
		}
		leader.Kill()
		d.flows("messages flow under another leader", 100)
		var rest []*testenv.RabbitMQServer
		for _, n := range c.Nodes {
			if n != leader {
				rest = append(rest, n)
			}
		}
		next, err := c.Leader(t.Context(), rest[0], "/", queueName)
		if err != nil {
			t.Fatal(err)
		}
		if next == leader {
			t.Fatal("the queue has no other leader")
		}
		next.Kill()
		waiting := d.unsettled()
		d.until("messages wait in the outbox", func() bool { return d.unsettled() > max(waiting, 0)+100 })
		for _, n := range []*testenv.RabbitMQServer{next, leader} {
			if err := n.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			d.flows("messages flow again", 100)
		}
	}
	d.ends(excused{})
	d.nobodyWasBlamed()
}
