package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/kafka"
	"github.com/waybill-go/waybill/internal/patience"
)

func batchOf(n int) []waybill.Envelope {
	batch := make([]waybill.Envelope, n)
	for i := range batch {
		batch[i] = waybill.Envelope{ID: fmt.Sprintf("m%d", i), Topic: "orders", Key: fmt.Sprintf("k%d", i%29), Body: fmt.Appendf(nil, "body %d", i)}
	}
	return batch
}

// stored returns the ids of the messages of a bus, by partition, in order.
func stored(tb testing.TB, address, bus string) []string {
	tb.Helper()
	left := ended(tb, ask(tb, address), bus)
	c, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(address, ",")...), kgo.ConsumeTopics(bus))
	if err != nil {
		tb.Fatal(err)
	}
	defer c.Close()
	byPartition := map[int32][]string{}
	for left > 0 && tb.Context().Err() == nil {
		c.PollFetches(tb.Context()).EachRecord(func(rec *kgo.Record) {
			for _, h := range rec.Headers {
				if h.Key == "ce_id" {
					byPartition[rec.Partition] = append(byPartition[rec.Partition], string(h.Value))
				}
			}
			left--
		})
	}
	var all []string
	for p := range int32(100) {
		all = append(all, byPartition[p]...)
	}
	return all
}

// impatient is a context that ends when a call begins to wait for it.
type impatient struct {
	context.Context //nolint:containedctx // it is one
	end             context.CancelFunc
}

func (c impatient) Done() <-chan struct{} {
	c.end()
	return c.Context.Done()
}

// hindrance keeps the results of a publish from its caller. wait returns when it has done so, and undo ends it.
type hindrance func(t *testing.T, address string, link *cable) (wait func(bus string, stored int), undo func())

// deaf loses the brokers' answers. The brokers store the messages.
func deaf(t *testing.T, address string, link *cable) (wait func(bus string, stored int), undo func()) {
	t.Helper()
	link.deafen()
	admin := ask(t, address)
	return func(bus string, stored int) {
		patience.Until(t, "the broker has stored the messages", func() bool { return ended(t, admin, bus) >= stored })
	}, func() { link.set(false) }
}

// ended returns how many records a bus has got.
func ended(tb testing.TB, admin *tools, bus string) (n int) {
	tb.Helper()
	ends, err := admin.ListEndOffsets(tb.Context(), bus)
	if err != nil || ends.Error() != nil {
		tb.Fatal(err, ends.Error())
	}
	ends.Each(func(o kadm.ListedOffset) { n += int(o.Offset) })
	return n
}

// publishAgain publishes messages eight times while a hindrance keeps their results away, and then once more; late says
// that the brokers store the messages between these two. Each has one copy.
func publishAgain(t *testing.T, address string, late bool, hinder hindrance) {
	t.Helper()
	link, opts := &cable{}, options()
	opts.Client = []kgo.Opt{kgo.Dialer(link.dial)}
	bus := dial(t, address, opts)
	// A broker takes any sequence number from a producer that is new to a partition, so make it known.
	first, batch := batchOf(29), batchOf(50)
	for i := range first {
		first[i].ID = "first-" + first[i].ID
	}
	if err := bus.Publish(t.Context(), first).FirstErr(); err != nil {
		t.Fatal(err)
	}
	wait, undo := hinder(t, address, link)
	for range 8 {
		ctx, end := context.WithCancel(t.Context())
		for i, err := range bus.Publish(impatient{ctx, end}, batch) {
			if waybill.ClassOf(err) != waybill.ClassOutage {
				t.Errorf("message %d while its result is unknown: %v", i, err)
			}
		}
		wait(opts.Bus, len(first)+len(batch))
	}
	undo()
	if late {
		admin := ask(t, address)
		patience.Until(t, "the messages are stored", func() bool { return ended(t, admin, opts.Bus) >= len(first)+len(batch) })
	}
	if err := bus.Publish(t.Context(), batch).FirstErr(); err != nil {
		t.Fatal(err)
	}
	ids := stored(t, address, opts.Bus)
	slices.Sort(ids)
	if n := len(ids); n != len(slices.Compact(ids)) || n != len(batch)+len(first) {
		t.Errorf("%d messages are stored of %d", n, len(batch)+len(first))
	}
	// That result is known. So another publish is meant, such as that of a message that an operator has redriven.
	if err := bus.Publish(t.Context(), batch).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if n := ended(t, ask(t, address), opts.Bus); n != 2*len(batch)+len(first) {
		t.Errorf("%d messages are stored after another publish, want %d", n, 2*len(batch)+len(first))
	}
}

