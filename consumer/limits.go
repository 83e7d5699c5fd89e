package consumer

import (
	"fmt"
	"math"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/check"
)

const (
	minRate = 1.0 / 600
	maxRate = 100_000
	// slowHold is how long held messages of a subscription may wait for their rate, if Prefetch is not set.
	slowHold = time.Minute
)

// completeLimits fills in the defaults of limits. Concurrency and Prefetch of sub are what its user set.
func completeLimits(sub *waybill.Subscription) {
	l, g := &sub.Limit, &sub.PerGroup
	if l.Name == "" && limited(l) {
		l.Name = sub.Queue
	}
	if l.Burst == 0 && l.Rate > 0 {
		l.Burst = defaultBurst(min(l.Rate, maxRate))
	}
	if g.Burst == 0 && g.Rate > 0 {
		g.Burst = defaultBurst(min(g.Rate, maxRate))
	}
	if g.By == nil {
		g.By = byTenant
	}
}

// limited reports whether l limits anything.
func limited(l *waybill.SharedLimit) bool { return l.Rate != 0 || l.Concurrency != 0 }

// mostUseful returns how many handlers at a time are of use within l; 0 = any number.
func mostUseful(l *waybill.SharedLimit) int { return max(l.Concurrency, 0) }

// mostHeld returns how many deliveries wait no longer than slowHold for the rate of l; 0 = any number.
func mostHeld(l *waybill.SharedLimit) int {
	if !(l.Rate >= minRate && l.Rate <= maxRate) {
		return 0
	}
	return max(int(l.Rate*slowHold.Seconds()), 1)
}

// atMost returns n, or limit if that is less and not 0.
func atMost(n, limit int) int {
	if limit > 0 {
		return min(n, limit)
	}
	return n
}

// limitProblems returns everything that is wrong with the limits of a completed subscription.
func limitProblems(sub *waybill.Subscription, handlers []waybill.Handler, limiter core.Limiter) []string {
	var p []string
	bad := func(format string, a ...any) { p = append(p, fmt.Sprintf(format, a...)) }
	l, g := &sub.Limit, &sub.PerGroup
	if limited(l) {
		if check.Nil(limiter) {
			bad("Limit: it holds over all processes and needs a limiter that keeps it; set Options.Limiter of the consumer " +
				"to the inbox or the store of a database, or for one process to a store in memory, or use PerGroup")
		}
		if s := check.Name(l.Name); l.Name != "" && s != "" { // without a name it lacks a queue
			bad("Limit.Name: %s", s)
		}
	} else if l.Name != "" || l.Burst != 0 {
		bad("Limit: has neither a Rate nor a Concurrency, and so limits nothing; set one of them, or leave it out")
	}
	p = append(p, checkLimit("Limit", l.Rate, l.Burst, l.Concurrency)...)
	if least := int(math.Ceil(l.Rate / 2)); l.Rate <= maxRate && l.Burst > 0 && l.Burst < least {
		bad("Limit.Burst: %d is less than half a second's worth, %d; processes take permits ahead and would not reach the rate: "+
			"raise it or leave it 0, or lower the Rate", l.Burst, least)
	}
	p = append(p, checkLimit("PerGroup", g.Rate, g.Burst, g.Concurrency)...)
	if g.Rate == 0 && g.Burst != 0 {
		bad("PerGroup.Burst: is of no use without a Rate; leave it out")
	}
	for i := range handlers {
		if handlers[i].Batch != nil && (g.Rate != 0 || g.Concurrency != 0) {
			bad("PerGroup: handlers[%d], %q, takes batches, and a batch holds messages of many groups; "+
				"use a handler of single messages, or give those topics a subscription of their own", i, handlers[i].Name)
		}
	}
	return p
}

func checkLimit(field string, rate float64, burst, concurrency int) []string {
	var p []string
	bad := func(format string, a ...any) { p = append(p, field+"."+fmt.Sprintf(format, a...)) }
	if rate != 0 && !(rate >= minRate && rate <= maxRate) { // NaN is in no range
		bad("Rate: %g is not between one in ten minutes and %d a second; leave it 0 for no limit; stage rarer work with DeliverAt", rate, maxRate)
	}
	if burst < 0 || burst > maxRate {
		bad("Burst: %d is not between 0 (default) and %d", burst, maxRate)
	}
	if concurrency < 0 || concurrency > maxConcurrency {
		bad("Concurrency: %d is not between 0 (no limit) and %d", concurrency, maxConcurrency)
	}
	return p
}
