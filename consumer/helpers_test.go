package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type note struct{ N int }

var topic = waybill.NewTopic("note.added", waybill.JSON[note]())

var (
	errBoom = errors.New("boom")
	errLost = fmt.Errorf("settle: %w", waybill.ErrLeaseLost)
	quiet   = slog.New(slog.DiscardHandler)
)

// bus is a memory transport whose calls a test can watch and fail.
type bus struct {
	*memtransport.Transport
	counter   func() func(call string) // of each receiver's calls, of the budget of the test
	traits    func(*core.SubscriberTraits)
	subscribe func(core.Subscription) error
	receive   func() error
	settle    func([]core.Ack) error
	close     func(ctx context.Context)
	redeliver func(*waybill.Delivery) // changes what is received
	comeBack  bool                    // what settle failed to settle comes again at once
	dueFirst  bool                    // a free retry that is due comes before all others

	mu       sync.Mutex
	acks     []core.Ack
	times    []time.Time // of calls of Receive
	attempts int         // calls of Subscribe
	most     int         // largest limit of a Receive
}

func newBus(t *testing.T) *bus {
	t.Helper()
	tr, err := memtransport.New(memtransport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &bus{Transport: tr, counter: patience.BudgetOf(t).Counter}
}

func (b *bus) SubscriberTraits() core.SubscriberTraits {
	traits := b.Transport.SubscriberTraits()
	if b.traits != nil {
		b.traits(&traits)
	}
	return traits
}

func (b *bus) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	b.mu.Lock()
	b.attempts++
	b.mu.Unlock()
	if b.subscribe != nil {
		if err := b.subscribe(sub); err != nil {
			return nil, err
		}
	}
	if b.dueFirst { // the receiver holds what waits; see keepFree
		sub.Prefetch += 1000
	}
	rcv, err := b.Transport.Subscribe(ctx, sub)
	return &receiver{Receiver: rcv, b: b, count: b.counter()}, err
}

type receiver struct {
	core.Receiver
	b     *bus
	count func(call string)
}

func (r *receiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	r.count("receive")
	r.b.mu.Lock()
	r.b.times = append(r.b.times, time.Now())
	r.b.most = max(r.b.most, limit)
	r.b.mu.Unlock()
	if r.b.receive != nil {
		if err := r.b.receive(); err != nil {
			return nil, err
		}
	}
	ds, err := r.Receiver.Receive(ctx, limit)
	for _, d := range ds {
		if r.b.redeliver != nil {
			r.b.redeliver(d)
		}
	}
	return ds, err
}

func (r *receiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	r.count("settle")
	r.b.mu.Lock()
	r.b.acks = append(r.b.acks, acks...)
	r.b.mu.Unlock()
	if r.b.settle != nil {
		if err := r.b.settle(acks); err != nil {
			if r.b.comeBack {
				for i := range acks {
					acks[i] = core.AckRelease(acks[i].Delivery)
				}
				r.Receiver.Settle(ctx, acks)
			}
			return core.AllFailed(len(acks), err)
		}
	}
	if !r.b.dueFirst {
		return r.Receiver.Settle(ctx, acks)
	}
	res := make(core.Results, len(acks))
	for i, a := range acks {
		if !a.SameAttempt {
			res[i] = r.Receiver.Settle(ctx, acks[i:i+1])[0]
			continue
		}
		time.AfterFunc(a.Delay, func() { // a released message comes first
			r.Receiver.Settle(context.Background(), []core.Ack{core.AckRelease(a.Delivery)})
		})
	}
	return res
}

func (r *receiver) Close(ctx context.Context) error {
	if r.b.close != nil {
		r.b.close(ctx)
	}
	return r.Receiver.Close(ctx)
}

// suspects has the messages whose ids begin with prefix arrive as some that came ten times before.
func (b *bus) suspects(prefix string) {
	b.redeliver = func(d *waybill.Delivery) {
		if strings.HasPrefix(d.Envelope.ID, prefix) {
			d.Redeliveries = 10
		}
	}
}

// free stands for a retry that costs no attempt.
const free core.Verdict = 100

// verdicts returns how often each verdict was settled.
func (b *bus) verdicts() map[core.Verdict]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[core.Verdict]int{}
	for _, a := range b.acks {
		if a.SameAttempt {
			a.Verdict = free
		}
		out[a.Verdict]++
	}
	return out
}

// publish puts messages with the ids id-1, id-2, … into the queues.
func (b *bus) publish(t *testing.T, n int, opts ...waybill.MessageOption) {
	t.Helper()
	b.send(t, messages(n, opts...)...)
}

