package checker_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/historytest"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/store/memory"
	membus "github.com/waybill-go/waybill/transport/memory"
	"github.com/waybill-go/waybill/transport/table"
)

// ordered is a history of consumers that keep the order: handlers fail in every way, verdicts cannot be stored for a
// while, consumers stop and others go on.
type ordered struct {
	t       *testing.T
	rng     *rand.Rand // of the plan, which is made before anything runs
	stops   int
	rate    int // of a thousand verdicts, that many cannot be stored
	spell   time.Duration
	send    func(id, key string)
	bus     func() core.Subscriber   // of one process
	counter func() func(call string) // of the calls of one receiver

	calm     atomic.Bool
	mu       sync.Mutex
	dice     *rand.Rand
	down     time.Time // until when no verdict is stored
	msgs     map[string]*orderedMessage
	keys     map[string][]*orderedMessage
	left     int
	problems []string
}

// orderedMessage is a message and the task of its handler.
type orderedMessage struct {
	id, key string
	script  []error // of its runs; after the last one nothing more is to come
	takes   time.Duration
	runs    int
	cut     int // runs that a stop ended
	done    bool
	final   bool // its end was stored
}

func newOrdered(t *testing.T, seed uint64) *ordered {
	t.Helper()
	h := &ordered{
		t: t, rng: rand.New(rand.NewPCG(seed, 2)), dice: rand.New(rand.NewPCG(seed, 3)),
		msgs: map[string]*orderedMessage{}, keys: map[string][]*orderedMessage{}, counter: patience.BudgetOf(t).Counter,
	}
	pick := func(n ...int) int { return n[h.rng.IntN(len(n))] }
	h.stops, h.rate, h.spell = pick(0, 0, 1, 3), pick(0, 50, 200, 500), time.Duration(pick(0, 100, 2000, 20_000))*time.Millisecond
	if h.rng.IntN(2) == 0 {
		bus, err := membus.New(membus.Options{Queues: []membus.Queue{{Name: "q", Bindings: []string{"#"}}}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = bus.Close(context.WithoutCancel(t.Context())) })
		h.bus = func() core.Subscriber { return bus }
		h.send = func(id, key string) {
			e := waybill.Envelope{ID: id, Key: key, Topic: "t", Type: "t", Source: "/checker", ContentType: "text/plain"}
			if err := bus.Publish(t.Context(), []waybill.Envelope{e}).FirstErr(); err != nil {
				t.Error(err)
			}
		}
		return h
	}
	store, err := memory.New(memory.Options{Source: "/checker"})
	if err != nil {
		t.Fatal(err)
	}
	lease := time.Duration(pick(500, 60_000)) * time.Millisecond
	h.bus = func() core.Subscriber {
		tr, err := table.New(store, table.Options{Lease: lease, CleanInterval: -1, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Error(err)
		}
		return tr
	}
	h.send = func(id, key string) {
		tx := store.Begin()
		defer tx.Rollback()
		if _, err := store.Stage(t.Context(), tx, waybill.RawMessage("t", "text/plain", nil, waybill.ID(id), waybill.Key(key), waybill.Routes("q"))); err != nil {
			t.Error(err)
		}
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
	}
	return h
}

// message plans one: some failures, outages and delays, and an end.
func (h *ordered) message(i int) *orderedMessage {
	m := &orderedMessage{id: fmt.Sprintf("m%03d", i), takes: time.Duration(h.rng.IntN(50)) * time.Millisecond}
	if k := h.rng.IntN(8); k > 0 {
		m.key = "k" + strconv.Itoa(k%3)
	}
	for h.rng.IntN(3) == 0 {
		m.script = append(m.script, []error{
			errHandler, waybill.RetryAfter(errHandler, time.Duration(h.rng.IntN(3000))*time.Millisecond), waybill.Outage(errHandler),
		}[h.rng.IntN(3)])
	}
	m.script = append(m.script, []error{nil, nil, waybill.Reject(errHandler)}[h.rng.IntN(3)])
	return m
}

func (h *ordered) problem(format string, args ...any) {
	h.problems = append(h.problems, fmt.Sprintf(format, args...))
}

// handle is the handler of all messages. It checks the order when it begins.
func (h *ordered) handle(ctx context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
	h.mu.Lock()
	m := h.msgs[d.Envelope.ID]
	m.runs++
	run := m.runs - m.cut
	if *traceFlag {
		fmt.Println(time.Now().Format("04:05.000"), "run", m.id, m.key, "attempt", d.Attempt, "redeliveries", d.Redeliveries, run, m.script)
	}
	for _, before := range h.keys[m.key] {
		if before == m {
			break
		}
		if m.key != "" && !before.done && !before.final {
			h.problem("%s of key %s is handled before %s is done or parked", m.id, m.key, before.id)
		}
	}
	if m.final {
		h.problem("%s is handled after its end was stored", m.id)
	}
	h.mu.Unlock()
	select {
	case <-time.After(m.takes):
	case <-ctx.Done():
		h.mu.Lock()
		defer h.mu.Unlock()
		m.cut++
		return waybill.HandlerProcessed, ctx.Err()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	err := m.script[min(run, len(m.script))-1]
	m.done = m.done || err == nil // it has had its effect, whatever becomes of the ack
	return waybill.HandlerProcessed, err
}

// refuses reports whether a verdict cannot be stored now.
func (h *ordered) refuses() bool {
	now := time.Now()
	if h.calm.Load() {
		return false
	}
	if now.Before(h.down) {
		return true
	}
	if h.dice.IntN(1000) < h.rate {
		if h.spell > 0 {
			h.down = now.Add(time.Duration(h.dice.Int64N(int64(h.spell))))
		}
		return true
	}
	return false
}

// faulty is a bus whose receivers fail to store verdicts.
type faulty struct {
	core.Subscriber
	h *ordered
}

func (f faulty) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	r, err := f.Subscriber.Subscribe(ctx, sub)
	return &faultyReceiver{r, f.h, f.h.counter()}, err
}

type faultyReceiver struct {
	core.Receiver
	h     *ordered
	count func(call string)
}

func (r *faultyReceiver) Receive(ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	r.count("receive")
	return r.Receiver.Receive(ctx, limit)
}

func (r *faultyReceiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	r.count("settle")
	res := make(core.Results, len(acks))
	for i := range acks {
		ends := acks[i].Verdict == core.VerdictDone || acks[i].Verdict == core.VerdictReject
		r.h.mu.Lock()
		m := r.h.msgs[acks[i].Delivery.Envelope.ID]
		refused := acks[i].Verdict != core.VerdictRelease && r.h.refuses()
		if *traceFlag {
			fmt.Println(time.Now().Format("04:05.000"), "settle", m.id, acks[i].Verdict, acks[i].Delay, refused)
		}
		if refused {
			res[i] = &waybill.Error{Op: "checker", Class: waybill.ClassOutage, Err: errHandler}
			r.h.mu.Unlock()
			continue
		}
		if ends && m.final {
			r.h.problem("%s ends twice", m.id)
		}
		if ends {
			m.final = true
		}
		r.h.mu.Unlock()
		res[i] = r.Receiver.Settle(ctx, acks[i:i+1])[0]
		if !ends {
			continue
		}
		r.h.mu.Lock()
		if res[i] == nil {
			r.h.left--
		} else {
			m.final = false
		}
		r.h.mu.Unlock()
	}
	return res
}

// consume runs a consumer until stop is called.
func (h *ordered) consume() (stop func()) {
	bus := h.bus()
	c, err := consumer.New(faulty{bus, h}, consumer.Options{
		Logger: slog.New(slog.DiscardHandler), MeterProvider: noop.NewMeterProvider(), TracerProvider: tracenoop.NewTracerProvider(),
		DrainTimeout: time.Duration(h.rng.IntN(1000)+1) * time.Millisecond,
	})
	if err != nil {
		h.t.Fatal(err)
	}
	sub := waybill.Subscription{
		Queue: "q", InOrder: true, Concurrency: 1 + h.rng.IntN(4), MaxDeliveries: -1,
		Retry: &waybill.Backoff{Base: 10 * time.Millisecond, Cap: time.Second, Attempts: -1},
	}
	if err := c.Handle(sub, waybill.Handler{Name: waybill.AnyMessage, Handle: h.handle}); err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(h.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := c.Run(ctx); err != nil {
			h.t.Error(err)
		}
		if tr, ok := bus.(*table.Transport); ok {
			if err := tr.Close(context.WithoutCancel(ctx)); err != nil {
				h.t.Error(err)
			}
		}
	}()
	return func() { cancel(); <-ended }
}

func (h *ordered) run() {
	var plan []*orderedMessage
	for i := range 10 + h.rng.IntN(30) {
		m := h.message(i)
		plan = append(plan, m)
		h.msgs[m.id], h.keys[m.key] = m, append(h.keys[m.key], m)
	}
	h.left = len(plan)
	stops := []func(){h.consume(), h.consume()}
	for i, m := range plan {
		h.send(m.id, m.key)
		time.Sleep(time.Duration(h.rng.IntN(200)) * time.Millisecond)
		if h.stops > 0 && i%(len(plan)/h.stops+1) == 5 {
			stops[0]()
			stops = append(stops[1:], h.consume())
		}
	}
	time.Sleep(time.Duration(h.rng.IntN(10)) * time.Second)
	h.calm.Store(true)
	for end := time.Now().Add(time.Hour); time.Now().Before(end); time.Sleep(time.Second) {
		h.mu.Lock()
		left := h.left
		h.mu.Unlock()
		if left == 0 {
			break
		}
	}
	for _, stop := range stops {
		stop()
	}
	h.verify(plan)
}

func (h *ordered) verify(plan []*orderedMessage) {
	for _, m := range plan {
		again := m.runs - m.cut - len(m.script)
		switch {
		case !m.final:
			h.problem("%s is lost", m.id)
		// A consumer that stops may leave without a verdict that it could not store.
		case again < 0, again > h.stops:
			h.problem("%s: %d runs of its handler and %d that were cut off, for %d attempts", m.id, m.runs, m.cut, len(m.script))
		}
	}
}

// CO-18, P7: with Subscription.InOrder no message of a key is handled before the one before it is done or parked, while
// handlers, parks, retries and consumers fail. No handler runs more often than it has attempts.
func TestInOrderHistories(t *testing.T) {
	t.Parallel()
	first, n := uint64(time.Now().UnixNano()), histories(100, 1000)
	if *seedFlag != 0 {
		first, n = *seedFlag, 1
	}
	late := historytest.Deadline(t)
	for i := range uint64(n) {
		if i >= 100 && late() {
			t.Logf("%d histories of %d", i, n)
			return
		}
		var problems []string
		synctest.Test(t, func(t *testing.T) {
			patience.BudgetOf(t).Time(2*time.Minute, "the trouble, retries in place of seconds, and what is left: 34 s at most in 100 histories")
			h := newOrdered(t, first+i)
			h.run()
			problems = h.problems
		})
		if len(problems) > 0 {
			t.Fatalf("seed %d: %d problems, such as %q", first+i, len(problems), problems[:min(5, len(problems))])
		}
	}
}
