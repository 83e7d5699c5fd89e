package relay

import (
	"errors"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/dispatch"
	"github.com/waybill-go/waybill/internal/errtext"
	"github.com/waybill-go/waybill/internal/obs"
)

// Each record that a relay hands out gets one outcome. publish.go concludes the published ones; here are the others:
// released at no cost, retried, abandoned, lost. Each has its counter, its log line and its hook.

// conclude gives an item its outcome.
func (e *engine) conclude(item *dispatch.Item, o core.Outcome) {
	rt := e.routes[item.Route()]
	e.endTrial(rt, item, o.Event() == core.EventReleased)
	e.d.Conclude(e.now, item, o)
}

// release releases an item at no cost. A retry of a paused topic waits for the topic; otherwise it would come back at
// once. Another record of the topic can be on trial for as long as a publish takes.
func (e *engine) release(item *dispatch.Item, unknown bool) {
	e.counts.Released++
	if e.debug() {
		e.note(item, "relay.released", "message released: it costs no attempt, and will be sent later", "unknown", unknown)
	}
	in := time.Duration(0)
	if b := e.routes[item.Route()].breakers.topics[item.Record.Envelope.Topic]; b != nil && item.Record.Failed {
		if in = max(b.until.Sub(e.now), e.opts.PollMin); b.half && b.trial != nil && b.trial != item {
			in = max(in, triedBy)
		}
	}
	e.conclude(item, core.Release(&item.Record, in, unknown))
}

// stored returns an error as it is stored with a message.
func (e *engine) stored(err error) error {
	if errors.Is(err, waybill.ErrUnroutable) {
		return err
	}
	return errtext.WithText(err, e.opts.StoredError)
}

// retry ends an attempt; the item is tried again later.
func (e *engine) retry(item *dispatch.Item, err error, in time.Duration) {
	e.counts.Failed++
	e.conclude(item, core.Retry(&item.Record, e.stored(err), in))
	if e.opts.Hooks.OnRetry != nil {
		ev := e.event(item)
		ev.Err, ev.RetryIn = err, in
		e.observer.tell(e.opts.Hooks.OnRetry, ev)
	}
}

// abandon ends an item for good, with a reason. Its key goes on when that is stored, unless the route blocks it.
func (e *engine) abandon(item *dispatch.Item, reason waybill.Reason, err error) {
	e.counts.Abandoned++
	e.conclude(item, core.Abandon(&item.Record, reason, e.stored(err)))
	e.tel.abandoned(e.base, e.routes[item.Route()], reason)
	event := "relay.abandoned"
	if reason == waybill.ReasonUndecodable {
		event = "relay.undecodable"
	}
	level, args := slog.LevelError, append([]any{"event", event, "reason", string(reason), "error", core.ErrorText(err)}, ofMessage(item)...)
	if reason == waybill.ReasonExpired { // after a long outage they are many
		suppressed, ok := e.limiter.Allow(e.now, event+" "+string(reason)+" "+item.Route())
		if !ok {
			level = slog.LevelDebug
		}
		if suppressed > 0 {
			args = append(args, obs.Suppressed, suppressed)
		}
	}
	e.log.Log(core.ContextWithTrace(e.base, &item.Record.Envelope), level, "message abandoned", args...)
	if e.opts.Hooks.OnAbandoned != nil {
		ev := e.event(item)
		ev.Err, ev.Reason = err, reason
		e.observer.tell(e.opts.Hooks.OnAbandoned, ev)
	}
}

// itemLost notes that a record that was out belongs to another relay.
func (e *engine) itemLost(item *dispatch.Item) {
	rt := e.routes[item.Route()]
	e.tel.leaseLost(e.base, rt)
	e.warn(item, "relay.lease_lost", "the record went to another relay while it was here; it may arrive twice", core.ErrFenced)
	if e.opts.Hooks.OnLeaseLost != nil {
		e.observer.tell(e.opts.Hooks.OnLeaseLost, event(item))
	}
}
