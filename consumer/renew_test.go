package consumer_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// limited is a bus whose broker takes back what is held for longer than a limit.
type limited struct {
	*bus
	renewable bool

	mu     sync.Mutex
	until  map[string]time.Time // by id
	over   []string             // taken back while it was held
	renews int
	fail   func(id string) error
	lost   string         // the id of a message that another consumer has and handles
	ended  []core.Verdict // about that one
}

const limit = 30 * time.Second

func newLimited(t *testing.T, renewable bool) *limited {
	t.Helper()
	l := &limited{bus: newBus(t), renewable: renewable, until: map[string]time.Time{}}
	l.traits = func(tr *core.SubscriberTraits) { tr.HoldFor = limit }
	return l
}

func (l *limited) Subscribe(ctx context.Context, sub core.Subscription) (core.Receiver, error) {
	r, err := l.bus.Subscribe(ctx, sub)
	if !l.renewable {
		return &limitedReceiver{Receiver: r, l: l}, err
	}
	return &renewer{limitedReceiver{Receiver: r, l: l}}, err
}

type limitedReceiver struct {
	core.Receiver
	l *limited
}

func (r *limitedReceiver) Receive(ctx context.Context, n int) ([]*waybill.Delivery, error) {
	ds, err := r.Receiver.Receive(ctx, n)
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	for _, d := range ds {
		r.l.until[d.Envelope.ID] = time.Now().Add(limit)
	}
	return ds, err
}

func (r *limitedReceiver) Settle(ctx context.Context, acks []core.Ack) core.Results {
	r.l.mu.Lock()
	lost := -1
	for i, a := range acks {
		id := a.Delivery.Envelope.ID
		if time.Now().After(r.l.until[id]) {
			r.l.over = append(r.l.over, id)
		}
		delete(r.l.until, id)
		if id == r.l.lost {
			lost = i
			r.l.ended = append(r.l.ended, a.Verdict)
			acks[i] = core.AckDone(a.Delivery)
		}
	}
	r.l.mu.Unlock()
	results := r.Receiver.Settle(ctx, acks)
	if lost >= 0 {
		results[lost] = errLost
	}
	return results
}

type renewer struct{ limitedReceiver }

func (r *renewer) RenewDeliveries(_ context.Context, ds []*waybill.Delivery, d time.Duration) core.Results {
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	r.l.renews++
	out := make(core.Results, len(ds))
	for i := range ds {
		id := ds[i].Envelope.ID
		if id == r.l.lost {
			out[i] = waybill.ErrLeaseLost
			continue
		}
		if r.l.fail != nil {
			if out[i] = r.l.fail(id); out[i] != nil {
				continue
			}
		}
		if _, ok := r.l.until[id]; ok {
			r.l.until[id] = time.Now().Add(d)
		}
	}
	return out
}

