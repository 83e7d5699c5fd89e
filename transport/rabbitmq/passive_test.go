package rabbitmq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// RM-05, RM-06: every way in which a provisioned broker may be wrong is an error at the start, which names the object,
// the cause and the cure.
func TestPassiveStartErrors(t *testing.T) {
	t.Parallel()
	sub := core.Subscription{Queue: "billing", Bindings: []string{"orders.*", "users.#"}, RetryDelays: []time.Duration{time.Second}}
	const missing = "does not exist: create it"
	for _, c := range []struct {
		name       string
		spoil      func(t *testing.T, mq *testenv.MQ, ch *amqp.Channel, user string) error
		sub        func(*core.Subscription)
		management bool
		says       []string
	}{
		{"exchange", func(_ *testing.T, _ *testenv.MQ, ch *amqp.Channel, _ string) error {
			return ch.ExchangeDelete("waybill", false, false)
		}, nil, false, []string{`topic exchange "waybill" ` + missing}},
		{"queue", func(_ *testing.T, _ *testenv.MQ, ch *amqp.Channel, _ string) error {
			_, err := ch.QueueDelete("billing", false, false, false)
			return err
		}, nil, false, []string{`queue "billing" ` + missing}},
		{"dlx and dlq", func(_ *testing.T, _ *testenv.MQ, ch *amqp.Channel, _ string) error {
			_, err := ch.QueueDelete("billing.dlq", false, false, false)
			return errors.Join(err, ch.ExchangeDelete("waybill.dlx.billing", false, false))
		}, nil, false, []string{`direct exchange "waybill.dlx.billing" ` + missing, `queue "billing.dlq" ` + missing}},
		{"delay queue", func(_ *testing.T, _ *testenv.MQ, ch *amqp.Channel, _ string) error {
			_, err := ch.QueueDelete("waybill.delay_1s", false, false, false)
			return err
		}, nil, false, []string{`queue "waybill.delay_1s" ` + missing}},
		{"binding", func(_ *testing.T, _ *testenv.MQ, ch *amqp.Channel, _ string) error {
			return ch.QueueUnbind("billing", "users.#", "waybill", nil)
		}, nil, true, []string{`binding of queue "billing" to exchange "waybill" with key "users.#" does not exist: create it`}},
		{"binding of the dead-letter queue", func(_ *testing.T, _ *testenv.MQ, ch *amqp.Channel, _ string) error {
			return ch.QueueUnbind("billing.dlq", "billing", "waybill.dlx.billing", nil)
		}, nil, true, []string{`binding of queue "billing.dlq" to exchange "waybill.dlx.billing" with key "billing" does not exist`}},
		{"argument", func(_ *testing.T, _ *testenv.MQ, ch *amqp.Channel, _ string) error {
			if _, err := ch.QueueDelete("billing.dlq", false, false, false); err != nil {
				return err
			}
			if _, err := ch.QueueDeclare("billing.dlq", true, false, false, false,
				amqp.Table{"x-queue-type": "quorum", "x-message-ttl": 1000}); err != nil {
				return err
			}
			return ch.QueueBind("billing.dlq", "billing", "waybill.dlx.billing", false, nil)
		}, nil, true, []string{
			`queue "billing.dlq" argument x-message-ttl is 1000, want none: change the options to match, or delete it when it is empty`,
			`queue "billing.dlq" argument x-overflow is none, want "reject-publish"`, `argument x-delivery-limit is none, want 1000000`,
		}},
		{"kind of the exchange", func(_ *testing.T, _ *testenv.MQ, ch *amqp.Channel, _ string) error {
			return errors.Join(ch.ExchangeDelete("waybill.delay_1s", false, false),
				ch.ExchangeDeclare("waybill.delay_1s", "direct", true, true, false, false, nil),
				ch.QueueBind("waybill.delay_1s", "", "waybill.delay_1s", false, nil))
		}, nil, true, []string{`exchange "waybill.delay_1s" is direct, auto-delete, want fanout`}},
		{"bound to nothing", func(_ *testing.T, _ *testenv.MQ, ch *amqp.Channel, _ string) error {
			return errors.Join(ch.QueueUnbind("billing", "users.#", "waybill", nil), ch.QueueUnbind("billing", "orders.*", "waybill", nil))
		}, func(s *core.Subscription) { s.Bindings = nil }, true, []string{
			`queue "billing" is bound to nothing`,
			"no message can reach it: name its topics in Subscription.Bindings, or bind it",
		}},
		{
			"in order or not", func(*testing.T, *testenv.MQ, *amqp.Channel, string) error { return nil },
			func(s *core.Subscription) { s.InOrder = true }, true,
			[]string{`queue "billing" argument x-single-active-consumer is none, want true`},
		},
		{
			"permission to read", permit("^$", "^waybill", "^waybill"), nil, false,
			[]string{`the user may not read queue "billing": extend its read permission`},
		},
		{
			"permission to park", permit("^$", "^waybill.delay", "^billing$"), nil, false,
			[]string{`exchange "waybill.dlx.billing": the user may not write to it`, "permit it as Topology.Permissions says"},
		},
		{
			"permission to retry", permit("^$", "^waybill.dlx.billing$", "^billing$"), nil, false,
			[]string{`exchange "waybill.delay_1s": the user may not write to it`},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			mq := testenv.RabbitMQ(t)
			users, _, url, _ := provision(t, mq, topology.Of(topology.Options{SharedDelays: true}, sub))
			opts := rabbitmq.Options{Passive: true, SharedDelays: true}
			// a user may not see an object that it may not touch, since RabbitMQ 4.3
			if c.management || strings.Contains(c.says[0], missing) {
				opts.ManagementURL = mq.ManagementURL
			}
			sub := sub
			if err := c.spoil(t, mq, testenv.Channel(t, mq.URL), users.Consumer); err != nil {
				t.Fatal(err)
			}
			if c.sub != nil {
				c.sub(&sub)
			}
			opts.Lazy, opts.Logger = true, quiet()
			opts.ConnectTimeout = 5 * time.Minute // a busy management API answers late
			bus, err := rabbitmq.Dial(t.Context(), url, opts)
			if err != nil {
				t.Fatal(err)
			}
			closeLater(t, bus)
			_, err = bus.Subscribe(t.Context(), sub)
			if !errors.Is(err, waybill.ErrMisconfigured) {
				t.Fatalf("got %v", err)
			}
			for _, want := range c.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v\ndoes not say %s", err, want)
				}
			}
			if strings.Contains(err.Error(), password) {
				t.Errorf("the error holds the password: %v", err)
			}
			t.Log(err)
		})
	}
}

