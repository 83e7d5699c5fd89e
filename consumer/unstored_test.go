package consumer_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/consumer"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/patience"
	"github.com/waybill-go/waybill/internal/sharedtest"
	memtransport "github.com/waybill-go/waybill/transport/memory"
)

// failing returns a function for bus.settle that fails acks of a verdict for d.
func failing(v core.Verdict, d time.Duration) func([]core.Ack) error {
	until := time.Now().Add(d)
	return func(acks []core.Ack) error {
		if acks[0].Verdict == v && time.Now().Before(until) {
			return errBoom
		}
		return nil
	}
}

// CO-18: a verdict that could not be stored is stored again. Its handler does not run again, its key waits, and the
// subscription is paused and says so.
func TestVerdictIsStoredAgain(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		verdict core.Verdict
		inOrder bool
		err     error
		want    memtransport.Depth
	}{
		{core.VerdictReject, false, waybill.Reject(errBoom), memtransport.Depth{Parked: 1}},
		{core.VerdictReject, true, waybill.Reject(errBoom), memtransport.Depth{Parked: 1}},
		{core.VerdictRetry, false, waybill.RetryAfter(errBoom, time.Hour), memtransport.Depth{Delayed: 1}},
		{core.VerdictDone, false, nil, memtransport.Depth{}},
	} {
		t.Run(fmt.Sprint(tc.verdict, tc.inOrder), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := declared(t)
				b.settle = failing(tc.verdict, time.Minute)
				var runs seen[string]
				c := newConsumer(t, b, consumer.Options{})
				sub := waybill.Subscription{Queue: queue, InOrder: tc.inOrder}
				if err := c.Handle(sub, handle(func(_ context.Context, d *waybill.Delivery) error {
					runs.add(d.Envelope.ID)
					if d.Envelope.ID == "id-1" {
						return tc.err
					}
					return nil
				})); err != nil {
					t.Fatal(err)
				}
				stop := run(t, c)
				b.publish(t, 1, waybill.Key("k"))
				settle()
				b.send(t, messages(3, waybill.Key("k"))[1:]...)
				patience.Pass(t, 30*time.Second)
				if got := runs.all(); !cmp.Equal(got, []string{"id-1"}) {
					t.Errorf("%v were handled before the verdict was stored", got)
				}
				h := c.Health(t.Context())
				if check, _ := h.Check("queue " + queue); check.Status != waybill.HealthDegraded {
					t.Errorf("health: %s", h)
				}
				patience.Pass(t, time.Minute)
				if diff := cmp.Diff([]string{"id-1", "id-2", "id-3"}, runs.all()); diff != "" {
					t.Error(diff)
				}
				if h := c.Health(t.Context()); !h.Ready {
					t.Errorf("health: %s", h)
				}
				wantDepth(t, b, tc.want)
				stop()
			})
		})
	}
}

// CO-05: a broker that takes no copies, as RabbitMQ during an alarm, keeps no subscription paused: a message that
// cannot be sent away goes back. One that meets outages alone comes again seldom all the same.
func TestOutageWithoutCopies(t *testing.T) {
	t.Parallel()
	for _, alone := range []bool{false, true} {
		t.Run(fmt.Sprint("alone ", alone), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := declared(t)
				began := time.Now()
				b.settle = func(acks []core.Ack) error {
					if d := time.Since(began); acks[0].Verdict == core.VerdictRetry && (!alone || d > time.Minute) {
						return errBoom
					}
					return nil
				}
				var good seen[string]
				stop := start(t, b, consumer.Options{Concurrency: 2}, waybill.Subscription{}, handle(func(_ context.Context, d *waybill.Delivery) error {
					if time.Since(began) < 5*time.Minute && (!alone || d.Envelope.ID == "id-2") {
						return waybill.Outage(errBoom)
					}
					good.add(d.Envelope.ID)
					return nil
				}))
				b.publish(t, 3)
				patience.Pass(t, 4*time.Minute)
				b.send(t, messages(4)[3:]...)
				patience.Pass(t, time.Minute-time.Second)
				if n := len(good.all()); alone && n != 3 {
					t.Errorf("%d of 3 are handled beside a message that meets outages alone", n)
				}
				patience.Pass(t, time.Minute)
				if n := len(good.all()); n != 4 {
					t.Errorf("%d of 4 are handled a minute after the outage", n)
				}
				if v := b.verdicts(); v[core.VerdictRelease]+v[free] > 1000 {
					t.Errorf("%v were settled in six minutes", v)
				}
				stop()
			})
		})
	}
}

