package storetest

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/hlc"
)

var orderChecks = []named{
	{"key-drains-in-order", keyDrainsInOrder},
	{"key-waits-for-lease", keyWaitsForLease},
	{"key-follows-its-own-session", keyFollowsItsOwnSession},
	{"key-waits-for-retry", keyWaitsForRetry},
	{"key-waits-for-delayed-release", keyWaitsForDelayedRelease},
	{"key-resumes-behind-failure", keyResumesBehindFailure},
	{"key-resumes-after-crash", keyResumesAfterCrash},
	{"key-waits-for-suspect", keyWaitsForSuspect},
	{"key-never-interleaves", keyNeverInterleaves},
	{"key-is-joined-when-due", keyIsJoinedWhenDue},
	{"key-is-joined-when-many-are-due", keyIsJoinedWhenManyAreDue},
	{"key-continues-after-abandoned", keyContinuesAfterAbandoned},
	{"key-blocks-after-abandoned", keyBlocksAfterAbandoned},
	{"unkeyed-wait-for-nobody", unkeyedWaitForNobody},
	{"best-effort-does-not-stall", bestEffortDoesNotStall},
	{"hlc-order", hlcOrder},
}

func (k *kit) keyed() {
	if !k.traits.KeyOrder {
		k.undeclared("key order")
	}
}

// keys stages n messages each of some keys, in turn, and returns the ids per key.
func (k *kit) keys(n int, keys ...string) map[string][]string {
	var msgs []core.Message
	for range n {
		for _, key := range keys {
			msgs = append(msgs, k.msg(core.Key(key)))
		}
	}
	out := map[string][]string{}
	for i, id := range k.stage(msgs...) {
		out[keys[i%len(keys)]] = append(out[keys[i%len(keys)]], id)
	}
	return out
}

// inOrder checks that rs hold the ids of each key in order, all of them.
func (k *kit) inOrder(rs []core.Record, want map[string][]string) {
	got := map[string][]string{}
	for i := range rs {
		e := &rs[i].Envelope
		got[e.Key] = append(got[e.Key], e.ID)
	}
	for key, ids := range want {
		if !slices.Equal(got[key], ids) {
			k.fail("key %q came in the order %s, want 0 to %d", key, names(got[key], ids), len(ids)-1)
		}
	}
}

// Messages of a key come in staged order, whatever else is between them. OR-02.
func keyDrainsInOrder(k *kit) {
	k.keyed()
	want := k.keys(20, "a", "b", "c")
	var got []core.Record
	for len(got) < 60 {
		rs := k.take(1, limit(60))
		if c := k.claim(limit(7)); len(c.Records) > 0 {
			rs = append(rs, c.Records...)
		}
		k.published(rs...)
		got = append(got, rs...)
	}
	k.inOrder(got, want)
	k.none("everything was published")
}

// While a record of a key is leased, nothing of the key is given to another claim; other keys are. OR-02.
func keyWaitsForLease(k *kit) {
	k.keyed()
	ids := k.keys(3, "a")["a"]
	first := k.takeIDs(ids[:1])
	k.none("the key's head is leased")
	other := k.keys(1, "b")["b"]
	k.takeIDs(other)
	k.published(first...)
	k.drainIDs(ids[1:])
}

// What a session holds does not hold back what follows in the same session, if the store has sessions; it holds back
// everybody else, and what was put back before it. OR-02.
func keyFollowsItsOwnSession(k *kit) {
	k.keyed()
	ids := k.keys(4, "a")["a"]
	first := k.takeIDs(ids[:1], inSession(1))
	k.none("another session holds the key's head", inSession(2))
	k.none("a session holds the key's head", inSession(0))
	more := k.try(2, inSession(1))
	if len(more) == 0 {
		k.published(first...)
		k.drainIDs(ids[1:])
		return
	}
	for i := range more {
		if more[i].Envelope.ID != ids[i+1] {
			k.fail("a session's next claim of a key brought message %s, want the next one", names([]string{more[i].Envelope.ID}, ids))
		}
	}
	k.none("another session holds the key", inSession(2))
	k.settle(core.Release(&first[0], 0))
	k.none("the head was put back while what follows is leased", inSession(1))
	k.none("the head was put back while what follows is leased", inSession(2))
	for i := range more {
		k.settle(core.Release(&more[i], 0))
	}
	head := k.takeIDs(ids[:1], inSession(1))[0]
	k.settle(core.Retry(&head, errNo, far))
	k.none("the key's head is due in an hour", inSession(1))
}

