package rabbitmq_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// OP-05: at level debug the log has the queues and the bindings of a subscription.
func TestDebugLog(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	var log sharedtest.Log
	bus := dial(t, mq.URL, rabbitmq.Options{Exchange: "shop", Logger: log.Logger(slog.LevelDebug)})
	subscribe(t, bus, core.Subscription{Queue: "billing", Bindings: []string{"orders.*", "refunds.#"}})
	for _, line := range []string{
		"event=rabbitmq.declared queue=billing\n",
		"event=rabbitmq.bound queue=billing exchange=shop key=orders.*\n",
		"event=rabbitmq.bound queue=billing exchange=shop key=refunds.#\n",
	} {
		if !strings.Contains(log.String(), line) {
			t.Errorf("no %q in\n%s", line, log.String())
		}
	}
}
