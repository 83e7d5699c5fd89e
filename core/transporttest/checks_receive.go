package transporttest

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/sleep"
)

var receiveChecks = []named{
	{"subscriptions-get-copies", ofSubscriber, subscriptionsGetCopies},
	{"receivers-share-a-queue", ofSubscriber, receiversShare},
	{"queue-keeps-messages", ofSubscriber, queueKeepsMessages},
	{"receive-limit", ofSubscriber, receiveLimit},
	{"receive-bytes", ofSubscriber, receiveBytes},
	{"receive-waits", ofSubscriber, receiveWaits},
	{"receive-cancelled-loses-nothing", ofSubscriber, receiveCancelled},
	{"prefetch", ofSubscriber, prefetch},
	{"pause-holds-nothing", ofSubscriber, pauseHoldsNothing},
	{"pause-keeps-what-was-returned", ofSubscriber, pauseKeepsReturned},
	{"resume-raises", ofSubscriber, resumeRaises},
	{"headers-at-the-limit", ofEither, headersAtTheLimit},
}

// pauser returns a receiver that pauses. n messages wait for it.
func (k *kit) pauser(n int) (core.Receiver, core.Pauser, []waybill.Envelope, string) {
	name := k.name()
	r := k.subscribeTo(core.Subscription{Queue: name, Bindings: []string{name + ".a"}, Prefetch: n})
	p, ok := core.As[core.Pauser](r)
	k.needs(ok, "core.Pauser of the receiver")
	want := messages(name+".a", n)
	k.publish(want...)
	return r, p, want, name
}

// A paused receiver keeps no message from others, and one that resumes holds no more than its new prefetch.
//
// Without this a consumer whose database is down keeps messages from the other replicas.
func pauseHoldsNothing(k *kit) {
	r, p, want, name := k.pauser(20)
	k.settle(r, core.AckRelease(k.receive(r, 1)[0])) // now the broker has sent messages ahead
	ctx, cancel := k.within()
	defer cancel()
	k.must("pause", p.Pause(ctx))
	k.must("pause a second time", p.Pause(ctx))
	other := k.subscribe(name, name+".a")
	k.exactly(want, k.consume(other, len(want)))
	k.closeReceiver(other)

	more := messages(name+".a", 10)
	for i := range more {
		more[i].ID += "-more"
	}
	k.publish(more...)
	k.must("resume with one", p.Resume(ctx, 1))
	one := k.receive(r, 1)
	k.full(r, "it was resumed with a prefetch of 1")
	k.settle(r, core.AckDone(one[0]))
	k.must("resume", p.Resume(ctx, 0))
	k.exactly(more, append(one, k.consume(r, len(more)-1)...))
}

// What Receive returned before a pause stays the caller's.
//
// Without this a pause runs handlers a second time whose messages are still settled.
func pauseKeepsReturned(k *kit) {
	r, p, want, _ := k.pauser(5)
	held := k.receive(r, 2)
	ctx, cancel := k.within()
	defer cancel()
	k.must("pause", p.Pause(ctx))
	k.settle(r, core.AckDone(held[0]))
	k.must("resume", p.Resume(ctx, 0))
	k.settle(r, core.AckDone(held[1]))
	k.exactly(want, append(held, k.consume(r, len(want)-2)...))
	k.nothing(r, "all were settled")
}

// A greater prefetch counts although all that the broker may send is here.
//
// Without this a message that waits in a consumer stops all others.
func resumeRaises(k *kit) {
	r, p, want, _ := k.pauser(5)
	ctx, cancel := k.within()
	defer cancel()
	k.must("pause", p.Pause(ctx))
	k.must("resume with one", p.Resume(ctx, 1))
	held := k.receive(r, 1)
	k.full(r, "it was resumed with a prefetch of 1")
	for range 2 {
		k.must("resume with one more", p.Resume(ctx, len(held)+1))
		held = append(held, k.receive(r, 1)...)
	}
	k.settle(r, acks(core.AckDone, held...)...)
	k.must("resume", p.Resume(ctx, 0))
	k.exactly(want, append(held, k.consume(r, len(want)-len(held))...))
	k.nothing(r, "all were settled")
}

