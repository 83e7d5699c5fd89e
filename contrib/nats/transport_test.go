package nats_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/nats"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
)

// client returns the client's own view of s.
func client(tb testing.TB, s *testServer) jetstream.JetStream {
	tb.Helper()
	nc, err := natsgo.Connect(s.url())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		tb.Fatal(err)
	}
	return js
}

func subscribe(tb testing.TB, bus core.Subscriber, sub core.Subscription) core.Receiver {
	tb.Helper()
	r, err := bus.Subscribe(tb.Context(), sub)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func publish(tb testing.TB, bus core.Publisher, topics ...string) {
	tb.Helper()
	for _, topic := range topics {
		if err := bus.Publish(tb.Context(), []waybill.Envelope{{ID: waybill.NewID(), Topic: topic}}).FirstErr(); err != nil {
			tb.Fatal(err)
		}
	}
}

func receive(tb testing.TB, r core.Receiver) *waybill.Delivery {
	tb.Helper()
	ctx, _ := patience.Context(tb.Context(), patience.Limit)
	ds, err := r.Receive(ctx, 1)
	if err != nil || len(ds) != 1 {
		tb.Fatalf("received %d deliveries: %v", len(ds), err)
	}
	return ds[0]
}

// info returns the server's view of the consumer of queue q.
func info(t *testing.T, js jetstream.JetStream) *jetstream.ConsumerInfo {
	t.Helper()
	c, err := js.Consumer(t.Context(), "waybill", "q")
	if err != nil {
		t.Fatal(err)
	}
	return c.CachedInfo()
}

// asks calls Receive of queue q, and returns when the server has its question. The channel gets its error.
func asks(ctx context.Context, t *testing.T, s *testServer, r core.Receiver) <-chan error {
	t.Helper()
	errs := make(chan error, 1)
	go func() {
		_, err := r.Receive(ctx, 5)
		errs <- err
	}()
	js := client(t, s)
	patience.Until(t, "the server is asked", func() bool { return info(t, js).NumWaiting > 0 })
	return errs
}

// abandon calls Receive of queue q, and cancels it when the server has its question. That stays with the server.
func abandon(t *testing.T, s *testServer, r core.Receiver) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	errs := asks(ctx, t, s, r)
	cancel()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
}

func done(tb testing.TB, r core.Receiver, d *waybill.Delivery) {
	tb.Helper()
	if err := r.Settle(tb.Context(), []core.Ack{core.AckDone(d)}).FirstErr(); err != nil {
		tb.Fatal(err)
	}
}

// New uses the caller's connection and leaves it open.
func TestNewKeepsConnection(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	nc := client(t, s).Conn()
	bus, err := nats.New(t.Context(), nc, nats.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	publish(t, bus, "a")
	done(t, r, receive(t, r))
	if err := bus.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !nc.IsConnected() || nc.NumSubscriptions() > 1 { // the client's own, for answers
		t.Errorf("connected: %v, with %d subscriptions", nc.IsConnected(), nc.NumSubscriptions())
	}
	if _, err := nats.New(t.Context(), nil, nats.Options{}); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("without a connection: %v", err)
	}
}

// A publisher of another process learns of new and of deleted queues.
func TestRoutesOfOthers(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	one, other := dial(t, s.url(), nats.Options{}), dial(t, s.url(), nats.Options{})
	is := func(want error, topic string) {
		t.Helper()
		patience.Moving(t, fmt.Sprintf("topic %s is %v", topic, want), func() (string, bool) {
			err := one.Publish(t.Context(), []waybill.Envelope{{ID: "1", Topic: topic}}).FirstErr()
			return fmt.Sprint(err), errors.Is(err, want)
		})
	}
	is(waybill.ErrUnroutable, "a.b.c")
	subscribe(t, other, core.Subscription{Queue: "q.1", Bindings: []string{"a.*.c", "*.b.d", "*.b.c"}})
	is(nil, "a.b.c")
	is(nil, "x.b.d")
	is(waybill.ErrUnroutable, "x.y.c") // the filter *.*.* fits, no binding does
	if err := client(t, s).DeleteConsumer(t.Context(), "waybill", "q%2E1"); err != nil {
		t.Fatal(err)
	}
	is(waybill.ErrUnroutable, "a.b.c")
}