// CO-21: messages that wait, or that a slow handler has, are kept for as long as it takes. Afterwards nothing is
// renewed.
func TestSlowHandlersKeepTheirMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimited(t, true)
		flaky := 0
		l.fail = func(id string) error { // every other renewal of one message fails
			if id != "id-2" {
				return nil
			}
			if flaky++; flaky%2 == 0 {
				return nil
			}
			return errors.New("throttled")
		}
		c := newConsumer(t, l, consumer.Options{})
		h := waybill.Handler{Name: "note.added", Handle: func(ctx context.Context, _ *waybill.Delivery) (waybill.HandlerStatus, error) {
			select {
			case <-time.After(5 * limit):
				return waybill.HandlerProcessed, nil
			case <-ctx.Done():
				return waybill.HandlerProcessed, ctx.Err()
			}
		}}
		// two handlers at a time: the last of six messages waits for ten limits
		if err := c.Handle(waybill.Subscription{Queue: queue, Bindings: []string{"note.added"}, Concurrency: 2, Prefetch: 6}, h); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		synctest.Wait()
		l.publish(t, 6)
		patience.Pass(t, 16*limit)
		synctest.Wait()
		if n := l.verdicts()[core.VerdictDone]; n != 6 || len(l.over) > 0 {
			t.Errorf("%d of 6 handled; held too long: %v", n, l.over)
		}
		before := l.renews
		patience.Pass(t, 5*limit)
		if l.renews != before {
			t.Errorf("%d renewals although nothing is held", l.renews-before)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// CO-21: a handler whose message is another's ends, and the message is not counted as handled.
func TestLostAtRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(25*time.Second, "two renewals, one each ten seconds")
		l := newLimited(t, true)
		l.fail = func(string) error { return waybill.ErrLeaseLost }
		l.settle = func([]core.Ack) error { return errLost } // it says so, too
		var log sharedtest.Log
		reader := metric.NewManualReader()
		c := newConsumer(t, l, consumer.Options{
			Logger: slog.New(slog.NewJSONHandler(&log, nil)), MeterProvider: metric.NewMeterProvider(metric.WithReader(reader)),
		})
		causes := make(chan error, 1)
		h := waybill.Handler{Name: "note.added", Handle: func(ctx context.Context, _ *waybill.Delivery) (waybill.HandlerStatus, error) {
			<-ctx.Done()
			select {
			case causes <- context.Cause(ctx):
			default:
			}
			return waybill.HandlerProcessed, ctx.Err()
		}}
		if err := c.Handle(waybill.Subscription{Queue: queue, Bindings: []string{"note.added"}}, h); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		synctest.Wait()
		l.publish(t, 1)
		begin := time.Now()
		if cause := <-causes; !errors.Is(cause, waybill.ErrLeaseLost) || time.Since(begin) > limit/3+time.Second {
			t.Errorf("the handler's context ended with %v after %s", cause, time.Since(begin))
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if l.verdicts()[core.VerdictDone] > 0 {
			t.Error("it counts as handled")
		}
		if n := strings.Count(log.String(), `"level":"WARN"`); n != 1 || !strings.Contains(log.String(), `"phase":"renew"`) {
			t.Errorf("%d warnings of a loss, want one, with its phase:\n%s", n, log.String())
		}
		if n := counts(t, reader)["lease.lost{queue=q}"]; n != 1 {
			t.Errorf("the loss is counted %d times", n)
		}
	})
}

// CO-21 CO-06: a message that is lost while its handler runs is not tried again in the process: another consumer has
// it.
func TestLostIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimited(t, true)
		if err := l.Declare(queue, "#"); err != nil {
			t.Fatal(err)
		}
		l.fail = func(string) error { return waybill.ErrLeaseLost }
		l.settle = func([]core.Ack) error { return errLost }
		var ran atomic.Int32
		stop := start(t, l, consumer.Options{InProcess: waybill.RetryDelays(time.Second, time.Second)}, waybill.Subscription{},
			handle(func(ctx context.Context, _ *waybill.Delivery) error {
				ran.Add(1)
				<-ctx.Done()
				return errBoom // says nothing of the loss
			}))
		l.publish(t, 1)
		patience.Pass(t, limit)
		stop()
		if n := ran.Load(); n != 1 {
			t.Errorf("the handler ran %d times, want once", n)
		}
	})
}

// CO-21: a message that is lost before its handler begins never reaches one: another consumer has it. It is let go, so
// that its place and its key are free for others.
func TestLostBeforeItBegins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(2*limit, "two handlers, one after the other")
		l := newLimited(t, true)
		if err := l.Declare(queue, "#"); err != nil {
			t.Fatal(err)
		}
		l.lost = "id-2"
		var got seen[string]
		reader := metric.NewManualReader()
		o := consumer.Options{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))}
		stop := start(t, l, o, waybill.Subscription{Concurrency: 1, Prefetch: 3}, handle(func(_ context.Context, d *waybill.Delivery) error {
			got.add(d.Envelope.ID)
			time.Sleep(limit / 2) // a renewal is due meanwhile
			return nil
		}))
		l.publish(t, 4, waybill.Key("k")) // there is room for the last one after the lost one is let go
		patience.Pass(t, 3*limit)
		stop()
		if diff := cmp.Diff([]string{"id-1", "id-3", "id-4"}, got.all()); diff != "" {
			t.Error(diff)
		}
		if !slices.Equal(l.ended, []core.Verdict{core.VerdictRelease}) {
			t.Errorf("verdicts %v about the lost message", l.ended)
		}
		wantDepth(t, l.bus, memtransport.Depth{})
		if n := counts(t, reader)["lease.lost{queue=q}"]; n != 1 {
			t.Errorf("the loss is counted %d times", n)
		}
	})
}