func permit(configure, write, read string) func(*testing.T, *testenv.MQ, *amqp.Channel, string) error {
	return func(t *testing.T, mq *testenv.MQ, _ *amqp.Channel, user string) error {
		t.Helper()
		return mq.SetPermissions(t.Context(), mq.VHost, user, configure, write, read)
	}
}

// RM-06: a passive start asks for the right to write on a connection that publishes. So a broker that is short of
// memory does not block the one that consumes, where messages are acknowledged. That the right was not verified is
// logged.
func testAlarmAtStart(t *testing.T, server *testenv.RabbitMQServer) {
	t.Helper()
	mq := vhost(t, server)
	sub := core.Subscription{Queue: "q", Bindings: []string{"a"}, RetryDelays: []time.Duration{time.Second}}
	_, relay, consumer, _ := provision(t, mq, topology.Of(topology.Options{}, sub))
	const n = 5
	if err := dial(t, relay, rabbitmq.Options{Passive: true}).Publish(t.Context(), envelopes(n, "a")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := server.RaiseMemoryAlarm(t.Context()); err != nil {
		t.Fatal(err)
	}
	var log sharedtest.Log
	r := subscribe(t, dial(t, consumer, rabbitmq.Options{Passive: true, Lazy: true, Logger: log.Logger(slog.LevelInfo)}), sub)
	for _, d := range receive(t, r, n) {
		settle(t, r, core.AckDone(d))
	}
	patience.Until(t, "the broker has the acknowledgements", func() bool {
		var queue struct{ Messages *int }
		err := mq.Do(t.Context(), http.MethodGet, "/api/queues/"+url.PathEscape(mq.VHost)+"/q", nil, &queue)
		return err == nil && queue.Messages != nil && *queue.Messages == 0
	})
	if text := log.String(); strings.Contains(text, "link=consume") {
		t.Errorf("the log says\n%s", text)
	}
	// On a connection that is blocked already nothing can be asked, and the log names the objects that were not.
	log.Take()
	bus := dial(t, mq.URL, rabbitmq.Options{Passive: true, Lazy: true, PublishConnections: 1, Logger: log.Logger(slog.LevelInfo)})
	if err := bus.Publish(t.Context(), envelopes(1, "a")).FirstErr(); waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("published: %v", err)
	}
	subscribe(t, bus, sub)
	if text := log.String(); !strings.Contains(text, "event=rabbitmq.blocked link=publish") || strings.Contains(text, "link=consume") ||
		!strings.Contains(text, "that the user may write to waybill.dlx.") {
		t.Errorf("the log says\n%s", text)
	}
	if err := server.ClearMemoryAlarm(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// RM-06: without a management address, and nowhere else, the log names the unverified objects; nothing is made.
func TestPassiveSaysWhatIsUnverified(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	sub := core.Subscription{Queue: "q", Bindings: []string{"a"}, RetryDelays: []time.Duration{time.Second}}
	_, _, url, _ := provision(t, mq, topology.Of(topology.Options{}, sub))
	var without, with sharedtest.Log
	subscribe(t, dial(t, url, rabbitmq.Options{Passive: true, Logger: without.Logger(slog.LevelInfo)}), sub)
	for _, want := range []string{
		"level=INFO", "not verified without Options.ManagementURL", "arguments of queue q",
		"kind of exchange waybill", `binding of queue`,
	} {
		if !strings.Contains(without.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, without.String())
		}
	}
	subscribe(t, dial(t, url, rabbitmq.Options{Passive: true, ManagementURL: mq.ManagementURL, Logger: with.Logger(slog.LevelInfo)}), sub)
	if with.String() != "" {
		t.Errorf("the log says\n%s", with.String())
	}
	bus := dial(t, mq.URL, rabbitmq.Options{Passive: true, Lazy: true}) // may configure, and does not
	if _, err := bus.Subscribe(t.Context(), core.Subscription{Queue: "other"}); !errors.Is(err, waybill.ErrMisconfigured) {
		t.Error(err)
	}
	if err := bus.Declare(t.Context(), topology.Of(topology.Options{}, sub)); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("declare in passive mode: %v", err)
	}
	if _, err := testenv.Channel(t, mq.URL).QueueDeclarePassive("other", true, false, false, false, nil); err == nil {
		t.Error("a queue was made in passive mode")
	}
	_, err := rabbitmq.Dial(t.Context(), mq.URL, rabbitmq.Options{Passive: true, Exchange: "other", Logger: quiet()})
	if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), `topic exchange "other" does not exist`) {
		t.Errorf("a missing exchange: %v", err)
	}
}

