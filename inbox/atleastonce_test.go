package inbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/memory"
)

// deafMarks cannot write that a message is done.
type deafMarks struct {
	memory.Marks
	count func(call string)
	err   error
}

func (d *deafMarks) BeginMark(ctx context.Context, key core.InboxKey, token string, lease time.Duration) (core.InboxStatus, error) {
	d.count("begin")
	return d.Marks.BeginMark(ctx, key, token, lease)
}

func (d *deafMarks) FinishMark(ctx context.Context, key core.InboxKey, keep time.Duration) error {
	if d.err != nil {
		return d.err
	}
	return d.Marks.FinishMark(ctx, key, keep)
}

// A message runs again after a failure and after a crash between effect and mark, never after its mark; of two runs at
// a time one waits.
func TestAtLeastOnce(t *testing.T) { // IN-07
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		budget := patience.BudgetOf(t)
		budget.Time(3*time.Minute, "two leases of a minute, and a run of ten seconds")
		marks := &deafMarks{count: budget.Counter()}
		box, err := inbox.NewAtLeastOnce(marks, "billing", time.Minute, inbox.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var fail error
		runs, hold := 0, time.Duration(0)
		h := inbox.Handler(box, paid, func(ctx context.Context, _ inbox.NoTx, _ payment) error {
			runs++
			if hold > 0 {
				select {
				case <-time.After(hold):
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			if fail != nil && fail.Error() == "panic" {
				panic(fail)
			}
			return fail
		})
		handle := func(id string) (st waybill.HandlerStatus, err error) {
			defer func() {
				if p := recover(); p != nil {
					err = errors.New("panicked")
				}
			}()
			return h.Handle(t.Context(), &waybill.Delivery{Queue: "q", Envelope: paid.Message(payment{Amount: 5}, waybill.ID(id)).Envelope})
		}
		expect := func(when, id string, want waybill.HandlerStatus, says string, ran int) {
			t.Helper()
			before := runs
			st, err := handle(id)
			if says == "" && (err != nil || st != want) || says != "" && (err == nil || !strings.Contains(err.Error(), says)) || runs-before != ran {
				t.Fatalf("%s: status %v, error %v, %d runs", when, st, err, runs-before)
			}
		}

		expect("new", "1", waybill.HandlerProcessed, "", 1)
		expect("duplicate", "1", waybill.HandlerDuplicate, "", 0)
		for _, text := range []string{"boom", "panic"} {
			fail = errors.New(text)
			expect(text, "2", 0, text, 1)
		}
		fail = nil
		start := time.Now()
		expect("after failures", "2", waybill.HandlerProcessed, "", 1)
		if took := time.Since(start); took > 0 {
			t.Errorf("a retry waited for %s: the failed run kept its claim", took)
		}

		marks.err = errors.New("the store is away")
		expect("no mark", "3", 0, "may have it again", 1)
		marks.err = nil
		start = time.Now()
		expect("after the mark was lost", "3", waybill.HandlerProcessed, "", 1)
		if took := time.Since(start); took < 50*time.Second || took > 62*time.Second {
			t.Errorf("the claim of a run without a mark ended after %s, want its lease", took)
		}

		hold = 10 * time.Second
		second := make(chan waybill.HandlerStatus)
		go func() {
			st, _ := handle("4")
			second <- st
		}()
		synctest.Wait()
		expect("beside another run", "4", waybill.HandlerDuplicate, "", 0)
		if st := <-second; st != waybill.HandlerProcessed {
			t.Errorf("the first of two runs: %v", st)
		}
		hold = 2 * time.Minute
		expect("longer than the lease", "5", 0, "longer than its lease, 1m0s", 1)

		patience.Pass(t, inbox.DefaultRetention+time.Hour)
		hold = 0
		expect("after the retention", "1", waybill.HandlerProcessed, "", 1)
	})
}

// The end of a run's context, at a stop or by a timeout, undoes neither an effect's mark nor a failure's retry: the
// mark is written, and the claim of a failed run is given up at once.
func TestAtLeastOnceAtAStop(t *testing.T) { // IN-07
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		box, err := inbox.NewAtLeastOnce(&memory.Marks{}, "billing", time.Minute, inbox.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for id, fail := range map[string]error{"done": nil, "failed": errBoom} {
			ctx, stop := context.WithCancel(t.Context())
			runs := 0
			h := inbox.Handler(box, paid, func(context.Context, inbox.NoTx, payment) error {
				if runs++; runs > 1 {
					return nil
				}
				stop()
				return fail
			})
			d := delivery(id)
			if st, err := h.Handle(ctx, d); !errors.Is(err, fail) || fail == nil && st != waybill.HandlerProcessed {
				t.Errorf("%s: status %v, error %v", id, st, err)
			}
			want, start := waybill.HandlerDuplicate, time.Now()
			if fail != nil {
				want = waybill.HandlerProcessed
			}
			if st, err := h.Handle(t.Context(), d); st != want || err != nil || time.Since(start) > 0 {
				t.Errorf("%s, again: status %v, error %v after %s; want %v at once", id, st, err, time.Since(start), want)
			}
		}
	})
}

// slowMarks takes its time to claim a message.
type slowMarks struct {
	memory.Marks
	takes time.Duration
}

func (s *slowMarks) BeginMark(ctx context.Context, key core.InboxKey, token string, lease time.Duration) (core.InboxStatus, error) {
	st, err := s.Marks.BeginMark(ctx, key, token, lease)
	time.Sleep(s.takes) // the answer is on its way
	return st, err
}

// The lease of a run begins before the store is asked, so a handler ends before the store gives its message to another
// run.
func TestAtLeastOnceLease(t *testing.T) { // IN-07
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t)
		begin, takes := time.Now(), 4*time.Second
		box, err := inbox.NewAtLeastOnce(&slowMarks{takes: takes}, "billing", time.Minute, inbox.Options{})
		if err != nil {
			t.Fatal(err)
		}
		h := inbox.Handler(box, paid, func(ctx context.Context, _ inbox.NoTx, _ payment) error {
			if end, ok := ctx.Deadline(); !ok || end.After(begin.Add(time.Minute)) {
				t.Errorf("the handler may run for %s after its claim, which the store ends after 1m0s", end.Sub(begin))
			}
			return nil
		})
		if _, err := h.Handle(t.Context(), delivery("slow")); err != nil {
			t.Error(err)
		}
	})
}

func TestAtLeastOnceRefuses(t *testing.T) {
	t.Parallel()
	_, err := inbox.NewAtLeastOnce(nil, "billing", time.Millisecond, inbox.Options{Retention: time.Hour})
	for _, s := range []string{"store: is nil", "lease: 1ms", "Retention: 1h0m0s"} {
		if err == nil || !strings.Contains(err.Error(), s) {
			t.Errorf("%v, want %s", err, s)
		}
	}
	box, err := inbox.NewAtLeastOnce(&memory.Marks{}, "billing", 0, inbox.Options{Retention: 40 * time.Hour, RedeliveryWindow: 10 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if h := inbox.Handler(box, paid, func(context.Context, inbox.NoTx, payment) error { return nil }); h.MaxRetryTime != 30*time.Hour || h.Background != nil {
		t.Errorf("MaxRetryTime %s, want 30h; Background %t", h.MaxRetryTime, h.Background != nil)
	}
}
