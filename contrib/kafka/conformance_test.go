package kafka_test

import (
	"context"
	"slices"
	"testing"
	"time"

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
		h.Refuse = denied(ask(t, address), opts.Bus)
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
	h := harness(t, f.address(), options())
	h.Restart, h.Refuse = f.restart, f.refuse
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
	h.Parked = parkedOf(bus)
	h.ReservedNames = []string{"content-type", "ce_id", "ce_x", "waybill-header-a"}
	return h
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
