package transporttest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
	"github.com/waybill-go/waybill/hlc"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sleep"
)

const (
	stands = 20 * time.Second       // how long nothing may move on an idle machine
	quiet  = 300 * time.Millisecond // for an event that must not come
	tier1  = 250 * time.Millisecond // the retry delays of the suite's subscriptions
	tier2  = time.Second
)

// kit is what a check works with. Its methods give up the check when something fails.
type kit struct {
	ctx        context.Context //nolint:containedctx // a kit lives as long as one check
	h          Harness
	publisher  core.Publisher
	subscriber core.Subscriber
	pub        core.PublisherTraits
	sub        core.SubscriberTraits
	calls      atomic.Int64
	mu         sync.Mutex
	receivers  []core.Receiver
	lines      map[string]*line // of queues
	seen       map[string]bool  // markers, by queue and id
	marks      int
}

// patient returns a context that ends when nothing has moved for a while, and for d beside.
func (k *kit) patient(d time.Duration) (ctx context.Context, moved func(), cancel context.CancelFunc) {
	ctx, cancel = context.WithCancel(k.ctx)
	ctx, moved = patience.Context(ctx, stands+d)
	return ctx, moved, cancel
}

// within returns a context for one call.
func (k *kit) within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(k.ctx, patience.For(stands))
}

// newKit returns a kit on h: on the helper, where a direction is not under test.
func newKit(ctx context.Context, h Harness) *kit {
	k := &kit{ctx: ctx, h: h}
	p, s := h.Publisher, h.Subscriber
	if p == nil {
		p = h.Writer
	}
	if s == nil {
		s = h.Reader
	}
	k.failIf(h.Publisher == nil && h.Subscriber == nil || p == nil || s == nil,
		"the harness needs Publisher and Subscriber, or Publisher and Reader, or Subscriber and Writer")
	k.publisher, k.subscriber = guardedPublisher{p, k}, guardedSubscriber{s, k}
	k.pub, k.sub = p.Traits(), s.SubscriberTraits()
	return k
}

// name returns a name that the broker has not seen.
func (k *kit) name() string {
	if k.h.NewName != nil {
		return k.h.NewName()
	}
	return "t" + strings.ToLower(rand.Text()[:15])
}

func (k *kit) must(what string, err error) {
	k.failIf(err != nil, "%s: %w", what, err)
}

// needs skips the check unless the adapter declares what, or the harness has it.
func (k *kit) needs(declared bool, what string) {
	if !declared {
		k.fail("%w: %s", ErrNotDeclared, what)
	}
}

func (k *kit) close() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(k.ctx), patience.For(stands))
	defer cancel()
	k.mu.Lock()
	receivers := slices.Clone(k.receivers)
	k.mu.Unlock()
	for _, r := range receivers {
		_ = suitetest.Guard(func() { _ = r.Close(ctx) })
	}
}

// subscription returns one for queue with the suite's retry delays.
func subscription(queue string, bindings ...string) core.Subscription {
	return core.Subscription{
		Queue: queue, Bindings: bindings, Concurrency: 10, Prefetch: 50, MaxDeliveries: 20,
		RetryDelays: []time.Duration{tier1, tier2},
	}
}

func (k *kit) subscribe(queue string, bindings ...string) core.Receiver {
	return k.subscribeTo(subscription(queue, bindings...))
}

func (k *kit) subscribeTo(sub core.Subscription) core.Receiver {
	r, err := k.subscriber.Subscribe(k.ctx, sub) // a receiver lives as long as this context
	k.must("subscribe to queue "+sub.Queue, err)
	return r
}

// queue subscribes to a new queue with bindings "<name>.<suffix>", and returns its name too.
func (k *kit) queue(suffixes ...string) (core.Receiver, string) {
	name := k.name()
	bindings := make([]string, len(suffixes))
	for i, s := range suffixes {
		bindings[i] = name + "." + s
	}
	return k.subscribe(name, bindings...), name
}

