package transporttest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// settled makes a settle hook that changes the answers of the good settle.
func settled(change func(ctx context.Context, r *brokenReceiver, acks []core.Ack, res core.Results)) faults {
	return faults{settle: func(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results {
		res := r.settle(ctx, acks)
		change(ctx, r, acks, res)
		return res
	}}
}

// atTheEnd settles nothing under an ended context, and answers so.
func atTheEnd(answer error) faults {
	return faults{settle: func(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results {
		if ctx.Err() == nil {
			return r.settle(ctx, acks)
		}
		res := make(core.Results, len(acks))
		for i := range res {
			res[i] = answer
		}
		return res
	}}
}

// copies is a settle that acks the original, and then sends the copy, or the other way round. confirmed: it looks at
// the answer to the copy.
func copies(ackFirst, confirmed bool) faults {
	return faults{settle: func(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results {
		if messages, all := r.b.refuses(); !messages || all {
			return r.settle(ctx, acks)
		}
		res := core.AllFailed(len(acks), errRefused) // of the copies
		if ackFirst || !confirmed {
			r.done(ctx, []*waybill.Delivery{acks[0].Delivery, acks[1].Delivery})
		}
		if !confirmed {
			clear(res)
		}
		return res
	}}
}

// byPartition says that receivers share partitions.
func byPartition(f faults) faults {
	f.subTraits = func(t *core.SubscriberTraits) { t.SharesByPartition = true }
	return f
}

// hog lets the first receiver alone receive.
func hog() faults {
	var first atomic.Pointer[brokenReceiver]
	return faults{receive: func(r *brokenReceiver, ctx context.Context, limit int) ([]*waybill.Delivery, error) {
		if first.CompareAndSwap(nil, r) || first.Load() == r {
			return r.Receiver.Receive(ctx, limit)
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}}
}

// knows are the bindings that a process knows: its own.
func knows() faults {
	var mu sync.Mutex
	own := map[*broken][]string{}
	return faults{
		subscribe: func(b *broken, s core.Subscription) core.Subscription {
			mu.Lock()
			defer mu.Unlock()
			own[b] = append(own[b], s.Bindings...)
			return s
		},
		receive: func(r *brokenReceiver, ctx context.Context, limit int) ([]*waybill.Delivery, error) {
			for {
				ds, err := r.Receiver.Receive(ctx, limit)
				if err != nil {
					return ds, err
				}
				mu.Lock()
				known := slices.Clone(own[r.b])
				mu.Unlock()
				mine := slices.DeleteFunc(slices.Clone(ds), func(d *waybill.Delivery) bool { return !slices.Contains(known, d.Envelope.Topic) })
				r.done(ctx, slices.DeleteFunc(ds, func(d *waybill.Delivery) bool { return slices.Contains(mine, d) }))
				if len(mine) > 0 {
					return mine, nil
				}
			}
		},
	}
}

// everyNth accepts one settle in n that was refused as lost.
func everyNth(n int64) faults {
	return settled(func(_ context.Context, r *brokenReceiver, _ []core.Ack, res core.Results) {
		for i, err := range res {
			if errors.Is(err, waybill.ErrLeaseLost) && r.b.n.Add(1)%n == 0 {
				res[i] = nil
			}
		}
	})
}

// losesItsReader is a client that cannot read a message with many headers once the broker has added one, and loses its
// connection at each try.
func losesItsReader() faults {
	var counted sync.Map // by id
	return faults{
		settle: acked(func(_ *brokenReceiver, a *core.Ack) {
			if e := &a.Delivery.Envelope; a.Verdict == core.VerdictRelease && len(e.Headers) > 50 {
				counted.Store(e.ID, true)
			}
		}),
		receive: func(r *brokenReceiver, ctx context.Context, limit int) ([]*waybill.Delivery, error) {
			ds, err := r.Receiver.Receive(ctx, limit)
			for _, d := range ds {
				if _, ok := counted.Load(d.Envelope.ID); ok {
					r.Receiver.Settle(ctx, []core.Ack{core.AckRelease(d)})
					return nil, &waybill.Error{Class: waybill.ClassOutage, Err: errors.New("the connection is lost")}
				}
			}
			return ds, err
		},
	}
}

// third lets every receiver of an ordered queue behind the second one have messages beside the active one.
func third() faults {
	var mu sync.Mutex
	opened := map[string]int{}
	return faults{subscribe: func(_ *broken, s core.Subscription) core.Subscription {
		mu.Lock()
		defer mu.Unlock()
		if opened[s.Queue]++; opened[s.Queue] > 2 {
			s.InOrder = false
		}
		return s
	}}
}

// largeAnswered changes the results of a publish with a message that the broker refuses with err.
func largeAnswered(change func(err error, res core.Results)) faults {
	return faults{publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
		res := b.send(ctx, batch)
		if i := slices.IndexFunc(batch, func(e waybill.Envelope) bool { return b.tooLarge(&e) != nil }); i >= 0 {
			change(res[i], res)
		}
		return res
	}}
}

// remembersRefusals answers a message as it did the first time.
func remembersRefusals() faults {
	var refused sync.Map // by id
	return faults{publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
		res := b.send(ctx, batch)
		for i := range batch {
			if err := b.tooLarge(&batch[i]); err != nil {
				refused.Store(batch[i].ID, err)
			} else if err, ok := refused.Load(batch[i].ID); ok {
				res[i] = err.(error)
			}
		}
		return res
	}}
}

// brokenEdges are broken transports whose faults show with large numbers, ended contexts and a broker that refuses.
var brokenEdges = []fault{
	{"takes the end of a context for a success", "settle-cancelled", atTheEnd(nil)},
	{"takes the end of a context for a lost lease", "settle-cancelled", atTheEnd(waybill.ErrLeaseLost)},
	{"forgets what it could not settle in time", "settle-cancelled", faults{
		settle: func(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results {
			if ctx.Err() != nil {
				for _, a := range acks {
					r.done(context.WithoutCancel(ctx), []*waybill.Delivery{a.Delivery})
				}
				return core.AllFailed(len(acks), ctx.Err())
			}
			return r.settle(ctx, acks)
		},
	}},
	{"computes what remains of a message's time, and overflows", "expires-in-centuries", faults{settle: acked(func(_ *brokenReceiver, a *core.Ack) {
		left := a.Delivery.Envelope.Expires.UnixMicro() - time.Now().UnixMicro()
		if a.Verdict == core.VerdictRetry && time.Duration(left)*time.Microsecond < 0 {
			a.Verdict = core.VerdictDone // it is expired
		}
	})}},
	{"has no room for the count of a large header", "headers-at-the-limit", losesItsReader()},
	{"has no room for the retry of a large header", "headers-at-the-limit", faults{settle: acked(func(_ *brokenReceiver, a *core.Ack) {
		if a.Verdict == core.VerdictRetry && len(a.Delivery.Envelope.Headers) > 50 {
			a.Verdict = core.VerdictDone
		}
	})}},
	{"cuts bodies at 1 MiB", "largest-message", faults{receive: changed(func(d *waybill.Delivery) {
		d.Envelope.Body = d.Envelope.Body[:min(len(d.Envelope.Body), 1<<20)]
	})}},
	{"has no room for the retry of a large message", "largest-message", faults{settle: acked(func(_ *brokenReceiver, a *core.Ack) {
		if a.Verdict == core.VerdictRetry && a.Delivery.Envelope.Size() > 1<<20 {
			a.Verdict = core.VerdictDone
		}
	})}},
	{"drops what has a long error", "reject-with-the-longest-error", faults{settle: acked(func(_ *brokenReceiver, a *core.Ack) {
		if a.Verdict == core.VerdictReject && len(a.Err) > 200 {
			a.Verdict = core.VerdictDone
		}
	})}},
	{"cuts long errors", "reject-with-the-longest-error", faults{settle: acked(func(_ *brokenReceiver, a *core.Ack) {
		a.Err = a.Err[:min(len(a.Err), 255)]
	})}},
	{"counts in steps of 100 ms", "retry-of-milliseconds", faults{settle: acked(func(_ *brokenReceiver, a *core.Ack) {
		a.Delay = a.Delay.Truncate(100 * time.Millisecond)
	})}},
	{"confirms behind a message that is too large", "key-order-prefix-too-large", faults{
		traits: func(t *core.PublisherTraits) { t.KeyOrder = core.KeyOrderPipelinedPrefix },
	}},
	{"confirms behind a message that is too large, as a log", "key-order-prefix-too-large", faults{
		log: true, traits: func(t *core.PublisherTraits) { t.KeyOrder = core.KeyOrderPipelinedPrefix },
	}},
	{"knows the bindings of its own process", "bindings-of-another-process", knows()},
	{"takes a refusal for a success", "publish-refused", faults{publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
		res := b.send(ctx, batch)
		for i, err := range res {
			if errors.Is(err, errRefused) {
				res[i] = nil
			}
		}
		return res
	}}},
	{"is content with the answer of one replica", "publish-refused", faults{publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
		if messages, _ := b.refuses(); messages {
			return b.Transport.Publish(ctx, batch) // it is there, until another replica takes over
		}
		return b.send(ctx, batch)
	}}},
	{"fails a batch for one message of it", "refused-alone", largeAnswered(func(err error, res core.Results) {
		for i := range res {
			res[i] = err
		}
	})},
	{"tries a batch with a large message for ever", "refused-alone", largeAnswered(func(_ error, res core.Results) {
		for i := range res {
			res[i] = errCut
		}
	})},
	{"tries a large message again and again", "refused-alone", largeAnswered(func(err error, res core.Results) {
		for i := range res {
			if errors.Is(res[i], err) {
				res[i] = &waybill.Error{Class: waybill.ClassRejected, Err: err}
			}
		}
	})},
	{"does not name the limit", "refused-alone", largeAnswered(func(err error, res core.Results) {
		for i := range res {
			if errors.Is(res[i], err) {
				res[i] = &waybill.Error{Class: waybill.ClassPermanent, Reason: waybill.ReasonTooLarge, Err: errors.New("the message is too large")}
			}
		}
	})},
	{"sends nothing behind a large message", "refused-alone", faults{publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
		res := make(core.Results, len(batch))
		for i := range batch {
			if res[i] = b.send(ctx, batch[i:i+1])[0]; b.tooLarge(&batch[i]) != nil {
				break
			}
		}
		return res
	}}},
	{"remembers that a message was too large", "refused-alone", remembersRefusals()},
	{"acks before the copy", "copy-refused", copies(true, true)},
	{"does not wait for the copy", "copy-refused", copies(false, false)},
	{"takes a refused settle for a success", "settle-refused", settled(func(_ context.Context, _ *brokenReceiver, _ []core.Ack, res core.Results) {
		for i, err := range res {
			if errors.Is(err, errRefused) {
				res[i] = nil
			}
		}
	})},
	{"gives every subscriber a queue of its own, and says it shares partitions", "receivers-share-a-queue", byPartition(faults{
		subscribe: func(b *broken, s core.Subscription) core.Subscription {
			s.Queue = fmt.Sprintf("%s-%d", s.Queue, b.n.Add(1))
			return s
		},
	})},
	{"gives all partitions to one receiver", "receivers-share-a-queue", byPartition(hog())},
	{"keeps the partitions of a closed receiver", "receivers-share-a-queue", byPartition(faults{
		close: func(*brokenReceiver, context.Context) error { return nil },
	})},
	{"accepts one lost settle in fifty", "settle-twice", everyNth(50)},
	{"has a third receiver beside the active one", "single-active-receiver", third()},
	{"orders the messages of a key by topic", "key-order-batch", faults{publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
		order := make([]int, len(batch))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(i, j int) int {
			switch {
			case batch[i].Topic < batch[j].Topic:
				return -1
			case batch[i].Topic > batch[j].Topic:
				return 1
			}
			return 0
		})
		res := make(core.Results, len(batch))
		for _, i := range order {
			res[i] = b.send(ctx, batch[i:i+1])[0]
		}
		return res
	}}},
}
