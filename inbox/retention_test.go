package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/memory"
)

// IN-05: a retention that is shorter than the time during which a message may come again is refused.
func TestRetentionIsChecked(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	for _, tc := range []struct {
		o    inbox.Options
		text string // empty = fine
	}{
		{inbox.Options{}, ""},
		{inbox.Options{Retention: time.Second}, "Retention: 1s is not longer than the 26h0m0s"},
		{inbox.Options{Retention: 26 * time.Hour}, "Retention: 26h0m0s"},
		{inbox.Options{Retention: 27 * time.Hour}, ""},
		{inbox.Options{Retention: time.Hour, RedeliveryWindow: 10 * time.Minute}, ""},
		{inbox.Options{Retention: time.Hour, RedeliveryWindow: 2 * time.Hour}, "is not longer than RedeliveryWindow, 2h0m0s"},
		{inbox.Options{RedeliveryWindow: 31 * 24 * time.Hour}, "Retention: 720h0m0s is not longer than RedeliveryWindow"},
		{inbox.Options{RedeliveryWindow: -1}, "RedeliveryWindow: -1ns is negative"},
		{inbox.Options{Retention: -1}, ""},
		{inbox.Options{Retention: -1, RedeliveryWindow: 1000 * time.Hour}, ""},
		{inbox.Options{PurgeEvery: time.Millisecond}, "PurgeEvery: 1ms"},
	} {
		_, err := inbox.New(store, "c", tc.o)
		if bad := tc.o.Validate(); (bad == nil) != (err == nil) {
			t.Errorf("%+v: Validate says %v, New %v", tc.o, bad, err)
		}
		if tc.text == "" && err != nil || tc.text != "" &&
			(!errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), tc.text)) {
			t.Errorf("%+v: %v, want %q", tc.o, err, tc.text)
		}
	}
	if _, err := inbox.New(neverDo{t}, "c", inbox.Options{Retention: 100 * time.Hour}); !errors.Is(err, waybill.ErrInvalid) ||
		!strings.Contains(err.Error(), "cannot delete") {
		t.Error(err)
	}
}

// IN-05: the handler tells the consumer what its retry policy may take.
func TestHandlerTellsMaxRetryTime(t *testing.T) {
	t.Parallel()
	fn := func(context.Context, *memory.Tx, payment) error { return nil }
	for _, tc := range []struct {
		o    inbox.Options
		want time.Duration
		runs bool
	}{
		{inbox.Options{}, 30*24*time.Hour - 26*time.Hour, true},
		{inbox.Options{Retention: time.Hour, RedeliveryWindow: time.Minute}, 59 * time.Minute, true},
		{inbox.Options{Retention: -1}, 0, false},
		{inbox.Options{PurgeEvery: -1}, 30*24*time.Hour - 26*time.Hour, false},
	} {
		h := inbox.Handler(newInbox(t, newStore(t), tc.o), paid, fn)
		if h.MaxRetryTime != tc.want || (h.Background != nil) != tc.runs {
			t.Errorf("%+v: %s, background %t", tc.o, h.MaxRetryTime, h.Background != nil)
		}
	}
}

// purger is an inbox whose purges a test watches.
type purger struct {
	*memory.Store
	mu    sync.Mutex
	calls []string
	left  int
	fail  error
	took  time.Duration
}

func (p *purger) PurgeInbox(_ context.Context, consumer string, age time.Duration, limit int) (int, error) {
	time.Sleep(p.took)
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(limit, p.left)
	p.left -= n
	p.calls = append(p.calls, fmt.Sprint(consumer, " ", age, " ", limit, " ", n))
	return n, p.fail
}

// reset returns how many calls there were since the last reset.
func (p *purger) reset() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.calls)
	p.calls = nil
	return n
}

// IN-05: a purge goes on in bounded batches, with rests, until nothing is left, and ends with its context.
func TestPurgeInBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(75*time.Second, "five calls of two seconds with rests, and a purge that ends after a minute")
		p := &purger{Store: newStore(t), left: 2500, took: 2 * time.Second}
		box, err := inbox.New(p, "billing", inbox.Options{Retention: 48 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if n, err := box.Purge(t.Context()); n != 2500 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		want := []string{"billing 48h0m0s 1000 1000", "billing 48h0m0s 1000 1000", "billing 48h0m0s 1000 500"}
		if diff := cmp.Diff(want, p.calls); diff != "" {
			t.Error(diff)
		}
		if d := time.Since(begin); d != 10*time.Second { // three batches and two rests
			t.Errorf("it took %s", d)
		}
		p.left = 1 << 30
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if n, err := box.Purge(ctx); !errors.Is(err, context.DeadlineExceeded) || n == 0 {
			t.Errorf("%d, %v", n, err)
		}
		p.fail = waybill.Outage(errBoom)
		if _, err := box.Purge(t.Context()); !errors.Is(err, errBoom) || waybill.ClassOf(err) != waybill.ClassOutage {
			t.Error(err)
		}
		forever, err := inbox.New(p, "billing", inbox.Options{Retention: -1})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := forever.Purge(t.Context()); n != 0 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	})
}

