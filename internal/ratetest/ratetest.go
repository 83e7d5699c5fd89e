// Package ratetest compares the rate of a program that sets no option with the rate under the best options, for tests
// of stores and transports.
//
// # What is counted
//
// The program runs behind a [rounds.Proxy], which counts its round trips that are one after the other. A drain of n
// messages then takes
//
//	rounds × (round trip + Loopback) + n × handling
//
// on any machine. On a very busy one a round can end early. So the best of [Attempts] counts: a default that is too
// small fails in each.
//
// # Concurrency
//
// Rounds look at the whole process, so the tests do not run in parallel.
package ratetest

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/rounds"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
	memstore "github.com/waybill-go/waybill/store/memory"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

const (
	// Loopback is a round trip without a network.
	Loopback = 100 * time.Microsecond
	// Receiving is the time of a consumer for a message: near its server it reaches about 45,000 a second.
	Receiving = 22 * time.Microsecond
	// Relaying is that of a relay: 27,000 a second.
	Relaying = 36 * time.Microsecond
	// Least is the rate that a program without options must reach, of the best.
	Least = 0.8
	// Attempts is how often a pair is counted before it fails.
	Attempts = 3
)

// Trips are the round trips of the networks.
var Trips = []time.Duration{0, time.Millisecond, 5 * time.Millisecond}

// Drain is what was counted.
type Drain struct {
	Messages, Rounds int
	Handling         time.Duration // of a message
}

// took returns how long the drain takes with a round trip, if a message takes more.
func (d Drain) took(trip, more time.Duration) time.Duration {
	return time.Duration(d.Rounds)*(trip+Loopback) + time.Duration(d.Messages)*(d.Handling+more)
}

// NearBest fails the test if own has less than [Least] of the rate of the best of others, at one of [Trips].
func NearBest(t *testing.T, own func() Drain, others map[string]func() Drain) {
	t.Helper()
	nearBest(t, 0, own, others)
}

// nearBest is NearBest with messages that take more.
func nearBest(t *testing.T, more time.Duration, own func() Drain, others map[string]func() Drain) {
	t.Helper()
	for attempt := 1; ; attempt++ {
		best := map[string]Drain{}
		d := own()
		for name, other := range others {
			best[name] = other()
		}
		var slow string
		for _, trip := range Trips {
			for name, other := range best {
				rate := float64(other.took(trip, more)) / float64(d.took(trip, more))
				t.Logf("%s of round trip: %.2f of the rate with %s, in %d rounds and in %d", trip, rate, name, d.Rounds, other.Rounds)
				if rate < Least {
					slow = fmt.Sprintf("at %s of round trip the rate is %.2f of that with %s, want %.1f: %d messages took %d rounds, and %d", trip, rate, name, Least, d.Messages, d.Rounds, other.Rounds)
				}
			}
		}
		switch {
		case slow == "":
			return
		case attempt == Attempts:
			t.Fatal(slow)
		}
		t.Log(slow)
	}
}

// quiet is the log of the programs.
var quiet = slog.New(slog.DiscardHandler)

// meter counts the rounds between two messages.
type meter struct {
	link        *rounds.Proxy
	first, all  int32
	seen        atomic.Int32
	begin, end  atomic.Int32
	whenAllSeen func()
}

func (m *meter) add(n int) {
	m.link.Busy()
	is := m.seen.Add(int32(n))
	if was := is - int32(n); was < m.first && is >= m.first {
		m.begin.Store(int32(m.link.Count()))
	}
	if was := is - int32(n); was < m.all && is >= m.all {
		m.end.Store(int32(m.link.Count()))
		m.whenAllSeen()
	}
}

// measure runs run until all messages were seen. It counts those behind the first fifth.
func measure(t *testing.T, link *rounds.Proxy, n int, handling time.Duration, run func(ctx context.Context, seen func(n int)) error) Drain {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	m := &meter{link: link, first: int32(n / 5), all: int32(n), whenAllSeen: func() { link.End(); stop() }}
	link.Begin()
	defer link.End()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, m.add) }()
	var err error
	patience.Moving(t, "all messages are seen", func() (int, bool) {
		select {
		case err = <-ended:
			return 0, true
		default:
			return int(m.seen.Load()), false
		}
	})
	if seen := m.seen.Load(); err != nil || seen < m.all {
		t.Fatalf("%d of %d messages were seen: %v", seen, n, err)
	}
	return Drain{Messages: n - n/5, Rounds: int(m.end.Load() - m.begin.Load()), Handling: handling}
}

