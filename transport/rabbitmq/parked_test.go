package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/rabbitmq"
)

// park puts messages into the dead-letter queue of queue q, in their order.
func park(t *testing.T, mq *testenv.MQ, bus *rabbitmq.Transport, sub core.Subscription, batch []waybill.Envelope) core.Receiver {
	t.Helper()
	sub.Prefetch = 100
	r := subscribe(t, bus, sub)
	if err := bus.Publish(t.Context(), batch).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for range batch {
		settle(t, r, core.AckReject(receive(t, r, 1)[0], waybill.ReasonRejected, errors.New("no")))
	}
	parkedCount(t, bus, sub.Queue, len(batch))
	return r
}

func parkedCount(t *testing.T, bus *rabbitmq.Transport, queue string, want int) {
	t.Helper()
	patience.Until(t, fmt.Sprintf("%d are parked", want), func() bool {
		n, err := bus.ParkedDepth(t.Context(), queue)
		return err == nil && n == want
	})
}

func listed(t *testing.T, bus *rabbitmq.Transport, queue string) []string {
	t.Helper()
	list, err := bus.ListParked(t.Context(), queue, admin.ParkedFilter{}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range list {
		out = append(out, p.Envelope.ID)
	}
	return out
}

// RM-08: looking again and again neither pushes a parked message out nor changes what is known of it; before the
// broker's count could matter it is replaced by a fresh copy.
func TestListingPushesNothingOut(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	bus.RefreshAt(10)
	sub := core.Subscription{Queue: "q", Bindings: []string{"#"}}
	batch := envelopes(3, "a.b")
	park(t, mq, bus, sub, batch)
	first, err := bus.ListParked(t.Context(), "q", admin.ParkedFilter{}, 10)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 35 {
		list, err := bus.ListParked(t.Context(), "q", admin.ParkedFilter{}, 10)
		if err != nil || len(list) != 3 {
			t.Fatalf("look %d: %d messages, %v", i, len(list), err)
		}
		if i < 5 && list[0].Envelope.ID != first[0].Envelope.ID { // the broker keeps the order
			t.Errorf("look %d: %s is first", i, list[0].Envelope.ID)
		}
		for _, p := range list {
			k := slices.IndexFunc(first, func(f admin.Parked) bool { return f.Envelope.ID == p.Envelope.ID })
			if fmt.Sprint(first[k]) != fmt.Sprint(p) {
				t.Errorf("look %d: %+v, want %+v", i, p, first[k])
			}
		}
	}
	ch := testenv.Channel(t, mq.URL)
	for range 3 {
		m, ok, err := ch.Get("q.dlq", true)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		if n, _ := m.Headers["x-delivery-count"].(int64); n > 12 {
			t.Errorf("%s was put back %d times", m.MessageId, n)
		}
	}
}

// RM-08: a parked message that was to be copied anew stays if its copy cannot be stored.
func TestFailedRefreshKeepsTheMessage(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	park(t, mq, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}}, envelopes(3, "a.b"))
	look := func() int {
		list, err := bus.ListParked(t.Context(), "q", admin.ParkedFilter{}, 10)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	look() // the broker counts it
	if err := testenv.Channel(t, mq.URL).QueueUnbind("q.dlq", "q", "waybill.dlx.q", nil); err != nil {
		t.Fatal(err)
	}
	bus.RefreshAt(1)
	for range 3 {
		if n := look(); n != 3 {
			t.Fatalf("%d of 3 are left", n)
		}
	}
}

