package consumer

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/check"
)

// A subscription is completed and checked once, at Handle, and not touched afterwards. All its problems are told at
// once, each with the field, the cause and the cure. Numbers that a user left to Waybill are chosen so that they fit
// each other: no more handlers than a limit lets run, no fewer messages than handlers, and room for a second batch.

// complete fills sub from the options and from the needs of its handlers. It also returns how messages are held. A
// number that the user has set stays: the check refuses it if it does not fit.
func (o *Options) complete(sub waybill.Subscription, handlers []waybill.Handler) (waybill.Subscription, holding) {
	unset := sub.Prefetch == 0 && o.Prefetch == 0
	sub.Bindings, sub.Sources = slices.Clone(sub.Bindings), maps.Clone(sub.Sources)
	completeLimits(&sub)
	held := mostHeld(&sub.Limit)
	// 1. Handlers: no more than are of use within the limit, or than messages that may be held.
	if sub.Concurrency == 0 {
		sub.Concurrency = atMost(atMost(cmp.Or(o.Concurrency, DefaultConcurrency), mostUseful(&sub.Limit)), held)
		if sub.Prefetch > 0 {
			sub.Concurrency = min(sub.Concurrency, sub.Prefetch)
		} else if o.Concurrency == 0 && o.Prefetch > 0 {
			sub.Concurrency = min(sub.Concurrency, o.Prefetch)
		}
	}
	// 2. Held messages: enough for all handlers, and for two batches of each.
	chosen := sub.Prefetch == 0 // by Waybill, or for all subscriptions of the consumer
	if chosen {
		if sub.Prefetch = o.Prefetch; sub.Prefetch < sub.Concurrency {
			sub.Prefetch = min(2*sub.Concurrency, maxPrefetch)
		}
		// every handler may have a full batch, while the next one arrives or waits to be acknowledged
		for i := range handlers {
			if handlers[i].Batch != nil && sub.Concurrency > 0 && sub.Concurrency <= maxConcurrency && handlers[i].BatchSize <= maxPrefetch {
				sub.Prefetch = min(max(sub.Prefetch, 2*sub.Concurrency*batchSize(&handlers[i])), maxPrefetch)
			}
		}
	}
	// 3. A number without a setting adapts: it begins at h.least, and Prefetch becomes the greatest.
	h := holding{unset: unset}
	if unset && adapts(&sub) {
		h.least = min(max(sub.Prefetch/2, sub.Concurrency), maxPrefetch)
		sub.Prefetch = max(sub.Prefetch, mostAdapted)
		if rate := sub.Limit.Rate; rate > 0 && rate <= maxRate {
			sub.Prefetch = min(sub.Prefetch, h.least+int(math.Ceil(rate*holdTime.Seconds())))
		}
	}
	if chosen {
		sub.Prefetch = max(atMost(sub.Prefetch, held), min(sub.Concurrency, sub.Prefetch))
		h.least = min(h.least, sub.Prefetch)
	}
	// 4. The policies of the consumer stand for those that the subscription leaves out.
	sub.MaxDeliveries = cmp.Or(sub.MaxDeliveries, o.MaxDeliveries)
	if sub.Retry == nil {
		sub.Retry = o.Retry
	}
	if sub.InProcess == nil {
		sub.InProcess = o.InProcess
	}
	return sub, h
}

// request returns the request to the transport for a completed subscription.
func (h holding) request(sub *waybill.Subscription) core.Subscription {
	asked := core.SubscriptionOf(sub)
	first := max(sub.Concurrency, firstAsk)
	// A set Prefetch, too, begins with few until a body has shown its size. With the order kept the number stays.
	beginsWithFew := h.unset || !sub.InOrder && sub.Prefetch > 2*sub.Concurrency
	switch {
	case h.least > 0:
		asked.Prefetch, asked.MaxPrefetch = min(h.least, firstAsk), sub.Prefetch
	case beginsWithFew && sub.Prefetch > first:
		asked.Prefetch, asked.MaxPrefetch = first, sub.Prefetch
	}
	asked.ReceiveBytes = mostReceivedBytes
	if sub.Retry.Kind == waybill.BackoffCustom && len(sub.Retry.Delays) == 0 {
		asked.RetryDelays = DefaultRetry().Delays // so that a transport with fixed delays has some to round to
	}
	return asked
}

