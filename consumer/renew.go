package consumer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
)

// Some transports give a delivery to another consumer after a time (SubscriberTraits.HoldFor). Only the consumer knows
// what it still holds, waiting messages included, so the consumer renews all of it, and not the transport. A transport
// that cannot renew gets a warning in the log instead, at two thirds of the time.

// kept are the messages that the transport would give to another consumer after SubscriberTraits.HoldFor. It is nil if
// there is no such limit. A value is true after a warning. The runner's mu guards it.
type kept map[*message]bool

func newKept(traits *core.SubscriberTraits) kept {
	if traits.HoldFor <= 0 {
		return nil
	}
	return kept{}
}

// add takes in messages that were received.
func (k kept) add(messages []message) {
	if k == nil {
		return
	}
	for i := range messages {
		k[&messages[i]] = false
	}
}

// keepHeld renews what is held, every third of the limit, until the run is over.
func (r *runner) keepHeld() {
	tick := time.NewTicker(max(r.judge.traits.HoldFor/3, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			for s, messages := range r.heldBySession() {
				r.renew(s, messages)
			}
		case <-r.ended:
			return
		}
	}
}

func (r *runner) heldBySession() map[*session][]*message {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[*session][]*message{}
	for m := range r.load.kept {
		out[m.session] = append(out[m.session], m)
	}
	return out
}

// renew renews messages of a session, or warns of those that it cannot renew in time. A message that another consumer
// has is lost: its handler's context ends. Any other failure is tried again at the next tick.
func (r *runner) renew(s *session, messages []*message) {
	limit := r.judge.traits.HoldFor
	renewer, ok := core.As[core.DeliveryRenewer](s.rcv)
	if !ok {
		r.warnOfLimit(messages)
		return
	}
	deliveries := make([]*waybill.Delivery, len(messages))
	for i, m := range messages {
		deliveries[i] = m.d
	}
	ctx, cancel := context.WithTimeout(r.settleCtx, limit/3)
	results := renewer.RenewDeliveries(ctx, deliveries, limit)
	cancel()
	for i, m := range messages {
		err := errNoResult
		if i < len(results) {
			err = results[i]
		}
		r.mu.Lock()
		_, held := r.load.kept[m]
		r.mu.Unlock()
		switch {
		case err == nil, !held: // settled meanwhile
		case errors.Is(err, waybill.ErrLeaseLost):
			r.lose(m, err)
		default:
			r.log.Event(r.tel.under(r.settleCtx, m.d), slog.LevelWarn, "consumer.renew", "cannot keep a message for longer; will try again",
				append(ofMessage(m.d), errAttr(err))...)
		}
	}
}

// lose ends the context of m's handler: another consumer has the message. If no handler has begun, none will (owned).
func (r *runner) lose(m *message, err error) {
	r.tellLost(m, err, slog.String("phase", "renew"))
	r.mu.Lock()
	delete(r.load.kept, m)
	end := m.lost
	r.mu.Unlock()
	if end != nil {
		end()
	}
}

// tellLost logs and counts that another consumer has m. That is known by a renewal, by core.LeaseWatcher, or by a
// settle: the first one tells it.
func (r *runner) tellLost(m *message, err error, where ...slog.Attr) {
	r.mu.Lock()
	told := m.lossTold
	m.lossTold = true
	r.mu.Unlock()
	if told {
		return
	}
	r.tel.count(r.settleCtx, r.tel.lost, 1)
	attrs := append(append(ofMessage(m.d), where...), slog.Duration("held", round(time.Since(m.since))))
	if n := m.d.Redeliveries; n >= 0 {
		attrs = append(attrs, slog.Int("deliveries", n+1))
	}
	r.log.Event(r.tel.under(r.settleCtx, m.d), slog.LevelWarn, "consumer.lease_lost",
		"the message is no longer this consumer's; another one has it, or it was settled", append(attrs, errAttr(err))...)
}

// warnOfLimit warns, once each, of messages that are held for longer than two thirds of the limit.
func (r *runner) warnOfLimit(messages []*message) {
	limit := r.judge.traits.HoldFor
	for _, m := range messages {
		held := time.Since(m.since)
		r.mu.Lock()
		warned, ok := r.load.kept[m]
		if warn := ok && !warned && held >= limit/3*2; warn {
			r.load.kept[m] = true
		} else {
			ok = false
		}
		r.mu.Unlock()
		if ok {
			r.log.Event(r.tel.under(r.settleCtx, m.d), slog.LevelWarn, "consumer.held_long",
				"the broker soon gives a message to another consumer, since it is held too long; shorten the handler's work, or lower Prefetch",
				append(ofMessage(m.d), slog.Duration("held", round(held)), slog.Duration("limit", limit))...)
		}
	}
}
