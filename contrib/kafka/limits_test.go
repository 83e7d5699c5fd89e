package kafka_test

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/contrib/kafka"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
)

// TR-08: a limit that was raised is noticed by the next message that it refused before, and names itself until then.
func TestLimitIsRaised(t *testing.T) {
	t.Parallel()
	limitIsRaised(t, startFake(t).address(), func(admin *tools, bus, bytes string) error {
		return setTopic(t.Context(), admin, bus, "max.message.bytes", bytes)
	})
}

// TR-08, on a real broker, whose own limit is that of a topic without one.
func TestLimitOfBroker(t *testing.T) {
	t.Parallel()
	s := testenv.OwnKafka(t, testenv.KafkaOptions{})
	if err := ready(t.Context(), ask(t, s.Addr()), 1); err != nil {
		t.Fatal(err)
	}
	limitIsRaised(t, s.Addr(), func(admin *tools, _, bytes string) error {
		return setBroker(t.Context(), admin, "message.max.bytes", bytes)
	})
}

func limitIsRaised(t *testing.T, address string, set func(admin *tools, bus, bytes string) error) {
	t.Helper()
	admin, opts := ask(t, address), options()
	bus := dial(t, address, opts)
	change := func(bytes string) {
		t.Helper()
		if err := set(admin, opts.Bus, bytes); err != nil {
			t.Fatal(err)
		}
	}
	large := make([]byte, 200_000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(large) // never fails
	batch := []waybill.Envelope{{ID: "1", Topic: "orders"}, {ID: "2", Topic: "orders", Body: large}, {ID: "3", Topic: "orders"}}
	change("100000")
	patience.Until(t, "the large message is refused", func() bool { // brokers take up a setting a moment later
		res := bus.Publish(t.Context(), batch)
		if res[0] != nil || res[2] != nil {
			t.Fatalf("the neighbours: %v, %v", res[0], res[2])
		}
		return res[1] != nil
	})
	err := bus.Publish(t.Context(), batch)[1]
	if waybill.ClassOf(err) != waybill.ClassPermanent || waybill.ReasonOf(err) != waybill.ReasonTooLarge {
		t.Fatal(err)
	}
	for _, want := range []string{`topic "orders"`, "200", "max.message.bytes", "is 100000", "raise it"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	change("2000000")
	patience.Until(t, "the large message is stored", func() bool { return bus.Publish(t.Context(), batch[1:2])[0] == nil })
	change("20000")
	patience.Until(t, "the limit leaves no room for headers", func() bool {
		_, err := kafka.Dial(t.Context(), address, opts)
		return errors.Is(err, waybill.ErrMisconfigured) && strings.Contains(err.Error(), "max.message.bytes 20000")
	})
}