// RM-08: connections die in the middle of a replay, again and again: every message comes back, none is lost, a few may
// come twice.
func TestReplayInterrupted(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	const n = 400
	sub := core.Subscription{Queue: "q", Bindings: []string{"#"}}
	r := park(t, mq, dial(t, mq.URL, rabbitmq.Options{}), sub, envelopes(n, "a"))
	proxy := testenv.NewProxy(t, hostOf(t, mq.URL))
	operator := dial(t, proxy.URL(mq.URL), rabbitmq.Options{ReconnectMax: 50 * time.Millisecond, Lazy: true})
	var mu sync.Mutex
	back := map[string]bool{}
	ctx, stop := context.WithCancel(t.Context())
	var receiving sync.WaitGroup
	receiving.Go(func() {
		for ctx.Err() == nil {
			ds, err := r.Receive(ctx, n)
			if err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
			for _, d := range ds {
				if err := r.Settle(ctx, []core.Ack{core.AckDone(d)}).FirstErr(); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				mu.Lock()
				back[d.Envelope.ID] = true
				mu.Unlock()
			}
		}
	})
	defer receiving.Wait()
	defer stop()
	interrupted := 0
	// The queue counts as empty as long as the broker has not seen the end of a connection that holds its messages.
	patience.Until(t, "all replayed", func() bool {
		proxy.Heal()
		switch { // in the middle of messages on their way out or back, of confirms, of removals
		case interrupted >= 8:
		case interrupted%2 == 0:
			proxy.CutAfter(testenv.Up, 12_000+int64(interrupted)*5000)
		default:
			proxy.CutAfter(testenv.Down, 20_000+int64(interrupted)*5000)
		}
		replayed, err := operator.ReplayParked(t.Context(), admin.ParkedRequest{Queue: "q", All: true})
		t.Logf("replayed %d: %v", replayed, err)
		if err != nil {
			interrupted++
			if waybill.ClassOf(err) != waybill.ClassOutage {
				t.Errorf("interrupted with %v", err)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		return len(back) == n
	})
	if interrupted < 4 {
		t.Errorf("interrupted only %d times", interrupted)
	}
	patience.Until(t, "nothing is parked", func() bool { // a message that came back may still be parked, too
		_, err := operator.ReplayParked(t.Context(), admin.ParkedRequest{Queue: "q", All: true})
		depth, lost := operator.ParkedDepth(t.Context(), "q")
		return err == nil && lost == nil && depth == 0
	})
}

// RM-08: a replayer that dies with messages in hand loses none; a message that the broker itself parked is shown with a
// reason, and an expired one stays.
func TestParkedByTheBroker(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	sub := core.Subscription{Queue: "q", Bindings: []string{"#"}}
	if err := subscribe(t, bus, sub).Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	begin := time.Now().Truncate(time.Second) // the broker tells seconds
	publishExpiring(t, bus, envelope("ours", "a.b"))
	foreign := amqp.Publishing{MessageId: "foreign", Expiration: "50"}
	if err := testenv.Channel(t, mq.URL).PublishWithContext(t.Context(), "waybill", "x.y", true, false, foreign); err != nil {
		t.Fatal(err)
	}
	parkedCount(t, bus, "q", 2)
	list, err := bus.ListParked(t.Context(), "q", admin.ParkedFilter{Reasons: []waybill.Reason{waybill.ReasonExpired}}, 10)
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	for _, p := range list {
		topic := map[string]string{"ours": "a.b", "foreign": "x.y"}[p.Envelope.ID]
		if p.Envelope.Topic != topic || p.Queue != "q" || p.Attempts != 1 || p.At.Before(begin) || p.At.After(time.Now()) || p.Error == "" {
			t.Errorf("%+v", p)
		}
	}
	if n, err := bus.ReplayParked(t.Context(), admin.ParkedRequest{Queue: "q", All: true}); n != 0 || err != nil {
		t.Errorf("replayed %d, %v", n, err)
	}
	parkedCount(t, bus, "q", 2)
}

// RM-08: the headers of parking are taken off when a message is replayed; the rest stays as the producer sent it.
func TestReplayedOnTheWire(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	sub := core.Subscription{Queue: "q", Bindings: []string{"a.*"}, RetryDelays: []time.Duration{20 * time.Millisecond}}
	r := subscribe(t, bus, sub)
	sent := amqp.Publishing{
		Headers: amqp.Table{"n": int32(5), "list": []any{"x"}}, ContentType: "text/plain", ContentEncoding: "gzip", Priority: 4,
		CorrelationId: "c", ReplyTo: "r", Expiration: "3600000",
		MessageId: "m", Timestamp: time.Unix(1000, 0), Type: "t", AppId: "app", Body: []byte("body"),
	}
	ch := testenv.Channel(t, mq.URL)
	if err := ch.PublishWithContext(t.Context(), "waybill", "a.b", true, false, sent); err != nil {
		t.Fatal(err)
	}
	d := receive(t, r, 1)[0]
	expires := d.Envelope.Expires
	settle(t, r, core.AckRetry(d, time.Millisecond, errors.New("first")))
	settle(t, r, core.AckReject(receive(t, r, 1)[0], waybill.ReasonAttempts, errors.New("no")))
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	parkedCount(t, bus, "q", 1)
	replayed := time.Until(expires) + time.Millisecond // rounded up
	if n, err := bus.ReplayParked(t.Context(), admin.ParkedRequest{Queue: "q", All: true}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	m, ok, err := ch.Get("q", false)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	for name := range m.Headers {
		if !slices.Contains([]string{"n", "list", "cloudEvents_topic", "cloudEvents_expirytime", "x-delivery-count"}, name) {
			t.Errorf("header %s: %v", name, m.Headers[name])
		}
	}
	if m.Headers["n"] != int32(5) || m.Headers["cloudEvents_topic"] != "a.b" || m.ContentType != "text/plain" ||
		m.ContentEncoding != "gzip" || m.Priority != 4 || m.CorrelationId != "c" ||
		m.ReplyTo != "r" || m.MessageId != "m" || m.Timestamp.Unix() != 1000 || m.Type != "t" || m.AppId != "app" ||
		string(m.Body) != "body" || m.DeliveryMode != 2 {
		t.Errorf("%+v", m)
	}
	if left := remaining(t, &m); left > replayed || left < replayed/2 {
		t.Errorf("%s left, want %s", left, replayed)
	}
}

func remaining(t *testing.T, m *amqp.Delivery) time.Duration {
	t.Helper()
	left, err := time.ParseDuration(m.Expiration + "ms")
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// CO-14: the copy in a delay queue keeps every property and the absolute expiry, and its time to live is what remains.
func TestRetriedOnTheWire(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}, RetryDelays: []time.Duration{time.Hour}})
	want := envelope("m", "a.b")
	want.Priority, want.CorrelationID, want.Headers = 7, "c", map[string]string{"h": "v"}
	want.Expires = time.Now().Add(2 * time.Hour).Truncate(time.Microsecond)
	if err := bus.Publish(t.Context(), []waybill.Envelope{want}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	d := receive(t, r, 1)[0]
	<-time.After(20 * time.Millisecond)                 // handling takes time
	most := time.Until(want.Expires) + time.Millisecond // rounded up
	settle(t, r, core.AckRetry(d, time.Minute, errors.New("later")))
	m, ok, err := testenv.Channel(t, mq.URL).Get("q.delay_1h", false)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if m.MessageId != "m" || m.ContentType != want.ContentType || m.Priority != 7 || m.CorrelationId != "c" || m.Type != want.Type ||
		m.AppId != want.Source || m.Headers["h"] != "v" ||
		m.Headers["cloudEvents_topic"] != "a.b" || m.Headers["waybill-attempt"] != int64(2) || m.Headers["waybill-error"] != "later" ||
		m.Headers["cloudEvents_expirytime"] != want.Expires.UTC().Format(time.RFC3339Nano) {
		t.Errorf("%+v", m)
	}
	if left := remaining(t, &m); left > most || left < most/2 {
		t.Errorf("%s left, want %s", left, most)
	}
}

// RM-08: a message that cannot be replayed stays parked, and the error says why.
func TestReplayWithoutTheWayBack(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	park(t, mq, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}}, envelopes(5, "a"))
	if err := testenv.Channel(t, mq.URL).QueueUnbind("q", "q.return", "waybill.dlx.q", nil); err != nil {
		t.Fatal(err)
	}
	n, err := bus.ReplayParked(t.Context(), admin.ParkedRequest{Queue: "q", All: true})
	if n != 0 || !errors.Is(err, waybill.ErrUnroutable) || !strings.Contains(err.Error(), "waybill.dlx.q") {
		t.Errorf("%d, %v", n, err)
	}
	if got := listed(t, bus, "q"); len(got) != 5 || got[0] != "m00000" {
		t.Errorf("parked are %v", got)
	}
}

