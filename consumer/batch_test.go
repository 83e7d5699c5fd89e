package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/memory"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// batches records what batch handlers and their fallback saw.
type batches struct {
	seen[[]string]
	alone seen[string]
}

func (b *batches) handler(size int, fail func(ids []string) error, one func(d *waybill.Delivery) error) waybill.Handler {
	return waybill.Handler{
		Name: topic.Name(), BatchSize: size,
		Batch: func(_ context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
			ids := make([]string, len(ds))
			for i, d := range ds {
				ids[i] = d.Envelope.ID
			}
			b.add(ids)
			if fail != nil {
				if err := fail(ids); err != nil {
					return nil, err
				}
			}
			return make([]waybill.HandlerStatus, len(ds)), nil
		},
		Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			b.alone.add(d.Envelope.ID)
			if one == nil {
				return waybill.HandlerProcessed, nil
			}
			return waybill.HandlerProcessed, one(d)
		},
	}
}

func idsFrom(first, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint("id-", first+i)
	}
	return ids
}

// IN-08: a batch takes all waiting messages, up to BatchSize; every settle of a batch is one call.
func TestBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		settles := 0
		b.settle = func([]core.Ack) error { settles++; return nil }
		var got batches
		b.publish(t, 25)
		stop := start(t, b, consumer.Options{Concurrency: 1}, waybill.Subscription{}, got.handler(10, nil, nil))
		settle()
		want := [][]string{idsFrom(1, 10), idsFrom(11, 10), idsFrom(21, 5)}
		if diff := cmp.Diff(want, got.all()); diff != "" || got.alone.all() != nil {
			t.Errorf("batches: %s, alone: %v", diff, got.alone.all())
		}
		if settles > 3 {
			t.Errorf("%d calls of Settle for 3 batches", settles)
		}
		stop()
		wantDepth(t, b, memtransport.Depth{})
	})
}

// IN-08: a batch is in the order of arrival, for any keys, and leaves to other handlers their messages.
func TestBatchesOfSeveralHandlers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		var got batches
		other := waybill.Handler{Name: "other", Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			got.alone.add(d.Envelope.ID)
			return 0, nil
		}}
		es := messages(8)
		for i := range es {
			es[i].Key = fmt.Sprint("k", i%2)
		}
		es[4].Topic, es[4].Type = "other", "other" // id-5, before id-7 of the same key
		b.send(t, es...)
		stop := start(t, b, consumer.Options{Concurrency: 1}, waybill.Subscription{}, got.handler(10, nil, nil), other)
		settle()
		stop()
		want := [][]string{{"id-1", "id-2", "id-3", "id-4", "id-6", "id-8"}}
		if diff := cmp.Diff(want, got.all()); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"id-5", "id-7"}, got.alone.all()); diff != "" {
			t.Error(diff)
		}
	})
}

// IN-08: with BatchWait a batch waits to fill, no longer than that, and goes at once when it is full, when nothing more
// can come, or at a stop back to the queue.
func TestBatchWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		var got batches
		h := got.handler(5, nil, nil)
		h.BatchWait = time.Second
		other := waybill.Handler{Name: "other", Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			got.alone.add(d.Envelope.ID)
			return 0, nil
		}}
		stop := start(t, b, consumer.Options{Concurrency: 2}, waybill.Subscription{}, h, other)
		b.publish(t, 3)
		settle()
		b.send(t, waybill.Envelope{ID: "o-1", Topic: "other"})
		settle()
		if len(got.all()) != 0 || !slices.Equal(got.alone.all(), []string{"o-1"}) {
			t.Errorf("before the wait is over: batches %v, alone %v", got.all(), got.alone.all())
		}
		time.Sleep(time.Second + time.Millisecond)
		b.publish(t, 5)
		settle()
		want := [][]string{idsFrom(1, 3), idsFrom(1, 5)}
		if diff := cmp.Diff(want, got.all()); diff != "" {
			t.Error(diff)
		}
		b.publish(t, 2)
		settle()
		stop()
		wantDepth(t, b, memtransport.Depth{Ready: 2})
	})
}

