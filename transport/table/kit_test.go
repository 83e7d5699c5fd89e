package table_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	memstore "github.com/waybill-go/waybill/store/memory"
	"github.com/waybill-go/waybill/transport/table"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(testenv.Background))
}

var (
	quiet   = slog.New(slog.DiscardHandler)
	errDown = &waybill.Error{Op: "test", Class: waybill.ClassOutage, Err: errors.New("down")}
)

// store is a memory store whose calls a test can fail.
type store struct {
	*memstore.Store
	mu     sync.Mutex
	settle func([]core.Outcome) error
	call   func(what string) error // of all but settle
}

func newStore(tb testing.TB) *store {
	tb.Helper()
	s, err := memstore.New(memstore.Options{Source: "/test"})
	if err != nil {
		tb.Fatal(err)
	}
	return &store{Store: s}
}

func (s *store) stage(ctx context.Context, msgs ...waybill.Message) error {
	tx := s.Begin()
	defer tx.Rollback()
	if _, err := s.Stage(ctx, tx, msgs...); err != nil {
		return err
	}
	return tx.Commit()
}

func (s *store) fails(what string) error {
	s.mu.Lock()
	f := s.call
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(what)
}

func (s *store) Meet(ctx context.Context, m core.Meeting) (core.Roster, error) {
	if err := s.fails("meet"); err != nil {
		return core.Roster{}, err
	}
	return s.Store.Meet(ctx, m)
}

func (s *store) Read(ctx context.Context, self core.Session, look core.Look) (core.Page, error) {
	if err := s.fails("read"); err != nil {
		return core.Page{}, err
	}
	return s.Store.Read(ctx, self, look)
}

func (s *store) Take(ctx context.Context, self core.Session, want core.Want) ([]core.Taken, error) {
	if err := s.fails("take"); err != nil {
		return nil, err
	}
	return s.Store.Take(ctx, self, want)
}

func (s *store) Due(ctx context.Context, self core.Session, parts []core.Part, limit int) (core.DuePage, error) {
	if err := s.fails("due"); err != nil {
		return core.DuePage{}, err
	}
	return s.Store.Due(ctx, self, parts, limit)
}

func (s *store) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	s.mu.Lock()
	f := s.settle
	s.mu.Unlock()
	if f != nil {
		if err := f(outcomes); err != nil {
			return core.AllFailed(len(outcomes), err)
		}
	}
	return s.Store.Settle(ctx, self, outcomes)
}

func (s *store) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// process is what one process sees of a store: its calls fail when it is gone.
type process struct {
	*store
	mu   sync.Mutex
	gone bool
}

func (p *process) dead() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return errDown
	}
	return nil
}

func (p *process) die() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = true
}

func (p *process) live() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = false
}

func (p *process) Meet(ctx context.Context, m core.Meeting) (core.Roster, error) {
	if err := p.dead(); err != nil {
		return core.Roster{}, err
	}
	return p.store.Meet(ctx, m)
}

func (p *process) Read(ctx context.Context, self core.Session, look core.Look) (core.Page, error) {
	if err := p.dead(); err != nil {
		return core.Page{}, err
	}
	return p.store.Read(ctx, self, look)
}

func (p *process) Take(ctx context.Context, self core.Session, want core.Want) ([]core.Taken, error) {
	if err := p.dead(); err != nil {
		return nil, err
	}
	return p.store.Take(ctx, self, want)
}

func (p *process) Due(ctx context.Context, self core.Session, parts []core.Part, limit int) (core.DuePage, error) {
	if err := p.dead(); err != nil {
		return core.DuePage{}, err
	}
	return p.store.Due(ctx, self, parts, limit)
}

func (p *process) GiveUp(ctx context.Context, self core.Session, unit core.OwnedUnit, out []core.Ref) (bool, error) {
	if err := p.dead(); err != nil {
		return false, err
	}
	return p.store.GiveUp(ctx, self, unit, out)
}

func (p *process) Settle(ctx context.Context, self core.Session, outcomes []core.Outcome) core.Results {
	if err := p.dead(); err != nil {
		return core.AllFailed(len(outcomes), err)
	}
	return p.store.Settle(ctx, self, outcomes)
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
	tr, err := table.New(s, opts)
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

// receive returns the next n deliveries.
func receive(t *testing.T, r core.Receiver, n int) []*waybill.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
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

// none fails if anything comes within d.
func none(t *testing.T, r core.Receiver, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	for ctx.Err() == nil {
		if ds, err := r.Receive(ctx, 10); err == nil {
			t.Fatalf("message %s came, redeliveries %d", ds[0].Envelope.ID, ds[0].Redeliveries)
		}
	}
}

func settled(t *testing.T, r core.Receiver, acks ...core.Ack) {
	t.Helper()
	if err := r.Settle(t.Context(), acks).FirstErr(); err != nil {
		t.Fatal(err)
	}
}