// CO-18: while a verdict cannot be stored nothing is received, and each pause is longer than the one before.
func TestVerdictPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		b.settle = failing(core.VerdictReject, time.Hour)
		stop := start(t, b, consumer.Options{}, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error {
			return waybill.Reject(errBoom)
		}))
		b.publish(t, 1)
		settle()
		b.publish(t, 5)
		patience.Pass(t, 59*time.Minute)
		if n := b.verdicts()[core.VerdictReject]; n < 60 || n > 250 {
			t.Errorf("%d tries in an hour", n)
		}
		patience.Pass(t, 2*time.Minute)
		wantDepth(t, b, memtransport.Depth{Parked: 6})
		stop()
	})
}

// CO-18: an outage that a handler reports and a verdict that cannot be stored end one after the other.
func TestVerdictAndOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		b.settle = failing(core.VerdictReject, time.Minute)
		up := time.Now().Add(2 * time.Minute)
		var rejected seen[string]
		begin := time.Now()
		var running atomic.Int32
		stop := start(t, b, consumer.Options{}, waybill.Subscription{}, handle(func(_ context.Context, d *waybill.Delivery) error {
			defer running.Add(-1)
			if running.Add(1) > 1 && time.Since(begin) > 10*time.Second && time.Now().Before(up) {
				t.Errorf("%s is not alone, %s before the outage ends", d.Envelope.ID, time.Until(up))
			}
			switch {
			case d.Envelope.ID == "id-1":
				rejected.add(d.Envelope.ID)
				return waybill.Reject(errBoom)
			case time.Now().Before(up):
				time.Sleep(100 * time.Millisecond)
				return waybill.Outage(errBoom)
			}
			return nil
		}))
		b.publish(t, 4)
		patience.Pass(t, 4*time.Minute)
		wantDepth(t, b, memtransport.Depth{Parked: 1})
		if n := len(rejected.all()); n != 1 {
			t.Errorf("id-1 was handled %d times", n)
		}
		stop()
	})
}

// CO-18: a copy that the broker does not confirm holds up no acknowledgement.
func TestStuckCopyHoldsUpNoAcknowledgement(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		stuck := make(chan struct{})
		b.settle = func(acks []core.Ack) error {
			if acks[0].Verdict == core.VerdictReject {
				<-stuck
			}
			return nil
		}
		stop := start(t, b, consumer.Options{}, waybill.Subscription{}, handle(func(_ context.Context, d *waybill.Delivery) error {
			if d.Envelope.ID == "id-1" {
				return waybill.Reject(errBoom)
			}
			return nil
		}))
		b.publish(t, 5)
		settle()
		wantDepth(t, b, memtransport.Depth{Held: 1})
		close(stuck)
		settle()
		wantDepth(t, b, memtransport.Depth{Parked: 1})
		stop()
	})
}

// CO-18: a message that goes back because of an outage goes back, although the first release fails: its receiver would
// hold it until the consumer stops.
func TestReleaseThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		failed := 0
		b.settle = func(acks []core.Ack) error {
			if acks[0].Verdict == core.VerdictRelease {
				if failed++; failed == 1 {
					return errBoom
				}
			}
			return nil
		}
		runs := 0
		stop := start(t, b, consumer.Options{}, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error {
			if runs++; runs == 1 {
				return waybill.Outage(errBoom)
			}
			return nil
		}))
		b.publish(t, 1)
		patience.Pass(t, time.Minute)
		wantDepth(t, b, memtransport.Depth{})
		if runs != 2 {
			t.Errorf("%d runs, want 2", runs)
		}
		stop()
	})
}

