package rabbitmq_test

// An operator searches a dead-letter queue of any length: a walk over it costs few questions, holds few bytes, leaves
// the messages that it does not need, and gives everything back.

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/internal/tier"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// parkMany puts n messages straight into the dead-letter queue of queue q. Message i has size bytes and id p<i>.
func parkMany(t *testing.T, mq *testenv.MQ, bus *rabbitmq.Transport, n, size int) {
	t.Helper()
	if err := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}}).Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	ch := testenv.Channel(t, mq.URL)
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	var last *amqp.DeferredConfirmation
	for i := range n {
		m := amqp.Publishing{
			MessageId: fmt.Sprintf("p%06d", i), DeliveryMode: amqp.Persistent, Body: make([]byte, size),
			Headers: amqp.Table{"waybill-attempt": int64(3), "waybill-reason": "attempts", "cloudEvents_topic": "a"},
		}
		var err error
		if last, err = ch.PublishWithDeferredConfirm("", "q.dlq", true, false, m); err != nil {
			t.Fatal(err)
		}
		if i%1000 == 999 || i == n-1 {
			if ok, err := last.WaitContext(t.Context()); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
	}
	parkedCount(t, bus, "q", n)
}

// RM-08: one message by its id among many costs questions by the hundred of messages, not one a message. The rest is
// parked as before, in its order, with its attempts.
func TestSearchAsksLittle(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	const n = 3000
	bus := dial(t, mq.URL, rabbitmq.Options{})
	parkMany(t, mq, bus, n, 10)
	line := newSilencer(t, mq.URL)
	operator := dial(t, line.url, rabbitmq.Options{Lazy: true})
	byID := func(i int) admin.ParkedFilter { return admin.ParkedFilter{IDs: []string{fmt.Sprintf("p%06d", i)}} }
	p, err := operator.InspectParked(t.Context(), "q", byID(n-1))
	if err != nil || p.Position != n || p.Attempts != 3 {
		t.Fatalf("%+v, %v", p, err)
	}
	asked := line.answered()
	if asked > n/10 {
		t.Errorf("a search through %d messages asked %d questions", n, asked)
	}
	if done, err := operator.ReplayParked(t.Context(), admin.ParkedRequest{Queue: "q", Filter: byID(n / 2)}); done != 1 || err != nil {
		t.Fatal(done, err)
	}
	if done, err := operator.PurgeParked(t.Context(), admin.ParkedRequest{Queue: "q", Filter: byID(n/2 + 1)}); done != 1 || err != nil {
		t.Fatal(done, err)
	}
	if asked = line.answered() - asked; asked > 2*n/10 {
		t.Errorf("a replay and a purge of one among %d messages asked %d questions", n, asked)
	}
	parkedCount(t, bus, "q", n-2)
	var want []string
	for i := range n {
		if i != n/2 && i != n/2+1 {
			want = append(want, fmt.Sprintf("p%06d", i))
		}
	}
	list, err := bus.ListParked(t.Context(), "q", admin.ParkedFilter{}, n)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, p := range list {
		if p.Attempts != 3 || p.Position != i+1 {
			t.Fatalf("%+v at %d", p, i)
		}
		got = append(got, p.Envelope.ID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d are listed, not in the order that they were parked in", len(got))
	}
}

// RM-08: a short look at a long queue takes the messages that it shows. A search takes at most as many again as it
// looked at.
func TestShortLookTakesLittle(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	parkMany(t, mq, bus, 200, 10)
	for _, c := range []struct {
		f          admin.ParkedFilter
		limit      int
		most, seen int
	}{
		{limit: 20, most: 20, seen: 20},
		{f: admin.ParkedFilter{IDs: []string{"p000039"}}, limit: 1, most: 80, seen: 1},
	} {
		taken, err := bus.Taken(t.Context(), "q", c.f, c.limit)
		if err != nil || taken > c.most {
			t.Errorf("%d messages of filter %v: %d were taken, want at most %d; %v", c.limit, c.f, taken, c.most, err)
		}
	}
}

// RM-08: large messages are taken a few at a time.
func TestSearchBoundsItsBytes(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{PrefetchBytes: 1 << 20})
	const n, size = 40, 200 << 10
	parkMany(t, mq, bus, n, size)
	most, err := bus.MostAhead(t.Context(), "q")
	if err != nil || most*size > 2<<20 {
		t.Errorf("%d messages of %d KiB were held at a time, %v", most, size>>10, err)
	}
	parkedCount(t, bus, "q", n)
}