// OR-09: with InOrder one of several receivers gets everything, in order, a message that is given back or was lost
// comes first again, and giving back often does not look like crashing.
func TestInOrder(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	sub := core.Subscription{Queue: "q", Bindings: []string{"#"}, InOrder: true, Prefetch: 3}
	one, two := dial(t, mq.URL, rabbitmq.Options{}), dial(t, mq.URL, rabbitmq.Options{})
	if !one.SubscriberTraits().SingleActive {
		t.Error("the traits do not say so")
	}
	active, waiting := subscribe(t, one, sub), subscribe(t, two, sub)
	if err := one.Publish(t.Context(), envelopes(10, "a")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		ds := receive(t, active, 3)
		if got := ids(ds); got != "m00000 m00001 m00002" {
			t.Fatalf("round %d: %s", i, got)
		}
		for _, d := range ds {
			if d.Redeliveries > 0 {
				t.Errorf("round %d: %d redeliveries", i, d.Redeliveries)
			}
		}
		settle(t, active, core.AckRelease(ds[0]), core.AckRelease(ds[1]), core.AckRelease(ds[2]))
	}
	if n := rabbitmq.UnackedOf(waiting); n > 0 {
		t.Errorf("the waiting one holds %d", n)
	}
	ds := receive(t, active, 3)
	settle(t, active, core.AckDone(ds[0]))
	if err := active.Close(t.Context()); err != nil { // holding two and a third
		t.Fatal(err)
	}
	for i := 1; i < 10; i++ {
		d := receive(t, waiting, 1)[0]
		if want := fmt.Sprintf("m%05d", i); d.Envelope.ID != want {
			t.Fatalf("got %s, want %s", d.Envelope.ID, want)
		}
		settle(t, waiting, core.AckDone(d))
	}
	_, err := one.Subscribe(t.Context(), core.Subscription{Queue: "q", Bindings: []string{"#"}})
	if !errors.Is(err, waybill.ErrMisconfigured) || !strings.Contains(err.Error(), "x-single-active-consumer") {
		t.Errorf("the same queue without order: %v", err)
	}
}

