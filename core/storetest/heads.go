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

// errUnbound is what a relay stores of a record that tries whether a queue is bound.
var errUnbound = fmt.Errorf("topic: %w: bind one", waybill.ErrUnroutable)

func (k *kit) explainer() { capability[admin.Explainer](k) }

// waits returns why a record waits: "cause" or "cause of other: cause of that one", ids as numbers.
func (k *kit) waits(id string, ids []string, block bool) string {
	st := k.inspect(id)
	w, err := admin.WhyWaits(k.ctx, k.store, &st, block)
	k.must("ask why a record waits", err)
	k.failIf(len(w.Record.Envelope.Body) > 0 || w.Record.Envelope.ID != id && !st.State.Terminal(),
		"why record %s waits is told of record %s, with %d bytes of body", suitetest.Names([]string{id}, ids), w.Record.Envelope.ID, len(w.Record.Envelope.Body))
	out := string(w.Cause)
	if w.Other != nil {
		if len(w.Other.Envelope.Body) > 0 || w.Other.Route != k.route {
			k.fail("record %s waits for %+v", suitetest.Names([]string{id}, ids), *w.Other)
		}
		out += fmt.Sprint(" ", slices.Index(ids, w.Other.Envelope.ID))
	}
	if w.Because != nil {
		out += ": " + string(w.Because.Cause)
	}
	k.failIf((w.Cause == "") != (w.String() == ""), "the cause %q is told as %q", w.Cause, w.String())
	return out
}

func (k *kit) explained(when string, ids []string, block bool, want ...string) {
	for i, id := range ids {
		got := k.waits(id, ids, block)
		k.failIf(i < len(want) && got != want[i], "%s: message %d of %d waits for %q, want %q (blocking after abandon: %v)", when, i, len(ids), got, want[min(i, len(want)-1)], block)
	}
}

// unbound stages a message of topic, and lets it try whether a queue is bound for that.
func (k *kit) unbound(topic string) string {
	id := k.stage(k.msg(onTopic(topic)))[0]
	k.settle(core.Retry(&k.takeIDs([]string{id})[0], errUnbound, far))
	return id
}

// ofTopic returns a message of a topic and key.
func (k *kit) ofTopic(topic, key string) waybill.Message {
	return k.msg(waybill.Key(key), onTopic(topic))
}

// A key whose head waits since no queue is bound for its topic is listed, if others wait behind it. OR-05.
func keysBehindAPausedTopic(k *kit) {
	k.keeper()
	ids := []string{k.unbound("nowhere")}
	ids = append(ids, k.stage(
		k.ofTopic("nowhere", "a"), k.ofTopic("bound", "a"), k.ofTopic("bound", "a"),
		k.ofTopic("bound", "b"), k.ofTopic("nowhere", "b"),
		k.ofTopic("nowhere", "c"),
	)...)
	k.blocked("a head of a topic without queue, one with such a message behind it, one with nothing behind it", ids, false, "a topic 1")
	keys, _ := k.blockedPage(admin.BlockedKeysRequest{Route: k.route})
	b := keys[0]
	k.failIf(b.Behind != 2 || b.Head.State != core.StatePending, "the key behind a topic without queue is %+v, want 2 behind a pending one", b)
	k.unowned() // then the store has no owner to tell
	k.decided("a", ids[1], admin.HeadSkip)
	k.blocked("after that head was skipped", ids, false)
}

// Each record that is not out has its cause: its time, a retry, its holder, an earlier record of its key, a topic
// without queue, or a route without a relay. OR-05, OP-19.
func waitsAreExplained(k *kit) {
	k.explainer()
	k = k.blocking()
	trial := k.unbound("nowhere")
	waiting := k.waiting(3, "retry")
	k.explained("behind a retry", waiting, true, "retry", "key 0: retry", "key 0: retry")
	given := k.abandonedHead(2, "abandoned")
	k.explained("behind an abandoned one", given, true, "", "key 0: decision")
	k.explained("the route goes on behind it", given, false, "", "turn")
	held := k.keys(2, "held")["held"]
	r := k.takeIDs(held[:1])
	k.explained("behind one that is out", held, true, "held", "key 0: held")
	k.release(r...)
	k.explained("behind one that is due", held, true, "turn", "key 0: turn")

	topic := append([]string{trial}, k.stage(k.ofTopic("nowhere", "n"), k.ofTopic("bound", "n"), k.ofTopic("nowhere", ""))...)
	k.explained("no queue is bound for a topic", topic, true, "retry", "topic 0", "key 1: topic", "topic 0")
	ids := k.stage(k.msg(), k.msg(waybill.Delay(far)))
	k.explained("one due, one scheduled, a member serves the route", ids, true, "turn", "schedule")
	k.unowned()
	k.explained("no member serves the route", ids, true, "no_relay", "schedule")
	k.explained("no member serves the route", held, true, "no_relay", "key 0: no_relay")
}

// A record that an open transaction has locked says so. OR-05, OP-19.
func locksAreExplained(k *kit) {
	k.explainer()
	ids := k.stage(k.msg(waybill.DedupeKey("d"), waybill.Cancellable()))
	tx := k.begin()
	k.cancelIn(tx, k.byKey("d"))
	switch got := k.waits(ids[0], ids, false); got {
	case string(admin.WaitLock):
	case string(admin.WaitTurn):
		k.undeclared("locks are not seen")
	default:
		k.fail("a record that an open transaction cancels waits for %q, want %q", got, admin.WaitLock)
	}
	k.rollback(tx)
	k.explained("after the transaction", ids, false, "turn")
}
