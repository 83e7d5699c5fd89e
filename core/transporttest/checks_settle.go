package transporttest

import (
	"errors"
	"fmt"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

var settleChecks = []named{
	{"settle-done", ofSubscriber, settleDone},
	{"release", ofSubscriber, release},
	{"settle-mixed", ofSubscriber, settleMixed},
	{"settle-empty", ofSubscriber, settleEmpty},
	{"settle-twice", ofSubscriber, settleTwice},
	{"settle-foreign", ofSubscriber, settleForeign},
	{"settle-nonsense", ofSubscriber, settleNonsense},
	{"settle-concurrently", ofSubscriber, settleConcurrently},
	{"hold-renewed", ofSubscriber, holdRenewed},
	{"hold-ends", ofSubscriber, holdEnds},
}

// A message that is done does not come again, and another one does.
//
// The check settles some and looks at what another receiver finds.
func settleDone(k *kit) {
	r, name := k.queue("a")
	want := messages(name+".a", 5)
	k.publish(want...)
	ds := k.receive(r, 5)
	var left []waybill.Envelope
	for i, d := range ds {
		if i == 1 || i == 3 {
			left = append(left, d.Envelope)
			continue
		}
		k.settle(r, core.AckDone(d))
	}
	k.closeReceiver(r)
	r = k.subscribe(name, name+".a")
	k.exactly(left, k.consume(r, len(left)))
	k.nothing(r, "all messages were done")
}

// A released delivery comes again at once, to anyone, as it was.
//
// The check gives back to a queue that two receivers share. The message comes at once, and once, to either of them.
func release(k *kit) {
	name := k.name()
	a, b := k.subscribe(name, name+".a"), k.subscribe(name, name+".a")
	m := message(name+".a", 0)
	k.publish(m)
	for range 3 {
		r, d := k.either(a, b)
		k.same(m, d.Envelope, "given back")
		k.settle(r, core.AckRelease(d))
	}
	r, d := k.either(a, b)
	k.settle(r, core.AckDone(d))
	k.nothing(a, "the message was done")
	k.nothing(b, "the message was done")
}

// either returns the next delivery of two receivers.
func (k *kit) either(rs ...core.Receiver) (core.Receiver, *waybill.Delivery) {
	ctx, cancel := k.within()
	defer cancel()
	for i := 0; ctx.Err() == nil; i++ {
		// a slow receiver needs more than 20 ms
		r, brief := rs[i%len(rs)], 20*time.Millisecond*time.Duration(1+i/10)
		ds, err := receiveBriefly(ctx, r, 1, min(brief, time.Second))
		k.must("receive", err)
		if len(ds) > 0 {
			return r, ds[0]
		}
	}
	k.fail("the message did not come to any receiver within %s", stands)
	return nil, nil
}

// Acks of one call are settled each by its own verdict, and one that fails costs the others nothing.
//
// The check settles with every verdict in one call, with a bad slot in the middle.
func settleMixed(k *kit) {
	r, name := k.queue("a")
	k.publish(messages(name+".a", 6)...)
	ds := k.receive(r, 6)
	k.settle(r, core.AckDone(ds[5]))
	batch := []core.Ack{
		core.AckRelease(ds[0]), core.AckDone(ds[1]), core.AckDone(ds[5]), core.AckRetry(ds[2], tier1, nil),
		core.AckReject(ds[3], waybill.ReasonRejected, nil), core.AckDone(ds[4]),
	}
	for i, err := range r.Settle(k.ctx, batch) {
		k.failIf(i == 2 && err == nil, "settling a delivery a second time was a success")
		if i != 2 {
			k.must(fmt.Sprintf("settle, slot %d", i), err)
		}
	}
	again := k.receive(r, 2)
	k.exactly([]waybill.Envelope{ds[0].Envelope, ds[2].Envelope}, again)
	for _, d := range again {
		want := map[string]int{ds[0].Envelope.ID: 1, ds[2].Envelope.ID: 2}[d.Envelope.ID]
		if k.sub.AttemptsAreDeliveries {
			want = 2
		}
		k.failIf(d.Attempt != want, "message %s: Attempt is %d, want %d", d.Envelope.ID, d.Attempt, want)
	}
	k.settle(r, acks(core.AckDone, again...)...)
	k.nothing(r, "all messages were settled")
}

// A settle of nothing has no results.
func settleEmpty(k *kit) {
	r, _ := k.queue("a")
	r.Settle(k.ctx, nil) // the guard looks at the number of results
}

// A delivery is settled once; a second settle is an error and changes nothing.
//
// The check settles again with each verdict, and looks whether the receiver still works and the message stays done.
func settleTwice(k *kit) {
	r, name := k.queue("a")
	k.publish(messages(name+".a", 2)...)
	ds := k.receive(r, 2)
	k.settle(r, core.AckDone(ds[0]))
	for range 25 { // each time, not mostly
		for _, a := range []core.Ack{
			core.AckDone(ds[0]), core.AckRetry(ds[0], 0, nil), core.AckReject(ds[0], waybill.ReasonRejected, nil), core.AckRelease(ds[0]),
		} {
			k.failIf(settle(k.ctx, r, a) == nil, "settling a delivery a second time was a success (verdict %d)", a.Verdict)
		}
	}
	k.settle(r, core.AckRetry(ds[1], tier1, nil))
	k.exactly([]waybill.Envelope{ds[1].Envelope}, k.consume(r, 1))
	k.nothing(r, "both messages were done")
}

// A delivery is settled by the receiver that holds it, and by no other.
//
// The check settles a delivery through another receiver, of its own queue and of another.
func settleForeign(k *kit) {
	r, name := k.queue("a")
	others := []core.Receiver{k.subscribe(name, name+".a"), k.subscribe(k.name(), name+".a")}
	k.publish(message(name+".a", 0))
	if r2, d := k.either(r, others[0]); r2 != r {
		r, others[0] = r2, r
		k.foreign(r, d, others)
	} else {
		k.foreign(r, d, others)
	}
}

func (k *kit) foreign(r core.Receiver, d *waybill.Delivery, others []core.Receiver) {
	for _, other := range others {
		for _, a := range []core.Ack{
			core.AckDone(d), core.AckRetry(d, 0, nil), core.AckReject(d, waybill.ReasonRejected, nil),
			core.AckRelease(d),
		} {
			k.failIf(settle(k.ctx, other, a) == nil, "settling another receiver's delivery was a success (verdict %d)", a.Verdict)
		}
	}
	k.consume(others[1], 1) // its own copy
	k.settle(r, core.AckDone(d))
	k.nothing(r, "the message was done")
	k.nothing(others[0], "the message was done")
}

// A wrong ack is an error, and its delivery can still be settled by a right one.
//
// The check settles what no caller should, with a delivery for each step, which a right ack settles after it.
func settleNonsense(k *kit) {
	r, name := k.queue("a")
	steps := []struct {
		what string
		ack  func(d *waybill.Delivery) core.Ack
	}{
		{"no delivery", func(*waybill.Delivery) core.Ack { return core.Ack{Verdict: core.VerdictDone} }},
		{"a delivery of nobody", func(*waybill.Delivery) core.Ack { return core.AckDone(&waybill.Delivery{}) }},
		{"a delivery of a stranger", func(*waybill.Delivery) core.Ack { return core.AckDone(&waybill.Delivery{Handle: "stranger"}) }},
		{"no verdict", func(d *waybill.Delivery) core.Ack { return core.Ack{Delivery: d} }},
		{"an unknown verdict", func(d *waybill.Delivery) core.Ack { return core.Ack{Delivery: d, Verdict: 200} }},
	}
	k.publish(messages(name+".a", len(steps))...)
	for _, s := range steps {
		d := k.receive(r, 1)[0]
		err := settle(k.ctx, r, s.ack(d))
		k.failIf(!errors.Is(err, waybill.ErrInvalid), "a settle with %s: %w; want waybill.ErrInvalid", s.what, err)
		k.must("a right ack, after one with "+s.what, settle(k.ctx, r, core.AckDone(d)))
	}
	k.nothing(r, "all messages were done")
}

// Settles at the same time, beside a Receive, all count.
//
// The check settles from several goroutines while another receives.
func settleConcurrently(k *kit) {
	const n = 200
	r, name := k.queue("a")
	want := messages(name+".a", n)
	k.publish(want...)
	ch := make(chan *waybill.Delivery, n)
	var got []*waybill.Delivery
	k.each(5, func(i int) error {
		if i == 0 {
			defer close(ch)
			ctx, cancel := k.within()
			defer cancel()
			var err error
			got, err = collect(ctx, r, n, func(ds []*waybill.Delivery) error {
				for _, d := range ds {
					ch <- d
				}
				return nil
			})
			return err
		}
		for d := range ch {
			if err := settle(k.ctx, r, core.AckDone(d)); err != nil {
				return fmt.Errorf("settle: %w", err)
			}
		}
		return nil
	})
	k.exactly(want, got)
	k.nothing(r, "all messages were done")
	k.closeReceiver(r)
	k.nothing(k.subscribe(name, name+".a"), "all messages were done")
}

// maxHold is the longest HoldFor that the suite waits for.
const maxHold = 15 * time.Second

// hold opens two receivers of a queue with one message, and returns the one that has it first.
func (k *kit) hold() (r, other core.Receiver, d *waybill.Delivery) {
	k.needs(k.sub.HoldFor > 0, "SubscriberTraits.HoldFor")
	k.needs(k.sub.HoldFor <= maxHold, "SubscriberTraits.HoldFor of at most "+maxHold.String()+": let the harness set a short one")
	name := k.name()
	a, b := k.subscribe(name, name+".a"), k.subscribe(name, name+".a")
	k.publish(message(name+".a", 0))
	if r, d = k.either(a, b); r == a {
		return r, b, d
	}
	return r, a, d
}

// starts is how often a check of HoldFor begins anew when the machine was too slow for it.
const starts = 20

// inTime calls fn, which says whether the machine was fast enough, until it was.
func (k *kit) inTime(fn func() bool) {
	for range starts {
		if fn() {
			return
		}
	}
	k.needs(false, "a machine that is fast enough for SubscriberTraits.HoldFor: let the harness set a longer one")
}

// A delivery that is renewed every third of HoldFor stays its receiver's for longer than HoldFor.
//
// The check holds twice HoldFor, as a slow handler does, while another receiver waits.
func holdRenewed(k *kit) {
	k.inTime(func() bool {
		begun := time.Now()
		r, other, d := k.hold()
		renewer, ok := core.As[core.DeliveryRenewer](r)
		k.needs(ok, "core.DeliveryRenewer of the receiver")
		late := func() bool { return time.Since(begun) > k.sub.HoldFor*9/10 } // since the last renewal began
		for start := time.Now(); time.Since(start) < 2*k.sub.HoldFor; {
			ds, err := receiveBriefly(k.ctx, other, 1, k.sub.HoldFor/3)
			switch {
			case late():
				return false
			case len(ds) > 0:
				k.fail("another receiver got the delivery, which was renewed every third of %s", k.sub.HoldFor)
			}
			k.must("receive", err)
			next := time.Now()
			res := results(k.ctx, k, "renew", 1, func() core.Results {
				return renewer.RenewDeliveries(k.ctx, []*waybill.Delivery{d}, k.sub.HoldFor)
			})
			if late() {
				return false
			}
			k.must("renew", res.FirstErr())
			begun = next
		}
		err := settle(k.ctx, r, core.AckDone(d))
		if late() {
			return false
		}
		k.must("settle", err)
		k.nothing(other, "the message was done")
		k.nothing(r, "the message was done")
		return true
	})
}

// A delivery that is not renewed is another receiver's after HoldFor, and its first receiver cannot take it away.
//
// The check holds for too long.
func holdEnds(k *kit) {
	k.inTime(func() bool {
		r, other, d := k.hold()
		ctx, _, cancel := k.patient(k.sub.HoldFor)
		defer cancel()
		var begun time.Time
		ds, err := collect(ctx, other, 1, func([]*waybill.Delivery) error { begun = time.Now(); return nil })
		k.must("receive what another receiver has held for too long", err)
		k.failIf(ds[0].Envelope.ID != d.Envelope.ID, "message %s came, want %s", ds[0].Envelope.ID, d.Envelope.ID)
		if k.sub.CountsRedeliveries && ds[0].Redeliveries != 1 {
			k.fail("Redeliveries is %d after the first delivery was held for too long, want 1", ds[0].Redeliveries)
		}
		late := settle(k.ctx, r, core.AckDone(d))
		k.failIf(late != nil && !errors.Is(late, waybill.ErrLeaseLost),
			"a settle after HoldFor: %w; want waybill.ErrLeaseLost, or a success where the broker does not check who settles", late)
		err = settle(k.ctx, other, core.AckDone(ds[0]))
		if time.Since(begun) > k.sub.HoldFor/2 {
			return false
		}
		k.failIf(err != nil && (late != nil || !errors.Is(err, waybill.ErrLeaseLost)),
			"the receiver that has the delivery now could not settle it: %w", err)
		k.nothing(r, "the message was done")
		k.nothing(other, "the message was done")
		return true
	})
}
