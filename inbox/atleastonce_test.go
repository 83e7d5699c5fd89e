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
	"github.com/waybill-go/waybill/store/memory"
)

// deafMarks cannot write that a message is done.
type deafMarks struct {
	memory.Marks
	err error
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
		marks := &deafMarks{}
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
		expect("after failures", "2", waybill.HandlerProcessed, "", 1)

		marks.err = errors.New("the store is away")
		expect("no mark", "3", 0, "may have it again", 1)
		marks.err = nil
		start := time.Now()
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

		time.Sleep(inbox.DefaultRetention + time.Hour)
		hold = 0
		expect("after the retention", "1", waybill.HandlerProcessed, "", 1)
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
