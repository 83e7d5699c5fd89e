package redisstreams_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	"github.com/waybill-go/waybill/internal/testenv"
	"github.com/waybill-go/waybill/transport/redisstreams"
)

// queueKeys counts the entries that the server keeps of a queue.
type queueKeys struct {
	tb     testing.TB
	client redis.UniversalClient
	bus    string
}

func (q queueKeys) key(kind, queue string) string { return "{" + q.bus + "}:" + kind + ":" + queue }

func (q queueKeys) len(kind, queue string) int64 {
	q.tb.Helper()
	n, err := q.client.XLen(q.tb.Context(), q.key(kind, queue)).Result()
	if err != nil {
		q.tb.Fatal(err)
	}
	return n
}

func (q queueKeys) pending(queue string) int64 {
	q.tb.Helper()
	p, err := q.client.XPending(q.tb.Context(), q.key("queue", queue), "waybill").Result()
	if err != nil {
		q.tb.Fatal(err)
	}
	return p.Count
}

// endHolds makes all holds of the queue as old as hold, and ends the time of its active receiver. So a hold can be
// long, and a test need not be faster than it.
func (q queueKeys) endHolds(queue string, hold time.Duration) {
	q.tb.Helper()
	ctx, key := q.tb.Context(), q.key("queue", queue)
	list, err := q.client.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: key, Group: "waybill", Start: "-", End: "+", Count: 1000}).Result()
	if err != nil {
		q.tb.Fatal(err)
	}
	for _, p := range list {
		if err := q.client.Do(ctx, "XCLAIM", key, "waybill", p.Consumer, 0, p.ID, "IDLE", hold.Milliseconds(), "JUSTID").Err(); err != nil {
			q.tb.Fatal(err)
		}
	}
	if err := q.client.Del(ctx, q.key("active", queue)).Err(); err != nil {
		q.tb.Fatal(err)
	}
}

// bare returns a receiver of a process of its own that dies without a word: its connections are cut, and stay so.
func bare(t *testing.T, url string, opts redisstreams.Options, sub core.Subscription) (core.Receiver, *testenv.Proxy) {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := testenv.NewProxy(t, o.Addr)
	return subscribe(t, dial(t, proxy.URL(url), opts), sub), proxy
}

func die(p *testenv.Proxy) {
	p.Refuse()
	p.Cut()
}

// TR-04: the deliveries of a dead receiver come again, oldest first, before new messages. Each death counts as a
// redelivery; releases, in any number, do not; neither is an attempt.
func TestCountsAreExact(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	opts := prepared(redisstreams.Options{HoldFor: time.Hour})
	sub := core.Subscription{Queue: "q", Bindings: []string{"a"}}
	r := subscribe(t, dial(t, url, opts), sub)
	keys := queueKeys{t, raw(t, url), opts.Bus}
	publish(t, dial(t, url, opts), envelopes(4, "a")...)
	check := func(ds []*waybill.Delivery, want string, attempt, redeliveries int) {
		t.Helper()
		if got := ids(ds); got != want {
			t.Fatalf("received %s, want %s", got, want)
		}
		for _, d := range ds {
			if d.Attempt != attempt || d.Redeliveries != redeliveries {
				t.Fatalf("%s: attempt %d, redeliveries %d; want %d and %d", d.Envelope.ID, d.Attempt, d.Redeliveries, attempt, redeliveries)
			}
		}
	}
	for range 5 {
		ds := receive(t, r, 3)
		check(ds, "m00000 m00001 m00002", 1, 0)
		settle(t, r, core.AckRelease(ds[2]), core.AckRelease(ds[0]), core.AckRelease(ds[1]))
	}
	const all = "m00000 m00001 m00002 m00003"
	release := func(ds []*waybill.Delivery) {
		t.Helper()
		var acks []core.Ack
		for _, d := range ds {
			acks = append(acks, core.AckRelease(d))
		}
		settle(t, r, acks...)
	}
	for death := range 3 {
		dead, proxy := bare(t, url, opts, sub)
		check(receive(t, dead, 4), all, 1, death)
		die(proxy)
		keys.endHolds("q", opts.HoldFor)
		redisstreams.LookForDead(r)
		ds := receive(t, r, 4)
		check(ds, all, 1, death+1)
		release(ds)
	}
	publish(t, dial(t, url, opts), envelope("new", "a"))
	ds := receive(t, r, 5)
	check(ds[:4], all, 1, 3)
	check(ds[4:], "new", 1, 0)
	settle(t, r, core.AckDone(ds[4]), core.AckRetry(ds[0], 20*time.Millisecond, errors.New("no")), core.AckDone(ds[1]), core.AckDone(ds[2]), core.AckDone(ds[3]))
	ds = receive(t, r, 1)
	check(ds, "m00000", 2, 0)
	settle(t, r, core.AckRelease(ds[0]))
	ds = receive(t, r, 1)
	check(ds, "m00000", 2, 0)
	settle(t, r, core.AckDone(ds[0]))
}