// Every queue that is bound for a topic gets a copy.
func subscriptionsGetCopies(k *kit) {
	name := k.name()
	a, b := k.subscribe(name+"a", name+".x"), k.subscribe(name+"b", name+".x")
	want := messages(name+".x", 20)
	k.publish(want...)
	k.exactly(want, k.consume(a, len(want)))
	k.exactly(want, k.consume(b, len(want)))
	k.nothing(a, "each queue has one copy")
	k.nothing(b, "each queue has one copy")
}

// Receivers of one queue share its messages.
//
// The check fills one receiver, so that the other must get the rest.
func receiversShare(k *kit) {
	name := k.name()
	sub := subscription(name, name+".a")
	sub.Concurrency, sub.Prefetch = 5, 5
	a, b := k.subscribeTo(sub), k.subscribeTo(sub)
	if k.sub.SharesByPartition {
		k.sharePartitions(a, b, name+".a")
		return
	}
	want := messages(name+".a", 30)
	k.publish(want...)
	held := k.receive(a, 5)
	rest := k.consume(b, 25)
	k.settle(a, acks(core.AckDone, held...)...)
	k.exactly(want, append(held, rest...))
	k.nothing(a, "all messages were settled")
	k.nothing(b, "all messages were settled")
}

// sharePartitions publishes messages of many keys until both receivers get some of them, each message once. Then it
// ends one that holds a delivery: all others come to the one that is left.
func (k *kit) sharePartitions(a, b core.Receiver, topic string) {
	const n = 30
	publish := func(round int) map[string]bool {
		left := map[string]bool{}
		batch := messages(topic, n)
		for i := range batch {
			batch[i].ID = fmt.Sprintf("%s/%d/%d", topic, round, i)
			batch[i].Key = fmt.Sprintf("key-%d", i)
			left[batch[i].ID] = true
		}
		k.publish(batch...)
		return left
	}
	ctx, _, cancel := k.patient(0)
	defer cancel()
	for round := 0; ; round++ {
		left := publish(round)
		counts := [2]int{}
		for len(left) > 0 {
			if ctx.Err() != nil {
				k.fail("round %d: one receiver got %d messages of %d, the other one %d: want some each, and none twice", round, counts[0], n, counts[1])
			}
			for i, r := range []core.Receiver{a, b} {
				ds, err := receiveBriefly(ctx, r, n, quiet/3)
				k.must("receive", err)
				for j, err := range r.Settle(k.ctx, acks(core.AckDone, ds...)) {
					if err == nil { // else it comes again
						delete(left, ds[j].Envelope.ID)
					}
				}
				counts[i] += len(ds)
			}
		}
		if counts[0] > 0 && counts[1] > 0 && counts[0]+counts[1] == n {
			break
		}
	}
	left := publish(-1)
	k.receive(a, 1)
	k.closeReceiver(a)
	ctx, moved, cancel := k.patient(0)
	defer cancel()
	k.await(ctx, moved, b, left)
}

// A queue keeps its bindings, and its messages, while it has no receiver.
//
// The check publishes while the queue has no receiver.
func queueKeepsMessages(k *kit) {
	r, name := k.queue("a")
	k.closeReceiver(r)
	want := messages(name+".a", 5)
	k.publish(want...)
	r = k.subscribe(name) // bound before
	k.exactly(want, k.consume(r, len(want)))
}

// Receive returns no more than its limit.
func receiveLimit(k *kit) {
	r, name := k.queue("a")
	want := messages(name+".a", 10)
	k.publish(want...)
	ds := k.receive(r, 3) // fails by itself if one call returns more
	ds = append(ds, k.receive(r, 1)...)
	ds = append(ds, k.receive(r, 6)...)
	k.exactly(want, ds)
	k.settle(r, acks(core.AckDone, ds...)...)
}

