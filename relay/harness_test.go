package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/relay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errNo = &waybill.Error{Op: "test", Class: waybill.ClassRejected, Err: errors.New("no")}

func down() error {
	return &waybill.Error{Op: "test", Class: waybill.ClassOutage, Err: errors.New("down")}
}

// msg is a message with an id, and a key unless it is empty.
func msg(id, key string, opts ...waybill.MessageOption) waybill.Message {
	return waybill.RawMessage("t.a", "text/plain", []byte(id), append([]waybill.MessageOption{waybill.ID(id), waybill.Key(key)}, opts...)...)
}

func msgs(n int, key func(i int) string) []waybill.Message {
	out := make([]waybill.Message, n)
	for i := range out {
		out[i] = msg(fmt.Sprintf("m%05d", i), key(i))
	}
	return out
}

func noKey(int) string { return "" }

// bus is a publisher whose answers a test decides.
type bus struct {
	latency time.Duration
	traits  core.PublisherTraits
	// answer decides about one message; nil = confirmed. It runs before the message arrives.
	answer func(e *waybill.Envelope, nth int) error
	// before runs at the start of every call.
	before func(ctx context.Context, batch []waybill.Envelope)

	mu       sync.Mutex
	arrived  []waybill.Envelope
	tried    map[string]int
	inFlight int
	maxIn    int
	calls    int
	inCalls  int
	maxCalls int
	keys     map[string]int // in flight by key
	overlaps int            // times that two of one key were in flight
	started  []time.Time
	sizes    []int
}

func newBus() *bus {
	return &bus{traits: core.PublisherTraits{KeyOrder: core.KeyOrderSerial, Confirmed: true, DetectsUnroutable: true}}
}

func (b *bus) Traits() core.PublisherTraits { return b.traits }

func (b *bus) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	b.mu.Lock()
	if b.tried == nil {
		b.tried, b.keys = map[string]int{}, map[string]int{}
	}
	b.calls++
	b.inCalls++
	b.maxCalls = max(b.maxCalls, b.inCalls)
	b.inFlight += len(batch)
	b.maxIn = max(b.maxIn, b.inFlight)
	b.started = append(b.started, time.Now())
	b.sizes = append(b.sizes, len(batch))
	for i := range batch {
		if k := batch[i].Key; k != "" {
			if b.keys[k]++; b.keys[k] > 1 {
				b.overlaps++
			}
		}
	}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.inCalls--
		b.inFlight -= len(batch)
		for i := range batch {
			if k := batch[i].Key; k != "" {
				b.keys[k]--
			}
		}
	}()
	if b.before != nil {
		b.before(ctx, batch)
	}
	if b.latency > 0 {
		select {
		case <-time.After(b.latency):
		case <-ctx.Done():
			return core.AllFailed(len(batch), ctx.Err())
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	res := make(core.Results, len(batch))
	failed := map[string]bool{}
	for i := range batch {
		e := batch[i].Clone()
		b.tried[e.ID]++
		if b.traits.KeyOrder == core.KeyOrderPipelinedPrefix && e.Key != "" && failed[e.Key] {
			res[i] = errNo
			continue
		}
		if b.answer != nil {
			res[i] = b.answer(&e, b.tried[e.ID])
		}
		if res[i] == nil {
			b.arrived = append(b.arrived, e)
		} else {
			failed[e.Key] = true
		}
	}
	return res
}

func (b *bus) ids() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]string, len(b.arrived))
	for i := range b.arrived {
		out[i] = b.arrived[i].ID
	}
	return out
}

func (b *bus) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.arrived)
}

// maxAfter is the greatest call that began later than d after the first.
func (b *bus) maxAfter(d time.Duration) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, at := range b.started {
		if at.Sub(b.started[0]) > d {
			n = max(n, b.sizes[i])
		}
	}
	return n
}

// firstsInOrder checks that the first arrivals of every key stand in staged order, which is that of the ids.
func (b *bus) firstsInOrder() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen, last := map[string]bool{}, map[string]string{}
	for i := range b.arrived {
		e := &b.arrived[i]
		if e.Key == "" || seen[e.ID] {
			continue
		}
		seen[e.ID] = true
		if e.ID < last[e.Key] {
			return fmt.Errorf("key %s: %s arrived after %s", e.Key, e.ID, last[e.Key])
		}
		last[e.Key] = e.ID
	}
	return nil
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// begin runs r and returns a function that stops it and returns Run's error. Under synctest only.
func begin(tb testing.TB, r *relay.Relay) (stop func() error) {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return func() error {
		cancel()
		return <-done
	}
}

// within waits until cond holds, in virtual time.
func within(tb testing.TB, limit time.Duration, what string, cond func() bool) {
	tb.Helper()
	end := time.Now().Add(limit)
	for {
		synctest.Wait()
		if cond() {
			return
		}
		if time.Now().After(end) {
			tb.Fatalf("not within %s: %s", limit, what)
		}
		time.Sleep(max(time.Millisecond, limit/10000))
	}
}