// TR-04: the stream holds only messages that are not done, and nothing that is unread or pending is ever removed.
func TestStreamHoldsWhatIsNotDone(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	opts := prepared(redisstreams.Options{})
	bus := dial(t, url, opts)
	r := subscribe(t, bus, core.Subscription{Queue: "q", Bindings: []string{"a"}})
	keys := queueKeys{t, raw(t, url), opts.Bus}
	const n = 5000
	all := envelopes(n, "a")
	publish(t, bus, all[:n/2]...)
	for some := range slices.Chunk(all[n/2:], 25) { // by the script
		publish(t, bus, some...)
	}
	if got := keys.len("queue", "q"); got != n {
		t.Fatalf("%d of %d unread messages are there", got, n)
	}
	ds := receive(t, r, n/2)
	var acks []core.Ack
	for i, d := range ds {
		switch i % 5 {
		case 0:
			acks = append(acks, core.AckRetry(d, time.Hour, nil))
		case 1:
			acks = append(acks, core.AckReject(d, waybill.ReasonRejected, nil))
		case 2:
			acks = append(acks, core.AckDone(d))
		case 3:
			acks = append(acks, core.AckRelease(d))
		}
	}
	settle(t, r, acks...)
	const part = n / 10
	for kind, want := range map[string]int64{"queue": n/2 + 2*part, "delayed": part, "parked": part} {
		if got := keys.len(kind, "q"); got != want {
			t.Errorf("%s: %d entries, want %d", kind, got, want)
		}
	}
	if got := keys.pending("q"); got != 2*part {
		t.Errorf("%d are pending, want %d", got, 2*part)
	}
	for i, d := range ds {
		if i%5 == 4 {
			settle(t, r, core.AckDone(d))
		}
	}
	for left := n/2 + part; left > 0; {
		ds, err := r.Receive(t.Context(), 300)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range ds {
			settle(t, r, core.AckDone(d))
		}
		left -= len(ds)
	}
	if got := keys.len("queue", "q") + keys.pending("q"); got != 0 {
		t.Errorf("%d are left", got)
	}
}

// TR-04: a receiver that was taken for dead cannot settle a delivery of another one, with any verdict.
func TestSettleIsFenced(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	opts := prepared(redisstreams.Options{HoldFor: time.Hour})
	bus := dial(t, url, opts)
	sub := core.Subscription{Queue: "q", Bindings: []string{"a"}}
	slow, other := subscribe(t, bus, sub), subscribe(t, bus, sub)
	keys := queueKeys{t, raw(t, url), opts.Bus}
	publish(t, bus, envelopes(4, "a")...)
	old := receive(t, slow, 4)
	keys.endHolds("q", opts.HoldFor)
	now := receive(t, other, 4)
	acks := []core.Ack{
		core.AckDone(old[0]), core.AckRetry(old[1], time.Hour, nil), core.AckReject(old[2], waybill.ReasonRejected, nil), core.AckRelease(old[3]),
	}
	for i, err := range slow.Settle(t.Context(), acks) {
		if !errors.Is(err, waybill.ErrLeaseLost) {
			t.Errorf("settle %d: %v", i, err)
		}
	}
	if keys.len("queue", "q") != 4 || keys.len("parked", "q")+keys.len("delayed", "q") != 0 {
		t.Error("a receiver settled what was another's")
	}
	renewer, _ := core.As[core.DeliveryRenewer](slow)
	for i, err := range renewer.RenewDeliveries(t.Context(), old, time.Second) {
		if !errors.Is(err, waybill.ErrLeaseLost) {
			t.Errorf("renew %d: %v", i, err)
		}
	}
	for _, d := range now {
		if d.Redeliveries != 1 {
			t.Errorf("%s: %d redeliveries", d.Envelope.ID, d.Redeliveries)
		}
		settle(t, other, core.AckDone(d))
	}
}