// IN-05: of several runs one purges; another one takes over when it ends; a failure is logged and tried again.
func TestRunPurge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		p := &purger{Store: newStore(t), fail: errBoom}
		box, err := inbox.New(p, "billing", inbox.Options{PurgeEvery: time.Hour, Logger: slog.New(slog.NewTextHandler(&text, nil))})
		if err != nil {
			t.Fatal(err)
		}
		first, cancelFirst := context.WithCancel(t.Context())
		second, cancelSecond := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { box.RunPurge(first) })
		synctest.Wait()
		wg.Go(func() { box.RunPurge(second) })
		patience.Pass(t, 10*time.Hour)
		if n := p.reset(); n < 9 || n > 12 {
			t.Errorf("%d purges in 10 h", n)
		}
		cancelFirst()
		patience.Pass(t, 5*time.Hour)
		if n := p.reset(); n < 4 || n > 7 {
			t.Errorf("%d purges in 5 h by the second", n)
		}
		cancelSecond()
		wg.Wait()
		if !strings.Contains(text.String(), "event=inbox.purge") || !strings.Contains(text.String(), "boom") {
			t.Error(text.String())
		}
	})
}

// IN-09: a mark in the caller's own transaction.
func TestMark(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	box := newInbox(t, store, inbox.Options{})
	for i, want := range []core.InboxStatus{core.InboxNew, core.InboxNew, core.InboxDuplicate} {
		tx := store.Begin()
		st, err := box.Mark(t.Context(), tx, "/payments", "m-1")
		if st != want || err != nil {
			t.Errorf("%d: %d, %v", i, st, err)
		}
		if i == 0 {
			tx.Rollback()
		} else if err := tx.Commit(); err != nil {
			t.Error(err)
		}
	}
	h := inbox.Handler(box, paid, func(context.Context, *memory.Tx, payment) error { t.Error("ran"); return nil })
	if st, err := h.Handle(t.Context(), delivery("m-1")); st != waybill.HandlerDuplicate || err != nil {
		t.Error(st, err)
	}
	never, err := inbox.New(neverDo{t}, "c", inbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := never.Mark(t.Context(), 1, "/s", "1"); !errors.Is(err, waybill.ErrUnsupported) {
		t.Error(err)
	}
}

// IN-08: without core.BatchInbox a batch handler gets one item at a time, and one that fails leaves nothing.
func TestBatchHandler(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	sum := 0
	fn := func(_ context.Context, _ *memory.Tx, items []inbox.Item[payment]) error {
		for _, item := range items {
			sum += item.Value.Amount
			if item.Delivery.Envelope.ID == "bad" {
				return errBoom
			}
		}
		return nil
	}
	h := inbox.BatchHandler(newInbox(t, store, inbox.Options{}), paid, fn, inbox.BatchOptions{Size: 7, Wait: time.Second})
	if h.Batch == nil || h.BatchSize != 7 || h.BatchWait != time.Second || h.Name != "payment.done" {
		t.Errorf("%+v", h)
	}
	if _, err := h.Batch(t.Context(), []*waybill.Delivery{delivery("m-1"), delivery("bad"), delivery("m-2")}); !errors.Is(err, errBoom) {
		t.Error(err)
	}
	sum = 0
	poison := delivery("poison")
	poison.Envelope.Body = []byte("{")
	st, err := h.Batch(t.Context(), []*waybill.Delivery{delivery("m-1"), poison, delivery(""), delivery("m-2"), delivery("m-1")})
	want := []waybill.HandlerStatus{
		waybill.HandlerProcessed, waybill.HandlerLeftOut, waybill.HandlerLeftOut,
		waybill.HandlerProcessed, waybill.HandlerDuplicate,
	}
	if diff := cmp.Diff(want, st); diff != "" || err != nil || sum != 10 {
		t.Error(diff, err, sum)
	}
	if st, err := h.Handle(t.Context(), delivery("m-2")); st != waybill.HandlerDuplicate || err != nil {
		t.Error(st, err)
	}
	single, err := inbox.New(again{core.InboxNew}, "c", inbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	one := inbox.BatchHandler(single, paid, func(_ context.Context, _ int, items []inbox.Item[payment]) error {
		if len(items) != 1 || items[0].Delivery.Envelope.ID != "m-1" {
			t.Errorf("%v", items)
		}
		return nil
	}, inbox.BatchOptions{Size: 7})
	if one.Batch != nil {
		t.Error("a batch without core.BatchInbox")
	}
	if _, err := one.Handle(t.Context(), delivery("m-1")); err != nil {
		t.Error(err)
	}
	if h := inbox.BatchHandler[int](nil, paid, nil, inbox.BatchOptions{}); h.Handle != nil {
		t.Error("a handler without an inbox has a function")
	}
}