// A wider filter lets through what a binding fits, and nothing else; a binding that another process adds counts at
// once.
func TestWiderFilter(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	bus, other := dial(t, s.url(), nats.Options{}), dial(t, s.url(), nats.Options{})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a.*", "*.b"}})
	all := subscribe(t, bus, core.Subscription{Queue: "all", Bindings: []string{"#"}})
	publish(t, bus, "x.y", "a.c", "x.y", "d.b")
	for _, want := range []string{"a.c", "d.b"} {
		d := receive(t, r)
		if d.Envelope.Topic != want {
			t.Errorf("topic %s came, want %s", d.Envelope.Topic, want)
		}
		done(t, r, d)
	}
	more := subscribe(t, other, core.Subscription{Queue: "q", Bindings: []string{"x.y"}})
	if err := more.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	publish(t, bus, "x.y")
	done(t, r, receive(t, r)) // r has not been told
	for range 5 {
		done(t, all, receive(t, all))
	}
	info, err := client(t, s).Stream(t.Context(), "waybill")
	if err != nil {
		t.Fatal(err)
	}
	state, err := info.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if state.State.Msgs != 0 {
		t.Errorf("%d messages are left in the stream", state.State.Msgs)
	}
}

// An object that exists with other properties is refused, with its name and the cure.
func TestDeclareRefuses(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	js := client(t, s)
	ctx := t.Context()
	for name, cfg := range map[string]jetstream.StreamConfig{
		"retention": {Name: "one", Subjects: []string{"one.t.>", "one.q.*"}, Discard: jetstream.DiscardNew},
		"subjects":  {Name: "two", Subjects: []string{"two.t.>"}, Retention: jetstream.InterestPolicy, Discard: jetstream.DiscardNew},
		"discard":   {Name: "three", Subjects: []string{"three.t.>", "three.q.*"}, Retention: jetstream.InterestPolicy},
		"overlap":   {Name: "other", Subjects: []string{"four.>"}},
	} {
		if _, err := js.CreateStream(ctx, cfg); err != nil {
			t.Fatal(err)
		}
		bus := cfg.Name
		if name == "overlap" {
			bus = "four"
		}
		_, err := nats.Dial(ctx, s.url(), nats.Options{Bus: bus})
		if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), `"`+bus+`"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	bus := dial(t, s.url(), nats.Options{})
	for name, cfg := range map[string]jetstream.ConsumerConfig{
		"maxdeliver": {AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 5},
		"acknone":    {AckPolicy: jetstream.AckNonePolicy},
		"ackwait":    {AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Second},
		"bindings":   {AckPolicy: jetstream.AckExplicitPolicy, AckWait: 9 * time.Second, FilterSubject: "waybill.t.b"},
		"inactive":   {AckPolicy: jetstream.AckExplicitPolicy, AckWait: 9 * time.Second, FilterSubject: "waybill.t.a", InactiveThreshold: time.Hour},
		"memory":     {AckPolicy: jetstream.AckExplicitPolicy, AckWait: 9 * time.Second, FilterSubject: "waybill.t.a", MemoryStorage: true},
		"headers":    {AckPolicy: jetstream.AckExplicitPolicy, AckWait: 9 * time.Second, FilterSubject: "waybill.t.a", HeadersOnly: true},
	} {
		cfg.Durable = name
		if _, err := js.CreateConsumer(ctx, "waybill", cfg); err != nil {
			t.Fatal(err)
		}
		sub := core.Subscription{Queue: name, Bindings: []string{"a"}}
		if dangerous := map[string]string{"inactive": "inactive_threshold", "memory": "mem_storage", "headers": "headers_only"}[name]; dangerous != "" {
			sub.Bindings = nil // which fit
			if _, err := bus.Subscribe(ctx, sub); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), dangerous) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := bus.Subscribe(ctx, sub); !errors.Is(err, waybill.ErrMisconfigured) ||
			!strings.Contains(err.Error(), `"`+name+`"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	passive := dial(t, s.url(), nats.Options{Passive: true})
	if _, err := passive.Subscribe(ctx, core.Subscription{Queue: "none"}); !errors.Is(err, waybill.ErrMisconfigured) {
		t.Errorf("passive, without a consumer: %v", err)
	}
	r := subscribe(t, passive, core.Subscription{Queue: "bindings"}) // bound elsewhere
	publish(t, passive, "b")
	done(t, r, receive(t, r))
	for _, b := range []string{"a.#.b", "a#", "", "a b"} {
		if _, err := bus.Subscribe(ctx, core.Subscription{Queue: "q", Bindings: []string{b}}); !errors.Is(err, waybill.ErrInvalid) {
			t.Errorf("binding %q: %v", b, err)
		}
	}
	if _, err := bus.Subscribe(ctx, core.Subscription{Queue: "q", InOrder: true}); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("in order: %v", err)
	}
}

