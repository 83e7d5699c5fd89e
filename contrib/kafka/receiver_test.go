package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/kafka"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
)

var receive = sharedtest.Receive

func subscribe(tb testing.TB, bus *kafka.Transport, queue string, bindings ...string) core.Receiver {
	tb.Helper()
	r, err := bus.Subscribe(tb.Context(), core.Subscription{Queue: queue, Bindings: bindings, MaxDeliveries: 20})
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func done(tb testing.TB, r core.Receiver, ds ...*waybill.Delivery) {
	tb.Helper()
	acks := make([]core.Ack, len(ds))
	for i, d := range ds {
		acks[i] = core.AckDone(d)
	}
	if err := r.Settle(tb.Context(), acks).FirstErr(); err != nil {
		tb.Fatal(err)
	}
}

// shortMetadata gives the broker the limit for the metadata of a commit that a real one has.
func shortMetadata(f *fake) {
	f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.OffsetMetadataTooLarge, Count: -1, When: func(req kmsg.Request) bool {
		for _, topic := range req.(*kmsg.OffsetCommitRequest).Topics { //nolint:forcetypeassert // by its key
			for _, p := range topic.Partitions {
				if p.Metadata != nil && len(*p.Metadata) > 4096 {
					return true
				}
			}
		}
		return false
	}})
}

// A queue takes every second message of a backlog, and holds one all the time. The others are no part of its state. A
// process that is gone in the middle leaves the rest, and the one that it held, to the next one.
// TR-16.
func TestHalfOfABacklog(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) string{
		"fake": func(t *testing.T) string { t.Helper(); f := startFake(t); shortMetadata(f); return f.address() },
		"real": func(t *testing.T) string { t.Helper(); return node(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := options()
			opts.Partitions = 1
			address, link := start(t), &cable{}
			bus := dial(t, address, opts)
			const n, first = 6_000, 1_000
			batch := make([]waybill.Envelope, n)
			for i := range batch {
				batch[i] = waybill.Envelope{ID: fmt.Sprintf("m%d", i), Topic: []string{"ours", "others"}[i%2]}
			}
			if err := bus.Publish(t.Context(), batch).FirstErr(); err != nil {
				t.Fatal(err)
			}
			opts.Client = []kgo.Opt{kgo.Dialer(link.dial)}
			r := subscribe(t, dial(t, address, opts), "q", "ours")
			held := receive(t, r, 1)
			came := map[string]int{}
			take := func(n int) {
				for n > 0 {
					ds := receive(t, r, min(n, 50))
					for _, d := range ds {
						came[d.Envelope.ID]++
					}
					done(t, r, ds...)
					n -= len(ds)
				}
			}
			take(first)
			if name == "fake" {
				link.set(true)
				t.Cleanup(func() { link.set(false) })
			} else if err := r.Close(t.Context()); err != nil { // a real broker waits for the session's end
				t.Fatal(err)
			}
			r = subscribe(t, bus, "q")
			again := receive(t, r, 1)
			if d := again[0]; d.Envelope.ID != held[0].Envelope.ID || d.Redeliveries != 1 {
				t.Errorf("after a process had gone, %s came first, with %d redeliveries, want %s", d.Envelope.ID, d.Redeliveries, held[0].Envelope.ID)
			}
			take(n/2 - 1 - first)
			done(t, r, again...)
			if len(came) != n/2-1 || came[held[0].Envelope.ID] > 0 {
				t.Errorf("%d messages of %d came", len(came), n/2-1)
			}
			if err := r.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			r = subscribe(t, bus, "q")
			if err := bus.Publish(t.Context(), []waybill.Envelope{{ID: "last", Topic: "ours"}}).FirstErr(); err != nil {
				t.Fatal(err)
			}
			if d := receive(t, r, 1)[0]; d.Envelope.ID != "last" || d.Redeliveries != 0 {
				t.Errorf("after all were done, %s came, with %d redeliveries", d.Envelope.ID, d.Redeliveries)
			}
		})
	}
}