// TR-17: a relay publishes its messages again and again while the broker's answers do not come. Each has one copy.
func TestPublishAgainMakesNoCopies(t *testing.T) {
	t.Parallel()
	run := func(name string, f func(t *testing.T, late bool)) {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, late %t", name, late), func(t *testing.T) {
				t.Parallel()
				f(t, late)
			})
		}
	}
	for name, failure := range map[string]*kerr.Error{
		"too few replicas":                      kerr.NotEnoughReplicas,
		"stored, and the answer says otherwise": kerr.NotEnoughReplicasAfterAppend,
	} {
		run(name, func(t *testing.T, late bool) {
			t.Helper()
			f := startFake(t)
			publishAgain(t, f.address(), late, func(t *testing.T, _ string, _ *cable) (wait func(bus string, stored int), undo func()) {
				t.Helper()
				h := f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: failure, Count: -1})
				return func(string, int) {
					if err := h.Wait(t.Context(), 1); err != nil {
						t.Error(err)
					}
				}, h.Remove
			})
		})
	}
	for name, hinder := range map[string]hindrance{
		"the answers are lost": deaf,
		"the link is cut": func(_ *testing.T, _ string, link *cable) (wait func(bus string, stored int), undo func()) {
			link.set(true)
			return func(string, int) {}, func() { link.set(false) }
		},
	} {
		run(name, func(t *testing.T, late bool) {
			t.Helper()
			publishAgain(t, startFake(t).address(), late, hinder)
		})
	}
}

// TR-17, on a real broker, which has stored the messages, and whose answers are lost.
func TestPublishAgainOnKafka(t *testing.T) {
	t.Parallel()
	publishAgain(t, node(t), true, deaf)
}

// The broker refuses a batch because of one of its messages. That one fails, and the others are stored.
func TestRefusedMessageFailsAlone(t *testing.T) {
	t.Parallel()
	f, opts := startFake(t), options()
	opts.Partitions, opts.Client = 1, []kgo.Opt{kgo.ProducerBatchCompression(kgo.NoCompression())}
	bus := dial(t, f.address(), opts)
	fault := f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.InvalidRecord, Count: -1, When: func(req kmsg.Request) bool {
		for _, topic := range req.(*kmsg.ProduceRequest).Topics {
			for _, p := range topic.Partitions {
				if bytes.Contains(p.Records, []byte("poison")) {
					return true
				}
			}
		}
		return false
	}})
	message := func(id, key, body string) waybill.Envelope {
		return waybill.Envelope{ID: id, Topic: "orders", Key: key, Body: []byte(body)}
	}
	batch := []waybill.Envelope{message("a1", "a", "x"), message("b1", "b", "poison"), message("d1", "d", "x"), message("c1", "", "x")}
	for i, err := range bus.Publish(t.Context(), batch) {
		switch {
		case i == 1 && (waybill.ClassOf(err) != waybill.ClassRejected || !errors.Is(err, kerr.InvalidRecord)),
			i != 1 && err != nil:
			t.Errorf("message %s: %v", batch[i].ID, err)
		}
	}
	if got := slices.Sorted(slices.Values(stored(t, f.address(), opts.Bus))); !slices.Equal(got, []string{"a1", "c1", "d1"}) {
		t.Errorf("stored are %v", got)
	}
	fault.Remove()
	if err := bus.Publish(t.Context(), batch[1:2]).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if got := stored(t, f.address(), opts.Bus); !slices.Equal(got[3:], []string{"b1"}) {
		t.Errorf("stored are %v", got)
	}
}

// Keys go to the partitions of Java's client: murmur2.
func TestPartitioner(t *testing.T) {
	t.Parallel()
	f, opts := startFake(t), options()
	opts.Partitions = 12
	bus := dial(t, f.address(), opts)
	// As org.apache.kafka.common.utils.Utils.toPositive(murmur2(key)) % 12 has them.
	want := map[string]int32{"21": 0, "foobar": 0, "a-little-bit-long-string": 0, "abc": 0}
	for key, hash := range map[string]int32{"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "abc": 479470107} {
		want[key] = (hash & 0x7fffffff) % 12
		if err := bus.Publish(t.Context(), []waybill.Envelope{{ID: key, Topic: "t", Key: key}}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(f.address()), kgo.ConsumeTopics(opts.Bus))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for n := 0; n < len(want) && t.Context().Err() == nil; {
		c.PollFetches(t.Context()).EachRecord(func(rec *kgo.Record) {
			if p := want[string(rec.Key)]; p != rec.Partition {
				t.Errorf("key %s is in partition %d, want %d", rec.Key, rec.Partition, p)
			}
			n++
		})
	}
}

// Synced follows the settings of the brokers.
func TestSynced(t *testing.T) {
	t.Parallel()
	f := startFake(t, kfake.NumBrokers(3))
	for _, c := range []struct {
		replicas, least int
		want            bool
	}{{3, 2, true}, {3, 1, false}, {2, 2, false}} {
		opts := options()
		opts.Replicas, opts.MinInSync = c.replicas, c.least
		if got := dial(t, f.address(), opts).Traits().Synced; got != c.want {
			t.Errorf("%d replicas, of which %d are in sync: Synced is %v", c.replicas, c.least, got)
		}
	}
}

// A bus whose messages are deleted unread is refused.
func TestCompactedBus(t *testing.T) {
	t.Parallel()
	f, opts := startFake(t), options()
	compact := "compact"
	if _, err := ask(t, f.address()).CreateTopic(t.Context(), 1, 1, map[string]*string{"cleanup.policy": &compact}, opts.Bus); err != nil {
		t.Fatal(err)
	}
	if _, err := kafka.Dial(t.Context(), f.address(), opts); !errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("a compacted bus: %v", err)
	}
	opts = options()
	opts.Passive = true
	if _, err := kafka.Dial(t.Context(), f.address(), opts); !errors.Is(err, waybill.ErrMisconfigured) || waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("a passive transport without a bus: %v", err)
	}
}
