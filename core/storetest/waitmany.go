package storetest

import "github.com/waybill-go/waybill"

var waitManyChecks = []named{
	{"wait-wakes-for-each-route", waitWakesForEachRoute},
	{"wait-wakes-for-timers-staged-meanwhile", waitWakesForTimersStagedMeanwhile},
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