// A stream whose settings lose or change confirmed messages, or confirm none, is refused, by Dial and by Check, whether
// the transport made it or not. The error names the setting.
func TestDangerousStream(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	js := client(t, s)
	for name, set := range map[string]func(*jetstream.StreamConfig){
		"storage":              func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage },
		"persist_mode":         func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode },
		"max_age":              func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour },
		"max_msgs_per_subject": func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 },
		"no_ack":               func(c *jetstream.StreamConfig) { c.NoAck = true },
		"subject_transform": func(c *jetstream.StreamConfig) {
			c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: ">", Destination: "x.>"}
		},
		"sealed": nil,
	} {
		bus := strings.ReplaceAll(name, "_", "-")
		for _, cfg := range []jetstream.StreamConfig{
			{Name: bus, Subjects: []string{bus + ".t.>", bus + ".q.*"}, Retention: jetstream.InterestPolicy},
			{Name: bus + "-2-parked", Subjects: []string{bus + "-2-parked.*"}},
		} {
			bus := strings.TrimSuffix(cfg.Name, "-parked")
			cfg.Discard = jetstream.DiscardNew
			if set != nil {
				set(&cfg)
			}
			_, err := js.CreateStream(t.Context(), cfg)
			if err == nil && set == nil {
				cfg.Sealed = true
				_, err = js.UpdateStream(t.Context(), cfg)
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if _, err := nats.Dial(t.Context(), s.url(), nats.Options{Bus: bus}); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), " "+name) {
				t.Errorf("%s of %s: %v", name, cfg.Name, err)
			}
		}
	}
	bus := dial(t, s.url(), nats.Options{Bus: "meanwhile"})
	stream, err := js.Stream(t.Context(), "meanwhile")
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.MaxMsgsPerSubject, cfg.DiscardNewPerSubject = 1000, true // a message that does not fit is refused
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if err := bus.Check(t.Context()); err != nil {
		t.Errorf("max_msgs_per_subject with discard_new_per_subject: %v", err)
	}
	cfg.MaxAge, cfg.Duplicates = time.Hour, time.Minute
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if err := bus.Check(t.Context()); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), " max_age") {
		t.Errorf("set meanwhile: %v", err)
	}
}

