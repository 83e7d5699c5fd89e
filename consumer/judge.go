package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/check"
	"github.com/waybill-go/waybill/internal/errtext"
)

// Everything that becomes of a delivery is decided here, as a function of the delivery, the subscription and the
// handler's error. So each row of a table test is a whole decision. The order of the questions counts: an unreadable
// message has no source to compare, an expired one needs no handler, and a retry that came early is neither counted nor
// reported.

// verdict is a decision about a delivery.
type verdict struct {
	ack     core.Ack
	status  status
	err     error
	outage  bool          // a dependency of the handler is down
	of      outage        // whether it is the message's own; see blame.go
	inPlace bool          // the delivery is held, and its key with it, until the retry
	asked   bool          // the handler said when, by waybill.RetryAfter
	took    time.Duration // the time of the handler, with its repetitions
	healthy bool          // the handler ran, and all its dependencies are there
	quiet   bool          // a retry goes on waiting: nothing tells of it
	lost    bool          // another consumer has it, which the log tells anyway
}

// judge decides about deliveries. It keeps no state.
type judge struct {
	sub      *waybill.Subscription
	handlers handlers
	unknown  UnknownPolicy
	traits   core.SubscriberTraits
	text     func(error) string // Options.StoredError
}

// refuse returns the verdict about a delivery that must not reach a handler, or nil.
func (j *judge) refuse(d *waybill.Delivery) *verdict {
	e := &d.Envelope
	switch {
	case d.Err != nil:
		return new(j.park(d, cmp.Or(waybill.ReasonOf(d.Err), waybill.ReasonUndecodable), d.Err))
	case j.sub.Sources != nil && !allowed(j.sub.Sources[e.Source], e.Topic):
		return new(j.park(d, waybill.ReasonForbidden, fmt.Errorf("source %.100q may not send topic %.100q to queue %q, by Subscription.Sources", e.Source, e.Topic, j.sub.Queue)))
	case !e.Expires.IsZero() && e.Expired(time.Now()):
		return new(j.park(d, waybill.ReasonExpired, errors.New("expired at "+e.Expires.UTC().Format(time.RFC3339))))
	case !d.NotBefore.IsZero() && time.Now().Before(d.NotBefore):
		return &verdict{ack: core.AckRetry(d, time.Until(d.NotBefore), nil), quiet: true}
	case j.sub.MaxDeliveries > 0 && d.Redeliveries >= j.sub.MaxDeliveries:
		return new(j.park(d, waybill.ReasonDeliveries, fmt.Errorf("delivered %d times before without an outcome; at most %d are allowed: "+
			"its handler may end the process", d.Redeliveries, j.sub.MaxDeliveries)))
	case j.handlers.find(e) == nil:
		v := j.park(d, waybill.ReasonNoHandler, fmt.Errorf("no handler of queue %q is for type %.100q or topic %.100q: register one, or narrow the bindings", j.sub.Queue, e.Type, e.Topic))
		if j.unknown == UnknownDrop {
			v.ack, v.status = core.AckDone(d), statusDropped
		}
		return &v
	}
	return nil
}

// allowed reports whether one of topics, which can hold wildcards, matches topic.
func allowed(topics []string, topic string) bool {
	words := strings.Split(topic, ".")
	return slices.ContainsFunc(topics, func(t string) bool { return check.Matches(strings.Split(t, "."), words) })
}

// suspects reports whether d may be ending the process: half of its deliveries are spent.
func (j *judge) suspects(d *waybill.Delivery) bool {
	return d.Redeliveries > 0 && j.sub.MaxDeliveries > 0 && 2*d.Redeliveries >= j.sub.MaxDeliveries
}

// park returns the verdict that parks a delivery. The message keeps the text of the error that the options make of it.
func (j *judge) park(d *waybill.Delivery, reason waybill.Reason, err error) verdict {
	return verdict{ack: core.AckReject(d, reason, errtext.WithText(err, j.text)), status: statusParked, err: err}
}

// decide maps a handler's result to a verdict. ctx is the parent of all handlers' contexts: its end is a stop.
//
//	error               | verdict
//	--------------------|----------------------------------------------------------------------
//	none                | done
//	permanent           | parked with its reason, also at a stop
//	any other at a stop | released at no cost: the handler was cut off
//	outage              | released at no cost, or held in place with InOrder; it may begin a pause
//	rejected, unknown   | retried as the policy says, or parked; see retry
func (j *judge) decide(ctx context.Context, d *waybill.Delivery, st waybill.HandlerStatus, err error) verdict {
	if err == nil {
		v := verdict{ack: core.AckDone(d), status: statusSuccess, healthy: true}
		if st == waybill.HandlerDuplicate {
			v.status = statusDuplicate
		}
		return v
	}
	class := waybill.ClassOf(err)
	if class == waybill.ClassPermanent {
		reason := cmp.Or(waybill.ReasonOf(err), waybill.ReasonRejected)
		v := j.park(d, reason, err)
		// these reasons say nothing about the handler's dependencies
		v.healthy = reason != waybill.ReasonUndecodable && reason != waybill.ReasonNoID
		return v
	}
	if ctx.Err() != nil { // cut off by a stop
		return verdict{ack: core.AckRelease(d), status: statusFailed, err: err}
	}
	if class == waybill.ClassOutage {
		return verdict{ack: core.AckRelease(d), status: statusFailed, err: err, outage: true, inPlace: j.sub.InOrder}
	}
	v := j.retry(d, err)
	v.healthy = waybill.ReasonOf(err) != waybill.ReasonUndecodable // else the handler did not get it
	return v
}

