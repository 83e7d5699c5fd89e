package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/transport/rabbitmq"
	"github.com/waybill-go/waybill/transport/rabbitmq/topology"
)

// everyCall lets messages go through a queue, with a retry, a release, a rejection and a replay, and returns the first
// error. The subscription stays open.
func everyCall(ctx context.Context, t *testing.T, bus *rabbitmq.Transport, r core.Receiver, queue string) error {
	t.Helper()
	if err := bus.Publish(ctx, envelopes(5, "a.b")).FirstErr(); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	var held []*waybill.Delivery
	take := func(n int) error {
		held = nil
		for len(held) < n {
			ds, err := r.Receive(ctx, n-len(held))
			if err != nil {
				return fmt.Errorf("%d of %d came: %w", len(held), n, err)
			}
			held = append(held, ds...)
		}
		return nil
	}
	if err := take(5); err != nil {
		return err
	}
	for i, d := range held {
		if want := envelopes(5, "a.b")[i]; d.Envelope.ID != want.ID {
			return fmt.Errorf("message %d is %s, want %s", i, d.Envelope.ID, want.ID)
		}
	}
	if err := r.Settle(ctx, []core.Ack{
		core.AckDone(held[0]), core.AckDone(held[1]), core.AckRetry(held[2], 50*time.Millisecond, nil), core.AckRelease(held[3]),
		core.AckReject(held[4], waybill.ReasonRejected, nil),
	}).FirstErr(); err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	for range 3 { // and released again and again
		if err := take(1); err != nil {
			return err
		}
		ack := core.AckDone(held[0])
		if held[0].Attempt == 1 {
			ack = core.AckRelease(held[0])
		}
		if err := r.Settle(ctx, []core.Ack{ack}).FirstErr(); err != nil {
			return fmt.Errorf("settle: %w", err)
		}
	}
	for range 2 {
		n, err := bus.ReplayParked(ctx, admin.ParkedRequest{Queue: queue, All: true})
		if err != nil {
			return fmt.Errorf("replay: %w", err)
		}
		if n > 0 {
			break
		}
	}
	return nil
}

// DB-29: a policy may set each of these for all queues and exchanges of a virtual host: every call works, or its error
// names the setting, or Drift and the next start do.
func TestEveryPolicy(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "20 policies, each in a virtual host of its own; the broker tells a policy after ten seconds")
	for _, tc := range []struct {
		policy map[string]any
		drift  []string           // objects
		kind   topology.QueueType // quorum queues do not have each policy
		err    string             // of an outage that can be: a queue takes some messages beyond its limit
	}{
		{policy: map[string]any{"max-length": 1}, err: "full"},
		{policy: map[string]any{"max-length-bytes": 1}, err: "full"},
		{policy: map[string]any{"max-length": 1, "overflow": "drop-head"}, err: "full"},
		{policy: map[string]any{"max-length": 1, "overflow": "reject-publish-dlx"}, err: "full"},
		{policy: map[string]any{"max-length": 1_000_000, "overflow": "drop-head"}},
		{policy: map[string]any{"message-ttl": 1}, drift: []string{
			`queue "q" message-ttl by policy "p"`, `queue "q.delay_50ms" message-ttl by policy "p"`,
		}},
		{policy: map[string]any{"message-ttl": 3_600_000}, drift: []string{`queue "q" message-ttl by policy "p"`}},
		{policy: map[string]any{"expires": 3_600_000}, drift: []string{
			`queue "q.dlq" expires by policy "p"`, `queue "q" expires by policy "p"`, `queue "q.delay_50ms" expires by policy "p"`,
		}},
		{policy: map[string]any{"delivery-limit": 1}, drift: []string{
			`queue "q.dlq" delivery-limit by policy "p"`, `queue "q" delivery-limit by policy "p"`, `queue "q.delay_50ms" delivery-limit by policy "p"`,
		}},
		{policy: map[string]any{"delivery-limit": 1_000_000}},
		{policy: map[string]any{"dead-letter-exchange": "amq.fanout", "dead-letter-routing-key": "x"}},
		{policy: map[string]any{"dead-letter-strategy": "at-most-once"}},
		{policy: map[string]any{"queue-mode": "lazy"}, kind: topology.Classic},
		{policy: map[string]any{"max-in-memory-length": 0}},
		{policy: map[string]any{"max-in-memory-bytes": 0}},
		{policy: map[string]any{"ha-mode": "all"}, kind: topology.Classic},
	} {
		t.Run(strings.TrimPrefix(fmt.Sprint(tc.policy), "map"), func(t *testing.T) {
			t.Parallel()
			mq := testenv.RabbitMQ(t)
			opts := rabbitmq.Options{ManagementURL: mq.ManagementURL, Logger: quiet(), QueueType: tc.kind}
			bus := dial(t, mq.URL, opts)
			sub := core.Subscription{Queue: "q", Bindings: []string{"#"}, RetryDelays: []time.Duration{50 * time.Millisecond}}
			r := subscribe(t, bus, sub)
			if err := mq.SetPolicy(t.Context(), mq.VHost, "p", ".*", "all", tc.policy); err != nil {
				t.Skip(err)
			}
			patience.Until(t, "the policy is in force", func() bool {
				var q struct {
					Policy string `json:"policy"`
				}
				err := mq.Do(t.Context(), http.MethodGet, "/api/queues/"+url.PathEscape(mq.VHost)+"/q", nil, &q)
				return err == nil && q.Policy == "p"
			})
			var found []string
			patience.Until(t, fmt.Sprintf("Drift finds %q", tc.drift), func() bool {
				list, err := bus.Drift(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				found = nil
				for _, d := range list {
					found = append(found, d.Object)
				}
				return len(found) == len(tc.drift)
			})
			if strings.Join(found, "\n") != strings.Join(tc.drift, "\n") {
				t.Errorf("%q is found, want %q", found, tc.drift)
			}
			_, err := rabbitmq.Dial(t.Context(), mq.URL, opts)
			if err == nil {
				var second *rabbitmq.Transport
				if second, err = rabbitmq.Dial(t.Context(), mq.URL, opts); err == nil {
					closeLater(t, second)
					var again core.Receiver
					if again, err = second.Subscribe(t.Context(), sub); err == nil {
						_ = again.Close(t.Context())
					}
				}
			}
			if refused := errors.Is(err, waybill.ErrMisconfigured); refused != (len(tc.drift) > 0) || refused && !strings.Contains(err.Error(), tc.drift[0]) {
				t.Errorf("the next start: %v", err)
			}
			if len(tc.drift) > 0 {
				return
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience.For(time.Minute))
			defer cancel()
			switch err := everyCall(ctx, t, bus, r, sub.Queue); {
			case err != nil && (tc.err == "" || waybill.ClassOf(err) != waybill.ClassOutage || !strings.Contains(err.Error(), tc.err)):
				t.Errorf("%v, want an outage that names %q, or none", err, tc.err)
			}
		})
	}
}

