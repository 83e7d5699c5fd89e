package rabbitmq_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

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
