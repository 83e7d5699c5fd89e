package testenv_test

import (
	"testing"

	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
)

// A node of a cluster that was killed joins it again.
func TestCluster(t *testing.T) {
	tier.Nightly(t, "starts three brokers: 15 s")
	t.Parallel()
	needLinux(t)
	c := testenv.OwnRabbitMQCluster(t, 3, testenv.RabbitMQOptions{})
	c.Nodes[2].Kill()
	if err := c.Nodes[2].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return testenv.Complete(t.Context(), c) })
}
