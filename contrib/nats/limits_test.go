package nats_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/nats"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
)

// TR-08, RL-03: the client gives a connection up for good at a message above a lowered max_payload. A transport that
// has dialled makes another one, for its publishes and its receivers, as often as that happens.
func TestConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	bus := dial(t, s.url(), nats.Options{})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	for _, limit := range []int32{512 << 10, 128 << 10} {
		large := waybill.Envelope{ID: "large", Topic: "a", Body: make([]byte, bus.Traits().MaxMessageBytes-1000)}
		if err := s.setMaxPayload(limit); err != nil {
			t.Fatal(err)
		}
		var refusal error
		patience.Until(t, "the message is refused for good", func() bool {
			refusal = bus.Publish(t.Context(), []waybill.Envelope{large})[0]
			if refusal == nil || errors.Is(refusal, waybill.ErrClosed) {
				t.Fatal("want an outage, and then a refusal: ", refusal)
			}
			return waybill.ClassOf(refusal) == waybill.ClassPermanent
		})
		if text := refusal.Error(); waybill.ReasonOf(refusal) != waybill.ReasonTooLarge || !strings.Contains(text, "max_payload") || !strings.Contains(text, `"a"`) {
			t.Error(refusal)
		}
		if err := bus.Publish(t.Context(), []waybill.Envelope{{ID: "small", Topic: "a"}}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		patience.Until(t, "the small message comes", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), patience.For(patience.Limit))
			defer cancel()
			ds, err := r.Receive(ctx, 10)
			if err != nil && waybill.ClassOf(err) != waybill.ClassOutage {
				t.Fatal(err)
			}
			for _, d := range ds {
				if err := r.Settle(t.Context(), []core.Ack{core.AckDone(d)}).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
			return len(ds) == 1 && ds[0].Envelope.ID == "small"
		})
		if err := errors.Join(bus.Check(t.Context()), r.(core.Checker).Check(t.Context())); err != nil {
			t.Error(err)
		}
	}
}

// A connection of the caller's that was closed stays so: the transport on it is closed.
func TestBorrowedConnectionIsNotReplaced(t *testing.T) {
	t.Parallel()
	nc, err := natsgo.Connect(startServer(t, nil).url())
	if err != nil {
		t.Fatal(err)
	}
	bus, err := nats.New(t.Context(), nc, nats.Options{})
	if err != nil {
		t.Fatal(err)
	}
	subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	small := []waybill.Envelope{{ID: "small", Topic: "a"}}
	if err := bus.Publish(t.Context(), small).FirstErr(); err != nil {
		t.Fatal(err)
	}
	nc.Close()
	if err := bus.Publish(t.Context(), small).FirstErr(); !errors.Is(err, waybill.ErrClosed) {
		t.Error(err)
	}
	if err := bus.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TR-09, TR-13: a limit that leaves no room for headers is refused at the start. The error of a message above the
// stream's own limit names that one.
func TestLimitsAreNamed(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(o *server.Options) { o.MaxPayload = 256 << 10 })
	js := client(t, s)
	bus := dial(t, s.url(), nats.Options{})
	subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	stream, err := js.Stream(t.Context(), "waybill")
	if err != nil {
		t.Fatal(err)
	}
	setStream := func(bytes int32) {
		t.Helper()
		cfg := stream.CachedInfo().Config
		cfg.MaxMsgSize = bytes
		if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	setStream(100_000)
	batch := []waybill.Envelope{{ID: "1", Topic: "a"}, {ID: "2", Topic: "a", Body: make([]byte, 150_000)}, {ID: "3", Topic: "a"}}
	refused := func(bus *nats.Transport) {
		t.Helper()
		res := bus.Publish(t.Context(), batch)
		if res[0] != nil || res[2] != nil {
			t.Errorf("the neighbours: %v, %v", res[0], res[2])
		}
		if err := res[1]; waybill.ReasonOf(err) != waybill.ReasonTooLarge || waybill.ClassOf(err) != waybill.ClassPermanent ||
			!strings.Contains(err.Error(), "max_msg_size") || !strings.Contains(err.Error(), `"a"`) {
			t.Error(err)
		}
	}
	refused(bus)
	refused(dial(t, s.url(), nats.Options{})) // which knows the limit
	setStream(50_000)
	if _, err := nats.Dial(t.Context(), s.url(), nats.Options{}); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "max_msg_size is 50000") {
		t.Errorf("a stream with a small limit: %v", err)
	}
	small := startServer(t, func(o *server.Options) { o.MaxPayload = 60_000 })
	if _, err := nats.Dial(t.Context(), small.url(), nats.Options{}); !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "max_payload is 60000") {
		t.Errorf("a server with a small limit: %v", err)
	}
}