// A Receive ends with the delivery that reaches ReceiveBytes, and one that is larger than that comes.
//
// The check receives bodies of which each reaches the bound, few do, and many together. Without it a consumer whose
// messages become large at once holds more than its process has.
func receiveBytes(k *kit) {
	const bound, n = 40_000, 40
	name := k.name()
	r := k.subscribeTo(core.Subscription{
		Queue: name, Bindings: []string{name + ".a"}, Concurrency: 10, Prefetch: n + 1, MaxPrefetch: n + 1, ReceiveBytes: bound,
	})
	want := messages(name+".a", n)
	for i := range want {
		size := 10_000
		switch {
		case i < n/4:
			size = 100
		case i == n/2:
			size = 3 * bound
		}
		want[i].Body = make([]byte, size)
	}
	k.publish(want...)
	for _, verdict := range []func(*waybill.Delivery) core.Ack{core.AckRelease, core.AckDone} {
		ctx, moved, cancel := k.patient(0)
		all, err := collect(ctx, r, n, func(ds []*waybill.Delivery) error {
			moved()
			bytes := 0
			for _, d := range ds[:max(len(ds)-1, 0)] {
				bytes += len(d.Envelope.Body)
			}
			if bytes >= bound {
				return fmt.Errorf("a Receive returned %d messages, with %d bytes before the last one; want less than %d", len(ds), bytes, bound)
			}
			return nil
		})
		cancel()
		k.failIf(err != nil, "received %d of %d messages: %w", len(all), n, err)
		k.exactly(want, all)
		k.settle(r, acks(verdict, all...)...)
	}
}

// A blocked Receive returns when a message is published.
//
// The check publishes while Receive is blocked.
func receiveWaits(k *kit) {
	r, name := k.queue("a")
	m := message(name+".a", 0)
	k.each(2, func(i int) error {
		ctx, cancel := k.within()
		defer cancel()
		if i == 1 {
			if err := sleep.For(ctx, quiet/3); err != nil {
				return err
			}
			return k.publisher.Publish(ctx, []waybill.Envelope{m}).FirstErr()
		}
		ds, err := collect(ctx, r, 1, func(ds []*waybill.Delivery) error { return settle(ctx, r, acks(core.AckDone, ds...)...) })
		if err != nil {
			return fmt.Errorf("receive, blocked before the message was published (got %d): %w", len(ds), err)
		}
		return nil
	})
}

// A cancelled Receive loses nothing.
//
// The check calls Receive with contexts that end all the time, while messages arrive.
func receiveCancelled(k *kit) {
	r, name := k.queue("a")
	want := messages(name+".a", 200)
	var (
		mu  sync.Mutex
		got []*waybill.Delivery
	)
	k.each(2, func(i int) error {
		all, moved, cancel := k.patient(0)
		defer cancel()
		if i == 1 {
			for j := 0; j < len(want); j += 5 {
				if err := k.publisher.Publish(all, want[j:j+5]).FirstErr(); err != nil {
					return fmt.Errorf("publish: %w", err)
				}
				if err := sleep.For(all, time.Millisecond); err != nil {
					return err
				}
			}
			return nil
		}
		for n := 0; n < len(want); {
			if err := all.Err(); err != nil {
				return fmt.Errorf("only %d of %d messages came over calls of Receive that were cancelled: %w", n, len(want), err)
			}
			ds, err := receiveBriefly(all, r, 7, time.Duration(1+n%4)*time.Millisecond)
			if err != nil {
				return err
			}
			if len(ds) > 0 {
				moved()
			}
			n += len(ds)
			if err := settle(all, r, acks(core.AckDone, ds...)...); err != nil {
				return err
			}
			mu.Lock()
			got = append(got, ds...)
			mu.Unlock()
		}
		return nil
	})
	k.exactly(want, got)
}

// receiveBriefly calls Receive under a context that ends after d.
func receiveBriefly(ctx context.Context, r core.Receiver, limit int, d time.Duration) ([]*waybill.Delivery, error) {
	c, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	ds, err := r.Receive(c, limit)
	switch {
	case err != nil && c.Err() == nil && waybill.ClassOf(err) != waybill.ClassOutage:
		return nil, fmt.Errorf("receive: %w", err)
	case err == nil && len(ds) == 0:
		return nil, errors.New("receive returned neither a delivery nor an error")
	}
	return ds, nil
}

