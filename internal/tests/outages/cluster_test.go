//go:build unix

package outages_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// OP-17: a cluster of three loses the leader of the queue, then its majority, then gets both back. Nothing that it
// confirmed is lost, and the relay goes on.
func TestClusterLosesItsMajority(t *testing.T) {
	nightly(t)
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
		again := d.republisher(slices.DeleteFunc(slices.Clone(c.Nodes), func(n *testenv.RabbitMQServer) bool { return n == first }))
		first.Kill()
		again()
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

// republisher returns a function that publishes a message again, over a new channel at each of nodes, until it is
// taken. The queue refuses the first ones if it has no leader.
func (d *day) republisher(nodes []*testenv.RabbitMQServer) func() {
	d.Helper()
	var e waybill.Envelope
	for e.ID = range d.ids(d.in, "SELECT id FROM seen LIMIT 1") {
		e.Topic, e.Type, e.Source, e.Body = topic, topic, "/badday", []byte("{}")
	}
	var all []*rabbitmq.Transport
	for _, n := range nodes {
		bus, err := rabbitmq.Dial(d.Context(), n.AMQPURL("/"), rabbitmq.Options{
			PublishConnections: 1, ConnectTimeout: patience.For(rabbitmq.DefaultConnectTimeout), PublishTimeout: 3 * time.Second, Logger: d.base.logger,
		})
		if err != nil {
			d.Fatal(err)
		}
		all = append(all, bus)
		d.Cleanup(func() { _ = bus.Close(context.WithoutCancel(d.Context())) })
	}
	return func() {
		d.Helper()
		refused := 0
		for _, bus := range all {
			d.until("a message is taken that was refused when the queue had no leader", func() bool {
				err := bus.Publish(d.Context(), []waybill.Envelope{e}).FirstErr()
				if err != nil {
					refused++
				}
				return err == nil
			})
		}
		d.Logf("%d times it was refused", refused)
	}
}
