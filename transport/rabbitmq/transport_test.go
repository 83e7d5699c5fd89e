package rabbitmq_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

func TestPublishReceiveSettle(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	r := subscribe(t, bus, core.Subscription{
		Queue: "billing", Bindings: []string{"orders.*"},
		RetryDelays: []time.Duration{200 * time.Millisecond},
	})
	if err := bus.Publish(t.Context(), envelopes(3, "orders.placed")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	got := receive(t, r, 3)
	if s := ids(got); s != "m00000 m00001 m00002" {
		t.Fatalf("received %s", s)
	}
	settle(t, r, core.AckDone(got[0]), core.AckRetry(got[1], 150*time.Millisecond, errors.New("later")),
		core.AckReject(got[2], waybill.ReasonRejected, errors.New("bad")))
	again := receive(t, r, 1)[0]
	want := got[1].Envelope
	if diff := cmp.Diff(want, again.Envelope); diff != "" {
		t.Errorf("retried copy differs (-want +got):\n%s", diff)
	}
	if again.Attempt != 2 || again.Redeliveries != 0 {
		t.Errorf("attempt %d, redeliveries %d", again.Attempt, again.Redeliveries)
	}
	settle(t, r, core.AckDone(again))
	res := bus.Publish(t.Context(), []waybill.Envelope{envelope("a", "users.x"), envelope("b", "orders.x")})
	if !errors.Is(res[0], waybill.ErrUnroutable) || res[1] != nil {
		t.Errorf("results %v", res)
	}
}