// OR-09: with InOrder the next receiver gets the oldest messages first when the active one dies, and those behind them.
func TestInOrderTakeOver(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	opts := prepared(redisstreams.Options{HoldFor: time.Hour})
	sub := core.Subscription{Queue: "q", Bindings: []string{"a"}, InOrder: true}
	dead, proxy := bare(t, url, opts, sub)
	publish(t, dial(t, url, opts), envelopes(6, "a")...)
	settle(t, dead, core.AckDone(receive(t, dead, 4)[1]))
	next, asked := watched(t, url, opts, sub)
	getsNothing(t, next, asked)
	die(proxy)
	queueKeys{t, raw(t, url), opts.Bus}.endHolds("q", opts.HoldFor)
	ds := receive(t, next, 5)
	if got := ids(ds); got != "m00000 m00002 m00003 m00004 m00005" {
		t.Fatal(got)
	}
	settle(t, next, core.AckRelease(ds[3]), core.AckRelease(ds[1]))
	if got := ids(receive(t, next, 2)); got != "m00002 m00004" {
		t.Fatal(got)
	}
}

// watched returns a receiver, and how often the server has answered it.
func watched(t *testing.T, url string, opts redisstreams.Options, sub core.Subscription) (core.Receiver, *answers) {
	t.Helper()
	client, asked := raw(t, url), new(answers)
	client.AddHook(asked)
	bus, err := redisstreams.New(client, opts)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, bus)
	return subscribe(t, bus, sub), asked
}

// answers counts the scripts that a client has run.
type answers struct{ n atomic.Int64 }

func (*answers) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*answers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (a *answers) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if strings.HasPrefix(cmd.Name(), "eval") && err == nil {
			a.n.Add(1)
		}
		return err
	}
}

// getsNothing fails the test if r, which is not active, gets a message: it lets r ask the server twice.
func getsNothing(t *testing.T, r core.Receiver, asked *answers) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan []*waybill.Delivery)
	go func() {
		ds, _ := r.Receive(ctx, 1)
		got <- ds
	}()
	before := asked.n.Load()
	patience.Until(t, "it has asked twice", func() bool { return asked.n.Load() >= before+2 })
	cancel()
	if ds := <-got; len(ds) > 0 {
		t.Fatalf("two receivers are active: %s", ids(ds))
	}
}

// OR-09: with InOrder the active receiver stays so for as long as it renews what it holds, however long it asks for
// nothing more.
func TestInOrderRenewed(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	opts := prepared(redisstreams.Options{HoldFor: time.Hour})
	sub := core.Subscription{Queue: "q", Bindings: []string{"a"}, InOrder: true, Prefetch: 1}
	active := subscribe(t, dial(t, url, opts), sub)
	next, asked := watched(t, url, opts, sub)
	keys := queueKeys{t, raw(t, url), opts.Bus}
	publish(t, dial(t, url, opts), envelopes(2, "a")...)
	ds := receive(t, active, 1)
	renewer, _ := core.As[core.DeliveryRenewer](active)
	for range 3 { // most of HoldFor has passed
		if ok, err := keys.client.PExpire(t.Context(), keys.key("active", "q"), 10*time.Minute).Result(); err != nil || !ok {
			t.Fatal(ok, err)
		}
		if err := renewer.RenewDeliveries(t.Context(), ds, opts.HoldFor).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if left, err := keys.client.PTTL(t.Context(), keys.key("active", "q")).Result(); err != nil || left < opts.HoldFor/2 {
			t.Fatalf("it is active for another %s only: %v", left, err)
		}
	}
	getsNothing(t, next, asked)
	settle(t, active, core.AckDone(ds[0]))
}

