package transporttest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// republish is a retry as a naive adapter makes it: publish a changed copy, ack the original. It leaves other verdicts
// alone.
func republish(change func(e *waybill.Envelope)) func(*brokenReceiver, context.Context, []core.Ack) core.Results {
	return func(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results {
		acks = append([]core.Ack(nil), acks...)
		for i, a := range acks {
			if a.Verdict == core.VerdictRetry {
				e := a.Delivery.Envelope.Clone()
				change(&e)
				r.b.Transport.Publish(ctx, []waybill.Envelope{e})
				acks[i] = core.AckDone(a.Delivery)
			}
		}
		return r.Receiver.Settle(ctx, acks)
	}
}

// changed delivers envelopes that were changed on the way.
func changed(change func(d *waybill.Delivery)) func(*brokenReceiver, context.Context, int) ([]*waybill.Delivery, error) {
	return func(r *brokenReceiver, ctx context.Context, limit int) ([]*waybill.Delivery, error) {
		ds, err := r.Receiver.Receive(ctx, limit)
		for _, d := range ds {
			change(d)
		}
		return ds, err
	}
}

// acked changes acks before they are settled.
func acked(change func(r *brokenReceiver, a *core.Ack)) func(*brokenReceiver, context.Context, []core.Ack) core.Results {
	return func(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results {
		acks = append([]core.Ack(nil), acks...)
		for i := range acks {
			change(r, &acks[i])
		}
		return r.Receiver.Settle(ctx, acks)
	}
}

// fault is a broken transport, with the check that must notice.
type fault struct {
	name   string
	check  string
	faults faults
}

// brokenTransports are ways to get it wrong, each with the check that must notice.
var brokenTransports = []fault{
	{"acks early", "close-returns-unsettled", faults{
		receive: func(r *brokenReceiver, ctx context.Context, limit int) ([]*waybill.Delivery, error) {
			ds, err := r.Receiver.Receive(ctx, limit)
			r.done(ctx, ds)
			return ds, err
		},
		settle: func(_ *brokenReceiver, _ context.Context, acks []core.Ack) core.Results {
			return make(core.Results, len(acks))
		},
	}},
	{"drops one of a batch and calls it a success", "publish-thousand", faults{
		publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
			if len(batch) < 3 {
				return b.Transport.Publish(ctx, batch)
			}
			return append(b.Transport.Publish(ctx, batch[1:]), nil)
		},
	}},
	{"reorders a key while publishing", "key-order-batch", faults{
		publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
			res := make(core.Results, len(batch))
			for i := len(batch) - 1; i >= 0; i-- {
				res[i] = b.Transport.Publish(ctx, batch[i:i+1])[0]
			}
			return res
		},
	}},
	{"reorders a key while receiving", "key-order-one-by-one", faults{
		receive: func(r *brokenReceiver, ctx context.Context, limit int) ([]*waybill.Delivery, error) {
			ds, err := r.Receiver.Receive(ctx, limit)
			for i, j := 0, len(ds)-1; i < j; i, j = i+1, j-1 {
				ds[i], ds[j] = ds[j], ds[i]
			}
			return ds, err
		},
	}},
	{"confirms behind a failed message of the key", "key-order-prefix", faults{
		traits: func(t *core.PublisherTraits) { t.KeyOrder = core.KeyOrderPipelinedPrefix },
	}},
	{"counts unroutable as published", "publish-unroutable", faults{
		publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
			res := b.Transport.Publish(ctx, batch)
			for i, err := range res {
				if errors.Is(err, waybill.ErrUnroutable) {
					res[i] = nil
				}
			}
			return res
		},
	}},
	{"swaps results", "publish-unroutable", faults{
		publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
			res := b.Transport.Publish(ctx, batch)
			for i, j := 0, len(res)-1; i < j; i, j = i+1, j-1 {
				res[i], res[j] = res[j], res[i]
			}
			return res
		},
	}},
	{"fails the whole batch", "publish-unroutable", faults{
		publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
			res := b.Transport.Publish(ctx, batch)
			if err := res.FirstErr(); err != nil {
				return core.AllFailed(len(batch), err)
			}
			return res
		},
	}},
	{"abandons unroutable at once", "publish-unroutable", faults{
		publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
			res := b.Transport.Publish(ctx, batch)
			for i, err := range res {
				if errors.Is(err, waybill.ErrUnroutable) {
					res[i] = &waybill.Error{Class: waybill.ClassPermanent, Err: err}
				}
			}
			return res
		},
	}},
	{"calls what cannot be sent an outage", "publish-unsendable", faults{
		publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
			res := b.Transport.Publish(ctx, batch)
			for i, err := range res {
				if waybill.ClassOf(err) == waybill.ClassPermanent {
					res[i] = &waybill.Error{Class: waybill.ClassOutage, Err: err}
				}
			}
			return res
		},
	}},
	{"crosses the results of concurrent calls", "publish-concurrently", faults{
		publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
			res := b.Transport.Publish(ctx, batch)
			if b.n.Add(1)%4 == 0 {
				res = append(res[1:], res[0])
			}
			return res
		},
	}},
	{"returns short results when cancelled", "publish-cancelled", faults{
		publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
			if err := ctx.Err(); err != nil {
				return core.Results{err}
			}
			return b.Transport.Publish(ctx, batch)
		},
	}},
	{"calls a result that never came a success", "publish-cancelled", faults{
		publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
			if ctx.Err() != nil {
				return make(core.Results, len(batch))
			}
			return b.Transport.Publish(ctx, batch)
		},
	}},
	{"keeps the caller's body", "publish-keeps-nothing", faults{
		publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
			return b.Transport.Publish(ctx, batch)
		},
		receive: sharedBodies(),
	}},
	{
		"keeps whole seconds only", "round-trip-every-field",
		faults{receive: changed(func(d *waybill.Delivery) { d.Envelope.Time = d.Envelope.Time.Truncate(time.Second) })},
	},
	{"loses the priority", "round-trip-every-field", faults{receive: changed(func(d *waybill.Delivery) { d.Envelope.Priority = 0 })}},
	{"invents a content type", "round-trip-minimal", faults{receive: changed(func(d *waybill.Delivery) {
		if d.Envelope.ContentType == "" {
			d.Envelope.ContentType = "application/octet-stream"
		}
	})}},
	{"splits lineage at commas", "round-trip-unicode", faults{receive: changed(func(d *waybill.Delivery) {
		d.Envelope.Lineage = strings.Split(strings.Join(d.Envelope.Lineage, ","), ",")
	})}},
	{"lower-cases header names", "round-trip-headers", faults{receive: changed(func(d *waybill.Delivery) {
		h := map[string]string{}
		for k, v := range d.Envelope.Headers {
			h[strings.ToLower(k)] = v
		}
		d.Envelope.Headers = h
	})}},
	{"makes bodies valid UTF-8", "round-trip-bodies", faults{receive: changed(func(d *waybill.Delivery) {
		d.Envelope.Body = []byte(strings.ToValidUTF8(string(d.Envelope.Body), "?"))
	})}},
	{"cuts bodies at 64 KiB", "round-trip-bodies", faults{receive: changed(func(d *waybill.Delivery) {
		d.Envelope.Body = d.Envelope.Body[:min(len(d.Envelope.Body), 64<<10)]
	})}},
	{"numbers attempts from 0", "round-trip-every-field", faults{receive: changed(func(d *waybill.Delivery) { d.Attempt-- })}},
	{"binds everything", "binding-exact", faults{subscribe: func(_ *broken, s core.Subscription) core.Subscription {
		for i, b := range s.Bindings {
			word, _, _ := strings.Cut(b, ".")
			s.Bindings[i] = word + ".#"
		}
		return s
	}}},
	{"takes # for one word or more", "binding-wildcards", faults{subscribe: func(_ *broken, s core.Subscription) core.Subscription {
		for i, b := range s.Bindings {
			s.Bindings[i] = strings.ReplaceAll(b, ".#", ".*.#")
		}
		return s
	}}},
	{
		"gives every subscriber a queue of its own", "receivers-share-a-queue",
		faults{subscribe: func(b *broken, s core.Subscription) core.Subscription {
			s.Queue = fmt.Sprintf("%s-%d", s.Queue, b.n.Add(1))
			return s
		}},
	},
	{
		"has one queue for all subscriptions", "subscriptions-get-copies",
		faults{subscribe: func(_ *broken, s core.Subscription) core.Subscription {
			s.Queue = "all"
			return s
		}},
	},
	{"ignores the limit", "receive-limit", faults{receive: func(r *brokenReceiver, ctx context.Context,
		_ int,
	) ([]*waybill.Delivery, error) {
		return r.Receiver.Receive(ctx, 100)
	}}},
	{"ignores the prefetch", "prefetch", faults{
		ahead:     &aheadFaults{noLimit: true},
		subscribe: func(_ *broken, s core.Subscription) core.Subscription { s.Prefetch = 1000; return s },
	}},
	{"keeps what was sent ahead in a pause", "pause-holds-nothing", faults{ahead: &aheadFaults{keepsAtPause: true}}},
	{"resumes with everything", "pause-holds-nothing", faults{ahead: &aheadFaults{ignoresResume: true}}},
	{"releases what it returned in a pause", "pause-keeps-what-was-returned", faults{ahead: &aheadFaults{releasesAllAtPause: true}}},
	{"raises its prefetch at the next arrival", "resume-raises", faults{ahead: &aheadFaults{raisesLate: true}}},
	{
		"returns nothing instead of waiting", "receive-waits",
		faults{receive: func(r *brokenReceiver, ctx context.Context, limit int) ([]*waybill.Delivery, error) {
			c, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			ds, err := r.Receiver.Receive(c, limit)
			if c.Err() != nil {
				err = nil
			}
			return ds, err
		}},
	},
	{"loses what a cancelled Receive took", "receive-cancelled-loses-nothing", faults{
		receive: func(r *brokenReceiver, ctx context.Context, limit int) ([]*waybill.Delivery, error) {
			ds, err := r.Receiver.Receive(ctx, limit)
			if err == nil && r.b.n.Add(1)%5 == 0 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return ds, err
		},
	}},
	{"loses headers on retry", "retry-keeps-properties", faults{settle: republish(func(e *waybill.Envelope) { e.Headers = nil })}},
	{"does not count attempts", "retry-counts-attempts", faults{settle: republish(func(*waybill.Envelope) {})}},
	{
		"retries to all queues", "retry-failing-queue-only",
		faults{settle: func(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results {
			for _, a := range acks {
				if a.Verdict == core.VerdictRetry {
					r.b.Transport.Publish(ctx, []waybill.Envelope{a.Delivery.Envelope})
				}
			}
			return r.Receiver.Settle(ctx, acks)
		}},
	},
	{"shows the queue as topic after a retry", "binding-wildcards", faults{receive: changed(func(d *waybill.Delivery) {
		if d.Attempt > 1 {
			d.Envelope.Topic = d.Queue
		}
	})}},
	{"counts giving back as an attempt", "retry-counts-attempts", faults{settle: acked(func(_ *brokenReceiver, a *core.Ack) {
		if a.Verdict == core.VerdictRelease {
			a.Verdict = core.VerdictRetry
		}
	})}},
	{"counts free retries as attempts", "retry-free", faults{settle: acked(func(_ *brokenReceiver, a *core.Ack) { a.SameAttempt = false })}},
	{"releases what is retried for free", "retry-free", faults{settle: acked(func(_ *brokenReceiver, a *core.Ack) {
		if a.SameAttempt {
			a.Verdict = core.VerdictRelease
		}
	})}},
	{"retries at once", "retry-waits", faults{settle: acked(func(_ *brokenReceiver, a *core.Ack) { a.Delay = 0 })}},
	{
		"rounds retry delays down", "retry-rounds-up",
		faults{settle: acked(func(_ *brokenReceiver, a *core.Ack) { a.Delay = a.Delay.Truncate(250 * time.Millisecond) })},
	},
	{"forgets retries when the receiver closes", "retry-survives-receiver", faults{
		settle: func(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results {
			for _, a := range acks {
				if a.Verdict == core.VerdictRetry {
					return make(core.Results, len(acks)) // kept in the process, and gone with it
				}
			}
			return r.Receiver.Settle(ctx, acks)
		},
		close: func(r *brokenReceiver, ctx context.Context) error {
			r.done(ctx, r.held)
			return r.Receiver.Close(ctx)
		},
	}},
	{"loses one of many retries", "retry-many", faults{settle: func(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results {
		if len(acks) > 30 {
			acks = append([]core.Ack(nil), acks...)
			acks[17].Verdict = core.VerdictDone
		}
		return r.Receiver.Settle(ctx, acks)
	}}},
	{"drops what is rejected", "reject-parks", faults{settle: acked(func(_ *brokenReceiver, a *core.Ack) {
		if a.Verdict == core.VerdictReject {
			a.Verdict = core.VerdictDone
		}
	})}},
	{"parks without the reason", "reject-parks", faults{settle: acked(func(_ *brokenReceiver,
		a *core.Ack,
	) {
		a.Reason = waybill.ReasonNone
	})}},
	{"parks with the first error", "reject-after-retry", faults{settle: acked(func(r *brokenReceiver, a *core.Ack) {
		if a.Delivery != nil && a.Delivery.Attempt > 1 {
			a.Err = "first"
		}
	})}},
	{"parks for a subscription that does not", "reject-unparked", faults{subscribe: func(_ *broken, s core.Subscription) core.Subscription {
		s.DropFailed = false
		return s
	}}},
	{"redelivers what was rejected", "reject-parks", faults{settle: acked(func(_ *brokenReceiver, a *core.Ack) {
		if a.Verdict == core.VerdictReject {
			a.Verdict = core.VerdictRelease
		}
	})}},
	{"drops what is given back", "release", faults{settle: acked(func(_ *brokenReceiver, a *core.Ack) {
		if a.Verdict == core.VerdictRelease {
			a.Verdict = core.VerdictDone
		}
	})}},
	{"settles done as given back", "settle-done", faults{settle: acked(func(_ *brokenReceiver, a *core.Ack) {
		if a.Verdict == core.VerdictDone {
			a.Verdict = core.VerdictRelease
		}
	})}},
	{
		"fails a whole call of Settle", "settle-mixed",
		faults{settle: func(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results {
			res := r.Receiver.Settle(ctx, acks)
			if err := res.FirstErr(); err != nil {
				return core.AllFailed(len(acks), err)
			}
			return res
		}},
	},
	{"settles twice", "settle-twice", faults{settle: func(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results {
		res := r.Receiver.Settle(ctx, acks)
		for i, err := range res {
			if errors.Is(err, waybill.ErrLeaseLost) {
				res[i] = nil
			}
		}
		return res
	}}},
	{
		"settles what is not its own", "settle-foreign",
		faults{settle: func(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results {
			res := r.Receiver.Settle(ctx, acks)
			for i, err := range res {
				if errors.Is(err, waybill.ErrInvalid) && acks[i].Delivery != nil {
					res[i] = nil
				}
			}
			return res
		}},
	},
	{"panics on a stranger", "settle-nonsense", faults{settle: func(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results {
		for _, a := range acks {
			_ = a.Delivery.Handle.(fmt.Stringer)
		}
		return r.Receiver.Settle(ctx, acks)
	}}},
	{
		"loses settles that overlap", "settle-concurrently",
		faults{settle: func(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results {
			if r.b.n.Add(1)%50 == 0 {
				return make(core.Results, len(acks))
			}
			return r.Receiver.Settle(ctx, acks)
		}},
	},
	{"loses the unsettled at close", "close-returns-unsettled", faults{close: func(r *brokenReceiver, ctx context.Context) error {
		r.done(ctx, r.held)
		return r.Receiver.Close(ctx)
	}}},
	{
		"keeps the unsettled after close", "close-returns-unsettled",
		faults{close: func(*brokenReceiver, context.Context) error { return nil }},
	},
	{
		"does not count redeliveries", "close-counts-redeliveries",
		faults{receive: changed(func(d *waybill.Delivery) { d.Redeliveries = 0 })},
	},
	{"leaves Receive blocked at close", "close-ends-receive", faults{close: func(*brokenReceiver, context.Context) error { return nil }}},
	{"cannot close twice", "close-twice", faults{close: func(r *brokenReceiver, ctx context.Context) error {
		if r.b.n.Add(1) > 1 {
			return waybill.ErrClosed
		}
		return r.Receiver.Close(ctx)
	}}},
	{"says closed when it was cancelled", "receive-ends-with-context", faults{
		receive: func(r *brokenReceiver, ctx context.Context, limit int) ([]*waybill.Delivery, error) {
			ds, err := r.Receiver.Receive(ctx, limit)
			if ctx.Err() != nil {
				err = waybill.ErrClosed
			}
			return ds, err
		},
	}},
	{"publishes after close", "transport-close", faults{publish: func(b *broken, ctx context.Context,
		batch []waybill.Envelope,
	) core.Results {
		res := b.Transport.Publish(ctx, batch)
		if errors.Is(res.FirstErr(), waybill.ErrClosed) {
			return make(core.Results, len(batch))
		}
		return res
	}}},
	{
		"accepts a subscription without queue", "subscribe-nonsense",
		faults{subscribe: func(_ *broken, s core.Subscription) core.Subscription {
			if s.Queue == "" {
				s.Queue = "default"
			}
			return s
		}},
	},
}

// sharedBodies delivers one body to everybody.
func sharedBodies() func(*brokenReceiver, context.Context, int) ([]*waybill.Delivery, error) {
	var (
		mu     sync.Mutex
		bodies = map[string][]byte{}
	)
	return changed(func(d *waybill.Delivery) {
		mu.Lock()
		defer mu.Unlock()
		if b, ok := bodies[d.Envelope.ID]; ok {
			d.Envelope.Body = b
		}
		bodies[d.Envelope.ID] = d.Envelope.Body
	})
}