// CO-18, CO-11: at a stop a verdict is stored once more. If that fails, its message is released, and after it what
// waits behind it.
func TestStopStoresOnceMore(t *testing.T) {
	t.Parallel()
	for _, works := range []bool{true, false} {
		t.Run(strconv.FormatBool(works), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := declared(t)
				down := true
				b.settle = func(acks []core.Ack) error {
					if down && acks[0].Verdict == core.VerdictReject {
						return errBoom
					}
					return nil
				}
				stop := start(t, b, consumer.Options{}, waybill.Subscription{InOrder: true}, handle(func(context.Context, *waybill.Delivery) error {
					return waybill.Reject(errBoom)
				}))
				b.publish(t, 3, waybill.Key("k"))
				settle()
				down = !works
				stop()
				if works {
					wantDepth(t, b, memtransport.Depth{Ready: 2, Parked: 1})
					return
				}
				wantDepth(t, b, memtransport.Depth{Ready: 3})
				var released []string
				for _, a := range b.acks {
					if a.Verdict == core.VerdictRelease {
						released = append(released, a.Delivery.Envelope.ID)
					}
				}
				if diff := cmp.Diff([]string{"id-1", "id-2", "id-3"}, released); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// CO-18: while a verdict cannot be stored no other message is handled, whether it was received before or arrives now.
func TestNothingRunsWhileVerdictIsOwed(t *testing.T) {
	t.Parallel()
	for n := range 4 {
		inOrder, beside := n&1 > 0, n&2 > 0 // beside: there are others when the first try fails
		t.Run(fmt.Sprint(inOrder, beside), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := declared(t)
				tries, stuck := 0, make(chan struct{})
				b.settle = func(acks []core.Ack) error {
					if acks[0].Verdict != core.VerdictReject {
						return nil
					}
					if tries++; tries > 1 {
						<-stuck
						return nil
					}
					return errBoom
				}
				var others seen[string]
				sub := waybill.Subscription{InOrder: inOrder, Concurrency: 1, Prefetch: 10}
				stop := start(t, b, consumer.Options{}, sub, handle(func(_ context.Context, d *waybill.Delivery) error {
					if d.Envelope.ID == "id-1" {
						time.Sleep(time.Second)
						return waybill.Reject(errBoom)
					}
					time.Sleep(time.Second)
					others.add(d.Envelope.ID)
					return nil
				}))
				es := messages(4)
				for i := range es {
					es[i].Key = es[i].ID
				}
				b.send(t, es[0])
				var want []string
				if beside {
					want = []string{"id-2"} // it began before the first try had failed
					b.send(t, es[1:3]...)
				}
				patience.Pass(t, time.Minute)
				b.send(t, es[3])
				patience.Pass(t, time.Minute)
				if diff := cmp.Diff(want, others.all()); diff != "" {
					t.Error(diff)
				}
				close(stuck)
				patience.Pass(t, time.Minute)
				wantDepth(t, b, memtransport.Depth{Parked: 1})
				stop()
			})
		})
	}
}

// CO-18: a receiver that is opened anew takes the unstored verdicts with it: their messages come again.
func TestReopenedReceiverOwesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		b.settle = failing(core.VerdictReject, time.Minute)
		calls, fail := 0, make(chan struct{})
		b.receive = func() error {
			if calls++; calls == 2 {
				<-fail
				return fmt.Errorf("gone: %w", waybill.ErrMisconfigured)
			}
			return nil
		}
		stop := start(t, b, consumer.Options{}, waybill.Subscription{}, handle(func(context.Context, *waybill.Delivery) error {
			return waybill.Reject(errBoom)
		}))
		b.publish(t, 1)
		settle()
		close(fail)
		patience.Pass(t, 5*time.Minute)
		wantDepth(t, b, memtransport.Depth{Parked: 1})
		stop()
	})
}

// CO-18: a probe that works does not end the pause of a verdict that cannot be stored.
func TestProbeDoesNotEndVerdictsPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := declared(t)
		const until = 10 * time.Minute
		b.settle = failing(core.VerdictReject, until)
		var log sharedtest.Log
		second := false
		stop := start(t, b, consumer.Options{Logger: log.Logger(slog.LevelInfo)}, waybill.Subscription{}, handle(func(_ context.Context, d *waybill.Delivery) error {
			switch {
			case d.Envelope.ID == "id-1": // ends while id-2 probes
				time.Sleep(time.Minute)
				return waybill.Reject(errBoom)
			case second:
				time.Sleep(2 * time.Minute)
				return nil
			}
			second = true
			return waybill.Outage(errBoom)
		}))
		b.publish(t, 2)
		patience.Pass(t, until-time.Minute)
		if strings.Contains(log.Take(), "consumer.resume") {
			t.Error("it resumed before the verdict was stored")
		}
		patience.Pass(t, 2*time.Minute)
		if !strings.Contains(log.Take(), "consumer.resume") {
			t.Error("it did not resume")
		}
		wantDepth(t, b, memtransport.Depth{Parked: 1})
		stop()
	})
}