// Consume counts a consumer that handles n messages, which are in its queue.
func Consume(t *testing.T, link *rounds.Proxy, bus core.Subscriber, o consumer.Options, sub waybill.Subscription, n int, handler func(seen func()) waybill.Handler) Drain {
	t.Helper()
	return measure(t, link, n, Receiving, func(ctx context.Context, seen func(int)) error {
		o.Logger = quiet
		c, err := consumer.New(bus, o)
		if err == nil {
			err = c.Handle(sub, handler(func() { seen(1) }))
		}
		if err != nil {
			return err
		}
		return c.Run(ctx)
	})
}

// heldAhead is how many messages a consumer holds at most, unless its options say otherwise.
const heldAhead = 1000

// Receive counts a consumer that sets no option, whose handlers do nothing, and which has adapted: it holds heldAhead.
// How a consumer adapts depends on the time, and so cannot be counted here: its own tests do that in virtual time
// (CO-25).
func Receive(t *testing.T, link *rounds.Proxy, bus core.Subscriber, sub waybill.Subscription, n int) Drain {
	t.Helper()
	return Consume(t, link, &adapted{bus}, consumer.Options{Prefetch: heldAhead}, sub, n, Nothing)
}

// adapted is a transport that gets the requests of a consumer without a Prefetch.
type adapted struct{ core.Subscriber }

// Unwrap gives the consumer the capabilities of the transport.
func (a *adapted) Unwrap() any { return a.Subscriber }

// Subscribe implements core.Subscriber.
func (a *adapted) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	sub.Prefetch, sub.MaxPrefetch = consumer.DefaultConcurrency, max(sub.Prefetch, sub.MaxPrefetch)
	r, err := a.Subscriber.Subscribe(ctx, sub)
	if err != nil {
		return nil, err
	}
	if p, ok := core.As[core.Pauser](r); ok {
		err = p.Resume(ctx, sub.MaxPrefetch)
	}
	return r, err
}

// Ideal is a consumer for [NearBest] whose calls to receive and to settle take a round trip for each batch of messages.
func Ideal(messages, batch int) map[string]func() Drain {
	n := messages - messages/5
	return map[string]func() Drain{
		fmt.Sprint("two round trips for ", batch): func() Drain { return Drain{Messages: n, Rounds: 2 * n / batch, Handling: Receiving} },
	}
}

// Relay counts a relay that publishes n messages, which are in the store.
func Relay(t *testing.T, link *rounds.Proxy, store core.OutboxStore, bus core.Publisher, o relay.Options, n int) Drain {
	t.Helper()
	return measure(t, link, n, Relaying, func(ctx context.Context, seen func(int)) error {
		o.Logger = quiet
		r, err := relay.New(store, &publisher{bus, seen}, o)
		if err != nil {
			return err
		}
		return r.Run(ctx)
	})
}

// publisher says how many messages were published.
type publisher struct {
	core.Publisher
	seen func(n int)
}

// Unwrap gives the relay the capabilities of the publisher.
func (p *publisher) Unwrap() any { return p.Publisher }

// Publish implements core.Publisher.
func (p *publisher) Publish(ctx context.Context, batch []waybill.Envelope) core.Results {
	results := p.Publisher.Publish(ctx, batch)
	n := 0
	for i := range batch {
		if results[i] == nil {
			n++
		}
	}
	p.seen(n)
	return results
}

// Topic is that of the messages.
const Topic = "rates.counted"

// Nothing is a handler that does nothing.
func Nothing(seen func()) waybill.Handler {
	return waybill.Handler{Name: Topic, Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) {
		seen()
		return waybill.HandlerProcessed, nil
	}}
}

