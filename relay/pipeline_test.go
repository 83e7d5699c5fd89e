package relay_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/relay"
)

// RL-11: a read, two publishes and a settle are in progress at once, and the whole drains at the pace of its slowest
// stage.
func TestStagesOverlap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		var mu sync.Mutex
		var now, all [3]int
		stageOf := func(i int, d time.Duration) {
			mu.Lock()
			now[i]++
			if now[0] > 0 && now[1] > 1 && now[2] > 0 {
				all = now
			}
			mu.Unlock()
			time.Sleep(d)
			mu.Lock()
			now[i]--
			mu.Unlock()
		}
		s := &faulty{OutboxStore: mem}
		s.read = func(_ core.ReadRequest, next func() (core.ReadResult, error)) (core.ReadResult, error) {
			stageOf(0, 10*time.Millisecond)
			return next()
		}
		s.settle = func(_ []core.Outcome, next func() core.Results) core.Results {
			stageOf(2, 9*time.Millisecond)
			return next()
		}
		var calls atomic.Int64
		b.before = func(context.Context, []waybill.Envelope) { // they end one after the other
			stageOf(1, time.Duration(10+calls.Add(1)%8*3)*time.Millisecond)
		}
		stage(t, mem, msgs(2000, func(i int) string { return strconv.Itoa(i) })...)
		start := time.Now()
		stop := begin(t, newRelay(t, s, b, relay.Options{BatchSize: 50}))
		within(t, 10*time.Second, "drained", func() bool { return b.count() == 2000 })
		took := time.Since(start)
		if err := errors.Join(stop(), b.firstsInOrder()); err != nil {
			t.Error(err)
		}
		if all == [3]int{} {
			t.Error("read, two publishes and settle were never in progress at once")
		}
		if raw := 400 * time.Millisecond; took > raw*10/8 {
			t.Errorf("took %s; forty reads alone take %s", took, raw)
		}
		t.Logf("%v in progress at once; %s", all, took)
	})
}

// OP-24: a relay whose publisher confirms slowly does not read a few records after each confirm.
func TestReadsBringMany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		serial(b, time.Millisecond)
		const n, batch, window = 4000, 50, 8
		stage(t, mem, msgs(n, noKey)...)
		s := &faulty{OutboxStore: mem}
		full := 0
		s.read = func(_ core.ReadRequest, next func() (core.ReadResult, error)) (core.ReadResult, error) {
			result, err := next()
			for _, r := range result.Ranges {
				full += min(len(r.Records), 1)
			}
			return result, err
		}
		stop := begin(t, newRelay(t, s, b, relay.Options{BatchSize: batch, Window: window}))
		within(t, 10*time.Second, "drained", func() bool { return b.count() == n })
		if err := stop(); err != nil {
			t.Error(err)
		}
		if most := n / (batch * window / 5); full > most {
			t.Errorf("%d reads brought %d messages, want %d at most", full, n, most)
		}
	})
}

// RL-11: the confirms of a key that goes one by one are stored several at a time, and no later than 10 ms after they
// came; one that nothing follows is stored at once.
func TestSettlesGather(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem, b := newStore(t), newBus()
		b.latency = time.Millisecond
		confirmed := map[string]time.Time{}
		settles, longest := 0, time.Duration(0)
		s := &faulty{OutboxStore: mem}
		s.settle = func(outcomes []core.Outcome, next func() core.Results) core.Results {
			settles++
			for i := range outcomes {
				b.mu.Lock()
				longest = max(longest, time.Since(confirmed[outcomes[i].Ref().ID]))
				b.mu.Unlock()
			}
			return next()
		}
		b.answer = func(e *waybill.Envelope, _ int) error {
			confirmed[e.ID] = time.Now()
			return nil
		}
		const n = 200
		stage(t, mem, msgs(n, func(int) string { return "hot" })...)
		stop := begin(t, newRelay(t, s, b, relay.Options{}))
		within(t, 10*time.Second, "drained", func() bool { return b.count() == n })
		synctest.Wait()
		if settles > n/8 {
			t.Errorf("%d settles of %d messages", settles, n)
		}
		if longest > 10*time.Millisecond {
			t.Errorf("an outcome waited %s for others", longest)
		}
		settles, longest = 0, 0
		stage(t, mem, msg("alone", "other"))
		within(t, 10*time.Second, "published", func() bool { return b.count() == n+1 })
		synctest.Wait()
		if settles != 1 || longest != 0 {
			t.Errorf("%d settles of one message, after %s", settles, longest)
		}
		if err := errors.Join(stop(), b.firstsInOrder()); err != nil {
			t.Error(err)
		}
	})
}

// TR-13: calls keep to the publisher's bound in bytes; a larger message goes alone, and no key goes on behind a
// failure.
func TestBatchesInBytes(t *testing.T) {
	t.Parallel()
	for _, order := range []core.KeyOrder{core.KeyOrderSerial, core.KeyOrderPipelinedPrefix} {
		t.Run(order.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				mem, b := newStore(t), newBus()
				b.traits.KeyOrder, b.traits.MaxBatchBytes = order, 3000
				b.before = func(_ context.Context, batch []waybill.Envelope) {
					size := 0
					for i := range batch {
						size += batch[i].Size()
					}
					if size > 3000 && len(batch) > 1 {
						t.Errorf("%d messages with %d bytes in one call", len(batch), size)
					}
				}
				b.answer = func(e *waybill.Envelope, tries int) error {
					if e.ID == "m00007" && tries == 1 {
						return errNo
					}
					return nil
				}
				list := msgs(60, func(i int) string { return strconv.Itoa(i % 3) })
				for i := range list {
					list[i].Body = make([]byte, 700)
				}
				list[20].Body = make([]byte, 5000)
				stage(t, mem, list...)
				stop := begin(t, newRelay(t, mem, b, relay.Options{BatchSize: 50}))
				within(t, time.Minute, "drained", func() bool { return b.count() >= 60 })
				if err := errors.Join(stop(), b.firstsInOrder()); err != nil {
					t.Error(err)
				}
				if b.calls >= 61 {
					t.Errorf("%d calls for 60 messages: it sends them one by one", b.calls)
				}
			})
		})
	}
}