// send publishes and returns the results, one a message.
func (k *kit) send(batch []waybill.Envelope) core.Results {
	ctx, cancel := k.within()
	defer cancel()
	return k.publisher.Publish(ctx, batch)
}

// batch returns how many of n messages one publish takes.
func (k *kit) batch(n int) int {
	if k.pub.MaxBatch > 0 {
		return min(n, k.pub.MaxBatch)
	}
	return n
}

// publish publishes what must succeed, in calls of at most MaxBatch and MaxBatchBytes.
func (k *kit) publish(batch ...waybill.Envelope) {
	for len(batch) > 0 {
		n, bytes := 1, batch[0].Size()
		for n < k.batch(len(batch)) {
			if bytes += batch[n].Size(); k.pub.MaxBatchBytes > 0 && bytes > k.pub.MaxBatchBytes {
				break
			}
			n++
		}
		for i, err := range k.send(batch[:n]) {
			k.must("publish "+batch[i].ID, err)
		}
		batch = batch[n:]
	}
}

// receive returns n deliveries.
func (k *kit) receive(r core.Receiver, n int) []*waybill.Delivery {
	ctx, moved, cancel := k.patient(0)
	defer cancel()
	got, err := collect(ctx, r, n, func([]*waybill.Delivery) error { moved(); return nil })
	k.failIf(err != nil, "received %d of %d messages (%s): %w", len(got), n, ids(got), err)
	return got
}

// consume receives n deliveries and settles them as done.
func (k *kit) consume(r core.Receiver, n int) []*waybill.Delivery {
	ctx, moved, cancel := k.patient(0)
	defer cancel()
	got, err := collect(ctx, r, n, func(ds []*waybill.Delivery) error {
		moved()
		return settle(ctx, r, acks(core.AckDone, ds...)...)
	})
	k.failIf(err != nil, "received and settled %d of %d messages: %w", len(got), n, err)
	return got
}

// collect calls Receive until n deliveries came and passes them to each as they come. An outage is waited out.
func collect(ctx context.Context, r core.Receiver, n int, each func([]*waybill.Delivery) error) ([]*waybill.Delivery, error) {
	var got []*waybill.Delivery
	outage := false
	for len(got) < n {
		ds, err := r.Receive(ctx, n-len(got))
		got = append(got, ds...)
		if err == nil {
			if len(ds) == 0 && !outage {
				return got, errors.New("receive returned neither a delivery nor an error, and no outage has ended")
			}
			outage = false
			if err := each(ds); err != nil {
				return got, err
			}
			continue
		}
		if waybill.ClassOf(err) != waybill.ClassOutage || isClosed(err) || ctx.Err() != nil {
			return got, err
		}
		outage = true
		if err := sleep.For(ctx, 50*time.Millisecond); err != nil {
			return got, err
		}
	}
	return got, nil
}

func isClosed(err error) bool { return errors.Is(err, waybill.ErrClosed) }

// settle settles what must succeed.
func (k *kit) settle(r core.Receiver, a ...core.Ack) {
	k.must("settle", settle(k.ctx, r, a...))
}

func settle(ctx context.Context, r core.Receiver, a ...core.Ack) error {
	ctx, cancel := context.WithTimeout(ctx, patience.For(stands))
	defer cancel()
	return r.Settle(ctx, a).FirstErr()
}

func acks(verdict func(*waybill.Delivery) core.Ack, ds ...*waybill.Delivery) []core.Ack {
	out := make([]core.Ack, len(ds))
	for i, d := range ds {
		out[i] = verdict(d)
	}
	return out
}

// closeReceiver closes what must close.
func (k *kit) closeReceiver(r core.Receiver) {
	ctx, cancel := k.within()
	defer cancel()
	k.must("close receiver", r.Close(ctx))
}

// each runs fn n times at once and gives up with the first error.
func (k *kit) each(n int, fn func(i int) error) {
	suitetest.Parallel(n, func(i int) { k.must("concurrently", fn(i)) })
}