// retry asks the policy about a failed attempt. A custom policy that cannot be followed parks the message: with another
// delay its fault would not be found. The questions, in order:
//
//  1. Are the attempts spent? Then it is parked.
//  2. Did the handler ask for a delay (RetryAfter)? Otherwise the policy says when, or that there is no other attempt.
//  3. How long can it wait? In place for half of AckTimeout, since the broker takes it back then; in the broker for
//     MaxRetryDelay.
func (j *judge) retry(d *waybill.Delivery, cause error) verdict {
	policy, attempt := j.sub.Retry, max(d.Attempt, 1)
	limit := policy.MaxAttempts()
	if limit > 0 && attempt >= limit {
		return j.park(d, cmp.Or(waybill.ReasonOf(cause), waybill.ReasonAttempts), cause)
	}
	delay, asked := after(cause)
	longest := j.traits.MaxRetryDelay
	inPlace := j.sub.InOrder && (d.Envelope.Key != "" || !j.traits.DelaysRetries)
	if inPlace {
		longest = j.traits.AckTimeout / 2 // only this process holds it
	}
	switch {
	case inPlace && asked:
	case asked && !j.traits.DelaysRetries:
		return j.park(d, waybill.ReasonRetryPolicy, fmt.Errorf("this transport cannot deliver again later: %w", cause))
	case !asked:
		next, again, err := ask(policy, attempt, cause)
		switch {
		case err != nil:
			return j.park(d, waybill.ReasonRetryPolicy, fmt.Errorf("%w; the handler had failed: %w", err, cause))
		case !again:
			return j.park(d, cmp.Or(waybill.ReasonOf(cause), waybill.ReasonRejected), cause)
		case policy.Kind == waybill.BackoffCustom && longest > 0 && next > longest:
			return j.park(d, waybill.ReasonRetryPolicy, fmt.Errorf("the retry policy asked for %s, a message can wait for %s here; the handler had failed: %w",
				next, longest, cause))
		}
		delay = next
	}
	if longest > 0 && (!inPlace || !asked) { // else that is for heldFor
		delay = min(delay, longest)
	}
	return verdict{ack: core.AckRetry(d, delay, errtext.WithText(cause, j.text)), status: statusRetried, err: cause, inPlace: inPlace, asked: asked}
}

// heldFor bounds the delay that a handler asked for, if its message waits in place: by the rest of half of AckTimeout
// after held. The delay of the policy is left to the message in any case: all of them fit into the other half. heldFor
// returns the delay that was asked for, and whether it changed it.
func (j *judge) heldFor(v *verdict, held time.Duration) (asked time.Duration, changed bool) {
	asked = v.ack.Delay
	if !v.inPlace || !v.asked || j.traits.AckTimeout <= 0 {
		return asked, false
	}
	least := time.Second
	if j.sub.Retry.Kind != waybill.BackoffCustom {
		least = j.sub.Retry.Delay(max(v.ack.Delivery.Attempt, 1))
	}
	v.ack.Delay = min(asked, max(j.traits.AckTimeout/2-held, least))
	return asked, v.ack.Delay < asked
}

// policyTimeout is how long a custom policy may take.
const policyTimeout = 5 * time.Second

// ask is policy.Next for policies that may never return: the goroutine that they run in is left behind then.
func ask(policy *waybill.Backoff, attempt int, cause error) (delay time.Duration, again bool, err error) {
	if policy.Kind != waybill.BackoffCustom {
		return policy.Next(attempt, cause)
	}
	type answer struct {
		delay time.Duration
		again bool
		err   error
	}
	answered := make(chan answer, 1)
	go func() {
		a := answer{err: errors.New("waybill: the custom back-off ended its goroutine")}
		defer func() { answered <- a }()
		a.delay, a.again, a.err = policy.Next(attempt, cause)
	}()
	timer := time.NewTimer(policyTimeout)
	defer timer.Stop()
	select {
	case a := <-answered:
		return a.delay, a.again, a.err
	case <-timer.C:
		return 0, false, fmt.Errorf("waybill: the custom back-off did not answer within %s", policyTimeout)
	}
}

// after returns the delay that a handler asked for with waybill.RetryAfter.
func after(err error) (time.Duration, bool) {
	if e, ok := errors.AsType[*waybill.Error](err); ok && e.After > 0 {
		return e.After, true
	}
	return 0, false
}
