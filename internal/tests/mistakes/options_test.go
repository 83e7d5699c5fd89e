package mistakes_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/inbox"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/relay"
	"github.com/waybill-go/waybill/store/memory"
	"github.com/waybill-go/waybill/store/postgres"
	"github.com/waybill-go/waybill/store/sqlite"
	memtransport "github.com/waybill-go/waybill/transport/memory"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// unordered is a publisher that keeps no order.
var unordered = &sharedtest.Publisher{Promises: &core.PublisherTraits{Confirmed: true}}

func TestOptions(t *testing.T) { // RL-08 CO-01
	t.Parallel()
	mem, err := memory.New(memory.Options{Source: "/x"})
	if err != nil {
		t.Fatal(err)
	}
	bus, err := memtransport.New(memtransport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	unconfirmed := &sharedtest.Publisher{Promises: &core.PublisherTraits{}}
	newRelay := func(bus core.Publisher, o relay.Options) error {
		_, err := relay.New(mem, bus, o)
		return err
	}
	ok := waybill.HandlerFor(waybill.NewTopic("a.b", waybill.JSON[string]()), func(context.Context, string) error { return nil })
	handle := func(o consumer.Options, sub waybill.Subscription, h ...waybill.Handler) error {
		c, err := consumer.New(bus, o)
		if err != nil {
			return err
		}
		return c.Handle(sub, h...)
	}
	const neg = -time.Second
	pool := &pgxpool.Pool{}
	for _, tc := range []struct {
		name string
		err  func() error
		says []string
	}{
		// Negative durations, wherever they have no meaning.
		{"relay durations", func() error {
			return newRelay(bus, relay.Options{PollMin: neg, PollMax: neg, Lease: neg, PublishTimeout: neg})
		}, []string{"PollMin: -1s", "PollMax: -1s", "Lease: -1s", "PublishTimeout: -1s", "is not between"}},
		{"relay back-off", func() error {
			return newRelay(bus, relay.Options{Routes: []relay.Route{{Backoff: &waybill.Backoff{Base: neg, Cap: neg}}}})
		}, []string{"Routes[0].Backoff.Base: -1s", "Routes[0].Backoff.Cap: -1s"}},
		{"relay schedule", func() error {
			return newRelay(bus, relay.Options{Routes: []relay.Route{{Backoff: waybill.RetryDelays(time.Second, neg)}}})
		}, []string{"Routes[0].Backoff.Delays[1]: -1s"}},
		{"relay counts", func() error {
			return newRelay(bus, relay.Options{BatchSize: -1, Window: -1})
		}, []string{"BatchSize: -1", "Window: -1"}},
		{"relay partitions", func() error {
			return newRelay(bus, relay.Options{Routes: []relay.Route{{Partitions: -1}, {Name: "a", Partitions: 65}}})
		}, []string{"Routes[0].Partitions: -1", "Routes[1].Partitions: 65 is not between 1 and 64"}},
		{"consumer pause", func() error {
			return handle(consumer.Options{Pause: waybill.Backoff{Base: neg, Cap: neg}}, waybill.Subscription{Queue: "q"}, ok)
		}, []string{"Pause.Base: -1s", "Pause.Cap: -1s"}},
		{"consumer retry", func() error {
			return handle(consumer.Options{Retry: waybill.RetryDelays(neg)}, waybill.Subscription{Queue: "q"}, ok)
		}, []string{"Retry.Delays[0]: -1s"}},
		{"subscription", func() error {
			return handle(consumer.Options{}, waybill.Subscription{Queue: "q", Concurrency: -1, Prefetch: -1, Retry: waybill.RetryDelays(neg)}, ok)
		}, []string{`queue "q"`, "Concurrency: -1", "Prefetch: -1", "Retry.Delays[0]: -1s"}},
		{"rabbitmq durations", func() error {
			return rabbitmq.Options{Connection: rabbitmq.ConnectionOptions{Heartbeat: neg}, ConnectTimeout: neg, ReconnectMax: neg, PublishTimeout: neg}.Validate()
		}, []string{"Heartbeat: -1s", "ConnectTimeout: -1s", "ReconnectMax: -1s", "PublishTimeout: -1s", "leave it 0 for the default"}},
		{"rabbitmq counts", func() error {
			return rabbitmq.Options{Window: -1, PublishConnections: -1, MaxBodyBytes: -1, QueueType: "stream"}.Validate()
		}, []string{"Window: -1", "PublishConnections: -1", "MaxBodyBytes: -1", `QueueType: "stream" is unknown; use`}},
		{"postgres", func() error {
			return postgres.Options{Source: "/x", TTL: neg, Limits: waybill.Limits{MaxDelay: neg, MaxMessageBytes: -1, MaxHeaders: -1}}.Validate()
		}, []string{"TTL: -1s", "Limits.MaxDelay: -1s", "Limits.MaxMessageBytes: -1", "Limits.MaxHeaders: -1"}},
		{"postgres names", func() error {
			return postgres.Options{Table: "waybill_meta", Schema: "a\x00b"}.Validate()
		}, []string{"Source: is empty; name the producing service", "Table: waybill_meta is taken; choose another", "Schema: holds a NUL"}},
		{"sqlite", func() error {
			return sqlite.Options{Source: "/x", TTL: neg, BusyTimeout: neg, PollInterval: neg, Prefix: "a b"}.Validate()
		}, []string{"TTL: -1s", "BusyTimeout: -1s", "PollInterval: -1s", `Prefix: "a b"`}},
		{"memory", func() error {
			_, err := memory.New(memory.Options{TTL: neg})
			return err
		}, []string{"Source: is empty", "TTL: -1s"}},

		// Options that contradict each other.
		{
			"key on a transport without order", func() error { return newRelay(unordered, relay.Options{}) },
			[]string{"Routes[0] (default).Order: per_key", "keeps no order", "choose waybill.OrderBestEffort"},
		},
		{
			"no confirms", func() error { return newRelay(unconfirmed, relay.Options{}) },
			[]string{"Routes[0] (default).Publisher: does not wait for confirms", "turn publisher confirms on"},
		},
		{
			"best effort by HLC", func() error {
				return newRelay(bus, relay.Options{Routes: []relay.Route{{Name: "a", Order: waybill.OrderBestEffortHLC}, {Name: "a"}}})
			},
			[]string{`Routes[1].Name: "a" is listed twice`},
		},
		{"ordered block on best effort", func() error {
			return newRelay(bus, relay.Options{Routes: []relay.Route{{Order: waybill.OrderBestEffort, BlockAfterAbandon: true}}})
		}, []string{"Routes[0].BlockAfterAbandon: needs Order per_key"}},

		// Nothing where something is needed.
		{"relay without store", func() error { _, err := relay.New(nil, bus, relay.Options{}); return err }, []string{"store: is nil; give"}},
		{
			"relay with a nil pointer for a store", func() error { _, err := relay.New((*postgres.Outbox)(nil), bus, relay.Options{}); return err },
			[]string{"store: is nil; give"},
		},
		{"relay without publisher", func() error { return newRelay(nil, relay.Options{}) }, []string{"Routes[0] (default).Publisher: is nil", "give"}},
		{
			"relay with a nil pointer for a publisher", func() error { return newRelay((*rabbitmq.Transport)(nil), relay.Options{}) },
			[]string{"Routes[0] (default).Publisher: is nil", "give"},
		},
		{"consumer without bus", func() error { _, err := consumer.New(nil, consumer.Options{}); return err }, []string{"bus: is nil; give a transport"}},
		{
			"consumer with a nil pointer for a bus", func() error { _, err := consumer.New((*rabbitmq.Transport)(nil), consumer.Options{}); return err },
			[]string{"bus: is nil; give a transport"},
		},
		{
			"outbox without pool", func() error { _, err := postgres.NewOutbox(nil, postgres.Options{Source: "/x"}); return err },
			[]string{"pool: is nil; pass"},
		},
		{"inbox without pool", func() error { _, err := postgres.NewInbox(nil, postgres.InboxOptions{}); return err }, []string{"pool: is nil; pass"}},
		{"sql inbox without db", func() error { _, err := postgres.NewSQLInbox(nil, postgres.InboxOptions{}); return err }, []string{"db: is nil; pass"}},
		{"sqlite without db", func() error { _, err := sqlite.New(nil, sqlite.Options{Source: "/x"}); return err }, []string{"db: is nil; pass"}},
		{
			"sqlite in memory", func() error { _, err := sqlite.Open(t.Context(), ":memory:", sqlite.Options{Source: "/x"}); return err },
			[]string{"path: must be the name of a file", "use"},
		},
		{"rabbitmq without connection", func() error { _, err := rabbitmq.New(nil, rabbitmq.Options{}); return err }, []string{"connection: is nil; pass"}},
		{
			"inbox without store", func() error { _, err := inbox.New[*memory.Tx](nil, "", inbox.Options{}); return err },
			[]string{"store: is nil; give", "consumerName: is empty; name"},
		},
		{
			"inbox with a nil pointer for a store", func() error {
				_, err := inbox.New[*memory.Tx]((*memory.Store)(nil), "billing", inbox.Options{})
				return err
			},
			[]string{"store: is nil; give"},
		},
		{"empty source", func() error { _, err := postgres.NewOutbox(pool, postgres.Options{}); return err }, []string{"Source: is empty; name"}},

		// Subscriptions.
		{"empty queue", func() error { return handle(consumer.Options{}, waybill.Subscription{}, ok) }, []string{"Queue: is empty; name"}},
		{
			"no handler", func() error { return handle(consumer.Options{}, waybill.Subscription{Queue: "q"}) },
			[]string{`queue "q"`, "handlers: there are none; give at least one"},
		},
		{
			"nil handler", func() error {
				return handle(consumer.Options{}, waybill.Subscription{Queue: "q"}, waybill.Handler{Name: "a.b"})
			},
			[]string{`queue "q"`, `handlers[0]: "a.b" has no function; give`},
		},
		{"nil function for an inbox", func() error {
			return handle(consumer.Options{}, waybill.Subscription{Queue: "q"}, inbox.Handler[*memory.Tx](nil, waybill.NewTopic("a.b", waybill.JSON[int]()), nil))
		}, []string{`handlers[0]: "a.b" has no function; `}},
		{"nil function for a topic", func() error {
			return handle(consumer.Options{}, waybill.Subscription{Queue: "q"}, waybill.HandlerFor[int](waybill.NewTopic("a.b", waybill.JSON[int]()), nil))
		}, []string{`handlers[0]: "a.b" has no function; `}},
		{
			"duplicate handler", func() error { return handle(consumer.Options{}, waybill.Subscription{Queue: "q"}, ok, ok) },
			[]string{`queue "q"`, `handlers[1]: "a.b" is handled by an earlier one`},
		},
		{
			"nameless handler", func() error {
				return handle(consumer.Options{}, waybill.Subscription{Queue: "q"}, waybill.Handler{Handle: ok.Handle})
			},
			[]string{"handlers[0]: the name is empty; name"},
		},
		{"binding with invalid UTF-8", func() error {
			return handle(consumer.Options{}, waybill.Subscription{Queue: "q", Bindings: []string{"a.\xff", ""}}, ok)
		}, []string{"Bindings[0]: ", "is not valid UTF-8", "Bindings[1]: is empty; name a topic"}},
		{"nil middleware", func() error {
			return handle(consumer.Options{Middleware: []waybill.Middleware{nil}}, waybill.Subscription{Queue: "q"}, ok)
		}, []string{"Middleware[0]: is nil"}},
		{"run without a handler", func() error {
			c, err := consumer.New(bus, consumer.Options{})
			if err != nil {
				return err
			}
			return c.Run(t.Context())
		}, []string{"register handlers with Handle before Run"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			check(t, ends(t, tc.err), want{is: waybill.ErrInvalid, says: tc.says})
		})
	}
}

func TestBestEffortNeedsNoOrder(t *testing.T) { // OR-01
	t.Parallel()
	mem, err := memory.New(memory.Options{Source: "/x"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := relay.New(mem, unordered, relay.Options{Routes: []relay.Route{{Order: waybill.OrderBestEffort}}}); err != nil {
		t.Error(err)
	}
}

// A negative duration that does have a meaning is none of these errors.
func TestNegativeIsOff(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"relay":    relay.Options{DrainTimeout: -1, UnroutableTimeout: -1, BatchBytes: -1}.Validate(),
		"consumer": consumer.Options{DrainTimeout: -1, MaxDeliveries: -1}.Validate(),
		"inbox":    postgres.InboxOptions{LockTimeout: -1}.Validate(),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := hlc.NewClock(hlc.Options{MaxDrift: -1}); err != nil {
		t.Error(err)
	}
}