// While the head of a key waits for a retry, later ones wait too; other keys do not. OR-02.
func keyWaitsForRetry(k *kit) {
	k.keyed()
	ids := k.keys(3, "a")["a"]
	start := time.Now()
	head := k.takeIDs(ids[:1])[0]
	k.settle(core.Retry(&head, errNo, short))
	head = k.take(1)[0]
	if d := time.Since(start); head.Envelope.ID != ids[0] || d < short-slack {
		k.fail("message %s of the key was claimed %s after its head had failed for %s", names([]string{head.Envelope.ID}, ids), d, short)
	}
	k.settle(core.Retry(&head, errNo, far))
	k.drainIDs(k.keys(2, "b")["b"])
	k.none("the key's head is due in an hour")
}

// A head that is released for a while holds its key as a retry does, or its order would be lost. OR-02.
func keyWaitsForDelayedRelease(k *kit) {
	k.keyed()
	ids := k.keys(3, "a")["a"]
	head := k.takeIDs(ids[:1])[0]
	k.settle(core.Release(&head, short))
	k.drainIDs(ids)
	ids = k.keys(2, "b")["b"]
	head = k.takeIDs(ids[:1])[0]
	k.settle(core.Release(&head, far))
	k.none("the key's head was released for an hour")
}

// What was cut behind a failed message of its key comes after it, in whatever order the batch is settled. OR-02.
func keyResumesBehindFailure(k *kit) {
	k.keyed()
	for _, backwards := range []bool{false, true} {
		ids := k.keys(4, fmt.Sprint("key", backwards))[fmt.Sprint("key", backwards)]
		rs := k.claim(limit(3)).Records
		if len(rs) == 0 {
			rs = k.take(1)
		}
		out := outcomes(rs, func(r *core.Record) core.Outcome { return core.Release(r, 0) })
		out[0] = core.Retry(&rs[0], errNo, 0)
		if backwards {
			slices.Reverse(out)
		}
		for i, o := range out {
			k.settle(o)
			if i < len(out)-1 {
				k.none("a sibling of its key is still leased")
			}
		}
		k.drainIDs(ids)
	}
}

// After a crash a key goes on with its first unpublished message. OR-02, DB-04.
func keyResumesAfterCrash(k *kit) {
	k.keyed()
	ids := k.keys(4, "a")["a"]
	rs := k.claim(limit(3), lease(short)).Records
	if len(rs) == 0 {
		rs = k.take(1, lease(short))
	}
	k.published(rs[0])
	k.expire(short)
	k.drainIDs(ids[1:])
}

// A suspect at the head of its key holds the key until it was tried alone. OR-02, DB-04.
func keyWaitsForSuspect(k *kit) {
	k.keyed()
	ids := k.keys(3, "a")["a"]
	k.crash(1, limit(1))
	k.crash(1, limit(1))
	k.none("the key's head is a suspect")
	r := k.takeIDs(ids[:1], alone)[0]
	k.none("the key's head is leased")
	k.none("the key's head is leased", alone)
	k.published(r)
	k.drainIDs(ids[1:])
}

// Several relays that publish, fail and release at random never hold one key at the same time and publish it in
// staged order. OR-02.
func keyNeverInterleaves(k *kit) {
	k.keyed()
	const claimers, keys, each = 4, 5, 12
	ks := make([]string, keys)
	for i := range ks {
		ks[i] = fmt.Sprint("key", i)
	}
	want := k.keys(each, ks...)
	var mu sync.Mutex
	holder := map[string]int{}
	published := map[string][]string{}
	count := 0
	enter := func(i int, rs []core.Record) error {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range rs {
			if at, held := holder[r.Envelope.Key]; held && at != i {
				return fmt.Errorf("two claimers hold records of key %q at the same time", r.Envelope.Key)
			}
			holder[r.Envelope.Key] = i
		}
		return nil
	}
	k.parallel(claimers, func(i int, k *kit) {
		for round := 0; ; round++ {
			rs := k.claim(limit(3 + i)).Records
			k.must("claim", enter(i, rs))
			k.sleep(time.Duration((round+i)%3) * time.Millisecond)
			out := make([]core.Outcome, len(rs))
			cut := map[string]bool{}
			mu.Lock()
			for j := range rs {
				r := &rs[j]
				key := r.Envelope.Key
				switch {
				case cut[key]:
					out[j] = core.Release(r, 0)
				case (round+j+i)%4 == 0:
					cut[key] = true
					out[j] = core.Retry(r, errNo, time.Duration(round%2)*2*time.Millisecond)
				default:
					published[key] = append(published[key], r.Envelope.ID)
					count++
					out[j] = core.Published(r)
				}
			}
			for j := range rs { // before the store lets go of them
				delete(holder, rs[j].Envelope.Key)
			}
			done := count == keys*each
			mu.Unlock()
			k.settle(out...)
			if done {
				return
			}
			if len(rs) == 0 {
				k.sleep(pause)
			}
		}
	})
	for key, ids := range want {
		if !slices.Equal(published[key], ids) {
			k.fail("key %q was published in the order %s, want %s", key, names(published[key], ids), names(ids, ids))
		}
	}
}

