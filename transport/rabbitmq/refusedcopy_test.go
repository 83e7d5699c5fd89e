package rabbitmq_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// A message that came early and goes on waiting is the same attempt, although its time comes before the settle.
func TestEarlyUntilItIsSettled(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}, RetryDelays: []time.Duration{100 * time.Millisecond}})
	if err := bus.Publish(t.Context(), []waybill.Envelope{envelope("a", "a")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for delay := time.Second; ; delay *= 2 { // longer if the machine is so slow that it does not come early
		d := receive(t, r, 1)[0]
		attempt := d.Attempt + 1
		settle(t, r, core.AckRetry(d, delay, errors.New("not now")))
		d = receive(t, r, 1)[0]
		if d.Attempt != attempt {
			t.Fatalf("attempt %d, want %d", d.Attempt, attempt)
		}
		if !rabbitmq.EarlyOf(d) {
			settle(t, r, core.AckRelease(d))
			continue
		}
		patience.Until(t, "its time has come", func() bool { return !time.Now().Before(d.NotBefore) })
		settle(t, r, core.AckRetry(d, 0, nil))
		if d = receive(t, r, 1)[0]; d.Attempt != attempt {
			t.Errorf("attempt %d, want %d: no handler ran", d.Attempt, attempt)
		}
		return
	}
}

// A copy for which the broker closes the channel although it is sent alone stops its queue for a few tries only. Then
// the broker dead-letters the message. RabbitMQ takes no message with this reply-to from a channel without a consumer
// for replies.
func TestCopyThatIsRefusedAlone(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	var log sharedtest.Log
	bus := dial(t, mq.URL, rabbitmq.Options{Logger: log.Logger(slog.LevelInfo)})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}, RetryDelays: []time.Duration{time.Second}})
	if err := bus.Publish(t.Context(), []waybill.Envelope{envelope("bad", "a"), envelope("good", "a")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	ds := receive(t, r, 2)
	rabbitmq.SetReplyTo(ds[0], "amq.rabbitmq.reply-to")
	refused := 0
	for range 10 {
		results := r.Settle(t.Context(), []core.Ack{core.AckRetry(ds[0], time.Second, errors.New("not now"))})
		if results[0] == nil {
			break
		}
		if waybill.ClassOf(results[0]) != waybill.ClassRejected {
			t.Fatal(results[0])
		}
		refused++
	}
	if refused != 2 {
		t.Errorf("the message was given up after %d refusals", refused+1)
	}
	settle(t, r, core.AckDone(ds[1]))
	parkedCount(t, bus, "q", 1)
	for _, want := range []string{"event=rabbitmq.parked_without_reason", "id=bad", "verdict=retry", "not now", "PRECONDITION_FAILED"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s is not in the log: %s", want, log.String())
		}
	}
}