// message returns a small message for topic.
func message(topic string, i int) waybill.Envelope {
	return waybill.Envelope{
		ID: fmt.Sprintf("%s/%d", topic, i), Topic: topic, Type: topic, Source: "/transporttest", ContentType: "text/plain",
		Body: fmt.Appendf(nil, "body %d", i),
	}
}

func messages(topic string, n int) []waybill.Envelope {
	out := make([]waybill.Envelope, n)
	for i := range out {
		out[i] = message(topic, i)
	}
	return out
}

// full returns a message that uses every field.
func full(topic string) waybill.Envelope {
	return waybill.Envelope{
		ID: waybill.NewID(), Topic: topic, Type: "shop.order.placed.v2", Source: "/transporttest", Subject: "order-42",
		Time: time.Date(2024, 2, 29, 12, 34, 56, 123457000, time.UTC), ContentType: "application/json; charset=utf-8", Key: "order-42",
		Tenant: "acme", CorrelationID: "corr-1", CausationID: "cause-1", RunID: "run-1", Lineage: []string{"grand,parent", "parent%2C"},
		HLC: hlc.Timestamp(1_700_000_000_123<<16 | 7), Expires: time.Now().Add(time.Hour).UTC().Truncate(time.Second).Add(123457 * time.Microsecond),
		Priority: 5, TraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", TraceState: "congo=t61rcWkgMzE",
		Headers: map[string]string{"region": "eu", "Region": "EU"}, Body: []byte(`{"total":1}`),
	}
}

// same gives up if got is not want. An absent source may have been replaced by the broker's application id.
func (k *kit) same(want, got waybill.Envelope, where string) {
	if want.Source == "" {
		got.Source = ""
	}
	d := diff(want, got)
	k.failIf(d != "", "%s: %s", where, d)
}

// diff names the fields that differ; nil and empty are the same.
func diff(want, got waybill.Envelope) string {
	var out []string
	w, g := reflect.ValueOf(want), reflect.ValueOf(got)
	for i := range w.NumField() {
		a, b := w.Field(i), g.Field(i)
		equal := reflect.DeepEqual(a.Interface(), b.Interface())
		if x, ok := reflect.TypeAssert[time.Time](a); ok {
			y, _ := reflect.TypeAssert[time.Time](b)
			equal = x.Equal(y)
		} else if a.Kind() == reflect.Slice || a.Kind() == reflect.Map {
			equal = equal || a.Len() == 0 && b.Len() == 0
		}
		if !equal {
			out = append(out, fmt.Sprintf("%s is %s, want %s", w.Type().Field(i).Name, short(b), short(a)))
		}
	}
	return strings.Join(out, "; ")
}

func short(v reflect.Value) string {
	if b, ok := reflect.TypeAssert[[]byte](v); ok && len(b) > 40 {
		return fmt.Sprintf("%d bytes", len(b))
	}
	if s := fmt.Sprintf("%#v", v.Interface()); len(s) < 300 {
		return s
	}
	return fmt.Sprintf("a %s of length %d", v.Type(), v.Len())
}

func ids(ds []*waybill.Delivery) string {
	out := make([]string, 0, len(ds))
	for _, d := range ds {
		if len(out) == 20 {
			out = append(out, "...")
			break
		}
		out = append(out, d.Envelope.ID)
	}
	return strings.Join(out, " ")
}

// exactly gives up unless ds are the wanted messages, each once, in any order.
func (k *kit) exactly(want []waybill.Envelope, ds []*waybill.Delivery) {
	left := make(map[string]int, len(want))
	for i := range want {
		left[want[i].ID]++
	}
	for _, d := range ds {
		switch n, ok := left[d.Envelope.ID]; {
		case !ok:
			k.fail("message %s came, which should not", d.Envelope.ID)
		case n == 0:
			k.fail("message %s came twice", d.Envelope.ID)
		}
		left[d.Envelope.ID]--
	}
	for id, n := range left {
		k.failIf(n > 0, "message %s did not come", id)
	}
}