// IN-08 OR-09: keys keep their order within and between batches, and no two handlers have one key at a time.
func TestBatchesKeepKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		var got seen[string]
		var mu sync.Mutex
		busy := map[string]bool{}
		h := waybill.Handler{Name: topic.Name(), BatchSize: 7, Batch: func(_ context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
			keys := map[string]bool{}
			for _, d := range ds {
				keys[d.Envelope.Key] = true
				got.add(d.Envelope.Key + "/" + d.Envelope.ID)
			}
			mu.Lock()
			for k := range keys {
				if busy[k] {
					t.Errorf("two handlers have key %s", k)
				}
				busy[k] = true
			}
			mu.Unlock()
			time.Sleep(time.Duration(len(ds)) * time.Millisecond)
			mu.Lock()
			for k := range keys {
				busy[k] = false
			}
			mu.Unlock()
			return make([]waybill.HandlerStatus, len(ds)), nil
		}}
		h.Handle = func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			_, err := h.Batch(ctx, []*waybill.Delivery{d})
			return 0, err
		}
		es := messages(200)
		want := map[string][]string{}
		for i := range es {
			es[i].Key = fmt.Sprint("k", i*i%11)
			want[es[i].Key] = append(want[es[i].Key], es[i].ID)
		}
		stop := start(t, b, consumer.Options{Concurrency: 3, Prefetch: 60}, waybill.Subscription{}, h)
		b.send(t, es...)
		queued(t, b, memtransport.Depth{})
		stop()
		saw := map[string][]string{}
		for _, s := range got.all() {
			key, id, _ := strings.Cut(s, "/")
			saw[key] = append(saw[key], id)
		}
		if diff := cmp.Diff(want, saw); diff != "" {
			t.Error(diff)
		}
		wantDepth(t, b, memtransport.Depth{})
	})
}

// IN-08: a batch that fails, panics, answers nonsense or ends its goroutine is handled one by one; its bad message
// alone is retried or parked.
func TestBatchFallsBack(t *testing.T) {
	t.Parallel()
	bad := func(ids []string) bool { return slices.Contains(ids, "id-3") }
	for name, h := range map[string]func(got *batches) waybill.Handler{
		"error": func(got *batches) waybill.Handler {
			return got.handler(10, func(ids []string) error {
				if bad(ids) {
					return waybill.Reject(errBoom)
				}
				return nil
			}, func(d *waybill.Delivery) error {
				if d.Envelope.ID == "id-3" {
					return waybill.Reject(errBoom)
				}
				return nil
			})
		},
		"panic": func(got *batches) waybill.Handler {
			return got.handler(10, func(ids []string) error { panic("oh") }, func(d *waybill.Delivery) error {
				if d.Envelope.ID == "id-3" {
					panic("oh")
				}
				return nil
			})
		},
		"short answer": func(got *batches) waybill.Handler {
			h := got.handler(10, nil, func(d *waybill.Delivery) error {
				if d.Envelope.ID == "id-3" {
					return waybill.Reject(errBoom)
				}
				return nil
			})
			h.Batch = func(context.Context, []*waybill.Delivery) ([]waybill.HandlerStatus, error) { return nil, nil }
			return h
		},
		"one left out": func(got *batches) waybill.Handler {
			h := got.handler(10, nil, func(*waybill.Delivery) error { return waybill.Reject(errBoom) })
			h.Batch = func(_ context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
				st := make([]waybill.HandlerStatus, len(ds))
				st[2] = waybill.HandlerLeftOut
				return st, nil
			}
			return h
		},
		"goexit": func(got *batches) waybill.Handler {
			var first atomic.Bool
			h := got.handler(10, nil, func(d *waybill.Delivery) error {
				if d.Envelope.ID == "id-3" {
					return waybill.Reject(errBoom)
				}
				return nil
			})
			batch := h.Batch
			h.Batch = func(ctx context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
				if first.CompareAndSwap(false, true) {
					runtime.Goexit()
				}
				if len(ds) > 2 && bad([]string{ds[2].Envelope.ID}) {
					return nil, errBoom
				}
				return batch(ctx, ds)
			}
			return h
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := declared(t)
				var got batches
				b.publish(t, 6)
				stop := start(t, b, consumer.Options{Concurrency: 1, Retry: waybill.RetryDelays(time.Second)}, waybill.Subscription{}, h(&got))
				queued(t, b, memtransport.Depth{Parked: 1})
				stop()
				if parked := b.Parked(queue); len(parked) != 1 || parked[0].Envelope.ID != "id-3" {
					t.Errorf("parked: %v", parked)
				}
				wantDepth(t, b, memtransport.Depth{Parked: 1})
			})
		})
	}
}

// CO-05: an outage releases the whole batch at no cost and pauses; afterwards everything is handled.
func TestBatchOutage(t *testing.T) {
	t.Parallel()
	for _, inOrder := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t).Time(30*time.Second, "an outage of ten seconds, with pauses of up to 16 s")
			b := declared(t)
			var got batches
			until := time.Now().Add(10 * time.Second)
			down := func() error {
				if time.Now().Before(until) {
					return waybill.Outage(errBoom)
				}
				return nil
			}
			h := got.handler(10, func([]string) error { return down() }, func(*waybill.Delivery) error { return down() })
			stop := start(t, b, consumer.Options{Concurrency: 2}, waybill.Subscription{InOrder: inOrder}, h)
			es := messages(30)
			for i := range es {
				es[i].Key = fmt.Sprint("k", i%3)
			}
			b.send(t, es...)
			queued(t, b, memtransport.Depth{})
			stop()
			wantDepth(t, b, memtransport.Depth{})
			if v := b.verdicts(); v[core.VerdictRetry] != 0 || v[core.VerdictReject] != 0 || (v[core.VerdictRelease] != 0) == inOrder {
				t.Errorf("in order %t: verdicts %v", inOrder, v)
			}
		})
	}
}