// subscriptionProblems returns everything that is wrong with a completed subscription and its handlers.
func subscriptionProblems(sub *waybill.Subscription, handlers []waybill.Handler, traits core.SubscriberTraits, limiter core.Limiter) []string {
	var p []string
	bad := func(format string, a ...any) { p = append(p, fmt.Sprintf(format, a...)) }
	if sub.Queue == "" {
		bad("Queue: is empty; name the queue that all replicas of the service share")
	} else if s := check.Name(sub.Queue); s != "" {
		bad("Queue: %s", s)
	}
	for i, b := range sub.Bindings {
		switch s := check.Name(b); {
		case b == "":
			bad("Bindings[%d]: is empty; name a topic", i)
		case s != "":
			bad("Bindings[%d]: %s", i, s)
		case wildcardsOf(b) > traits.Wildcards:
			bad("Bindings[%d]: %q holds a wildcard that this transport does not have (it has: %s); list the topics", i, b, wildcards[traits.Wildcards])
		}
	}
	for _, source := range slices.Sorted(maps.Keys(sub.Sources)) {
		if len(sub.Sources[source]) == 0 {
			bad("Sources[%q]: is empty, so that the source may send nothing; name its topics, or leave it out", source)
		}
		for i, topic := range sub.Sources[source] {
			if s := check.Name(topic); topic == "" || s != "" {
				bad("Sources[%q][%d]: %s", source, i, cmp.Or(s, "is empty; name a topic"))
			}
		}
	}
	p = append(p, checkCounts("", sub.Concurrency, sub.Prefetch)...)
	problems := sub.Retry.Validate("Retry")
	p = append(p, problems...)
	if len(problems) == 0 {
		p = append(p, checkDelays(sub, traits)...)
	}
	if !sub.DropFailed && !traits.Parks {
		bad("DropFailed: this transport cannot park what fails for good; set DropFailed to drop it, or choose another transport")
	}
	p = append(p, limitProblems(sub, handlers, limiter)...)
	p = append(p, checkInProcess(sub.InProcess)...)
	if sub.InOrder && (!traits.SingleActive || !traits.KeyOrder) {
		bad("InOrder: this transport does not promise that the deliveries of a key go to one receiver at a time, in queue order; leave it off, or choose another transport")
	}
	p = append(p, checkHandlers(sub, handlers)...)
	if traits.Wildcards > core.WildcardsNone { // otherwise bindings may filter nothing, as in a table queue
		p = append(p, checkReach(sub, handlers)...)
	}
	return p
}

// wildcardsOf returns the level of wildcards that binding needs: a transport without it would bind something else.
func wildcardsOf(binding string) core.Wildcards {
	need := core.WildcardsNone
	words := strings.Split(binding, ".")
	for i, word := range words {
		switch {
		case word == "#" && i < len(words)-1:
			return core.WildcardsAll
		case word == "#":
			need = core.WildcardsTail
		case strings.ContainsAny(word, "*#"):
			need = max(need, core.WildcardsWord)
		}
	}
	return need
}

// wildcards says what each level has.
var wildcards = [...]string{
	core.WildcardsNone: "none", core.WildcardsWord: "*", core.WildcardsTail: "* and a # at the end", core.WildcardsAll: "* and #",
}

// DefaultBatchSize is that of batch handlers that set none, unless a set Prefetch is less.
const DefaultBatchSize = 100

func batchSize(h *waybill.Handler) int { return cmp.Or(h.BatchSize, DefaultBatchSize) }

