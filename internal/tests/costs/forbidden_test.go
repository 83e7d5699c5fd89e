//go:build !race

package costs_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// TestForbiddenTopic: a message whose topic the user may not publish makes the broker close the channel. Many of them
// among others cost no channel each, and the others arrive.
func TestForbiddenTopic(t *testing.T) {
	const n, most = 500, 20
	mq := testenv.RabbitMQ(t)
	ch := testenv.Channel(t, mq.URL)
	must(t, ch.ExchangeDeclare("waybill", "topic", true, false, false, false, nil))
	_, err := ch.QueueDeclare("all", true, false, false, false, nil)
	must(t, err)
	must(t, ch.QueueBind("all", "#", "waybill", false, nil))
	const user, password = "costs-forbidden", "costs-forbidden"
	must(t, mq.CreateUser(t.Context(), user, password))
	t.Cleanup(func() { must(t, mq.DeleteUser(context.WithoutCancel(t.Context()), user)) })
	must(t, mq.SetPermissions(t.Context(), mq.VHost, user, "", "^waybill$", ""))
	must(t, mq.Do(t.Context(), http.MethodPut, "/api/topic-permissions/"+url.PathEscape(mq.VHost)+"/"+user,
		map[string]string{"exchange": "waybill", "write": `^orders\.`, "read": ""}, nil))
	var sent atomic.Int64
	u, err := url.Parse(mq.URLFor(user, password))
	must(t, err)
	u.Host = tap(t, u.Host, &sent)
	bus, err := rabbitmq.Dial(t.Context(), u.String(), rabbitmq.Options{Logger: quiet, Passive: true, PublishConnections: 1})
	must(t, err)
	defer bus.Close(context.WithoutCancel(t.Context()))
	list := envelopes(n)
	for i := range list {
		list[i].Topic = "orders.placed"
		if i%5 == 0 {
			list[i].Topic = "payments.made"
		}
	}
	must(t, bus.Publish(t.Context(), list[1:2]).FirstErr())
	before := sent.Load()
	for i, err := range bus.Publish(t.Context(), list) {
		e, _ := errors.AsType[*waybill.Error](err)
		if forbidden := e != nil && e.Reason == waybill.ReasonForbidden; forbidden != (i%5 == 0) || !forbidden && err != nil {
			t.Fatalf("message %d to %s: %v", i, list[i].Topic, err)
		}
	}
	// A message has three frames, and those in flight with the first refused one are sent twice.
	if frames := sent.Load() - before; frames > 2*3*n+most {
		t.Errorf("%d frames for %d messages, %d of them forbidden", frames, n, n/5)
	} else {
		t.Logf("%d frames", frames)
	}
}