// OR-09: with InOrder the next receiver need not wait for HoldFor when the active one closes.
func TestInOrderLeaves(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	opts := prepared(redisstreams.Options{HoldFor: time.Hour})
	sub := core.Subscription{Queue: "q", Bindings: []string{"a"}, InOrder: true}
	active, next := subscribe(t, dial(t, url, opts), sub), subscribe(t, dial(t, url, opts), sub)
	keys := queueKeys{t, raw(t, url), opts.Bus}
	publish(t, dial(t, url, opts), envelopes(2, "a")...)
	receive(t, active, 1)
	if err := active.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if name, err := keys.client.Get(t.Context(), keys.key("active", "q")).Result(); name != "" || err != nil && !errors.Is(err, redis.Nil) {
		t.Fatalf("%q is active: %v", name, err)
	}
	if got := ids(receive(t, next, 2)); got != "m00000 m00001" {
		t.Error(got)
	}
}

// TR-04: a queue at its bound takes nothing more, which is an outage of its topic alone, and never drops anything. A
// message for a full queue and another one goes to neither.
func TestMaxLen(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	opts := prepared(redisstreams.Options{MaxLen: 3})
	bus := dial(t, url, opts)
	r := subscribe(t, bus, core.Subscription{Queue: "small", Bindings: []string{"a"}})
	large := subscribe(t, bus, core.Subscription{Queue: "large", Bindings: []string{"a.#", "b"}})
	keys := queueKeys{t, raw(t, url), opts.Bus}
	batch := envelopes(5, "a")
	batch[4].Topic = "b"
	batch[3].Key, batch[4].Key = "k", "k"
	res := bus.Publish(t.Context(), batch)
	full, ok := errors.AsType[*waybill.Error](res[3])
	if res[:3].FirstErr() != nil || !ok || full.Class != waybill.ClassOutage || !full.TopicOnly || !errors.Is(res[4], waybill.ErrPredecessorFailed) {
		t.Fatal(res)
	}
	if s, l := keys.len("queue", "small"), keys.len("queue", "large"); s != 3 || l != 3 {
		t.Fatalf("%d and %d messages", s, l)
	}
	settle(t, r, core.AckDone(receive(t, r, 1)[0]))
	if err := bus.Publish(t.Context(), batch[3:4])[0]; err == nil || keys.len("queue", "small") != 2 {
		t.Fatalf("a message went to one queue of two: %v", err)
	}
	settle(t, large, core.AckDone(receive(t, large, 1)[0]))
	publish(t, bus, batch[3])
}

// TR-04: a publisher whose copy of the bindings is old finds out before it sends: the bindings of that moment count.
func TestBindingsAreCurrent(t *testing.T) {
	t.Parallel()
	url := testenv.Redis(t)
	opts := prepared(redisstreams.Options{})
	pub, other := dial(t, url, opts), dial(t, url, opts)
	for i := range 5 {
		if err := pub.Publish(t.Context(), envelopes(1, fmt.Sprint("t", i)))[0]; !errors.Is(err, waybill.ErrUnroutable) {
			t.Fatal(err)
		}
		queue := fmt.Sprint("q", i)
		r := subscribe(t, other, core.Subscription{Queue: queue, Bindings: []string{fmt.Sprint("t", i), "all"}})
		publish(t, pub, envelopes(1, fmt.Sprint("t", i))...)
		settle(t, r, core.AckDone(receive(t, r, 1)[0]))
	}
	publish(t, pub, envelopes(300, "all")...)
	c := raw(t, url)
	keys := queueKeys{t, c, opts.Bus}
	for i := range 5 {
		if n := keys.len("queue", fmt.Sprint("q", i)); n != 300 {
			t.Errorf("queue %d has %d copies", i, n)
		}
	}
	// How docs/redis.md removes a queue.
	pipe := c.TxPipeline()
	pipe.SRem(t.Context(), "{"+opts.Bus+"}:bindings", redisstreams.BindingOf("q0", "t0"), redisstreams.BindingOf("q0", "all"))
	pipe.Set(t.Context(), "{"+opts.Bus+"}:version", "another", 0)
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	res := pub.Publish(t.Context(), slices.Concat(envelopes(1, "t0"), envelopes(1, "t1")))
	if !errors.Is(res[0], waybill.ErrUnroutable) || res[1] != nil {
		t.Error(res)
	}
}

// CO-03, CO-26: bodies that become large at once do not come together: sixteen messages are read at a time.
func TestReceiveIsBounded(t *testing.T) {
	t.Parallel()
	sharedtest.ReceiveIsBounded(t, dial(t, testenv.Redis(t), prepared(redisstreams.Options{HoldFor: time.Hour})), 16)
}
