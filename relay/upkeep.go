package relay

import (
	"context"
	"log/slog"
	"time"

	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/internal/chance"
	"github.com/waybill-go/waybill/internal/upkeep"
)

const (
	// lookTimeout bounds one look for unserved routes. remindAfter is when to warn of the same route again.
	lookTimeout = 10 * time.Second
	remindAfter = 30 * time.Minute
)

// upkeepWork is a running relay's other work: cleaning the store, and looking for routes that no relay serves. Neither
// delays a message or ends the relay.
type upkeepWork struct {
	ctx context.Context //nolint:containedctx // ends when the engine stops
	end context.CancelFunc

	cleaner  core.Cleaner // nil: the store has nothing to clean, or this relay does not clean
	cleaning bool
	cleanAt  time.Time
	round    upkeep.Round // the results of the steps since the round began
	cleanErr string       // of the latest attempt

	counter  admin.Counter
	looking  bool // a look for unserved routes is under way
	lookAt   time.Time
	warnedAt map[string]time.Time // when a route was warned of
}

// startUpkeep plans the first cleaning and the first look.
func (e *engine) startUpkeep() {
	ctx, cancel := context.WithCancel(e.base)
	e.upkeep = upkeepWork{ctx: ctx, end: cancel}
	if e.once {
		return
	}
	if d := e.opts.CleanInterval; d > 0 {
		e.upkeep.cleaner, _ = core.As[core.Cleaner](e.store)
		e.upkeep.cleanAt = e.now.Add(chance.N(d))
	}
	if d := e.opts.StaleAfter; d > 0 {
		e.upkeep.counter, _ = core.As[admin.Counter](e.store)
		e.upkeep.lookAt, e.upkeep.warnedAt = e.now.Add(jitter(e.lookEvery())), map[string]time.Time{}
	}
}

func (e *engine) stopUpkeep() { e.upkeep.end() }

// keepUp starts the due tasks and returns the time of the next one.
func (e *engine) keepUp() (next time.Time) {
	if e.drain.begun {
		return time.Time{}
	}
	if e.upkeep.cleaner != nil && !e.upkeep.cleaning {
		if e.now.Before(e.upkeep.cleanAt) {
			next = e.upkeep.cleanAt
		} else {
			e.clean()
		}
	}
	if e.upkeep.counter != nil && !e.upkeep.looking {
		if e.now.Before(e.upkeep.lookAt) {
			next = earliest(next, e.upkeep.lookAt)
		} else {
			e.lookForUnserved()
		}
	}
	return next
}

// clean does one step of a round. The store lets one relay clean at a time (Leader). While there is more to clean, the
// leader goes on after a rest. Otherwise the round ends, and is logged; the next one begins after the interval.
func (e *engine) clean() {
	e.upkeep.cleaning = true
	interval, began := e.opts.CleanInterval, e.now
	e.async(func() func() {
		ctx, cancel := context.WithTimeout(e.upkeep.ctx, upkeep.Timeout)
		defer cancel()
		var done core.Cleaned
		err := guardErr("clean", func() (err error) {
			done, err = e.upkeep.cleaner.Clean(ctx, e.cleanerName, upkeep.Lease(interval))
			return err
		})
		return func() {
			e.upkeep.cleaning = false
			e.cleaned(&done)
			switch {
			case err != nil:
				e.upkeep.cleanAt = e.now.Add(jitter(interval))
				if !e.drain.begun {
					e.upkeep.cleanErr = core.ErrorText(err)
					e.warn(nil, "relay.clean_failed", "cleaning the store failed; trying again later", err, "retry_in", e.upkeep.cleanAt.Sub(e.now))
				}
			case done.Leader && done.More && !e.drain.begun:
				e.upkeep.cleanErr = ""
				e.upkeep.cleanAt = e.now.Add(upkeep.Rest(e.now.Sub(began)))
				return
			default:
				e.upkeep.cleanErr = ""
				e.upkeep.cleanAt = e.now.Add(jitter(interval))
			}
			e.upkeep.round.End(e.base, e.log, slog.String("event", "relay.clean"))
		}
	})
}

// cleaned counts the results of one step.
func (e *engine) cleaned(done *core.Cleaned) {
	e.tel.cleaned(e.base, done)
	e.upkeep.round.Add(done)
}

// lookEvery is how often to look for unserved routes.
func (e *engine) lookEvery() time.Duration {
	return min(max(e.opts.StaleAfter/5, time.Second), time.Minute)
}

// lookForUnserved warns of routes with due records that this relay does not serve.
func (e *engine) lookForUnserved() {
	e.upkeep.looking = true
	e.async(func() func() {
		ctx, cancel := context.WithTimeout(e.upkeep.ctx, lookTimeout)
		defer cancel()
		var counts []admin.Count
		err := guardErr("count", func() (err error) {
			counts, err = e.upkeep.counter.Counts(ctx)
			return err
		})
		return func() {
			e.upkeep.looking, e.upkeep.lookAt = false, e.now.Add(jitter(e.lookEvery()))
			if err != nil { // other calls will say so, if it matters
				e.log.Debug("counting failed", "event", "relay.count_failed", "error", core.ErrorText(err))
				return
			}
			lost := e.unserved(counts)
			for i := range lost {
				n := &lost[i]
				if at, ok := e.upkeep.warnedAt[n.route]; ok && e.now.Sub(at) < remindAfter {
					continue
				}
				if len(e.upkeep.warnedAt) >= maxWarned {
					clear(e.upkeep.warnedAt)
				}
				e.upkeep.warnedAt[n.route] = e.now
				e.log.Warn("messages wait on a route that this relay does not serve: is it misspelt, or does its relay not run?", "event", "relay.unserved_route",
					"route", n.route, "records", n.waiting, "oldest", n.oldest, "hint", n.hint(e.Relay))
			}
		}
	})
}

// maxWarned bounds the remembered warnings.
const maxWarned = 1000