// A scheduled message takes its place in its key when it becomes due: not before, when it holds up nobody, and then
// before what was staged after it. OR-02.
func keyIsJoinedWhenDue(k *kit) {
	k.keyed()
	sched := k.stage(k.msg(core.Key("a"), core.Delay(2*short)))
	now := k.keys(1, "a")["a"]
	first := k.takeIDs(now)
	k.expire(2 * short)
	k.none("an earlier claim holds a record of its key")
	after := k.keys(2, "a")["a"]
	k.none("an earlier claim holds a record of its key")
	k.published(first...)
	k.drainIDs(append(sched, after...))
	k.stage(k.msg(core.Key("b"), core.Delay(far)))
	k.drainIDs(k.keys(2, "b")["b"])
	k.none("it is due in an hour")
}

// However many come due at once, as after an outage, none is overtaken by what was staged afterwards, nor by one of
// them that was staged and due later. OR-02.
func keyIsJoinedWhenManyAreDue(k *kit) {
	k.keyed()
	const keys, each = 3, 400 // more than a store brings into line at once, as far as is known
	want := map[string][]string{}
	start := time.Now()
	for i := range keys {
		key := fmt.Sprint("key", i)
		msgs := k.msgs(each, core.Key(key))
		for j := range msgs {
			msgs[j].DeliverAt = start.Add(2*short + time.Duration(i*each+j)*10*time.Microsecond)
		}
		want[key] = k.stage(msgs...)
	}
	k.stage(k.msg())
	got := k.drain(1) // the store has seen the end
	k.expire(2*short + keys*each*10*time.Microsecond)
	for key, ids := range k.keys(5, "key0", "key1", "key2") {
		want[key] = append(want[key], ids...)
	}
	for len(got) < 1+keys*(each+5) {
		rs := k.try(1100, limit(1100))
		if len(rs) == 0 {
			rs = k.take(1)
		}
		k.published(rs...)
		got = append(got, rs...)
	}
	k.inOrder(got, want)
}

// After an abandoned message its key goes on. OR-04.
func keyContinuesAfterAbandoned(k *kit) {
	k.keyed()
	ids := k.keys(3, "a")["a"]
	head := k.takeIDs(ids[:1])[0]
	k.settle(core.Abandon(&head, core.ReasonRejected, errNo))
	k.drainIDs(ids[1:])
}

// With BlockAfterAbandon an abandoned message blocks its key, and no other. OR-04.
func keyBlocksAfterAbandoned(k *kit) {
	k.keyed()
	ids := k.keys(3, "a")["a"]
	head := k.takeIDs(ids[:1], blocks)[0]
	k.settle(core.Abandon(&head, core.ReasonRejected, errNo))
	if rec, ok := k.stored(ids[0]); ok && rec == nil {
		k.undeclared("abandoned records are not kept")
	}
	k.none("its key is blocked", blocks)
	k.drainIDs(k.keys(2, "b")["b"], blocks)
	k.drainIDs(k.stage(k.msgs(2)...), blocks)
	k.none("its key is blocked", blocks)
	k.drainIDs(ids[1:]) // the option belongs to the claim
}

// Messages without a key wait for nobody. OR-02.
func unkeyedWaitForNobody(k *kit) {
	ids := k.stage(k.msgs(4)...)
	rs := k.takeIDs(ids[:2], limit(2))
	k.settle(core.Retry(&rs[0], errNo, far))
	k.drainIDs(ids[2:])
}

// In best effort a message that waits for a retry does not stall its key. OR-03.
func bestEffortDoesNotStall(k *kit) {
	best := order(core.OrderBestEffort)
	ids := k.keys(4, "a")["a"]
	rs := k.takeIDs(ids[:2], best, limit(2))
	k.settle(core.Retry(&rs[0], errNo, far), core.Release(&rs[1], far))
	k.drainIDs(ids[2:], best)
	k.none("the others are due in an hour", best)
}

// With OrderHLC due records come in the order of (HLC, sequence). OR-06.
func hlcOrder(k *kit) {
	if !k.traits.HLCOrder {
		k.undeclared("HLC order")
	}
	base := time.Now().UnixMilli()
	var msgs []core.Message
	for _, at := range []int64{5, 3, 9, 3, 1, 7} {
		m := k.msg(core.Key(strconv.FormatInt(at%2, 10)))
		stamp, err := hlc.New(base+at, 0)
		k.must("stamp", err)
		m.HLC = stamp
		msgs = append(msgs, m)
	}
	ids := k.stage(msgs...)
	k.takeIDs([]string{ids[4], ids[1], ids[3], ids[0], ids[5], ids[2]}, order(core.OrderHLC))
}