// RM-06: a management API that cannot be asked does not keep a consumer from starting; one that refuses the user is a
// misconfiguration. No error and no log holds a password.
func TestManagementTrouble(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	sub := core.Subscription{Queue: "q", Bindings: []string{"a"}, RetryDelays: []time.Duration{time.Second}}
	users, _, url, _ := provision(t, mq, topology.Of(topology.Options{}, sub))
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }))
	huge := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 100 {
			if _, err := w.Write(bytes.Repeat([]byte("[[[["), 64<<10)); err != nil {
				return
			}
		}
	}))
	var visits sync.Map
	t.Cleanup(func() {
		visits.Range(func(path, _ any) bool { t.Errorf("followed a redirect to %v", path); return false })
	})
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { visits.Store(r.URL.Path, r.Header) }))
	moved := httptest.NewServer(http.RedirectHandler(thief.URL, http.StatusFound))
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	for _, s := range []*httptest.Server{elsewhere, huge, thief, moved, slow} {
		t.Cleanup(s.Close)
	}
	with := func(base string) string {
		return strings.Replace(base, "://", "://"+users.Consumer+":"+password+"@", 1)
	}
	for _, c := range []struct {
		name, url, says string
		misconfigured   bool
	}{
		{"down", with("http://127.0.0.1:1"), "check host and port of the management URL", false},
		{"something else", with(elsewhere.URL), "leads to the management API", false},
		{"too much", with(huge.URL), "has more than", false},
		{"redirect", with(moved.URL), "status 302", false},
		{"silent", with(slow.URL), "deadline exceeded", false},
		{"wrong password", managementURL(t, mq, users.Consumer, "wrong-"+password), "was refused (status 401)", true},
		{"plain text for TLS", strings.Replace(with(mq.ManagementURL), "http://", "https://", 1), "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			limit := time.Minute
			if c.name == "silent" {
				limit = patience.For(3 * time.Second) // the broker must answer within it
			}
			var log sharedtest.Log
			bus := dial(t, url, rabbitmq.Options{
				Passive: true, Lazy: true, ManagementURL: c.url, Logger: log.Logger(slog.LevelInfo),
				ConnectTimeout: limit,
			})
			_, err := bus.Subscribe(t.Context(), sub)
			text := fmt.Sprint(err) + log.String()
			if errors.Is(err, waybill.ErrMisconfigured) != c.misconfigured || err != nil && !c.misconfigured {
				t.Errorf("got %v", err)
			}
			if !strings.Contains(text, c.says) || strings.Contains(text, password) {
				t.Errorf("says %s, want %q and no password", text, c.says)
			}
			_, err = bus.Drift(t.Context())
			if err == nil || strings.Contains(err.Error(), password) {
				t.Errorf("drift: %v", err)
			}
		})
	}
	for _, bad := range []string{
		"host:15672", "ftp://u:" + password + "@h", "http://u:" + password + "@/",
		"http://u:" + password + " @h", "http://u:" + password + "%zz@h", "http://u:" + password + "@h?x=1",
	} {
		err := rabbitmq.Options{ManagementURL: bad}.Validate()
		if !errors.Is(err, waybill.ErrInvalid) || !strings.Contains(err.Error(), "ManagementURL: ") ||
			strings.Contains(err.Error(), password) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// RM-05: a user that may not bind is told so; with the management API it is seen that there is nothing to bind.
func TestUserThatMayNotBind(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	sub := core.Subscription{Queue: "q", Bindings: []string{"a"}, RetryDelays: []time.Duration{time.Second}}
	users, _, url, _ := provision(t, mq, topology.Of(topology.Options{}, sub))
	if err := mq.SetPermissions(t.Context(), mq.VHost, users.Consumer, "^$", `^waybill\.dlx\.q$`, ".*"); err != nil {
		t.Fatal(err)
	}
	_, err := dial(t, url, rabbitmq.Options{}).Subscribe(t.Context(), sub)
	if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "the user may not bind") ||
		!strings.Contains(err.Error(), "set Options.Passive") {
		t.Errorf("got %v", err)
	}
	subscribe(t, dial(t, url, rabbitmq.Options{ManagementURL: mq.ManagementURL}), sub)
	sub.Bindings = append(sub.Bindings, "b")
	_, err = dial(t, url, rabbitmq.Options{ManagementURL: mq.ManagementURL}).Subscribe(t.Context(), sub)
	if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), `with key "b" does not exist`) {
		t.Errorf("got %v", err)
	}
}

