package kafka_test

import (
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/sharedtest"
)

// RM-08.
func TestRepairedMessageIsMarked(t *testing.T) {
	t.Parallel()
	bus := dial(t, startFake(t).address(), options())
	r := subscribe(t, bus, "q", "a")
	if err := bus.Publish(t.Context(), []waybill.Envelope{{ID: "1", Topic: "a", Body: []byte("body")}}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	sharedtest.RepairedIsMarked(t, bus, "q", r, func() *waybill.Delivery { return receive(t, r, 1)[0] })
}