// checkDelays returns the delays and attempts that the transport cannot keep. It would keep others without a word.
func checkDelays(sub *waybill.Subscription, traits core.SubscriberTraits) []string {
	var p []string
	retries := sub.Retry.MaxAttempts() != 1
	if retries && !traits.DelaysRetries && !sub.InOrder {
		p = append(p, "Retry: this transport cannot deliver again later; use waybill.RetryDelays() to park at the first failure, or choose another transport")
	}
	if n := sub.Retry.MaxAttempts(); traits.AttemptsAreDeliveries && sub.MaxDeliveries > 0 && (n == 0 || n > sub.MaxDeliveries) {
		p = append(p, fmt.Sprintf("MaxDeliveries: %d is less than the attempts of Retry, and this transport counts both as one; raise it, or set fewer attempts", sub.MaxDeliveries))
	}
	if total, _ := totalDelay(sub.Retry); retries && sub.InOrder && traits.AckTimeout > 0 && total > traits.AckTimeout/2 {
		p = append(p, fmt.Sprintf("Retry: the delays add up to %s. With InOrder a message waits for them in place, and the broker takes it back after %s: "+
			"shorten them to half of that, or raise the broker's limit and declare it", total, traits.AckTimeout))
	}
	for _, d := range (holding{}).request(sub).RetryDelays {
		if retries && traits.MaxRetryDelay > 0 && d > traits.MaxRetryDelay {
			p = append(p, fmt.Sprintf("Retry: the delay %s is more than the %s that this transport can hold; shorten it", d, traits.MaxRetryDelay))
		}
	}
	return p
}

// checkHandlers returns the problems of handlers. One of them crosses parts: a duplicate that comes after the inbox has
// forgotten the message has its effect twice, so the delays of the policy must end before.
func checkHandlers(sub *waybill.Subscription, handlers []waybill.Handler) []string {
	var p []string
	if len(handlers) == 0 {
		p = append(p, "handlers: there are none; give at least one")
	}
	seen := map[string]bool{}
	for i, h := range handlers {
		name := h.Name
		if s := check.Topic(name); s != "" && name != waybill.AnyMessage {
			p = append(p, fmt.Sprintf("handlers[%d]: the name %s", i, s))
		} else if seen[name] {
			p = append(p, fmt.Sprintf("handlers[%d]: %q is handled by an earlier one; a message reaches one handler of a queue", i, name))
		}
		seen[name] = true
		if h.Handle == nil {
			p = append(p, fmt.Sprintf("handlers[%d]: %q has no function; give one", i, name))
		}
		if h.Batch != nil && (h.BatchSize < 0 || h.BatchSize > sub.Prefetch) {
			p = append(p, fmt.Sprintf("handlers[%d]: BatchSize %d of %q is not between 0 (default) and Prefetch, %d", i, h.BatchSize, name, sub.Prefetch))
		}
		if h.BatchWait < 0 || h.BatchWait > time.Minute {
			p = append(p, fmt.Sprintf("handlers[%d]: BatchWait %s of %q is not between 0 and 1m", i, h.BatchWait, name))
		}
		if total, _ := totalDelay(sub.Retry); h.MaxRetryTime > 0 && total > h.MaxRetryTime {
			p = append(p, fmt.Sprintf("handlers[%d]: the delays of Retry add up to %s, more than the %s that the retention of the inbox of %q leaves: "+
				"a duplicate that comes later has its effect twice; shorten the policy, or raise the inbox's Retention", i, total, h.MaxRetryTime, name))
		}
	}
	return p
}

// checkReach returns the handlers that no message can reach: their name is a topic, and no binding matches it. A queue
// without bindings is bound elsewhere.
func checkReach(sub *waybill.Subscription, handlers []waybill.Handler) []string {
	var p []string
	for i, h := range handlers {
		if !h.NameIsTopic || h.Name == waybill.AnyMessage || len(sub.Bindings) == 0 || check.Topic(h.Name) != "" {
			continue
		}
		topic := strings.Split(h.Name, ".")
		matches := func(binding string) bool { return check.Matches(strings.Split(binding, "."), topic) }
		if !slices.ContainsFunc(sub.Bindings, matches) {
			p = append(p, fmt.Sprintf("handlers[%d]: topic %q matches none of the Bindings %q, so nothing would reach the handler; add the topic to them", i, h.Name, sub.Bindings))
		}
	}
	return p
}