func messages(n int, opts ...waybill.MessageOption) []waybill.Envelope {
	es := make([]waybill.Envelope, n)
	for i := range es {
		m := topic.Message(note{N: i + 1}, opts...)
		es[i] = m.Envelope
		if es[i].ID == "" {
			es[i].ID = "id-" + strconv.Itoa(i+1)
		}
		es[i].Type, es[i].Source = es[i].Topic, "/notes"
	}
	return es
}

func (b *bus) send(t *testing.T, es ...waybill.Envelope) {
	t.Helper()
	if err := b.Publish(t.Context(), es).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

const queue = "q"

func declared(t *testing.T) *bus {
	t.Helper()
	b := newBus(t)
	if err := b.Declare(queue, "#"); err != nil {
		t.Fatal(err)
	}
	return b
}

func newConsumer(t *testing.T, b core.Subscriber, o consumer.Options) *consumer.Consumer {
	t.Helper()
	patience.BudgetOf(t)
	if o.Logger == nil {
		o.Logger = quiet
	}
	c, err := consumer.New(b, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// start runs a consumer of one queue and returns the function that stops it.
func start(t *testing.T, b core.Subscriber, o consumer.Options, sub waybill.Subscription, hs ...waybill.Handler) (stop func()) {
	t.Helper()
	c := newConsumer(t, b, o)
	if sub.Queue == "" {
		sub.Queue = queue
	}
	if err := c.Handle(sub, hs...); err != nil {
		t.Fatal(err)
	}
	return run(t, c)
}

func run(t *testing.T, c *consumer.Consumer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

// settle waits until nothing moves.
func settle() { synctest.Wait() }

// handle returns a handler of topic that calls f.
func handle(f func(ctx context.Context, d *waybill.Delivery) error) waybill.Handler {
	return waybill.Handler{Name: topic.Name(), Handle: func(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
		return waybill.HandlerProcessed, f(ctx, d)
	}}
}

// seen collects what handlers saw.
type seen[T any] struct {
	mu   sync.Mutex
	list []T
}

func (s *seen[T]) add(v T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, v)
}

func (s *seen[T]) all() []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]T(nil), s.list...)
}

// queued waits until the queue holds want. The test's budget bounds the wait, so that a stall shows. Then ten minutes
// pass, for messages that come twice or too late.
func queued(t *testing.T, b *bus, want memtransport.Depth) {
	t.Helper()
	patience.Moving(t, fmt.Sprintf("the queue holds %+v", want), func() (memtransport.Depth, bool) {
		got := b.Depth(queue)
		return got, got == want
	})
	patience.Pass(t, 10*time.Minute)
	wantDepth(t, b, want)
}

// rest lets most pass. The time until nothing is left to handle counts for the budget of the test. A random test says
// then which messages are left, and of which case.
func rest(t *testing.T, b *bus, most time.Duration) {
	t.Helper()
	end := time.Now().Add(most)
	for d := b.Depth(queue); d.Ready+d.Held+d.Delayed > 0 && time.Now().Before(end); d = b.Depth(queue) {
		time.Sleep(time.Second / 2)
	}
	patience.Pass(t, time.Until(end))
}

// histories runs random histories, each in a bubble of its own, with handlers of one message or of several.
func histories(t *testing.T, history func(t *testing.T, rt *rapid.T, seed uint64, batch bool)) {
	t.Helper()
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		batch := rapid.Bool().Draw(rt, "batch")
		var short any // what rapid panics with while it looks for a smaller history: nothing is left to draw
		ok := t.Run("", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				defer func() {
					if p := recover(); fmt.Sprintf("%T", p) == "rapid.invalidData" {
						short = p
					} else if p != nil {
						panic(p)
					}
				}()
				patience.BudgetOf(t)
				history(t, rt, seed, batch)
			})
		})
		if short != nil { // a panic in a bubble ends the program
			panic(short)
		}
		if !ok { // rapid prints what it drew, and looks for a smaller history
			rt.Fatal("the test above fails in this history")
		}
	})
}

func wantDepth(t *testing.T, b *bus, want memtransport.Depth) {
	t.Helper()
	if got := b.Depth(queue); got != want {
		t.Errorf("depth is %+v, want %+v", got, want)
	}
}

func wantParked(t *testing.T, b *bus, reason waybill.Reason, n int) {
	t.Helper()
	parked := b.Parked(queue)
	if len(parked) != n {
		t.Errorf("%d messages are parked, want %d", len(parked), n)
	}
	for _, p := range parked {
		if p.Reason != reason {
			t.Errorf("%s is parked with reason %q (%s), want %q", p.Envelope.ID, p.Reason, p.Err, reason)
		}
	}
}

// travel takes the virtual time of a call to a server, or of its answer.
func travel(d time.Duration) { time.Sleep(d) }
