package transporttest_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/transporttest"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// faults breaks a good transport: each hook that is set replaces one thing it does.
type faults struct {
	traits    func(*core.PublisherTraits)
	publish   func(f *broken, ctx context.Context, batch []waybill.Envelope) core.Results
	subscribe func(f *broken, sub core.Subscription) core.Subscription
	receive   func(r *brokenReceiver, ctx context.Context, limit int) ([]*waybill.Delivery, error)
	settle    func(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results
	close     func(r *brokenReceiver, ctx context.Context) error
	ahead     *aheadFaults // receivers are sent messages ahead
}

type broken struct {
	core.Transport
	faults
	n atomic.Int64
}

func (b *broken) Traits() core.PublisherTraits {
	t := b.Transport.Traits()
	if b.traits != nil {
		b.traits(&t)
	}
	return t
}

func (b *broken) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	if b.publish != nil {
		return b.publish(b, ctx, batch)
	}
	return b.Transport.Publish(ctx, batch)
}

func (b *broken) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	if b.subscribe != nil {
		sub = b.subscribe(b, sub)
	}
	r, err := b.Transport.Subscribe(ctx, sub)
	if err != nil {
		return nil, err
	}
	if b.ahead != nil {
		r = newAhead(r, sub.Prefetch, *b.ahead)
	}
	return &brokenReceiver{Receiver: r, b: b}, nil
}

type brokenReceiver struct {
	core.Receiver
	b    *broken
	mu   sync.Mutex
	held []*waybill.Delivery
}

// Unwrap shows whether the receiver is sent messages ahead.
func (r *brokenReceiver) Unwrap() any { return r.Receiver }

func (r *brokenReceiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	receive := r.Receiver.Receive
	if f := r.b.receive; f != nil {
		receive = func(ctx context.Context, limit int) ([]*waybill.Delivery, error) { return f(r, ctx, limit) }
	}
	ds, err := receive(ctx, limit)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = append(r.held, ds...)
	return ds, err
}

func (r *brokenReceiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	if r.b.settle != nil {
		return r.b.settle(r, ctx, acks)
	}
	return r.Receiver.Settle(ctx, acks)
}

func (r *brokenReceiver) Close(ctx context.Context) error {
	if r.b.close != nil {
		return r.b.close(r, ctx)
	}
	return r.Receiver.Close(ctx)
}

// done settles deliveries behind the suite's back.
func (r *brokenReceiver) done(ctx context.Context, ds []*waybill.Delivery) {
	var acks []core.Ack
	for _, d := range ds {
		acks = append(acks, core.AckDone(d))
	}
	r.Receiver.Settle(ctx, acks)
}

// TE-01: every broken transport is caught by the check that is named for it.
func TestBrokenTransportsAreCaught(t *testing.T) {
	t.Parallel()
	checks := map[string]transporttest.Check{}
	for _, c := range transporttest.Checks() {
		checks[c.Name] = c
	}
	for _, c := range brokenTransports {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				check, ok := checks[c.check]
				if !ok {
					t.Fatalf("there is no check %q", c.check)
				}
				if err := check.Run(t.Context(), newWorld(t, c.faults).harness()); err == nil || errors.Is(err, transporttest.ErrNotDeclared) {
					t.Errorf("%s did not catch it: %v", c.check, err)
				} else {
					t.Log(err)
				}
			})
		})
	}
}

// Nothing is left in the wrapper itself that would fail a check.
func TestWrapperWithoutFaults(t *testing.T) {
	t.Parallel()
	transporttest.RunInBubble(t, func(t *testing.T) transporttest.Harness {
		t.Helper()
		return newWorld(t, faults{}).harness()
	})
}

// The same with receivers that are sent messages ahead.
func TestWrapperAhead(t *testing.T) {
	t.Parallel()
	transporttest.RunInBubble(t, func(t *testing.T) transporttest.Harness {
		t.Helper()
		return newWorld(t, faults{ahead: &aheadFaults{}}).harness()
	})
}

// A transport that declares nothing skips what it does not declare, and fails nothing.
func TestUndeclaredIsSkipped(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"key-order-batch", "publish-unroutable", "binding-wildcards", "close-counts-redeliveries",
		"retry-survives-receiver", "reject-parks", "restart",
	} {
		for _, c := range transporttest.Checks() {
			if c.Name != name {
				continue
			}
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, faults{})
				w.tr = modest{w.tr}
				if err := c.Run(t.Context(), w.harness()); !errors.Is(err, transporttest.ErrNotDeclared) {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	}
}

func TestChecksAreNamed(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, c := range transporttest.Checks() {
		if c.Name == "" || c.Run == nil || seen[c.Name] || strings.Trim(c.Name, "abcdefghijklmnopqrstuvwxyz-") != "" {
			t.Errorf("check %q has a bad name, a name twice, or no function", c.Name)
		}
		seen[c.Name] = true
	}
	if reflect.TypeFor[waybill.Envelope]().NumField() != 20 {
		t.Error("waybill.Envelope has another number of fields: add the new ones to full and roundTripUnicode")
	}
}

type modest struct{ core.Transport }

func (modest) Traits() core.PublisherTraits            { return core.PublisherTraits{} }
func (modest) SubscriberTraits() core.SubscriberTraits { return core.SubscriberTraits{} }

// world is a memory transport, and what the suite gets to see of it.
type world struct {
	tr  core.Transport
	mem *memtransport.Transport
}

func newWorld(t *testing.T, f faults) *world {
	t.Helper()
	mem, err := memtransport.New(memtransport.Options{MaxBodyBytes: 2 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mem.Close(context.Background()) })
	return &world{tr: &broken{Transport: mem, faults: f}, mem: mem}
}

func (w *world) harness() transporttest.Harness {
	h := transporttest.Of(w.tr)
	h.Parked = func(_ context.Context, queue string) ([]transporttest.Parked, error) {
		var out []transporttest.Parked
		for _, p := range w.mem.Parked(queue) {
			out = append(out, transporttest.Parked{Envelope: p.Envelope, Reason: p.Reason, Err: p.Err})
		}
		return out, nil
	}
	return h
}