// A queue without a binding is reported in the log; with the management API it is an error.
func TestBoundToNothing(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	var log sharedtest.Log
	subscribe(t, dial(t, mq.URL, rabbitmq.Options{Logger: log.Logger(slog.LevelInfo)}), core.Subscription{Queue: "q"})
	if !strings.Contains(log.String(), "that queue q is bound to anything") {
		t.Errorf("the log says %s", log.String())
	}
	bus := dial(t, mq.URL, rabbitmq.Options{ManagementURL: mq.ManagementURL})
	if _, err := bus.Subscribe(t.Context(), core.Subscription{Queue: "q"}); !errors.Is(err, waybill.ErrMisconfigured) ||
		!strings.Contains(err.Error(), "bound to nothing") {
		t.Errorf("got %v", err)
	}
	if err := testenv.Channel(t, mq.URL).QueueBind("q", "a", "amq.topic", false, nil); err != nil {
		t.Fatal(err)
	}
	subscribe(t, bus, core.Subscription{Queue: "q"}) // bound elsewhere
}

// RM-07: every difference is listed, and nothing else.
func TestDrift(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{ManagementURL: mq.ManagementURL, SharedDelays: true})
	sub := core.Subscription{Queue: "q", Bindings: []string{"a", "b"}, RetryDelays: []time.Duration{time.Second, time.Minute}}
	subscribe(t, bus, sub)
	subscribe(t, bus, sub)
	check := func(want ...admin.Difference) {
		t.Helper()
		got, err := bus.Drift(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got\n%v\nwant\n%v", got, want)
		}
	}
	check()
	ch := testenv.Channel(t, mq.URL)
	for _, err := range []error{
		ch.QueueUnbind("q", "b", "waybill", nil),
		ch.QueueBind("q", "c", "waybill", false, nil),
		ch.QueueBind("q.dlq", "x", "amq.fanout", false, nil),
		ch.ExchangeDelete("waybill.delay_1s", false, false),
		deleteQueue(ch, "waybill.delay_1m"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	check(
		admin.Difference{Object: `fanout exchange "waybill.delay_1s"`, Want: "there", Have: "missing"},
		admin.Difference{Object: `binding of queue "q.dlq" to exchange "amq.fanout" with key "x"`, Want: "none", Have: "there"},
		admin.Difference{Object: `binding of queue "q" to exchange "waybill" with key "c"`, Want: "none", Have: "there"},
		admin.Difference{Object: `binding of queue "q" to exchange "waybill" with key "b"`, Want: "there", Have: "missing"},
		admin.Difference{
			Object: `binding of queue "waybill.delay_1s" to exchange "waybill.delay_1s" with key ""`, Want: "there",
			Have: "missing",
		},
		admin.Difference{Object: `queue "waybill.delay_1m"`, Want: "there", Have: "missing"},
	)
	want, broker := topology.Of(topology.Options{SharedDelays: true}, sub), broker(t, mq)
	if got, err := broker.Compare(t.Context(), want); err != nil || len(got) != 6 {
		t.Errorf("got %v, %v", got, err)
	}
	if err := bus.Declare(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	// a surplus binding is not taken away
	if got, err := broker.Compare(t.Context(), want); err != nil || len(got) != 2 {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := dial(t, mq.URL, rabbitmq.Options{}).Drift(t.Context()); !errors.Is(err, waybill.ErrInvalid) {
		t.Errorf("without an address: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := bus.Drift(ctx); waybill.ClassOf(err) != waybill.ClassOutage {
		t.Errorf("cancelled: %v", err)
	}
}

func deleteQueue(ch *amqp.Channel, name string) error {
	_, err := ch.QueueDelete(name, false, false, false)
	return err
}

// broker returns the virtual host as the management API shows it.
func broker(t *testing.T, mq *testenv.MQ) *topology.Broker {
	t.Helper()
	b, err := topology.NewBroker(topology.BrokerOptions{URL: mq.ManagementURL, User: mq.User, Password: mq.Password, VHost: mq.VHost})
	if err != nil {
		t.Fatal(err)
	}
	return b
}
