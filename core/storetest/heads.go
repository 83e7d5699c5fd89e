package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

var headChecks = []named{
	{"blocked-keys-are-listed", blockedKeysAreListed},
	{"blocked-keys-in-pages", blockedKeysInPages},
	{"keys-behind-a-paused-topic", keysBehindAPausedTopic},
	{"waits-are-explained", waitsAreExplained},
	{"locks-are-explained", locksAreExplained},
	{"head-skip", headSkip},
	{"head-set-aside", headSetAside},
	{"head-requeue", headRequeue},
	{"head-of-abandoned-key", headOfAbandonedKey},
	{"head-must-be-the-head", headMustBeTheHead},
	{"head-refuses-bad-input", headRefusesBadInput},
}

func (k *kit) keeper() admin.BlockedKeys { return capability[admin.BlockedKeys](k) }

// blockedPage returns one page of blocked keys.
func (k *kit) blockedPage(req admin.BlockedKeysRequest) (keys []admin.BlockedKey, more bool) {
	keys, more, err := k.keeper().BlockedKeys(k.ctx, req)
	k.must("blocked keys", err)
	return keys, more
}

// blockedKeys returns the blocked keys as "key cause id", ids as numbers.
func (k *kit) blockedKeys(ids []string, block bool) []string {
	keys, more := k.blockedPage(admin.BlockedKeysRequest{Route: k.route, BlockAfterAbandon: block, Limit: 100})
	k.failIf(more, "%d of up to 100 blocked keys, and there are more", len(keys))
	out := []string{}
	for i := range keys {
		b := &keys[i]
		k.failIf(b.Route != k.route || b.Head.Route != k.route || b.Head.Envelope.Key != b.Key || b.Since < 0 || len(b.Head.Envelope.Body) > 0,
			"a blocked key is %+v", b)
		out = append(out, fmt.Sprint(b.Key, " ", b.Cause, " ", slices.Index(ids, b.Head.Envelope.ID)))
	}
	return out
}

func (k *kit) blocked(when string, ids []string, block bool, want ...string) {
	got := k.blockedKeys(ids, block)
	k.failIf(!slices.Equal(got, want), "%s: the blocked keys (key, cause, message) are %q, want %q (blocking after abandon: %v)", when, got, want, block)
}

func (k *kit) decide(key, id string, a admin.HeadAction) error {
	return k.keeper().DecideHead(k.ctx, k.route, key, id, a)
}

func (k *kit) decided(key, id string, a admin.HeadAction) {
	k.must("decide about a head", k.decide(key, id, a))
}

// waiting stages n messages of key and lets the first one wait for a retry.
func (k *kit) waiting(n int, key string) []string {
	ids := k.keys(n, key)[key]
	k.retry(k.takeIDs(ids[:1])[0], far)
	return ids
}

// abandonedHead stages n messages of key and abandons the first one, which blocks the key on a route that blocks.
func (k *kit) abandonedHead(n int, key string) []string {
	ids := k.keys(n, key)[key]
	k.abandonKept(waybill.ReasonRejected, ids[0])
	return ids
}

// Keys whose head waits are listed with its cause: a retry, or that it is abandoned if the route blocks then. Keys that
// go on are not. OR-05.
func blockedKeysAreListed(k *kit) {
	k.keeper()
	k = k.blocking()
	start := time.Now()
	var ids []string
	k.blocked("at first", ids, true)
	ids = append(ids, k.abandonedHead(2, "a")...)
	ids = append(ids, k.waiting(2, "b")...)
	ids = append(ids, k.stage(k.msg(waybill.Key("c")))...)
	ids = append(ids, k.stage(k.msg(waybill.Key("d"), waybill.Delay(far)), k.msg())...)
	k.blocked("one abandoned, one waiting, one due, one scheduled, one without key", ids, true, "a abandoned 0", "b retry 2")
	k.blocked("the same", ids, false, "b retry 2")
	keys, _ := k.blockedPage(admin.BlockedKeysRequest{Route: k.route, BlockAfterAbandon: true})
	k.failIf(keys[0].Behind != 1 || keys[1].Behind != 1,
		"%d and %d messages wait behind the heads of two keys, want 1 each", keys[0].Behind, keys[1].Behind)
	if h := &keys[1].Head; h.State != core.StateFailed || h.Attempts != 1 || h.LastError != errNo.Error() || h.DueIn <= 0 {
		k.fail("the head of a key that waits for a retry is %+v", *h)
	}
	k.sleep(4 * slack)
	keys, _ = k.blockedPage(admin.BlockedKeysRequest{Route: k.route, BlockAfterAbandon: true})
	k.failIf(keys[0].Since <= 0 || keys[0].Since > time.Since(start)+slack, "a key is blocked for a while: %+v", keys)
	other, _ := k.blockedPage(admin.BlockedKeysRequest{Route: "another", BlockAfterAbandon: true})
	k.failIf(len(other) > 0, "another route has %d blocked keys", len(other))
}

// Blocked keys come in pages, in order. OR-05.
func blockedKeysInPages(k *kit) {
	k.keeper()
	k = k.blocking()
	var want []string
	for i := range 5 {
		key := string(rune('a' + i))
		if i%2 == 0 {
			k.waiting(1, key)
		} else {
			k.abandonedHead(1, key)
		}
		want = append(want, key)
	}
	var got []string
	after := ""
	for range 3 {
		keys, more := k.blockedPage(admin.BlockedKeysRequest{Route: k.route, BlockAfterAbandon: true, After: after, Limit: 2})
		k.failIf(len(keys) > 2 || more != (len(got)+len(keys) < 5), "after %q: %d keys of at most 2, more: %v", after, len(keys), more)
		for i := range keys {
			got = append(got, keys[i].Key)
			after = keys[i].Key
		}
	}
	k.failIf(!slices.Equal(got, want), "the pages have %q, want %q", got, want)
}