// DB-29: limits of a virtual host and of a user: every call works, or its error names the limit.
func TestEveryLimit(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		of, limit string
		value     int
		want      string
	}{
		{"vhost", "max-connections", 0, "set_vhost_limits"},
		{"vhost", "max-queues", 1, "set_vhost_limits"},
		{"user", "max-connections", 0, "set_vhost_limits"},
		{"user", "max-channels", 1, "set_vhost_limits"},
	} {
		t.Run(tc.of+" "+tc.limit, func(t *testing.T) {
			t.Parallel()
			mq := testenv.RabbitMQ(t)
			address, name := mq.URL, mq.VHost
			if tc.of == "user" {
				name = newUser(t, mq, "limited")
				address = mq.URLFor(name, password)
				if err := mq.Do(t.Context(), http.MethodPut, "/api/permissions/"+url.PathEscape(mq.VHost)+"/"+name,
					map[string]string{"configure": ".*", "write": ".*", "read": ".*"}, nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := mq.Do(t.Context(), http.MethodPut, "/api/"+tc.of+"-limits/"+url.PathEscape(name)+"/"+tc.limit, map[string]int{"value": tc.value}, nil); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience.For(time.Minute))
			defer cancel()
			err := func() error {
				bus, err := rabbitmq.Dial(ctx, address, rabbitmq.Options{Logger: quiet()})
				if err != nil {
					return err
				}
				closeLater(t, bus)
				r, err := bus.Subscribe(ctx, core.Subscription{Queue: "q", Bindings: []string{"#"}, RetryDelays: []time.Duration{50 * time.Millisecond}})
				if err != nil {
					return err
				}
				closeLater(t, r)
				return everyCall(ctx, t, bus, r, "q")
			}()
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), password) {
				t.Errorf("%v, want an error with %q", err, tc.want)
			}
			t.Log(err)
		})
	}
}

// DB-29: a broker that allows too few channels is named.
func TestChannelMaxIsNamed(t *testing.T) {
	t.Parallel()
	err := rabbitmq.ChannelError(amqp.ErrChannelMax)
	if err.Class != waybill.ClassOutage || !errors.Is(err, amqp.ErrChannelMax) || !strings.Contains(err.Error(), "channel_max") {
		t.Error(err)
	}
}

// DB-29: settings of a broker: every call works, or its error names the setting. TestRefusedMessages has
// max_message_size, TestOverdue consumer_timeout; the tests of outages have the alarms.
func TestEveryBrokerSetting(t *testing.T) {
	t.Parallel()
	tier.Nightly(t, "starts a broker for each setting")
	for _, tc := range []struct {
		config []string
		want   string
	}{
		{config: []string{"channel_max = 1"}, want: "channel_max"},
		{config: []string{"frame_max = 4096", "heartbeat = 1"}},
		{config: []string{"heartbeat = 0", "channel_max = 8"}},
	} {
		t.Run(strings.Join(tc.config, ", "), func(t *testing.T) {
			t.Parallel()
			broker := testenv.OwnRabbitMQ(t, testenv.RabbitMQOptions{Config: tc.config})
			ctx, cancel := context.WithTimeout(t.Context(), patience.For(time.Minute))
			defer cancel()
			err := func() error {
				bus, err := rabbitmq.Dial(ctx, broker.AMQPURL("/"), rabbitmq.Options{Logger: quiet(), ConnectTimeout: patience.For(time.Minute)})
				if err != nil {
					return err
				}
				closeLater(t, bus)
				r, err := bus.Subscribe(ctx, core.Subscription{Queue: "q", Bindings: []string{"#"}, RetryDelays: []time.Duration{50 * time.Millisecond}})
				if err != nil {
					return err
				}
				closeLater(t, r)
				return everyCall(ctx, t, bus, r, "q")
			}()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%v, want an error with %q", err, tc.want)
			}
			t.Log(err)
		})
	}
}
