package transporttest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// sends makes a publish hook that replaces the batch and sends it. A message that is left out is a success.
func sends(keep func(b *broken, e *waybill.Envelope) bool) func(*broken, context.Context, []waybill.Envelope) core.Results {
	return func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
		res := make(core.Results, len(batch))
		for i := range batch {
			e := batch[i].Clone()
			if keep(b, &e) {
				res[i] = b.send(ctx, []waybill.Envelope{e})[0]
			}
		}
		return res
	}
}

// remembered drops the ids that it has seen, as native deduplication does.
func remembered(confirmedOnly bool) func(*broken, context.Context, []waybill.Envelope) core.Results {
	var mu sync.Mutex
	seen := map[string]bool{}
	return func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
		mu.Lock()
		defer mu.Unlock()
		res := make(core.Results, len(batch))
		for i := range batch {
			if id := batch[i].ID; !seen[id] {
				res[i] = b.send(ctx, batch[i:i+1])[0]
				seen[id] = res[i] == nil || !confirmedOnly
			}
		}
		return res
	}
}

// unbounded forgets Subscription.ReceiveBytes.
func unbounded(_ *broken, s core.Subscription) core.Subscription {
	s.ReceiveBytes = 0
	return s
}

// fitting delivers no body that is larger than most: it waits in vain for one that fits.
func fitting(most int) func(*brokenReceiver, context.Context, int) ([]*waybill.Delivery, error) {
	return func(r *brokenReceiver, ctx context.Context, limit int) ([]*waybill.Delivery, error) {
		ds, err := r.Receiver.Receive(ctx, limit)
		if slices.ContainsFunc(ds, func(d *waybill.Delivery) bool { return len(d.Envelope.Body) > most }) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return ds, err
	}
}