// A skipped head is given up, and its key goes on. OR-05.
func headSkip(k *kit) {
	k.keeper()
	ids := k.waiting(3, "a")
	k.none("its head waits for a retry")
	k.decided("a", ids[0], admin.HeadSkip)
	k.blocked("after the head was skipped", ids, false)
	k.drainIDs(ids[1:])
	k.gaveUp(ids[0], waybill.ReasonSkipped, 1)
	k.none("it was skipped")
}

// A head is set aside, its key goes on, and it can be redriven some day, out of order. OR-05 DB-12.
func headSetAside(k *kit) {
	k.keeper()
	ids := k.waiting(2, "a")
	k.decided("a", ids[0], admin.HeadSetAside)
	k.drainIDs(ids[1:])
	k.gaveUp(ids[0], waybill.ReasonSetAside, 1)
	k.redriver()
	aside := admin.Filter{Reasons: []waybill.Reason{waybill.ReasonSetAside}}
	k.redriven("one that is set aside", admin.RedriveRequest{Filter: aside, BlockAfterAbandon: true}, 0, map[string]int{admin.RefusedOrder: 1})
	k.redriven("one that is set aside by force", admin.RedriveRequest{Filter: aside, Force: true}, 1, nil)
	k.drainIDs(ids[:1])
}

// A requeued head is pending at once, at its place, with its counters reset. OR-05.
func headRequeue(k *kit) {
	k.keeper()
	ids := k.waiting(3, "a")
	k.pass(20)
	k.decided("a", ids[0], admin.HeadRequeue)
	k.blocked("after the head was requeued", ids, false)
	k.state("requeued", ids[0], StoredRecord{State: core.StatePending})
	r := k.take(1)[0]
	k.failIf(r.ID != ids[0] || r.Attempts != 0 || r.Failed,
		"message %s with %d attempts, failed: %v, was handed out; want the requeued head as new", suitetest.Names([]string{r.ID}, ids), r.Attempts, r.Failed)
	k.none("its head is out")
	k.published(r)
	k.drainIDs(ids[1:])
}

// A key that is blocked by an abandoned head goes on after a skip, after it is set aside, and in order after a requeue;
// the others stay blocked. OR-04 OR-05.
func headOfAbandonedKey(k *kit) {
	k.keeper()
	k = k.blocking()
	for i, a := range every {
		key := string(rune('a' + i))
		other := "other" + key
		k.abandonedHead(2, other)
		ids := k.abandonedHead(3, key)
		k.none("its key is blocked")
		k.decided(key, ids[0], a)
		if a == admin.HeadRequeue {
			k.drainIDs(ids)
		} else {
			k.drainIDs(ids[1:])
		}
		k.none("the other key is blocked")
	}
}

// every is each action once.
var every = []admin.HeadAction{admin.HeadSkip, admin.HeadSetAside, admin.HeadRequeue}

// Only the head of the key can be decided about, by its id, while no member holds it. One that is due can be given up,
// but not requeued. OR-05.
func headMustBeTheHead(k *kit) {
	k.keeper()
	ids := k.waiting(3, "a")
	for _, tc := range []struct {
		why, key, id string
		actions      []admin.HeadAction
	}{
		{"not the head", "a", ids[1], every},
		{"unknown", "a", "unknown", every},
		{"of another key", "b", ids[0], every},
		{"due", "c", k.stage(k.msg(waybill.Key("c")))[0], every[2:]},
		{"not the first that is due", "d", k.keys(2, "d")["d"][1], every},
		{"without a key", "e", k.stage(k.msg())[0], every},
		{"scheduled", "f", k.stage(k.msg(waybill.Key("f"), waybill.Delay(far)))[0], every},
	} {
		for _, a := range tc.actions {
			k.answers(fmt.Sprintf("decision %d about a message that is %s", a, tc.why), waybill.ErrNotFound, k.decide(tc.key, tc.id, a))
		}
	}
	k.decided("a", ids[0], admin.HeadRequeue)
	r := k.take(1)[0]
	for _, a := range every {
		k.answers(fmt.Sprintf("decision %d about a head that is held", a), waybill.ErrInFlight, k.decide("a", ids[0], a))
	}
	k.published(r)
	k.answers("a decision about a published head", waybill.ErrNotFound, k.decide("a", ids[0], admin.HeadSkip))
}

// Bad input is refused; a head that has expired is not requeued, since it would be given up at once. OR-05.
func headRefusesBadInput(k *kit) {
	kk := k.keeper()
	k.answers("a decision without an action", waybill.ErrInvalid, k.decide("a", "x", 0))
	k.answers("a decision about nothing", waybill.ErrInvalid, k.decide("", "", admin.HeadSkip))
	for _, limit := range []int{-1, admin.MaxPageLimit + 1} {
		_, _, err := kk.BlockedKeys(k.ctx, admin.BlockedKeysRequest{Route: k.route, BlockAfterAbandon: true, Limit: limit})
		k.answers(fmt.Sprintf("%d blocked keys", limit), waybill.ErrInvalid, err)
	}
	ids := k.stage(k.msg(waybill.Key("a"), waybill.TTL(lax())))
	k.retry(k.takeIDs(ids)[0], far)
	k.expire(lax())
	k.answers("a head that has expired is requeued", waybill.ErrInvalid, k.decide("a", ids[0], admin.HeadRequeue))
	k.decided("a", ids[0], admin.HeadSkip)
}
