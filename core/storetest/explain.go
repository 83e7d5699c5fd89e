package storetest

import (
	"fmt"
	"slices"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/admin"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
)

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
