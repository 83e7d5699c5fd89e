package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
)

// RabbitMQCluster is a cluster of private brokers, which may be killed, paused and restarted one by one.
type RabbitMQCluster struct {
	// Nodes are the brokers. User and password are the same on each.
	Nodes []*RabbitMQServer
}

// OwnRabbitMQCluster starts a private cluster for this test alone (10 to 20 s), and removes it at the end of the test.
func OwnRabbitMQCluster(tb TB, nodes int, opts RabbitMQOptions) *RabbitMQCluster {
	tb.Helper()
	return own(tb, func(ctx context.Context) (*RabbitMQCluster, error) { return StartRabbitMQCluster(ctx, nodes, opts) })
}

// StartRabbitMQCluster starts a cluster and returns when each node knows all. The caller must Close it.
func StartRabbitMQCluster(ctx context.Context, nodes int, opts RabbitMQOptions) (*RabbitMQCluster, error) {
	first, err := StartRabbitMQ(ctx, opts)
	if err != nil {
		return nil, err
	}
	c := &RabbitMQCluster{Nodes: make([]*RabbitMQServer, nodes)}
	c.Nodes[0] = first
	opts.Config = append([]string{
		"cluster_formation.peer_discovery_backend = classic_config",
		"cluster_formation.classic_config.nodes.1 = " + first.nodeName(),
	}, opts.Config...)
	errs := make([]error, nodes)
	var starting sync.WaitGroup
	for i := 1; i < nodes; i++ {
		starting.Go(func() { c.Nodes[i], errs[i] = startRabbitMQ(ctx, opts, first) })
	}
	starting.Wait()
	if err = errors.Join(errs...); err == nil {
		err = poll(ctx, first.proc.done, c.complete)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// complete reports whether the first node sees all run.
func (c *RabbitMQCluster) complete(ctx context.Context) error {
	var nodes []struct {
		Running bool `json:"running"`
	}
	if err := c.Nodes[0].Do(ctx, http.MethodGet, "/api/nodes", nil, &nodes); err != nil {
		return err
	}
	running := 0
	for _, n := range nodes {
		if n.Running {
			running++
		}
	}
	if running != len(c.Nodes) {
		return fmt.Errorf("waybill/testenv: rabbitmq: %d nodes of %d have joined the cluster", running, len(c.Nodes))
	}
	return nil
}

// QuorumQueue is a quorum queue as a node sees it.
type QuorumQueue struct {
	// Leader is the node that leads it, nil while there is none that is known.
	Leader *RabbitMQServer
	// Online is how many of its members run. Messages and Consumers are what it has.
	Online, Messages, Consumers int
}

// Queue returns a quorum queue of the cluster, as the node asked sees it.
func (c *RabbitMQCluster) Queue(ctx context.Context, asked *RabbitMQServer, vhost, queue string) (QuorumQueue, error) {
	var q struct {
		Leader    string   `json:"leader"`
		Online    []string `json:"online"`
		Messages  int      `json:"messages"`
		Consumers int      `json:"consumers"`
	}
	if err := asked.Do(ctx, http.MethodGet, "/api/queues/"+url.PathEscape(vhost)+"/"+url.PathEscape(queue), nil, &q); err != nil {
		return QuorumQueue{}, err
	}
	out := QuorumQueue{Online: len(q.Online), Messages: q.Messages, Consumers: q.Consumers}
	for _, n := range c.Nodes {
		if n.nodeName() == q.Leader {
			out.Leader = n
		}
	}
	return out, nil
}

// Addrs returns the addresses of all nodes.
func (c *RabbitMQCluster) Addrs() (all []string) {
	for _, n := range c.Nodes {
		all = append(all, n.Addr())
	}
	return all
}

// Close kills all nodes and removes their data. It may be called more than once.
func (c *RabbitMQCluster) Close() error {
	var errs []error
	for _, n := range slices.Backward(c.Nodes) { // the first has the name server
		if n != nil {
			errs = append(errs, n.Close())
		}
	}
	return errors.Join(errs...)
}

func (s *RabbitMQServer) nodeName() string { return s.node + "@localhost" }
