package nats_test

import (
	"context"
	"errors"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/contrib/nats"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/transporttest"
	"github.com/waybill-go/waybill/internal/patience"
)

// TR-11, TE-01.
func TestConformance(t *testing.T) {
	t.Parallel()
	var workers []func(t *testing.T) transporttest.Harness
	for range 6 {
		workers = append(workers, newHarness)
	}
	transporttest.RunSpread(t, workers...)
}

func newHarness(t *testing.T) transporttest.Harness {
	t.Helper()
	s := startServer(t, nil)
	link := startProxy(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)))
	opts := nats.Options{HoldFor: 5 * time.Second, AckTimeout: 10 * time.Second}
	bus := dial(t, link.url(), opts)
	h := transporttest.Of(bus)
	h.Restart = s.restart
	h.Cut = func(context.Context) (func() error, error) {
		link.set(true)
		return func() error { link.set(false); return nil }, nil
	}
	h.Deafen = func(context.Context) (func() error, error) {
		link.deafen()
		return func() error { link.set(false); return nil }, nil
	}
	h.Reopen = func(ctx context.Context) (core.Subscriber, error) {
		again, err := nats.Dial(ctx, s.url(), opts)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = again.Close(context.WithoutCancel(ctx)) })
		return again, nil
	}
	h.Parked = func(ctx context.Context, queue string) ([]transporttest.Parked, error) {
		list, err := bus.ListParked(ctx, queue, admin.ParkedFilter{}, 100)
		if errors.Is(err, waybill.ErrNotFound) {
			return nil, nil
		}
		var out []transporttest.Parked
		for i := range list {
			p, err := bus.InspectParked(ctx, queue, admin.ParkedFilter{Positions: []int{i + 1}})
			if err != nil {
				return nil, err
			}
			out = append(out, transporttest.Parked{Envelope: p.Envelope, Reason: p.Reason, Err: p.Error})
		}
		return out, err
	}
	h.Refuse, h.SizeLimit = func(_ context.Context, what transporttest.Refused) (func() error, error) {
		if what != transporttest.RefuseLarge {
			return nil, transporttest.ErrNotDeclared
		}
		limit := bus.Traits().MaxMessageBytes
		undo := func() error {
			err := s.setMaxPayload(1 << 20)
			link.set(false) // a client learns of another limit when it connects
			patience.Until(t, "the client has connected again", func() bool { return bus.Traits().MaxMessageBytes == limit })
			return err
		}
		return undo, s.setMaxPayload(64 << 10)
	}, "max_payload"
	h.ReservedNames = []string{
		"Nats-Msg-Id", "Nats-Expected-Stream", "Nats-Expected-Last-Sequence", "Nats-TTL", "Nats-Rollup", "Nats-Schedule",
		"Nats-Marker-Reason", "Nats-Trace-Dest", "Status", "Description",
	}
	return h
}