// Messages returns n messages without a key.
func Messages(n int, opts ...waybill.MessageOption) []waybill.Message {
	out := make([]waybill.Message, n)
	for i := range out {
		out[i] = waybill.RawMessage(Topic, "text/plain", make([]byte, 240), opts...)
	}
	return out
}

// Fill publishes n messages, after a receiver has made the queue of sub.
func Fill(t *testing.T, bus core.Transport, sub waybill.Subscription, n int) {
	t.Helper()
	asked := core.SubscriptionOf(&sub)
	asked.Prefetch = 1
	r, err := bus.Subscribe(t.Context(), asked)
	if err == nil {
		err = r.Close(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	for n > 0 {
		k := min(n, 500)
		batch := make([]waybill.Envelope, k)
		for i, m := range Messages(k) {
			batch[i] = m.Envelope
			batch[i].ID, batch[i].Source, batch[i].Type, batch[i].Time = waybill.NewID(), "/rates", Topic, time.Now()
		}
		if err := bus.Publish(t.Context(), batch).FirstErr(); err != nil {
			t.Fatal(err)
		}
		n -= k
	}
}

// Link starts a proxy before the server at addr, and ends it with the test.
func Link(t *testing.T, addr string) *rounds.Proxy {
	t.Helper()
	link, err := rounds.Start(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(link.Close)
	return link
}

// Open opens a transport behind the link. Its names, such as those of an exchange, are made of n.
type Open func(t *testing.T, n int) core.Transport

// Bus is a transport that is compared.
type Bus struct {
	// Link is before its server.
	Link *rounds.Proxy
	// Messages is how many a drain has, and Batch how many a call of the transport can carry.
	Messages, Batch int
	// More is what a message takes longer than over other transports.
	More time.Duration
	// Open opens it without options, and Better with better ones.
	Open   Open
	Better map[string]Open
}

// Transport runs a consumer and a relay that set no option over a transport that sets none, and compares them with the
// best options.
func Transport(t *testing.T, b Bus) {
	t.Helper()
	link, messages, open := b.Link, b.Messages, b.Open
	n := 0
	begin := func(open Open) (core.Transport, waybill.Subscription) {
		n++
		return open(t, n), waybill.Subscription{Queue: fmt.Sprint("rates", n), Bindings: []string{Topic}}
	}
	consume := func(open Open) func() Drain {
		return func() Drain {
			bus, sub := begin(open)
			Fill(t, bus, sub, messages)
			return Receive(t, link, bus, sub, messages)
		}
	}
	publish := func(open Open, o relay.Options) func() Drain {
		return func() Drain {
			bus, sub := begin(open)
			Fill(t, bus, sub, 0)
			if bus.Traits().KeyOrder == core.KeyOrderNone {
				o.Routes = []relay.Route{{Order: waybill.OrderBestEffort}}
			}
			return Relay(t, link, staged(t, messages), bus, o, messages)
		}
	}
	consumers := Ideal(messages, b.Batch)
	relays := map[string]func() Drain{}
	for name, o := range bestRelays {
		relays[name] = publish(open, o)
	}
	for name, open := range b.Better {
		consumers[name], relays[name] = consume(open), publish(open, relay.Options{})
	}
	t.Run("consumer", func(t *testing.T) { nearBest(t, b.More, consume(open), consumers) })
	t.Run("relay", func(t *testing.T) { nearBest(t, b.More, publish(open, relay.Options{}), relays) })
}

// staged returns a store with n messages.
func staged(t *testing.T, n int) *memstore.Store {
	t.Helper()
	store, err := memstore.New(memstore.Options{Source: "/rates"})
	if err != nil {
		t.Fatal(err)
	}
	tx := store.Begin()
	defer tx.Rollback()
	if _, err := store.Stage(t.Context(), tx, Messages(n)...); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	return store
}

// Stage puts n messages of a route into a store.
type Stage func(t *testing.T, msgs []waybill.Message)

// Drained compares relays of a store: one that sets no option with the best options. Its publisher does nothing, so the
// rounds are those of the store. Each drain gets a store of its own.
func Drained(t *testing.T, link *rounds.Proxy, messages int, open, best func(t *testing.T) (core.OutboxStore, Stage)) {
	t.Helper()
	drain := func(open func(t *testing.T) (core.OutboxStore, Stage), o relay.Options) func() Drain {
		return func() Drain {
			store, stage := open(t)
			for n := 0; n < messages; n += 1000 {
				stage(t, Messages(min(1000, messages-n)))
			}
			return Relay(t, link, store, &sharedtest.Publisher{}, o, messages)
		}
	}
	others := map[string]func() Drain{}
	for name, o := range bestRelays {
		others[name] = drain(best, o)
	}
	NearBest(t, drain(open, relay.Options{}), others)
}

// bestRelays are the options of relays to compare with.
var bestRelays = map[string]relay.Options{"BatchSize 2,000": {BatchSize: 2000, Window: 4}, "Window 16": {Window: 16}}

// Embedded is [Drained] for a store in the process of the relay, which has no connections to count. Each call takes so
// many round trips of virtual time, and each message [Relaying].
func Embedded(t *testing.T, messages, trips int, open func(t *testing.T) (core.OutboxStore, Stage)) {
	t.Helper()
	for _, trip := range Trips {
		call := time.Duration(trips) * (trip + Loopback)
		own := embedded(t, call, messages, open, relay.Options{})
		for name, o := range bestRelays {
			rate := float64(embedded(t, call, messages, open, o)) / float64(own)
			t.Logf("%s of round trip: %.2f of the rate with %s", trip, rate, name)
			if rate < Least {
				t.Errorf("at %s of round trip the rate is %.2f of that with %s, want %.1f", trip, rate, name, Least)
			}
		}
	}
}

// embedded returns the virtual time of a drain.
func embedded(t *testing.T, call time.Duration, messages int, open func(t *testing.T) (core.OutboxStore, Stage), o relay.Options) (took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Calls(2*messages, "a drain")
		store, stage := open(t)
		for n := 0; n < messages; n += 1000 {
			stage(t, Messages(min(1000, messages-n)))
		}
		o.Logger = quiet
		ctx, stop := context.WithCancel(t.Context())
		processor := make(chan struct{}, 1) // handles one message at a time
		seen := 0
		r, err := relay.New(&sharedtest.Store{OutboxStore: store, Before: func(context.Context, string, any) error {
			time.Sleep(call) //nolint:forbidigo // in virtual time
			return nil
		}}, &publisher{&sharedtest.Publisher{}, func(n int) {
			processor <- struct{}{}
			defer func() { <-processor }()
			time.Sleep(time.Duration(n) * Relaying) //nolint:forbidigo // in virtual time
			if seen += n; seen == messages {
				stop()
			}
		}}, o)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if err := r.Run(ctx); err != nil || seen != messages {
			t.Fatalf("%d of %d messages were seen: %v", seen, messages, err)
		}
		took = time.Since(begin)
	})
	return took
}

// Marked compares consumers whose handlers write nothing but the mark of their inbox: one that sets no option with one
// whose Prefetch is set, over the best inbox.
func Marked[Tx any](t *testing.T, link *rounds.Proxy, messages int, own, best func(t *testing.T) core.Inbox[Tx]) {
	t.Helper()
	drain := func(open func(t *testing.T) core.Inbox[Tx], o consumer.Options) func() Drain {
		return func() Drain {
			bus, err := memtransport.New(memtransport.Options{})
			if err != nil {
				t.Fatal(err)
			}
			sub := waybill.Subscription{Queue: "rates", Bindings: []string{Topic}}
			Fill(t, bus, sub, messages)
			box, err := inbox.New(open(t), "rates", inbox.Options{Logger: quiet, Retention: -1})
			if err != nil {
				t.Fatal(err)
			}
			return Consume(t, link, bus, o, sub, messages, func(seen func()) waybill.Handler {
				return inbox.Handler(box, topic, func(context.Context, Tx, []byte) error { seen(); return nil })
			})
		}
	}
	NearBest(t, drain(own, consumer.Options{}), map[string]func() Drain{
		"Prefetch 200": drain(best, consumer.Options{Prefetch: 200}),
	})
}

var topic = waybill.NewTopic(Topic, waybill.Bytes("text/plain"))
