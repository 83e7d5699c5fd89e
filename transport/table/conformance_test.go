package table_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/transporttest"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/transport/table"
)

// TestConformanceMemory runs the transport suite on virtual time.
//
// TR-07, TQ-01, CO-14, CO-17
func TestConformanceMemory(t *testing.T) {
	t.Parallel()
	transporttest.RunInBubble(t, func(t *testing.T) transporttest.Harness {
		t.Helper()
		return newMemorySuite(t)
	})
}

// The database does not answer for a while, and no delivery of a key passes another one. A table stores a verdict later
// that it called unknown, so that the other checks of a cut link do not fit.
// CO-22.
func TestInOrderOverCut(t *testing.T) {
	t.Parallel()
	for _, check := range transporttest.Checks() {
		if check.Name != "in-order-over-cut" {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			s := newStore(t)
			var cut atomic.Bool
			count := patience.BudgetOf(t).Counter()
			linked := &sharedtest.Store{OutboxStore: s, Before: func(_ context.Context, call string, _ any) error {
				count(call)
				if cut.Load() {
					return errDown
				}
				return nil
			}}
			h := suite(t, newHarness(t, backend{linked, s.stage}))
			h.Cut = func(context.Context) (func() error, error) {
				cut.Store(true)
				patience.Pass(t, time.Minute) // longer than the lease
				return func() error { cut.Store(false); return nil }, nil
			}
			if err := check.Run(t.Context(), h); err != nil {
				t.Error(err)
			}
		})
		return
	}
	t.Error("there is no such check")
}

// The suite again, on real time: goroutines meet in other ways there.
func TestConformanceRealTime(t *testing.T) {
	tier.Nightly(t, "waits in real time: 5 s (TestConformanceMemory is virtual)")
	t.Parallel()
	transporttest.Run(t, func(t *testing.T) transporttest.Harness {
		t.Helper()
		t.Parallel()
		return newMemorySuite(t)
	})
}

// backend is a store and how to stage in it.
type backend struct {
	store core.OutboxStore
	stage func(context.Context, ...waybill.Message) error
}

// harness is a table and a way to stage: on the route of every queue that is bound for the topic.
type harness struct {
	*table.Transport
	backend
	*wiring
}

// wiring is what transports of one store share.
type wiring struct {
	mu    sync.Mutex
	bound map[string][]string                // queue → bindings
	empty map[string]func(*waybill.Envelope) // what staging filled in, by id
}

func newHarness(tb testing.TB, b backend) *harness {
	tb.Helper()
	return &harness{newSuiteTable(tb, b), b, &wiring{bound: map[string][]string{}, empty: map[string]func(*waybill.Envelope){}}}
}

func newSuiteTable(tb testing.TB, b backend) *table.Transport {
	tb.Helper()
	tr, err := table.New(b.store, table.Options{Logger: quiet})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = tr.Close(context.Background()) })
	return tr
}

// suite is a harness as the suite sees it. A table only receives; a helper stages.
func suite(tb testing.TB, h *harness) transporttest.Harness {
	tb.Helper()
	return transporttest.Harness{
		Subscriber: h, Writer: h, Close: h.Close,
		Reopen: func(context.Context) (core.Subscriber, error) {
			return &harness{newSuiteTable(tb, h.backend), h.backend, h.wiring}, nil
		},
	}
}

// newMemorySuite can also look at parked messages.
func newMemorySuite(tb testing.TB) transporttest.Harness {
	tb.Helper()
	s := newStore(tb)
	h := suite(tb, newHarness(tb, backend{s, s.stage}))
	h.Parked = func(_ context.Context, queue string) ([]transporttest.Parked, error) {
		var out []transporttest.Parked
		for _, r := range s.mem.Records() {
			if r.State == core.StateAbandoned && r.Route == queue {
				out = append(out, transporttest.Parked{Envelope: r.Envelope, Reason: r.Reason, Err: r.LastError})
			}
		}
		return out, nil
	}
	return h
}