// OR-09: with InOrder what is given back comes before what the broker had pushed behind it already.
func TestInOrderGiveBackComesFirst(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}, InOrder: true, Prefetch: 10})
	if err := bus.Publish(t.Context(), envelopes(6, "a")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	ch := testenv.Channel(t, mq.URL)
	patience.Until(t, "everything is pushed", func() bool {
		q, err := ch.QueueDeclarePassive("q", true, false, false, false, nil)
		return err == nil && q.Messages == 0
	})
	ds := receive(t, r, 3)
	settle(t, r, core.AckRelease(ds[2]), core.AckRelease(ds[0]), core.AckDone(ds[1]))
	ds = receive(t, r, 5)
	if got := ids(ds); got != "m00000 m00002 m00003 m00004 m00005" {
		t.Errorf("got %s", got)
	}
	for _, d := range ds {
		settle(t, r, core.AckDone(d))
	}
	nothing(t, bus, r, "a")
}

// RM-08, OR-09: a parked message says how often it was tried, also when that was in place: there the consumer counts in
// the delivery.
func TestParkedAttemptsInPlace(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"#"}, InOrder: true})
	if err := bus.Publish(t.Context(), envelopes(1, "a")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	d := receive(t, r, 1)[0]
	d.Attempt = 3
	settle(t, r, core.AckReject(d, waybill.ReasonAttempts, errors.New("no")))
	var list []admin.Parked
	patience.Until(t, "parked", func() bool {
		var err error
		list, err = bus.ListParked(t.Context(), "q", admin.ParkedFilter{}, 1)
		return err == nil && len(list) == 1
	})
	if list[0].Attempts != 3 {
		t.Errorf("parked after 3 attempts, says %d", list[0].Attempts)
	}
}

// A batch that is done is acknowledged with few frames, and nothing else with it.
func TestBatchAcks(t *testing.T) {
	t.Parallel()
	mq := testenv.RabbitMQ(t)
	bus := dial(t, mq.URL, rabbitmq.Options{})
	sub := core.Subscription{Queue: "q", Bindings: []string{"#"}, Prefetch: 500}
	r := subscribe(t, bus, sub)
	if err := bus.Publish(t.Context(), envelopes(300, "a")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	ds := receive(t, r, 300)
	done := func(from, to int) (acks []core.Ack) {
		for _, d := range ds[from:to] {
			acks = append(acks, core.AckDone(d))
		}
		return acks
	}
	settle(t, r, done(0, 100)...)
	settle(t, r, append(done(110, 200), core.AckRetry(ds[105], 0, nil))...) // 100 to 109 are open still
	settle(t, r, done(100, 104)...)
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for _, d := range append(slices.Clone(ds[104:110]), ds[200:]...) {
		want[d.Envelope.ID] = true
	}
	r = subscribe(t, bus, sub)
	for _, d := range receive(t, r, len(want)) {
		if !want[d.Envelope.ID] {
			t.Errorf("%s came again", d.Envelope.ID)
		}
		delete(want, d.Envelope.ID)
		settle(t, r, core.AckDone(d))
	}
	nothing(t, bus, r, "a")
	if len(want) > 0 {
		t.Errorf("%d did not come again", len(want))
	}
}
