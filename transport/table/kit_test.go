package table_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	memstore "github.com/waybill-go/waybill/store/memory"
	"github.com/waybill-go/waybill/transport/table"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background), goleak.IgnoreAnyFunction(testenv.IdleMongoDB))
}

var (
	quiet   = slog.New(slog.DiscardHandler)
	errDown = &waybill.Error{Op: "test", Class: waybill.ClassOutage, Err: errors.New("down")}
)

// store is a memory store whose calls a test can fail.
type store struct {
	sharedtest.Store
	mem    *memstore.Store
	mu     sync.Mutex
	settle func([]core.Outcome) error
	call   func(what string) error // of all but settle
}

func newStore(tb testing.TB) *store {
	tb.Helper()
	return storeWith(tb, memstore.Options{})
}

func storeWith(tb testing.TB, opts memstore.Options) *store {
	tb.Helper()
	opts.Source = "/test"
	mem, err := memstore.New(opts)
	if err != nil {
		tb.Fatal(err)
	}
	s := &store{mem: mem}
	s.Store = sharedtest.Store{OutboxStore: mem, Before: s.before}
	return s
}

func (s *store) before(_ context.Context, call string, arg any) error {
	s.mu.Lock()
	settle, other := s.settle, s.call
	s.mu.Unlock()
	outcomes, settles := arg.([]core.Outcome)
	switch {
	case settles && settle != nil:
		return settle(outcomes)
	case !settles && other != nil:
		return other(call)
	}
	return nil
}

func (s *store) stage(ctx context.Context, msgs ...waybill.Message) error {
	tx := s.mem.Begin()
	defer tx.Rollback()
	if _, err := s.mem.Stage(ctx, tx, msgs...); err != nil {
		return err
	}
	return tx.Commit()
}

func (s *store) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// process is what one process sees of a store: its calls fail when it is gone.
type process struct {
	sharedtest.Store
	gone atomic.Bool
}

func newProcess(s *store) *process {
	p := &process{}
	p.Store = sharedtest.Store{OutboxStore: s, Before: func(context.Context, string, any) error {
		if p.gone.Load() {
			return errDown
		}
		return nil
	}}
	return p
}

// plain hides everything that is optional.
type plain struct{ core.OutboxStore }

func stage(t *testing.T, s *store, msgs ...waybill.Message) {
	t.Helper()
	if err := s.stage(t.Context(), msgs...); err != nil {
		t.Fatal(err)
	}
}

func message(id string, opts ...waybill.MessageOption) waybill.Message {
	return waybill.RawMessage("mail.send", "text/plain", []byte(id), append([]waybill.MessageOption{waybill.ID(id), waybill.Routes("mails")}, opts...)...)
}

func newTable(t *testing.T, s core.OutboxStore, opts table.Options) *table.Transport {
	t.Helper()
	if opts.Logger == nil {
		opts.Logger = quiet
	}
	count := patience.BudgetOf(t).Counter()
	counted := &sharedtest.Store{OutboxStore: s, Before: func(_ context.Context, call string, _ any) error {
		count(call)
		return nil
	}}
	tr, err := table.New(counted, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = tr.Close(ctx)
	})
	return tr
}

func subscribe(t *testing.T, tr *table.Transport) core.Receiver {
	t.Helper()
	return subscribeTo(t, tr, "mails")
}

func subscribeTo(t *testing.T, tr *table.Transport, queue string) core.Receiver {
	t.Helper()
	r, err := tr.Subscribe(t.Context(), core.Subscription{Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// tenMinutes returns a context that ends after ten minutes of virtual time: what never comes fails the test, instead of
// hanging it.
func tenMinutes(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// receive returns the next n deliveries.
func receive(t *testing.T, r core.Receiver, n int) []*waybill.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour)
	defer cancel()
	var all []*waybill.Delivery
	for len(all) < n {
		ds, err := r.Receive(ctx, n-len(all))
		if err != nil && (waybill.ClassOf(err) != waybill.ClassOutage || ctx.Err() != nil) {
			t.Fatalf("after %d of %d: %v", len(all), n, err)
		}
		all = append(all, ds...)
	}
	return all
}

// none fails if anything comes within d of virtual time.
func none(t *testing.T, r core.Receiver, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	came := make(chan *waybill.Delivery, 1)
	go func() {
		defer close(came)
		for ctx.Err() == nil {
			if ds, _ := r.Receive(ctx, 10); len(ds) > 0 {
				came <- ds[0]
				return
			}
		}
	}()
	patience.Pass(t, d)
	cancel()
	if d := <-came; d != nil {
		t.Fatalf("message %s came, redeliveries %d", d.Envelope.ID, d.Redeliveries)
	}
}

func settled(t *testing.T, r core.Receiver, acks ...core.Ack) {
	t.Helper()
	if err := r.Settle(tenMinutes(t), acks).FirstErr(); err != nil {
		t.Fatal(err)
	}
}