// CO-21 IN-08: a message that is lost goes neither into a batch nor, after its batch failed, to the handler of one.
func TestLostOfABatch(t *testing.T) {
	t.Parallel()
	for name, held := range map[string]bool{"while the batch waits": true, "while the batch runs": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				patience.BudgetOf(t).Time(2*limit, "a handler and a batch, or a batch whose message is lost")
				l := newLimited(t, true)
				if err := l.Declare(queue, "#"); err != nil {
					t.Fatal(err)
				}
				l.lost = "id-2"
				var got batches
				h := got.handler(3, nil, nil)
				record := h.Batch
				h.Batch = func(ctx context.Context, ds []*waybill.Delivery) ([]waybill.HandlerStatus, error) {
					st, err := record(ctx, ds)
					if !held { // until the loss is known
						<-ctx.Done()
						return nil, ctx.Err()
					}
					return st, err
				}
				other := waybill.Handler{Name: "other", Handle: func(context.Context, *waybill.Delivery) (waybill.HandlerStatus, error) {
					time.Sleep(limit / 2)
					return waybill.HandlerProcessed, nil
				}}
				if held {
					first := messages(1, waybill.ID("first"))[0]
					first.Topic, first.Type = "other", "other"
					l.send(t, first)
				}
				l.publish(t, 3)
				stop := start(t, l, consumer.Options{}, waybill.Subscription{Concurrency: 1, Prefetch: 4}, h, other)
				patience.Pass(t, 3*limit)
				stop()
				batched := [][]string{idsFrom(1, 3)}
				if held {
					batched = nil
				}
				if diff := cmp.Diff(batched, got.all()); diff != "" {
					t.Error(diff)
				}
				if diff := cmp.Diff([]string{"id-1", "id-3"}, got.alone.all()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// CO-21 OR-09: a message that is lost while it waits for its retry in place is not tried again. Its key goes on.
func TestLostBeforeItsRetryInPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		patience.BudgetOf(t).Time(limit, "a retry in place")
		l := newLimited(t, true)
		if err := l.Declare(queue, "#"); err != nil {
			t.Fatal(err)
		}
		l.lost = "id-1"
		var got seen[string]
		sub := waybill.Subscription{InOrder: true, Retry: waybill.RetryDelays(limit / 2)}
		stop := start(t, l, consumer.Options{}, sub, handle(func(_ context.Context, d *waybill.Delivery) error {
			got.add(d.Envelope.ID)
			if d.Envelope.ID == "id-1" {
				return errBoom
			}
			return nil
		}))
		l.publish(t, 2, waybill.Key("k"))
		patience.Pass(t, 3*limit)
		stop()
		if diff := cmp.Diff([]string{"id-1", "id-2"}, got.all()); diff != "" {
			t.Error(diff)
		}
	})
}

// CO-21: where the transport cannot renew, one line per message warns before the limit.
func TestWarnsBeforeTheLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimited(t, false)
		var log sharedtest.Log
		c := newConsumer(t, l, consumer.Options{Logger: slog.New(slog.NewJSONHandler(&log, nil))})
		h := waybill.Handler{Name: "note.added", Handle: func(_ context.Context, d *waybill.Delivery) (waybill.HandlerStatus, error) {
			if d.Envelope.ID == "id-1" {
				time.Sleep(limit / 2)
			} else {
				time.Sleep(2 * limit)
			}
			return waybill.HandlerProcessed, nil
		}}
		if err := c.Handle(waybill.Subscription{Queue: queue, Bindings: []string{"note.added"}}, h); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		synctest.Wait()
		l.publish(t, 2)
		patience.Pass(t, limit-time.Second)
		if n := strings.Count(log.String(), "consumer.held_long"); n != 1 || !strings.Contains(log.String(), "id-2") {
			t.Errorf("%d warnings before the limit, want one of id-2:\n%s", n, log.String())
		}
		patience.Pass(t, 2*limit)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "consumer.held_long"); n != 1 {
			t.Errorf("%d warnings, want one", n)
		}
	})
}
