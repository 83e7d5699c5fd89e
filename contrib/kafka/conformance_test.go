package kafka_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/contrib/kafka"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/transporttest"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
)

// TR-11, TE-01.
func TestConformance(t *testing.T) {
	t.Parallel()
	transporttest.RunSpread(t, slices.Repeat([]func(*testing.T) transporttest.Harness{fakeHarness}, 6)...)
}

// A real broker, without its restart, which workers on one broker would not stand; see TestRestart.
func TestConformanceOnKafka(t *testing.T) {
	t.Parallel()
	address := node(t)
	transporttest.RunSpread(t, slices.Repeat([]func(*testing.T) transporttest.Harness{func(t *testing.T) transporttest.Harness {
		t.Helper()
		opts := options()
		h := harness(t, address, opts)
		h.Refuse = lowered(t, &h, address, opts.Bus, denied(ask(t, address), opts.Bus))
		return h
	}}, 10)...)
}

// TestRestart kills a real broker, and starts it again.
func TestRestart(t *testing.T) {
	t.Parallel()
	s := testenv.OwnKafka(t, testenv.KafkaOptions{})
	admin := ask(t, s.Addr())
	if err := ready(t.Context(), admin, 1); err != nil {
		t.Fatal(err)
	}
	h := harness(t, s.Addr(), options())
	h.Restart = func(ctx context.Context) error {
		s.Kill(0)
		if err := s.Start(ctx, 0); err != nil {
			return err
		}
		return ready(ctx, admin, 1)
	}
	for _, c := range transporttest.Checks() {
		if c.Name == "restart" {
			if err := c.Run(t.Context(), h); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func options() kafka.Options {
	return kafka.Options{
		Bus: busName(), Partitions: 4, SessionTimeout: 6 * time.Second, DrainFor: time.Second,
		Timeout: patience.For(10 * time.Second), // as by default, on a machine that has nothing else to do
	}
}

func fakeHarness(t *testing.T) transporttest.Harness {
	t.Helper()
	f := startFake(t)
	opts := options()
	h := harness(t, f.address(), opts)
	h.Restart, h.Refuse = f.restart, lowered(t, &h, f.address(), opts.Bus, f.refuse)
	return h
}

// harness is one of a bus on the broker at address.
func harness(t *testing.T, address string, opts kafka.Options) transporttest.Harness {
	t.Helper()
	link := &cable{}
	direct := opts
	opts.Client = []kgo.Opt{kgo.Dialer(link.dial)}
	bus := dial(t, address, opts)
	h := transporttest.Of(bus)
	h.Cut = func(context.Context) (func() error, error) {
		link.set(true)
		return func() error { link.set(false); return nil }, nil
	}
	h.Deafen = func(context.Context) (func() error, error) {
		link.deafen()
		return func() error { link.set(false); return nil }, nil
	}
	h.Reopen = func(ctx context.Context) (core.Subscriber, error) {
		again, err := kafka.Dial(ctx, address, direct)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = again.Close(context.WithoutCancel(ctx)) })
		return again, nil
	}
	h.Parked, h.SizeLimit = parkedOf(bus), "max.message.bytes"
	h.ReservedNames = []string{"content-type", "ce_id", "ce_x", "waybill-header-a"}
	return h
}

type refuse = func(context.Context, transporttest.Refused) (func() error, error)

// lowered adds to a Refuse that max.message.bytes of the bus is lowered.
func lowered(t *testing.T, h *transporttest.Harness, address, bus string, others refuse) refuse {
	t.Helper()
	return func(ctx context.Context, what transporttest.Refused) (func() error, error) {
		if what != transporttest.RefuseLarge {
			return others(ctx, what)
		}
		ctx = context.WithoutCancel(ctx)
		admin, large := ask(t, address), make([]byte, 100_000)
		_, _ = rand.NewChaCha8([32]byte{}).Read(large) // never fails
		set := func(bytes string, refuses bool) error {
			if err := setTopic(ctx, admin, bus, "max.message.bytes", bytes); err != nil {
				return err
			}
			patience.Until(t, "the limit is in force", func() bool {
				rec := &kgo.Record{Topic: bus, Value: large, Headers: []kgo.RecordHeader{{Key: "ce_topic", Value: []byte("of-nobody")}}}
				return errors.Is(admin.client.ProduceSync(ctx, rec).FirstErr(), kerr.MessageTooLarge) == refuses
			})
			return nil
		}
		undo := func() error {
			err := set("1048588", false)
			return errors.Join(err, h.Publisher.(core.Checker).Check(ctx)) // Check reads it at once
		}
		return undo, set("65536", true)
	}
}

// setTopic changes a setting of a topic.
func setTopic(ctx context.Context, admin *tools, topic, name, value string) error {
	res, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: name, Value: &value}}, topic)
	if err != nil {
		return err
	}
	return res[0].Err
}

// setBroker changes a setting of all brokers.
func setBroker(ctx context.Context, admin *tools, name, value string) error {
	res, err := admin.AlterBrokerConfigs(ctx, []kadm.AlterConfig{{Name: name, Value: &value}})
	if err != nil {
		return err
	}
	return res[0].Err
}

func parkedOf(bus *kafka.Transport) func(context.Context, string) ([]transporttest.Parked, error) {
	return func(ctx context.Context, queue string) ([]transporttest.Parked, error) {
		list, err := bus.ListParked(ctx, queue, admin.ParkedFilter{}, 1000)
		if err != nil {
			return nil, err
		}
		var out []transporttest.Parked
		for _, p := range list {
			one, err := bus.InspectParked(ctx, queue, admin.ParkedFilter{Positions: []int{p.Position}})
			if err != nil {
				return nil, err
			}
			out = append(out, transporttest.Parked{Envelope: one.Envelope, Reason: p.Reason, Err: p.Error})
		}
		return out, nil
	}
}