// A receiver that the broker sends messages ahead holds no more than Prefetch.
func prefetch(k *kit) {
	name := k.name()
	sub := subscription(name, name+".a")
	sub.Concurrency, sub.Prefetch = 2, 4
	r := k.subscribeTo(sub)
	_, ok := core.As[core.Pauser](r)
	k.needs(ok, "core.Pauser of the receiver")
	want := messages(name+".a", 10)
	k.publish(want...)
	got := k.receive(r, 4)
	k.full(r, "the receiver holds as many deliveries as Prefetch allows")
	k.settle(r, core.AckDone(got[0]), core.AckDone(got[2]))
	got = append(got, k.receive(r, 2)...)
	k.full(r, "the receiver holds as many deliveries as Prefetch allows again")
	k.settle(r, acks(core.AckDone, got[1], got[3], got[4], got[5])...)
	k.exactly(want, append(got, k.consume(r, 4)...))
}

// A broker adds headers of its own to a message that it delivers again, and an adapter adds some to a copy. So a
// message whose own headers are at the limit can become one that the adapter's client cannot read. Its connection then
// ends, for all neighbours, again and again.

// withHeaders returns a message with about n bytes of headers more than full has.
func withHeaders(topic string, n int) waybill.Envelope {
	const piece = 4000
	m := full(topic)
	for i := 0; n > 0; i++ {
		m.Headers[fmt.Sprintf("h%03d", i)] = strings.Repeat("x", min(n, piece))
		n -= piece
	}
	return m
}

// A message with as many bytes of headers as the transport publishes is given back, retried and parked. If it has no
// room for a retry, it is parked as too large.
func headersAtTheLimit(k *kit) {
	most := 256 << 10
	if k.pub.MaxMessageBytes > 0 {
		most = min(most, k.pub.MaxMessageBytes)
	}
	r, name := k.queue("a")
	n := sort.Search(most, func(n int) bool { // it finds the first that is too large
		m := withHeaders(name+".a", n)
		if m.Size() > most {
			return true
		}
		err := k.send([]waybill.Envelope{m})[0]
		// The stager of a table has a limit of its own.
		if waybill.ReasonOf(err) == waybill.ReasonTooLarge || errors.Is(err, waybill.ErrInvalid) {
			return true
		}
		k.must(fmt.Sprintf("publish a message with headers of %d bytes", n), err)
		k.same(m, k.consume(r, 1)[0].Envelope, fmt.Sprintf("a message with headers of %d bytes", n))
		return false
	}) - 1
	k.closeReceiver(r)
	for _, room := range []int{0, 20, 40, 60, 300} { // no room for a count, for two of them, and for a history
		k.headers(max(n-room, 0))
	}
}

// headers gives back, retries and parks a message with n bytes of headers. Another message comes through behind it.
func (k *kit) headers(n int) {
	what := fmt.Sprintf("a message with headers of %d bytes", n)
	r, name := k.queue("a")
	m := withHeaders(name+".a", n)
	k.publish(m)
	d := k.receive(r, 1)[0]
	for range 2 {
		k.settle(r, core.AckRelease(d))
		d = k.receive(r, 1)[0]
		k.same(m, d.Envelope, what+" that was given back")
	}
	k.settle(r, core.AckRetry(d, tier1, errors.New("not now")))
	if k.h.Parked == nil || !k.sub.Parks {
		k.same(m, k.consume(r, 1)[0].Envelope, what+" that was retried")
		return
	}
	ds, parked := k.comesOrIsParked(r, name)
	switch {
	case len(ds) > 0:
		k.same(m, ds[0].Envelope, what+" that was retried")
		k.settle(r, core.AckReject(ds[0], waybill.ReasonRejected, errors.New(strings.Repeat("no good ", 500))))
		parked = k.awaitParked(name)
	case len(parked) > 0 && parked[0].Reason != waybill.ReasonTooLarge:
		k.fail("%s was parked instead of retried, with the reason %q, want %q", what, parked[0].Reason, waybill.ReasonTooLarge)
	}
	k.failIf(len(parked) != 1 || parked[0].Envelope.ID != m.ID, "%d messages are parked, want %s", len(parked), what)
	last := message(name+".a", 1)
	k.publish(last)
	k.exactly([]waybill.Envelope{last}, k.consume(r, 1))
}
