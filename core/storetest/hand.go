package storetest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
	"github.com/waybill-go/waybill/internal/patience"
)

// try hands out until there is nothing more for now, or n records came, and returns them.
func (k *kit) try(n int) (out []core.Record) {
	for len(out) < n {
		rs := k.driver.hand(k, n-len(out))
		for i := range rs {
			r := &rs[i]
			k.failIf(r.Route != k.route || r.DueFor < 0, "a record of route %q with the age %s was handed out on route %q", r.Route, r.DueFor, k.route)
		}
		if out = append(out, rs...); len(rs) == 0 {
			break
		}
	}
	return out
}

// take hands out until n records came.
func (k *kit) take(n int) []core.Record { return k.await(n, nil) }

// await is take. want are the ids of the expected records, for the failure; nil if they do not matter.
func (k *kit) await(n int, want []string) (out []core.Record) {
	for w := (suitetest.Wait{}); ; {
		rs := k.try(n - len(out))
		if out = append(out, rs...); len(out) >= n {
			return out
		}
		if len(rs) > 0 {
			w.Moved()
		} else if !w.Again(k.ctx) {
			k.fail("%d records were handed out, then none for %s, want %d: missing ones are lost, or held for no reason%s", len(out),
				suitetest.Patience, n, missing(want, out))
		}
	}
}

// missing names those of want that are not among rs.
func missing(want []string, rs []core.Record) string {
	got := recordIDs(rs)
	left := slices.DeleteFunc(slices.Clone(want), func(id string) bool { return slices.Contains(got, id) })
	if len(left) == 0 {
		return ""
	}
	return fmt.Sprintf("; missing are %s of them: the ids %q", suitetest.Names(left, want), left[:min(len(left), 5)])
}

// takeIDs is take, and the records must have these ids in this order.
func (k *kit) takeIDs(ids []string) []core.Record {
	rs := k.await(len(ids), ids)
	got := recordIDs(rs)
	k.failIf(!slices.Equal(got, ids), "handed out %s, want %s", suitetest.Names(got, ids), suitetest.Names(ids, ids))
	return rs
}

// none fails if anything can be handed out now.
func (k *kit) none(why string) {
	for range 2 {
		if rs := k.try(1); len(rs) > 0 {
			k.fail("%s was handed out, but %s", k.name(&rs[0]), why)
		}
	}
}

// briefly runs fn while a transaction of the application is open, and reports whether it did not fail: a store with a
// single writer may be busy.
func (k *kit) briefly(fn func(k *kit)) bool {
	ctx, cancel := context.WithTimeout(k.ctx, patience.For(short))
	defer cancel()
	return suitetest.Try(func() { fn(k.until(ctx)) })
}

// hidden fails if a message of a running transaction can be seen.
func (k *kit) hidden() {
	var ready []core.Record
	if k.briefly(func(k *kit) { ready = k.driver.look(k) }) && len(ready) > 0 {
		k.fail("%s is in line, but its transaction has not committed", k.name(&ready[0]))
	}
}

// withheld is none while a transaction of the application is open.
func (k *kit) withheld(why string) {
	var rs []core.Record
	if k.briefly(func(k *kit) { rs = k.driver.hand(k, 1) }) && len(rs) > 0 {
		k.fail("%s was handed out, but %s", k.name(&rs[0]), why)
	}
}

// expire waits until a lease or delay of d, that began before now, is over.
func (k *kit) expire(d time.Duration) { k.sleep(d + 4*slack) }

// settle persists outcomes, which must all succeed.
func (k *kit) settle(outcomes ...core.Outcome) {
	res := k.driver.settle(k, outcomes)
	k.failIf(len(res) != len(outcomes), "settle returned %d results for %d outcomes", len(res), len(outcomes))
	for i := range outcomes {
		k.must(fmt.Sprintf("settle outcome %d of %d (%s)", i, len(outcomes), outcomes[i].Event()), res[i])
	}
}

// published settles all of rs as published.
func (k *kit) published(rs ...core.Record) { k.settle(suitetest.Each(rs, core.Published)...) }

// retry says of r that an attempt failed, and that it is due again after in.
func (k *kit) retry(r core.Record, in time.Duration) { k.settle(core.Retry(&r, errNo, in)) }

// abandon gives all of ids up, which can be handed out now.
func (k *kit) abandon(reason waybill.Reason, ids ...string) {
	rs := k.takeIDs(ids)
	k.settle(suitetest.Each(rs, func(r *core.Record) core.Outcome { return core.Abandon(r, reason, errNo) })...)
}

// release hands rs back.
func (k *kit) release(rs ...core.Record) {
	k.settle(suitetest.Each(rs, func(r *core.Record) core.Outcome { return core.Release(r, 0, false) })...)
}

// crash hands ids out to a member that is then removed. Another one follows it.
func (k *kit) crash(ids ...string) {
	k.takeIDs(ids)
	k.driver.die(k)
}

// unowned makes the check's member leave, until the next hand-out.
func (k *kit) unowned() { k.driver.leave(k) }

// drain hands out and publishes one after the other until n records came, and returns them in this order.
func (k *kit) drain(n int) (out []core.Record) {
	return k.drainOf(n, nil)
}

// drainOf is drain. want are the ids of the expected records, for the failure; nil if they do not matter.
func (k *kit) drainOf(n int, want []string) (out []core.Record) {
	for len(out) < n {
		rs := k.await(1, want[min(len(out), len(want)):])
		k.published(rs...)
		out = append(out, rs...)
	}
	return out
}

// drainIDs is drain, and the records must have these ids in this order.
func (k *kit) drainIDs(ids []string) {
	got := recordIDs(k.drainOf(len(ids), ids))
	k.failIf(!slices.Equal(got, ids), "handed out in the order %s, want %s", suitetest.Names(got, ids), suitetest.Names(ids, ids))
}
