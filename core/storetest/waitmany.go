package storetest

import (
	"time"

	"github.com/waybill-go/waybill"
)

var waitManyChecks = []named{
	{"wait-wakes-for-each-route", waitWakesForEachRoute},
	{"wait-wakes-for-timers-staged-meanwhile", waitWakesForTimersStagedMeanwhile},
}

// follow waits until a record can be handed out, and publishes it.
func (k *kit) follow(done <-chan woken, id string, within time.Duration) {
	for start := time.Now(); ; done = k.wait(k.ctx, long) {
		left := within - time.Since(start)
		k.failIf(left <= 0, "following Wait did not find message %s within %s", id, within)
		k.must("wait", k.woken(done, left, "though a message can be handed out").err)
		if rs := k.try(1); len(rs) > 0 {
			k.failIf(rs[0].ID != id, "message %s was handed out, want %s", rs[0].ID, id)
			k.published(rs...)
			return
		}
	}
}

// A relay that serves several routes wakes for a message of each of them, in any order of the routes. DB-10.
func waitWakesForEachRoute(k *kit) {
	k.waiter()
	others := []*kit{k.other(k.h), k.other(k.h)}
	served := []*kit{others[0], others[1], k}
	for _, o := range served {
		o.idle()
	}
	for _, o := range served {
		done := k.wait(k.ctx, long, others[0].route, others[1].route)
		id := o.stage(o.msg())[0]
		for start := time.Now(); ; done = k.wait(k.ctx, long, others[0].route, others[1].route) {
			k.must("wait", k.woken(done, soon(), "after a message was committed on one of three routes").err)
			if rs := o.try(1); len(rs) > 0 {
				o.published(rs...)
				break
			}
			k.failIf(time.Since(start) > soon(), "Wait for three routes returned, but message %s is not in line", id)
		}
	}
}

// A relay that waits already learns of a timer that is staged meanwhile, and of a retry that another member settles,
// when it comes due. ST-07 DB-10.
func waitWakesForTimersStagedMeanwhile(k *kit) {
	k.waiter()
	k.idle()
	done := k.wait(k.ctx, long)
	id := k.stage(k.msg(waybill.Delay(short)))[0]
	k.follow(done, id, short+soon())
	id = k.stage(k.msg())[0]
	r := k.takeIDs([]string{id})[0]
	done = k.wait(k.ctx, long)
	k.retry(r, short)
	k.follow(done, id, short+soon())
}
