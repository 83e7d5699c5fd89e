package table_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/transport/table"
)

// heavy is a store whose records have bodies of a size that they do not have in memory. It counts those that are held.
type heavy struct {
	sharedtest.Store
	mu          sync.Mutex
	sizes       map[string]int // of the held ones, by id
	bytes, most int
}

func (h *heavy) Hold(ctx context.Context, self core.Session, req core.HoldRequest) ([]core.HoldResult, error) {
	got, err := h.Store.Hold(ctx, self, req)
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range got {
		if rec := got[i].Record; rec != nil && h.sizes[rec.ID] == 0 {
			h.sizes[rec.ID] = len(rec.Envelope.Body)
			h.bytes += len(rec.Envelope.Body)
		}
	}
	h.most = max(h.most, h.bytes)
	return got, err
}

func (h *heavy) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	res := h.Store.Settle(ctx, self, outcomes)
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range outcomes {
		if id := outcomes[i].Ref().ID; res[i] == nil {
			h.bytes -= h.sizes[id]
			delete(h.sizes, id)
		}
	}
	return res
}

// TestHeldBytes: a process holds a bounded number of bytes, also when bodies become large at once. Those of one Hold of
// the store may be more than the consumer's bound.
//
// CO-26
func TestHeldBytes(t *testing.T) {
	t.Parallel()
	for _, batch := range []bool{false, true} {
		t.Run(fmt.Sprint("batches ", batch), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				patience.BudgetOf(t).Calls(1500, "3,000 messages")
				const small, large, body, limit = 3000, 200, 700_000, 80 << 20
				s := newStore(t)
				h := &heavy{sizes: map[string]int{}}
				h.Store = sharedtest.Store{OutboxStore: s, Before: func(context.Context, string, any) error {
					time.Sleep(time.Millisecond) // virtual time
					return nil
				}}
				big := strings.Repeat("x", body)
				for i := range small + large {
					text := "small"
					if i >= small {
						text = big
					}
					stage(t, s, waybill.RawMessage("mail.send", "text/plain", []byte(text), waybill.ID(fmt.Sprint("m-", i)), waybill.Routes("mails")))
				}
				var mu sync.Mutex
				handled := 0
				done := func(n int) {
					mu.Lock()
					defer mu.Unlock()
					handled += n
				}
				handler := waybill.Handler{Name: waybill.AnyMessage, Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) {
					done(1)
					return waybill.HandlerProcessed, nil
				}}
				if batch {
					handler.Batch = func(_ context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
						time.Sleep(10 * time.Millisecond) // virtual time
						done(len(ds))
						return make([]waybill.HandlerStatus, len(ds)), nil
					}
				}
				c, err := consumer.New(newTable(t, h, table.Options{}), consumer.Options{Logger: quiet})
				if err != nil {
					t.Fatal(err)
				}
				if err := c.Handle(waybill.Subscription{Queue: "mails"}, handler); err != nil {
					t.Fatal(err)
				}
				begin(t, c)
				patience.Moving(t, "all are handled", func() (int, bool) {
					mu.Lock()
					defer mu.Unlock()
					return handled, handled == small+large
				})
				h.mu.Lock()
				defer h.mu.Unlock()
				t.Logf("%d MiB were held at most", h.most>>20)
				if h.most > limit {
					t.Errorf("%d MiB were held at most, want %d", h.most>>20, limit>>20)
				}
			})
		})
	}
}
