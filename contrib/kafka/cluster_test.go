package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
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

// effects are the first deliveries of messages, as a handler with an inbox has them.
type effects struct {
	mu    sync.Mutex
	ids   map[string]bool
	byKey map[string][]string
}

// consume handles messages until ctx ends. Outages are waited for.
func (e *effects) consume(ctx context.Context, r core.Receiver) {
	for ctx.Err() == nil {
		ds, _ := r.Receive(ctx, 50)
		acks := make([]core.Ack, len(ds))
		e.mu.Lock()
		for i, d := range ds {
			if id, key := d.Envelope.ID, d.Envelope.Key; !e.ids[id] {
				e.ids[id] = true
				e.byKey[key] = append(e.byKey[key], id)
			}
			acks[i] = core.AckDone(d)
		}
		e.mu.Unlock()
		if len(acks) > 0 {
			r.Settle(ctx, acks)
		}
	}
}

func (e *effects) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.ids)
}

// TR-11: while messages are published and consumed, a leader is killed, a leader stands still, and the coordinator of
// the group is killed, each until three quarters of the messages have got through without it. Each message has its
// effect, those of a key in order. A message has two copies at most.
func TestNodesDie(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "kills and freezes nodes of three: two minutes")
	x, opts := startThree(t), options()
	opts.Replicas, opts.MinInSync = 3, 2
	bus := dial(t, x.Addr(), opts)
	if !bus.Traits().Synced {
		t.Error("three replicas are not synced")
	}
	seen := &effects{ids: map[string]bool{}, byKey: map[string][]string{}}
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	for range 2 {
		r := subscribe(t, dial(t, x.Addr(), opts), "q", "#")
		work.Go(func() { seen.consume(ctx, r) })
	}
	coordinator := func() int {
		found := x.admin.FindGroupCoordinators(t.Context(), opts.Bus+".q")
		return int(found[opts.Bus+".q"].NodeID) - 1
	}
	const keys, batches = 20, 100
	n, published := 0, 0
	publish := func() {
		batch := make([]waybill.Envelope, keys) // one message of a key in flight, as a relay has it
		for k := range batch {
			batch[k] = waybill.Envelope{ID: fmt.Sprintf("k%d-%d", k, n), Topic: "t", Key: fmt.Sprint("k", k), Body: make([]byte, 300)}
		}
		n++
		live, moved := patience.Context(t.Context(), 2*patience.Limit)
		for len(batch) > 0 {
			try, cancel := context.WithTimeout(live, patience.For(5*time.Second)) // of a relay
			var left []waybill.Envelope
			for i, err := range bus.Publish(try, batch) {
				if err != nil {
					left = append(left, batch[i])
				}
				if err != nil && waybill.ClassOf(err) != waybill.ClassOutage || live.Err() != nil {
					t.Fatalf("message %s: %v", batch[i].ID, err)
				}
			}
			cancel()
			if len(left) < len(batch) {
				moved()
			}
			published += len(batch) - len(left)
			batch = left
		}
	}
	for _, strike := range []struct {
		name       string
		node       func() int
		down, heal func(node int) error
	}{
		{"kill the leader", func() int { return int(x.partition(t, opts.Bus).Leader) - 1 }, x.kill, func(n int) error { return x.Start(t.Context(), n) }},
		{"freeze the leader", func() int { return int(x.partition(t, opts.Bus).Leader) - 1 }, x.freeze, func(n int) error { x.Thaw(n); return nil }},
		{"kill the coordinator", coordinator, x.kill, func(n int) error { return x.Start(t.Context(), n) }},
	} {
		x.whole(t, opts.Bus)
		node := strike.node()
		t.Logf("%s: node %d, after %d messages and %d effects", strike.name, node+1, published, seen.count())
		struck := make(chan error, 1)
		for i := range batches {
			switch i {
			case batches / 4:
				go func() { struck <- strike.down(node) }() // while messages are on their way
			case batches * 3 / 4:
				before := published - keys*batches/4
				patience.Moving(t, "the queue goes on without the node", func() (int, bool) { c := seen.count(); return c, c >= before })
				if err := errors.Join(<-struck, strike.heal(node)); err != nil {
					t.Fatal(err)
				}
			}
			publish()
		}
	}
	patience.Moving(t, "all have their effect", func() (int, bool) { c := seen.count(); return c, c == published })
	stop()
	work.Wait()
	for k := range keys {
		list := seen.byKey[fmt.Sprint("k", k)]
		for i, id := range list {
			if want := fmt.Sprintf("k%d-%d", k, i); id != want {
				t.Fatalf("key k%d: effect %d is of %s, want %s", k, i, id, want)
			}
		}
	}
	x.whole(t, opts.Bus)
	copies := map[string]int{}
	for _, id := range stored(t, x.Addr(), opts.Bus) {
		copies[id]++
	}
	twice := 0
	for id, c := range copies {
		if c > 2 {
			t.Errorf("%s has %d copies", id, c)
		} else if c == 2 {
			twice++
		}
	}
	t.Logf("%d messages, %d of them with two copies", len(copies), twice)
	if len(copies) != published {
		t.Errorf("the log has %d messages of %d", len(copies), published)
	}
}

func (x *three) kill(node int) error   { x.Kill(node); return nil }
func (x *three) freeze(node int) error { x.Freeze(node); return nil }

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
