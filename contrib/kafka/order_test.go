package kafka_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Requests of one partition are stored once, in the order in which they were sent, though the broker answers the first
// one with an error after which the client sends it again. All replicas in sync confirm each.
func TestOrderOfRequests(t *testing.T) {
	t.Parallel()
	f, opts := startFake(t), options()
	opts.Partitions, opts.Client = 1, []kgo.Opt{kgo.ProducerBatchCompression(kgo.NoCompression())}
	bus := dial(t, f.address(), opts)
	// A broker takes any sequence number from a producer that is new to a partition, so make it known.
	if err := bus.Publish(t.Context(), batchOf(1)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	var seen, unnumbered, weak atomic.Int64
	f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Observe: true, Count: -1, When: func(r kmsg.Request) bool {
		req := r.(*kmsg.ProduceRequest)
		if req.Acks != -1 {
			weak.Add(1)
		}
		for _, p := range req.Topics[0].Partitions {
			seen.Add(1)
			if producer := int64(binary.BigEndian.Uint64(p.Records[43:])); producer < 0 {
				unnumbered.Add(1)
			}
		}
		return true
	}})
	sent := 0
	for round := range 4 { // the second request can come after the answer to the first one
		batch := batchOf(4)
		for i := range batch { // two bodies do not fit into a request
			batch[i].ID, batch[i].Key, batch[i].Body = fmt.Sprintf("m%d%d", round, i), "k", make([]byte, 600<<10)
		}
		sent += len(batch)
		f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotLeaderForPartition})
		if err := bus.Publish(t.Context(), batch).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	if got := stored(t, f.address(), opts.Bus)[1:]; len(got) != sent || !slices.IsSorted(got) {
		t.Errorf("messages are stored as %v", got)
	}
	if n := seen.Load(); n < int64(sent) || unnumbered.Load() > 0 || weak.Load() > 0 {
		t.Errorf("of %d looks at a batch %d saw no producer id, and %d saw a request that does not wait for all replicas", n, unnumbered.Load(), weak.Load())
	}
}