// Synced is what the operator states of the servers' disks: a client cannot see it, and replicas alone lose what none
// of them has synced.
func TestSynced(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(o *server.Options) { o.SyncAlways = true })
	for _, always := range []bool{false, true} {
		if got := dial(t, s.url(), nats.Options{SyncAlways: always}).Traits(); got.Synced != always || !got.Durable {
			t.Errorf("SyncAlways %v: Synced %v, Durable %v", always, got.Synced, got.Durable)
		}
	}
	for _, replicas := range []int{1, 3, 5} {
		if nats.Synced(nats.Options{Replicas: replicas}) {
			t.Errorf("%d replicas without SyncAlways are Synced", replicas)
		}
	}
}

// A retry after the longest delay there is waits: its time does not overflow to one that has passed.
func TestRetryInCenturies(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	bus := dial(t, s.url(), nats.Options{})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	publish(t, bus, "a")
	first := receive(t, r)
	if err := r.Settle(t.Context(), []core.Ack{core.AckRetry(first, math.MaxInt64, nil)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	publish(t, bus, "a") // a marker behind
	d := receive(t, r)
	if d.Attempt != 1 {
		t.Errorf("the retry came at once: attempt %d", d.Attempt)
	}
	done(t, r, d)
}

// A consumer that is deleted under a receiver is an outage, and comes back; then Receive says that it is over.
func TestConsumerDeleted(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	bus := dial(t, s.url(), nats.Options{})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	publish(t, bus, "a")
	done(t, r, receive(t, r))
	errs := asks(t.Context(), t, s, r)
	if err := client(t, s).DeleteConsumer(t.Context(), "waybill", "q"); err != nil {
		t.Fatal(err)
	}
	if err := <-errs; waybill.ClassOf(err) != waybill.ClassOutage {
		t.Fatalf("after the consumer was deleted: %v", err)
	}
	if ds, err := r.Receive(t.Context(), 1); err != nil || len(ds) > 0 {
		t.Fatalf("after an outage: %d deliveries, %v", len(ds), err)
	}
	publish(t, bus, "a")
	done(t, r, receive(t, r))
}

// A delivery that a closed receiver held comes again at once, as a redelivery; one that it had only fetched, at no
// cost.
func TestCloseGivesBack(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	bus := dial(t, s.url(), nats.Options{HoldFor: 10 * time.Minute})
	sub := core.Subscription{Queue: "q", Bindings: []string{"*"}}
	r := subscribe(t, bus, sub)
	publish(t, bus, "held")
	receive(t, r)
	abandon(t, s, r)
	publish(t, bus, "fetched", "fetched") // for the pull that goes on
	js := client(t, s)
	patience.Until(t, "the server has sent them", func() bool { return info(t, js).NumAckPending >= 3 })
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	r = subscribe(t, bus, sub)
	got := map[string]int{}
	for range 3 {
		d := receive(t, r)
		got[d.Envelope.Topic]++
		if want := map[string]int{"held": 1, "fetched": 0}[d.Envelope.Topic]; d.Redeliveries != want || d.Attempt != 1 {
			t.Errorf("%s: %d redeliveries as attempt %d, want %d as 1", d.Envelope.Topic, d.Redeliveries, d.Attempt, want)
		}
		done(t, r, d)
	}
	if got["held"] != 1 || got["fetched"] != 2 {
		t.Errorf("came: %v", got)
	}
}

// A message that came early and goes on waiting is the same attempt, although its time comes before the settle.
func TestEarlyUntilItIsSettled(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	bus := dial(t, s.url(), nats.Options{})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	publish(t, bus, "a")
	settle := func(want int, cause error) {
		t.Helper()
		d := receive(t, r)
		if want > 0 {
			nats.CameEarly(d)
		}
		if err := r.Settle(t.Context(), []core.Ack{core.AckRetry(d, 0, cause)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if d.Attempt != max(want, 1) {
			t.Errorf("attempt %d, want %d", d.Attempt, max(want, 1))
		}
	}
	settle(0, errors.New("cause"))
	settle(2, nil)
	settle(2, errors.New("the handler ran"))
	if d := receive(t, r); d.Attempt != 3 {
		t.Errorf("attempt %d, want 3", d.Attempt)
	}
}