// inProcess keeps retries in the process, where they count against the prefetch.
//
//nolint:revive // a hook, whose receiver comes first
func inProcess(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results {
	var rest []core.Ack
	for _, a := range acks {
		if a.Verdict != core.VerdictRetry {
			rest = append(rest, a)
			continue
		}
		time.AfterFunc(a.Delay, func() {
			a.Delay = 0
			r.Receiver.Settle(context.WithoutCancel(ctx), []core.Ack{a})
		})
	}
	if len(rest) == len(acks) {
		return r.Receiver.Settle(ctx, acks)
	}
	r.Receiver.Settle(ctx, rest)
	return make(core.Results, len(acks))
}

// onlyOwnBindings drops what this receiver's own subscription does not name.
//
//nolint:revive // a hook, whose receiver comes first
func onlyOwnBindings(r *brokenReceiver, ctx context.Context, limit int) ([]*waybill.Delivery, error) {
	for {
		ds, err := r.Receiver.Receive(ctx, limit)
		if err != nil {
			return ds, err
		}
		mine := slices.DeleteFunc(slices.Clone(ds), func(d *waybill.Delivery) bool { return !slices.Contains(r.sub.Bindings, d.Envelope.Topic) })
		r.done(ctx, slices.DeleteFunc(ds, func(d *waybill.Delivery) bool { return slices.Contains(mine, d) }))
		if len(mine) > 0 {
			return mine, nil
		}
	}
}

// releasedAsCopies puts what is released behind everything else, the last one first.
//
//nolint:revive // a hook, whose receiver comes first
func releasedAsCopies(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results {
	acks = slices.Clone(acks)
	for i := len(acks) - 1; i >= 0; i-- {
		if acks[i].Verdict == core.VerdictRelease {
			r.b.send(ctx, []waybill.Envelope{acks[i].Delivery.Envelope})
			acks[i] = core.AckDone(acks[i].Delivery)
		}
	}
	return r.Receiver.Settle(ctx, acks)
}

// counted makes a receive hook that is told which delivery of its message each one is.
func counted(change func(d *waybill.Delivery, n int)) func(*brokenReceiver, context.Context, int) ([]*waybill.Delivery, error) {
	var mu sync.Mutex
	seen := map[string]int{}
	return changed(func(d *waybill.Delivery) {
		mu.Lock()
		defer mu.Unlock()
		seen[d.Queue+d.Envelope.ID]++
		change(d, seen[d.Queue+d.Envelope.ID])
	})
}

func bindings(change func(b string) string) func(*broken, core.Subscription) core.Subscription {
	return func(_ *broken, s core.Subscription) core.Subscription {
		s.Bindings = slices.Clone(s.Bindings)
		for i, b := range s.Bindings {
			s.Bindings[i] = change(b)
		}
		return s
	}
}

// moreBrokenTransports are ways to get it wrong that cost adapters their messages.
var moreBrokenTransports = []fault{
	{"forgets ReceiveBytes", "receive-bytes", faults{subscribe: unbounded}},
	{"keeps what is larger than ReceiveBytes", "receive-bytes", faults{receive: fitting(40_000)}},
	{"answers an empty batch", "publish-empty-batch", faults{publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
		if len(batch) == 0 {
			return core.Results{nil}
		}
		return b.send(ctx, batch)
	}}},
	{"answers an empty settle", "settle-empty", faults{settle: func(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results {
		if len(acks) == 0 {
			return core.Results{nil}
		}
		return r.Receiver.Settle(ctx, acks)
	}}},
	{"confirms an unroutable message that is alone", "publish-unroutable-alone", faults{
		publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
			res := b.send(ctx, batch)
			if len(batch) == 1 && errors.Is(res[0], waybill.ErrUnroutable) {
				res[0] = nil
			}
			return res
		},
	}},
	{"remembers unroutable ids", "unroutable-then-bound", faults{publish: remembered(false)}},
	{"remembers ids", "publish-same-id-again", faults{publish: remembered(true)}},
	{"is no log", "keeps-unread", faults{log: true, publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
		b.Transport.Publish(ctx, batch)
		return make(core.Results, len(batch))
	}}},
	{"is a log that detects", "keeps-unread", faults{log: true, traits: func(t *core.PublisherTraits) { t.DetectsUnroutable = true }}},
	{"drops what is expired", "publish-expired", faults{publish: sends(func(_ *broken, e *waybill.Envelope) bool {
		return e.Expires.IsZero() || time.Now().Before(e.Expires)
	})}},
	{"takes > for a wildcard", "round-trip-topics", faults{receive: changed(func(d *waybill.Delivery) {
		d.Envelope.Topic = strings.ReplaceAll(d.Envelope.Topic, ">", "_")
	})}},
	{"has topics of 200 bytes", "round-trip-topics", faults{receive: changed(func(d *waybill.Delivery) {
		d.Envelope.Topic = d.Envelope.Topic[:min(len(d.Envelope.Topic), 200)]
	})}},
	{"lets headers command the broker", "round-trip-header-names", faults{receive: changed(func(d *waybill.Delivery) { delete(d.Envelope.Headers, "Reserved") })}},
	{"trims header values", "round-trip-header-names", faults{receive: changed(func(d *waybill.Delivery) {
		for n, v := range d.Envelope.Headers {
			d.Envelope.Headers[n] = strings.TrimSpace(v)
		}
	})}},
	{"lower-cases topics", "names-have-case", faults{
		publish:   sends(func(_ *broken, e *waybill.Envelope) bool { e.Topic = strings.ToLower(e.Topic); return true }),
		subscribe: bindings(strings.ToLower),
	}},
	{"lower-cases queues", "names-have-case", faults{subscribe: func(_ *broken, s core.Subscription) core.Subscription {
		s.Queue = strings.ToLower(s.Queue)
		return s
	}}},
	{"takes * for any words", "binding-word", faults{subscribe: bindings(func(b string) string { return strings.ReplaceAll(b, ".*", ".#") })}},
	{"takes a last # for one word or more", "binding-tail", faults{subscribe: bindings(func(b string) string {
		if rest, ok := strings.CutSuffix(b, ".user.#"); ok {
			return rest + ".user.*.#"
		}
		return b
	})}},
	{"sends a copy for each binding", "binding-overlap", faults{
		subscribe: func(b *broken, s core.Subscription) core.Subscription { b.n.Store(int64(len(s.Bindings))); return s },
		publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
			for range b.n.Load() - 1 {
				b.send(ctx, batch)
			}
			return b.send(ctx, batch)
		},
	}},
	{"replaces bindings", "bindings-add-up", faults{receive: onlyOwnBindings}},
	{"needs bindings each time", "queue-keeps-messages", faults{receive: onlyOwnBindings}},
	{"leaves receivers open", "transport-close-ends-receive", faults{keepsRunning: true}},
	{"ignores the subscription's context", "subscription-ends-with-context", faults{ignoresContext: true}},
	{"acks what a lost session holds", "restart", faults{losesAtRestart: true}},
	{"confirms what was only sent", "publish-over-cut", faults{publish: func(b *broken, ctx context.Context, batch []waybill.Envelope) core.Results {
		if b.isCut() {
			return make(core.Results, len(batch))
		}
		return b.send(ctx, batch)
	}}},
	{"leaves a copy at each try", "publish-again-unanswered", faults{forgets: true}},
	{"fires and forgets settles", "settle-over-cut", faults{settle: func(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results {
		if r.b.isCut() {
			return make(core.Results, len(acks))
		}
		return r.Receiver.Settle(ctx, acks)
	}}},
	{"gives the lost message back behind the others", "in-order-over-cut", faults{settle: func(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results {
		if len(acks) > 1 || acks[0].Verdict != core.VerdictDone || r.b.n.Add(1) > 1 {
			return r.Receiver.Settle(ctx, acks)
		}
		r.b.send(ctx, []waybill.Envelope{acks[0].Delivery.Envelope})
		r.Receiver.Settle(ctx, acks)
		return core.Results{waybill.ErrLeaseLost}
	}}},
	{"says error but settles", "settle-over-cut", faults{settle: func(r *brokenReceiver, ctx context.Context, acks []core.Ack) core.Results {
		res := r.Receiver.Settle(ctx, acks)
		if r.b.isCut() {
			return core.AllFailed(len(acks), errCut)
		}
		return res
	}}},
	{"keeps retries in the process", "retry-survives-transport", faults{settle: inProcess}},
	{"counts retries against the prefetch", "retry-waits-aside", faults{settle: inProcess}},
	{"retries after a second at most", "retry-delay-of-seconds", faults{settle: acked(func(_ *brokenReceiver, a *core.Ack) { a.Delay = min(a.Delay, time.Second) })}},
	{"retries early without saying so", "retry-of-any-length", faults{settle: acked(func(_ *brokenReceiver, a *core.Ack) { a.Delay = min(a.Delay, time.Second) })}},
	{"counts releases as redeliveries", "release-costs-nothing", faults{receive: counted(func(d *waybill.Delivery, n int) { d.Redeliveries = n - 1 })}},
	{"counts retries as redeliveries", "retry-is-no-redelivery", faults{receive: changed(func(d *waybill.Delivery) { d.Redeliveries = d.Attempt - 1 })}},
	{"has two counts and declares one", "one-count", faults{subTraits: func(t *core.SubscriberTraits) { t.AttemptsAreDeliveries = true }}},
	{"counts the stops of an ordered receiver", "stops-in-order", faults{receive: counted(func(d *waybill.Delivery, n int) { d.Redeliveries = n - 1 })}},
	{"has one count and declares two", "release-costs-nothing", faults{oneCount: true, subTraits: func(t *core.SubscriberTraits) { t.AttemptsAreDeliveries = false }}},
	{"loses headers after a close", "redelivery-keeps-properties", faults{receive: changed(func(d *waybill.Delivery) {
		if d.Redeliveries > 0 {
			d.Envelope.Headers = nil
		}
	})}},
	{"loses the priority when released", "redelivery-keeps-properties", faults{receive: counted(func(d *waybill.Delivery, n int) {
		if n == 2 {
			d.Envelope.Priority = 0
		}
	})}},
	{"delivers what it could not read as whole", "unreadable", faults{readsAnything: true}},
	{"declares a limit that the broker does not have", "broker-parks", faults{subTraits: func(t *core.SubscriberTraits) { t.BrokerParks = true }}},
	{"does not renew", "hold-renewed", faults{lease: &leaseFaults{neverRenews: true}}},
	{"holds for ever", "hold-ends", faults{lease: &leaseFaults{forever: true}}},
	{"does not know what it lost", "hold-ends", faults{lease: &leaseFaults{knowsNothing: true}}},
	{"ignores InOrder", "single-active-receiver", faults{subscribe: func(_ *broken, s core.Subscription) core.Subscription { s.InOrder = false; return s }}},
	{"ignores InOrder, one at a time", "single-active-receiver", faults{subscribe: func(_ *broken, s core.Subscription) core.Subscription {
		s = narrow(s, 1)
		s.InOrder = false
		return s
	}}},
	{"releases behind the others", "single-active-receiver", faults{settle: releasedAsCopies}},
	{"hands out the next before what was released", "release-before-the-next", faults{settle: releasedAsCopies}},
	{"releases the last first", "release-keeps-order", faults{settle: releasedAsCopies}},
}
