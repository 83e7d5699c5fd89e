package kafka_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
)

// three is a Kafka of three nodes.
type three struct {
	*testenv.KafkaServer
	admin *tools
}

// startThree starts three nodes. With users, these connect to SASLAddr, and have no right without a rule.
func startThree(t *testing.T, users ...string) *three {
	t.Helper()
	s := testenv.OwnKafka(t, testenv.KafkaOptions{Nodes: 3, Passwords: passwords(users)})
	x := &three{s, ask(t, s.Addr())}
	if err := ready(t.Context(), x.admin, 3); err != nil {
		t.Fatal(err)
	}
	return x
}

// partition returns the first partition of a bus.
func (x *three) partition(t *testing.T, bus string) kadm.PartitionDetail {
	t.Helper()
	topics, err := x.admin.ListTopics(t.Context(), bus)
	if err != nil || len(topics[bus].Partitions) == 0 {
		t.Fatal(err, topics[bus].Err)
	}
	return topics[bus].Partitions[0]
}

// whole waits until all replicas of a bus are in sync.
func (x *three) whole(t *testing.T, bus string) {
	t.Helper()
	patience.Moving(t, "all replicas are in sync", func() (synced int, done bool) {
		topics, err := x.admin.ListTopics(t.Context(), bus)
		if err != nil {
			return 0, false
		}
		for _, p := range topics[bus].Partitions {
			synced += len(p.ISR)
		}
		return synced, synced == 3*len(topics[bus].Partitions)
	})
}

// A bus without enough replicas in sync refuses messages, and Check says which partition it is. The same messages are
// published again and again, until the replica is back: each is there once.
func TestPublishAgainWithoutReplicas(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "stops a node of three: half a minute")
	x, opts := startThree(t), options()
	opts.Replicas, opts.MinInSync, opts.Partitions = 3, 3, 1
	bus := dial(t, x.Addr(), opts)
	p := x.partition(t, opts.Bus)
	follower := int(p.Replicas[0]) - 1
	if p.Replicas[0] == p.Leader {
		follower = int(p.Replicas[1]) - 1
	}
	x.Kill(follower)
	patience.Until(t, "the check names the partition", func() bool {
		err := bus.Check(t.Context())
		return err != nil && strings.Contains(err.Error(), "2 replicas in sync of the 3")
	})
	batch := batchOf(100)
	for range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), patience.For(2*time.Second)) // its end is a try
		for i, err := range bus.Publish(ctx, batch) {
			if waybill.ClassOf(err) != waybill.ClassOutage {
				t.Errorf("message %d without enough replicas: %v", i, err)
			}
		}
		cancel()
	}
	if err := x.Start(t.Context(), follower); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "all are published", func() bool { return bus.Publish(t.Context(), batch).FirstErr() == nil })
	if n := len(stored(t, x.Addr(), opts.Bus)); n != len(batch) {
		t.Errorf("%d copies of %d messages", n, len(batch))
	}
	patience.Until(t, "the check is fine", func() bool { return bus.Check(t.Context()) == nil })
}