func (h *harness) Traits() core.PublisherTraits {
	return core.PublisherTraits{Confirmed: true, KeyOrder: core.KeyOrderSerial, DetectsUnroutable: true, MaxMessageBytes: 704 << 10}
}

// Publish stages.
func (h *harness) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	h.mu.Lock()
	defer h.mu.Unlock()
	outage := func(err error) error { return &waybill.Error{Op: "stage", Class: waybill.ClassOutage, Err: err} }
	res := make(core.Results, len(batch))
	msgs, slots := make([]waybill.Message, 0, len(batch)), make([]int, 0, len(batch))
	for i, e := range batch {
		var routes []string
		for q, bindings := range h.bound {
			if slices.ContainsFunc(bindings, func(b string) bool {
				return b == e.Topic || strings.HasSuffix(b, "#") && strings.HasPrefix(e.Topic, b[:len(b)-1])
			}) {
				routes = append(routes, q)
			}
		}
		if len(routes) == 0 && len(e.Topic) <= waybill.MaxNameBytes {
			res[i] = &waybill.Error{Op: "stage", Class: waybill.ClassRejected, Err: waybill.ErrUnroutable}
			continue
		}
		slices.Sort(routes)
		h.empty[e.ID] = unfill(&e)
		msgs, slots = append(msgs, waybill.Message{Envelope: e, Routes: routes}), append(slots, i)
	}
	if err := h.stage(ctx, msgs...); err == nil || !errors.Is(err, waybill.ErrInvalid) {
		for _, i := range slots {
			if err != nil {
				res[i] = outage(err)
			}
		}
		return res
	}
	for j, m := range msgs { // one of them is bad
		switch err := h.stage(ctx, m); {
		case errors.Is(err, waybill.ErrInvalid):
			res[slots[j]] = &waybill.Error{Op: "stage", Class: waybill.ClassPermanent, Err: err}
		case err != nil:
			res[slots[j]] = outage(err)
		}
	}
	return res
}

// unfill returns a function that takes away from a copy of e the values that staging gives it.
func unfill(e *waybill.Envelope) func(*waybill.Envelope) {
	sent := *e
	return func(got *waybill.Envelope) {
		if sent.Type == "" {
			got.Type = ""
		}
		if sent.ContentType == "" {
			got.ContentType = ""
		}
		if sent.Time.IsZero() {
			got.Time = sent.Time
		}
		if sent.HLC.IsZero() {
			got.HLC = 0
		}
	}
}

// Subscribe notes the bindings, which say where to stage.
func (h *harness) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	bindings := sub.Bindings
	sub.Bindings = nil
	sub.Concurrency = sub.Prefetch // the suite has no handlers: whatever it may hold is handled
	r, err := h.Transport.Subscribe(ctx, sub)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bound[sub.Queue] = append(h.bound[sub.Queue], bindings...)
	return &receiver{r, h}, nil
}

// Operators see what staging filled in, too.
func (h *harness) ListParked(ctx context.Context, queue string, f admin.ParkedFilter, limit int) ([]admin.Parked, error) {
	ps, err := h.Transport.ListParked(ctx, queue, f, limit)
	for i := range ps {
		h.unfill(&ps[i].Envelope)
	}
	return ps, err
}

func (h *harness) InspectParked(ctx context.Context, queue string, f admin.ParkedFilter) (admin.Parked, error) {
	p, err := h.Transport.InspectParked(ctx, queue, f)
	h.unfill(&p.Envelope)
	return p, err
}

func (h *harness) unfill(e *waybill.Envelope) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f := h.empty[e.ID]; f != nil {
		f(e)
	}
}

type receiver struct {
	core.Receiver
	h *harness
}

func (r *receiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	ds, err := r.Receiver.Receive(ctx, limit)
	for _, d := range ds {
		r.h.unfill(&d.Envelope)
	}
	return ds, err
}