// IN-08: through the inbox a batch is one transaction; a poison message and a bad body do not fail their neighbours.
func TestInboxBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		store, err := memory.New(memory.Options{Source: "/s"})
		if err != nil {
			t.Fatal(err)
		}
		box, err := inbox.New(store, "c", inbox.Options{PurgeEvery: -1})
		if err != nil {
			t.Fatal(err)
		}
		var sizes seen[int]
		h := inbox.BatchHandler(box, topic, func(ctx context.Context, tx *memory.Tx, items []inbox.Item[note]) error {
			sizes.add(len(items))
			for _, item := range items {
				if item.Value.N == 13 {
					return errBoom
				}
				tx.Put(item.Delivery.Envelope.ID, "done")
				if _, err := store.Stage(item.Context(ctx), tx, topic.Message(note{}, waybill.ID("re-"+item.Delivery.Envelope.ID))); err != nil {
					return err
				}
			}
			return nil
		}, inbox.BatchOptions{Size: 20})
		es := messages(40)
		es[29].Body = []byte("{")
		es = append(es, es[5]) // a duplicate
		b.send(t, es...)
		stop := start(t, b, consumer.Options{Concurrency: 1, Prefetch: 40, Retry: waybill.RetryDelays()}, waybill.Subscription{}, h)
		settle()
		stop()
		want := append([]int{20}, slices.Repeat([]int{1}, 20)...)
		want = append(want, 19)
		if diff := cmp.Diff(want, sizes.all()); diff != "" {
			t.Error(diff)
		}
		var parked []string
		for _, p := range b.Parked(queue) {
			parked = append(parked, p.Envelope.ID+" "+string(p.Reason))
		}
		slices.Sort(parked)
		if diff := cmp.Diff([]string{"id-13 attempts", "id-30 undecodable"}, parked); diff != "" {
			t.Error(diff)
		}
		reactions := store.Records()
		if len(reactions) != 38 {
			t.Fatalf("%d reactions, want 38", len(reactions))
		}
		for _, r := range reactions {
			if r.Route != waybill.DefaultRoute || r.State != core.StatePending {
				t.Errorf("%s is %s on route %s", r.Envelope.ID, r.State, r.Route)
			}
			if r.Envelope.ID != "re-"+r.Envelope.CausationID {
				t.Errorf("%s is caused by %s", r.Envelope.ID, r.Envelope.CausationID)
			}
		}
	})
}

// A stop in the middle of a fallback releases the messages that were not started, and keeps the results of the others.
func TestStopInFallback(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		var got batches
		h := got.handler(10, func([]string) error { return errBoom }, func(*waybill.Delivery) error { time.Sleep(time.Second); return nil })
		b.publish(t, 10)
		stop := start(t, b, consumer.Options{Concurrency: 1}, waybill.Subscription{}, h)
		time.Sleep(2500 * time.Millisecond)
		stop()
		if n := len(got.alone.all()); n != 3 {
			t.Errorf("%d handled alone, want 3", n)
		}
		wantDepth(t, b, memtransport.Depth{Ready: 7})
	})
}

func TestBatchOptionsAreChecked(t *testing.T) {
	t.Parallel()
	b := declared(t)
	c := newConsumer(t, b, consumer.Options{})
	var got batches
	h := got.handler(100, nil, nil)
	h.BatchWait = time.Hour
	h.MaxRetryTime = time.Minute
	err := c.Handle(waybill.Subscription{Queue: queue, Prefetch: 50}, h)
	for _, want := range []string{"BatchSize 100", "Prefetch, 50", "BatchWait 1h", "add up to 6m11s, more than the 1m0s"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
	if !errors.Is(err, waybill.ErrInvalid) {
		t.Error(err)
	}
	endless := &waybill.Backoff{Attempts: -1, Cap: 30 * time.Second}
	if err := c.Handle(waybill.Subscription{Queue: queue, Retry: endless}, waybill.Handler{Name: "a", Handle: h.Handle, MaxRetryTime: time.Minute}); err != nil {
		t.Errorf("an endless policy whose longest delay is within the retention: %v", err)
	}
}