// RM-08: others hold a part of the parked messages. A walk ends with the available ones, and gives them back.
func TestSearchEndsWhereOthersHoldTheRest(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	parkMany(t, mq, bus, 30, 10)
	ch := testenv.Channel(t, mq.URL)
	for range 10 {
		if _, ok, err := ch.Get("q.dlq", false); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	patience.Until(t, "20 are shown", func() bool { // a quorum queue counts late, so a walk begins with up to 30
		list, err := bus.ListParked(t.Context(), "q", admin.ParkedFilter{}, 100)
		if err != nil {
			t.Fatal(err)
		}
		return len(list) == 20 && list[0].Envelope.ID == "p000010"
	})
	if err := ch.Close(); err != nil {
		t.Fatal(err)
	}
	parkedCount(t, bus, "q", 30)
}

// RM-08: a walk whose context ends in the middle gives back everything, and its channel.
func TestSearchThatEndsGivesBack(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	const n = 2000
	parkMany(t, mq, bus, n, 10)
	for _, at := range []int{1, 3, 400} {
		ctx, cancel := context.WithCancel(t.Context())
		looked := 0
		_, err := bus.ReplayParked(ctx, admin.ParkedRequest{
			Queue: "q", Filter: admin.ParkedFilter{IDs: []string{"none"}},
			Progress: func(int, int) {
				if looked++; looked == at {
					cancel()
				}
			},
		})
		if waybill.ClassOf(err) != waybill.ClassOutage && err != nil {
			t.Errorf("ended with %v", err)
		}
		cancel()
		parkedCount(t, bus, "q", n)
	}
	list, err := bus.ListParked(t.Context(), "q", admin.ParkedFilter{}, n)
	if err != nil || len(list) != n || !slices.IsSortedFunc(list, func(a, b admin.Parked) int {
		return a.Position - b.Position
	}) || list[0].Envelope.ID != "p000000" || list[n-1].Envelope.ID != fmt.Sprintf("p%06d", n-1) {
		t.Errorf("%d are listed, %v", len(list), err)
	}
}

// RM-08: the same among 100,000.
func TestSearchAmongManyParked(t *testing.T) {
	tier.Nightly(t, "a queue of 100,000 messages: a minute of a core")
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	const n = 100_000
	parkMany(t, mq, bus, n, 200)
	line := newSilencer(t, mq.URL)
	operator := dial(t, line.url, rabbitmq.Options{Lazy: true})
	last := admin.ParkedFilter{IDs: []string{fmt.Sprintf("p%06d", n-1)}}
	began := time.Now()
	done, err := operator.ReplayParked(t.Context(), admin.ParkedRequest{Queue: "q", Filter: last})
	t.Logf("replayed %d of %d after %s with %d questions", done, n, time.Since(began), line.answered())
	if done != 1 || err != nil || line.answered() > n/50 {
		t.Errorf("%d, %v", done, err)
	}
	parkedCount(t, bus, "q", n-1)
}

// RM-08: a removal that fails on its way says which messages it has removed.
func TestRemovalThatFailsOnItsWay(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	parkMany(t, mq, bus, 6, 10)
	items, err := bus.RemoveFirst(t.Context(), "q")
	if err == nil || len(items) != 3 {
		t.Fatalf("%d items, %v", len(items), err)
	}
	for i, m := range items {
		if first := i == 0; m.Changed != first || (m.Err == nil) != first {
			t.Errorf("message %d: removed %t, %v", i, m.Changed, m.Err)
		}
	}
	parkedCount(t, bus, "q", 5)
}
