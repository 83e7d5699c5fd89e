package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
	"github.com/waybill-go/waybill/internal/patience"
)

var waitChecks = []named{
	{"wait-wakes-on-commit", waitWakesOnCommit},
	{"wait-loses-nothing", waitLosesNothing},
	{"wait-wakes-for-timers", waitWakesForTimers},
	{"wait-is-not-woken-in-vain", waitIsNotWokenInVain},
	{"wait-ends-at-limit", waitEndsAtLimit},
	{"wait-ends-with-context", waitEndsWithContext},
	{"wait-wakes-for-each-route", waitWakesForEachRoute},
	{"wait-wakes-for-timers-staged-meanwhile", waitWakesForTimersStagedMeanwhile},
}

// soon is how long a wake-up may take: it takes milliseconds, but a safety poll may have to help.
func soon() time.Duration { return patience.For(5 * time.Second) }

func (k *kit) waiter() core.Waiter { return capability[core.Waiter](k) }

type woken struct {
	cause core.WakeCause
	err   error
	after time.Duration
}

// idle looks at the route and expects that nothing is due.
func (k *kit) idle() { k.none("nothing is due") }

// wait starts a Wait for the check's route, and for others, and gives it time to begin.
func (k *kit) wait(ctx context.Context, limit time.Duration, also ...string) <-chan woken {
	routes := append([]string{k.route}, also...)
	w, done := k.waiter(), make(chan woken, 1)
	go func() {
		start := time.Now()
		cause, err := suitetest.Call(func() (core.WakeCause, error) { return w.Wait(ctx, routes, limit) })
		done <- woken{cause, err, time.Since(start)}
	}()
	k.sleep(20 * pause)
	return done
}

func (k *kit) woken(done <-chan woken, within time.Duration, why string) woken {
	w := k.returned(done, within, why)
	k.must("wait", w.err)
	return w
}

// returned is woken, also with an error.
func (k *kit) returned(done <-chan woken, within time.Duration, why string) woken {
	w, ok := suitetest.ComeWithin(done, within)
	k.failIf(!ok, "Wait did not return within %s %s", within, why)
	return w
}

// waitLong is wait for something else than its limit.
func (k *kit) waitLong() <-chan woken { return k.wait(k.ctx, long) }

// follow waits until the message id can be handed out, and hands it out. Wait can return early: again calls it again.
func (k *kit) follow(done <-chan woken, again func() <-chan woken, id string, within time.Duration) core.Record {
	for start := time.Now(); ; done = again() {
		left := within - time.Since(start)
		k.failIf(left <= 0, "following Wait did not find message %s within %s", id, within)
		k.woken(done, left, "though a message can be handed out")
		if rs := k.try(1); len(rs) > 0 {
			k.failIf(rs[0].ID != id, "message %s was handed out, want %s", rs[0].ID, id)
			return rs[0]
		}
	}
}

// A waiting relay learns of a message that is committed. Wait can also return early; then the relay looks in vain and
// waits again. DB-10.
func waitWakesOnCommit(k *kit) {
	k.waiter()
	for range 2 { // the second time it has already waited and woken
		k.idle()
		done := k.waitLong()
		id := k.stage(k.msg())[0]
		k.published(k.follow(done, k.waitLong, id, soon()))
	}
}

// A message that is committed between the last look and Wait wakes it too. DB-10.
func waitLosesNothing(k *kit) {
	k.waiter()
	for range 3 {
		k.idle()
		k.stage(k.msg())
		k.woken(k.waitLong(), soon(), "though a message had been committed before")
		k.drain(1)
	}
}

// A waiting relay finds records that come due: a scheduled message, and a retry. ST-07, DB-10.
func waitWakesForTimers(k *kit) {
	k.waiter()
	id := k.stage(k.msg(waybill.Delay(short)))[0]
	r := k.follow(k.waitLong(), k.waitLong, id, short+soon())
	k.retry(r, short)
	k.follow(k.waitLong(), k.waitLong, id, short+soon())
}

// Neither a rollback nor a message that is due later notifies anyone. DB-10.
func waitIsNotWokenInVain(k *kit) {
	k.waiter()
	k.idle()
	for deadline := time.Now().Add(4 * short); time.Now().Before(deadline); {
		done := k.wait(k.ctx, short)
		tx := k.begin()
		k.stageIn(tx, k.msg())
		k.rollback(tx)
		k.stage(k.msg(waybill.Delay(far)))
		w := k.woken(done, short+soon(), "after its limit")
		k.failIf(w.cause == core.WakeNotify, "Wait was notified after %s, but there is nothing to hand out", w.after)
		k.idle()
	}
}

// Wait returns when its limit has passed. DB-10.
func waitEndsAtLimit(k *kit) {
	k.idle()
	w := k.woken(k.wait(k.ctx, short), short+soon(), "after its limit")
	k.failIf(w.cause == core.WakeStop, "Wait says it was stopped")
}

// Wait returns when its context ends, and can be called again. DB-10.
func waitEndsWithContext(k *kit) {
	k.idle()
	ctx, cancel := context.WithCancel(k.ctx)
	defer cancel()
	done := k.wait(ctx, long)
	cancel()
	if w := k.returned(done, soon(), "after its context had ended"); w.err != nil && !errors.Is(w.err, context.Canceled) {
		k.fail("Wait failed when its context ended: %w", w.err)
	} else if w.err == nil && w.cause != core.WakeStop && w.after > soon() {
		k.fail("Wait returned %q when its context ended", w.cause)
	}
	k.stage(k.msg())
	k.woken(k.waitLong(), soon(), "after a message was committed")
}

// A relay that serves several routes wakes for a message of each of them, in any order of the routes. DB-10.
func waitWakesForEachRoute(k *kit) {
	k.waiter()
	others := []*kit{k.other(k.h), k.other(k.h)}
	served := []*kit{others[0], others[1], k}
	for _, o := range served {
		o.idle()
	}
	wait := func() <-chan woken { return k.wait(k.ctx, long, others[0].route, others[1].route) }
	for _, o := range served {
		done := wait()
		id := o.stage(o.msg())[0]
		o.published(o.follow(done, wait, id, soon()))
	}
}

// A relay that waits already learns of a timer that is staged meanwhile, and of a retry that another member settles,
// when it comes due. ST-07 DB-10.
func waitWakesForTimersStagedMeanwhile(k *kit) {
	k.waiter()
	k.idle()
	done := k.waitLong()
	id := k.stage(k.msg(waybill.Delay(short)))[0]
	k.published(k.follow(done, k.waitLong, id, short+soon()))
	id = k.stage(k.msg())[0]
	r := k.takeIDs([]string{id})[0]
	done = k.waitLong()
	k.retry(r, short)
	k.published(k.follow(done, k.waitLong, id, short+soon()))
}