// Every second one of many deliveries is settled, and then the process is gone. The others come again, and say so.
func TestCountsSurviveAKill(t *testing.T) {
	t.Parallel()
	f, link, opts := startFake(t), &cable{}, options()
	shortMetadata(f)
	opts.Partitions = 1
	bus := dial(t, f.address(), opts)
	opts.Client = []kgo.Opt{kgo.Dialer(link.dial)}
	r := subscribe(t, dial(t, f.address(), opts), "q", "#")
	const n = 400
	if err := bus.Publish(t.Context(), batchOf(n)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{}
	var half []*waybill.Delivery
	for i, d := range receive(t, r, n) {
		if i%2 == 0 {
			half = append(half, d)
		} else {
			left[d.Envelope.ID] = true
		}
	}
	done(t, r, half...)
	link.set(true)
	t.Cleanup(func() { link.set(false) })
	again := subscribe(t, bus, "q")
	for _, d := range receive(t, again, n/2) {
		if !left[d.Envelope.ID] || d.Redeliveries != 1 || d.Attempt != 1 {
			t.Errorf("%s came, which was done: %v, with %d redeliveries, attempt %d", d.Envelope.ID, !left[d.Envelope.ID], d.Redeliveries, d.Attempt)
		}
		delete(left, d.Envelope.ID)
	}
	if len(left) > 0 {
		t.Errorf("%d messages did not come again", len(left))
	}
}

// Another receiver comes. A partition moves after its handlers have ended, and then their settles count.
func TestHandOverWaitsForHandlers(t *testing.T) {
	t.Parallel()
	f, opts := startFake(t), options()
	opts.DrainFor = time.Hour // the settle ends the wait
	bus := dial(t, f.address(), opts)
	a := subscribe(t, bus, "q", "#")
	const n = 40
	if err := bus.Publish(t.Context(), batchOf(n)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	held := receive(t, a, n)
	b := subscribe(t, bus, "q")
	ctx, cancel := context.WithTimeout(t.Context(), patience.For(patience.Limit))
	defer cancel()
	if _, err := f.cluster.WaitGroupStable(ctx, opts.Bus+".q", 2); err != nil {
		t.Fatal(err)
	}
	for _, d := range held { // while the first receiver learns that it must release partitions
		done(t, a, d)
	}
	if err := bus.Publish(t.Context(), []waybill.Envelope{{ID: "k0", Topic: "t"}, {ID: "k1", Topic: "t"}, {ID: "k2", Topic: "t"}}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, d := range receive(t, b, 3) {
		if !strings.HasPrefix(d.Envelope.ID, "k") || d.Redeliveries > 0 {
			t.Errorf("%s came with %d redeliveries", d.Envelope.ID, d.Redeliveries)
		}
	}
}

// A handler that does not end in time is told that its delivery is another's. Its settle fails, and the message comes
// again.
func TestHandOverTellsHandlers(t *testing.T) {
	t.Parallel()
	f, opts := startFake(t), options()
	opts.Partitions, opts.DrainFor = 2, 10*time.Millisecond
	bus := dial(t, f.address(), opts)
	a := subscribe(t, bus, "q", "#")
	const n = 20
	if err := bus.Publish(t.Context(), batchOf(n)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	held := receive(t, a, n)
	var told atomic.Int64
	lost := make(map[string]*atomic.Bool)
	for _, d := range held {
		lost[d.Envelope.ID] = &atomic.Bool{}
		a.(core.LeaseWatcher).OnLost(d, func() { told.Add(1); lost[d.Envelope.ID].Store(true) }) //nolint:forcetypeassert // it is one
	}
	b := subscribe(t, bus, "q")
	again := receive(t, b, 1) // a partition has moved
	if n := told.Load(); n == 0 {
		t.Error("no handler was told")
	}
	for _, d := range again {
		if !lost[d.Envelope.ID].Load() || d.Redeliveries != 1 {
			t.Errorf("%s came to another receiver with %d redeliveries, its handler was told: %v", d.Envelope.ID, d.Redeliveries, lost[d.Envelope.ID].Load())
		}
	}
	for _, d := range held {
		err := a.Settle(t.Context(), []core.Ack{core.AckDone(d)})[0]
		if gone := lost[d.Envelope.ID].Load(); gone != errors.Is(err, waybill.ErrLeaseLost) || !gone && err != nil {
			t.Errorf("%s: its handler was told: %v, and the settle says %v", d.Envelope.ID, gone, err)
		}
	}
}

// Messages that the retention deletes before the queue has read them are an error that names them. The queue goes on.
func TestDeletedUnread(t *testing.T) {
	t.Parallel()
	f, opts := startFake(t), options()
	opts.Partitions = 1
	bus := dial(t, f.address(), opts)
	r := subscribe(t, bus, "q", "#")
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := bus.Publish(t.Context(), batchOf(10)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	var until kadm.Offsets
	until.AddOffset(opts.Bus, 0, 7, -1)
	if _, err := ask(t, f.address()).DeleteRecords(t.Context(), until); err != nil {
		t.Fatal(err)
	}
	r = subscribe(t, bus, "q")
	_, err := r.Receive(t.Context(), 10)
	if waybill.ClassOf(err) != waybill.ClassOutage || !strings.Contains(fmt.Sprint(err), "messages 0 to 6 were deleted") {
		t.Errorf("after seven messages were deleted: %v", err)
	}
	if ds := receive(t, r, 3); ds[0].Envelope.ID != "m7" {
		t.Errorf("the queue goes on with %s", ds[0].Envelope.ID)
	}
}

// A queue whose positions the brokers have forgotten would receive everything again. It is refused.
func TestForgottenPositions(t *testing.T) {
	t.Parallel()
	f, opts := startFake(t), options()
	bus := dial(t, f.address(), opts)
	r := subscribe(t, bus, "q", "#")
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r = subscribe(t, bus, "q", "#"); r.Close(t.Context()) != nil {
		t.Fatal("the receiver cannot be closed")
	}
	if _, err := ask(t, f.address()).DeleteGroup(t.Context(), opts.Bus+".q"); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.Subscribe(t.Context(), core.Subscription{Queue: "q"}); !errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("a queue without its positions: %v", err)
	}
}

// A settle that could not be stored is undone, so that no later commit makes it done.
func TestFailedSettleIsUndone(t *testing.T) {
	t.Parallel()
	f, opts := startFake(t), options()
	opts.Partitions = 1
	bus := dial(t, f.address(), opts)
	r := subscribe(t, bus, "q", "#")
	if err := bus.Publish(t.Context(), batchOf(3)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	ds := receive(t, r, 3)
	fault := f.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.InvalidCommitOffsetSize, Count: -1})
	res := r.Settle(t.Context(), []core.Ack{core.AckDone(ds[0]), core.AckRelease(ds[1])})
	if res[0] == nil || res[1] == nil {
		t.Errorf("settles that were not stored: %v", res)
	}
	fault.Remove()
	done(t, r, ds[2]) // its commit has the state of all
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, d := range receive(t, subscribe(t, bus, "q"), 2) {
		if d.Envelope.ID != ds[i].Envelope.ID || d.Redeliveries != 1 {
			t.Errorf("%s came with %d redeliveries, want %s with 1", d.Envelope.ID, d.Redeliveries, ds[i].Envelope.ID)
		}
	}
}
