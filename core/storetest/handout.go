package storetest

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
	"github.com/waybill-go/waybill/internal/patience"
)

var handOutChecks = []named{
	{"delay-is-honoured", delayIsHonoured},
	{"deliver-at-is-honoured", deliverAtIsHonoured},
	{"expires-in-centuries", expiresInYear9999},
	{"calls-heed-their-context", callsHeedTheirContext},
	{"unreadable-row-is-reported", unreadableRowIsReported},
	{"age-counts-from-due", ageCountsFromDue},
	{"counts-per-state", countsPerState},
	{"settle-heeds-its-context", settleHeedsItsContext},
	{"key-continues-after-abandoned", keyContinuesAfterAbandoned},
	{"key-blocks-after-abandoned", keyBlocksAfterAbandoned},
	{"order-within-transaction", orderWithinTransaction},
	{"order-across-transactions", orderAcrossTransactions},
	{"late-commit-is-not-skipped", lateCommitIsNotSkipped},
	{"concurrent-commits-all-arrive", concurrentCommitsAllArrive},
}

// A message with a delay is handed out after it, by the store's clock, and holds up no other message. ST-07.
func delayIsHonoured(k *kit) {
	k.stage(k.msg(waybill.Delay(far)))
	k.published(k.takeIDs(k.stage(k.msg(waybill.Delay(0))))...)
	start := time.Now()
	k.takeIDs(k.stage(k.msg(waybill.Delay(short))))
	d := time.Since(start)
	k.failIf(d < short-slack, "a message with a delay of %s was handed out after %s", short, d)
	k.none("it is due in an hour")
}

// A message with a time is handed out from then on; a time in the past is at once. ST-07.
func deliverAtIsHonoured(k *kit) {
	k.stage(k.msg(waybill.DeliverAt(time.Now().Add(far))))
	past := time.Now()
	k.sleep(pause)
	k.published(k.takeIDs(k.stage(k.msg(waybill.DeliverAt(past))))...)
	at := time.Now().Add(lax())
	k.takeIDs(k.stage(k.msg(waybill.DeliverAt(at))))
	// The store's clock may be another machine's; a second is what a test setup can be asked to keep.
	d := time.Until(at)
	k.failIf(d > time.Second, "a message was handed out %s before its time", d)
	k.none("it is due in an hour")
}

// Calls with an ended context fail at once, as an outage, which costs no message an attempt. They hold nothing. DB-02.
func callsHeedTheirContext(k *kit) {
	ids := k.stage(k.msg())
	ready := k.driver.look(k)
	k.failIf(len(ready) != 1, "%d records are in line, want 1", len(ready))
	self := k.driver.Session
	ctx, start := k.ended(), time.Now()
	for what, call := range map[string]func() error{
		"heartbeat": func() error { _, err := k.store.Heartbeat(ctx, core.HeartbeatRequest{}); return err },
		"read":      func() error { _, err := k.store.Read(ctx, self, core.ReadRequest{Slots: all(k.route)}); return err },
		"due":       func() error { _, err := k.store.Due(ctx, self, all(k.route), 1); return err },
		"hold": func() error {
			_, err := k.store.Hold(ctx, self, core.HoldRequest{Refs: []core.Ref{ready[0].Ref}})
			return err
		},
	} {
		err := call()
		k.failIf(err == nil || waybill.ClassOf(err) != waybill.ClassOutage, "%s with an ended context: got %w, want an outage", what, err)
	}
	d := time.Since(start)
	k.failIf(d > patience.For(suitetest.Patience), "calls with an ended context took %s", d)
	ready = k.driver.look(k)
	k.failIf(len(ready) != 1 || ready[0].HeldBy != 0, "after calls with an ended context there are %d records in line, or it is held", len(ready))
	k.takeIDs(ids)
}

// A row that cannot be read is handed out with Record.Err, beside its siblings, and can be abandoned. DB-01.
func unreadableRowIsReported(k *kit) {
	c := needs[Corrupter](k, k.h)
	ids := k.stage(k.msgs(3)...)
	rs := k.takeIDs(ids)
	k.must("spoil a row", c.Corrupt(k.ctx, k.route, rs[1].Seq))
	k.release(rs...)
	rs = k.take(3)
	for i := range rs {
		bad := i == 1
		k.failIf((rs[i].Err != nil) != bad, "record %d is unreadable: %v; Record.Err is %v", i, bad, rs[i].Err)
	}
	k.settle(core.Published(&rs[0]), core.Abandon(&rs[1], waybill.ReasonUndecodable, rs[1].Err), core.Published(&rs[2]))
	k.none("one is abandoned, the others are published")
}

// Record.DueFor is the time since the record became due, not since a retry or a hand-out. DB-11.
func ageCountsFromDue(k *kit) {
	staged := time.Now()
	k.stage(k.msg(waybill.Delay(short)))
	r := k.take(1)[0]
	k.failIf(r.DueFor > time.Since(staged)-short+slack, "a record that was due a moment ago has the age %s", r.DueFor)
	k.sleep(short)
	k.retry(r, 0)
	r = k.take(1)[0]
	k.failIf(r.DueFor < short-slack, "a record that was due more than %s ago has the age %s", short, r.DueFor)
}

// Counts per route and state, and per reason, follow the records; a held one is processing. Exact for few records.
// DB-11.
func countsPerState(k *kit) {
	counter := k.counter()
	start := time.Now()
	ids := k.stage(k.msgs(7)...)
	rs := k.takeIDs(ids[:5])
	k.settle(core.Published(&rs[0]), core.Abandon(&rs[1], waybill.ReasonRejected, errNo), core.Retry(&rs[2], errNo, far),
		core.Abandon(&rs[4], waybill.ReasonAttempts, errNo))
	kept, ok := k.stored(ids[1])
	counts, err := counter.Counts(k.ctx)
	k.must("counts", err)
	got, reasons := map[core.State]int64{}, map[waybill.Reason]int64{}
	for _, c := range counts {
		if c.Route == k.route {
			got[c.State] += c.N
			reasons[c.Reason] += c.N
			k.failIf((c.Reason != waybill.ReasonNone) != (c.State == core.StateAbandoned),
				"%d records in state %s are counted with the reason %q", c.N, c.State, c.Reason)
			k.failIf(c.Oldest < 0 || c.Oldest > time.Since(start)+slack, "the oldest of some fresh records in state %s has the age %s", c.State, c.Oldest)
		}
	}
	want := map[core.State]int64{core.StatePending: 2, core.StateProcessing: 1, core.StateFailed: 1}
	if ok && kept != nil {
		want[core.StateAbandoned] = 2
		k.failIf(reasons[waybill.ReasonRejected] != 1 || reasons[waybill.ReasonAttempts] != 1,
			"counted %v, want one abandoned record for each of two reasons", reasons)
	}
	for state, n := range want {
		k.failIf(got[state] != n, "counted %d records in state %s, want %d", got[state], state, n)
	}
}

// A settle with an ended context that fails, fails in every slot, and the records can be settled afterwards. DB-01.
func settleHeedsItsContext(k *kit) {
	ids := k.stage(k.msgs(2)...)
	rs := k.takeIDs(ids)
	res := k.store.Settle(k.ended(), k.driver.Session, suitetest.Each(rs, core.Published))
	k.failIf(len(res) != 2 || (res[0] == nil) != (res[1] == nil), "a settle of two outcomes with an ended context gave %v, want one result for each", res)
	k.published(rs...)
	k.none("they were published")
}

// keys stages n messages each of some keys, in turn, and returns the ids per key.
func (k *kit) keys(n int, keys ...string) map[string][]string {
	var msgs []waybill.Message
	for range n {
		for _, key := range keys {
			msgs = append(msgs, k.msg(waybill.Key(key)))
		}
	}
	out := map[string][]string{}
	for i, id := range k.stage(msgs...) {
		out[keys[i%len(keys)]] = append(out[keys[i%len(keys)]], id)
	}
	return out
}

// After an abandoned message its key goes on. OR-04.
func keyContinuesAfterAbandoned(k *kit) {
	ids := k.keys(3, "a")["a"]
	k.abandon(waybill.ReasonRejected, ids[0])
	k.drainIDs(ids[1:])
}

// On a route that blocks, an abandoned message blocks its key, and no other. OR-04.
func keyBlocksAfterAbandoned(k *kit) {
	b := k.blocking()
	ids := b.keys(3, "a")["a"]
	b.abandon(waybill.ReasonRejected, ids[0])
	k.kept(ids[0])
	b.none("its key is blocked")
	b.drainIDs(b.keys(2, "b")["b"])
	b.drainIDs(b.stage(b.msgs(2)...))
	b.none("its key is blocked")
	k.drainIDs(ids[1:]) // the option belongs to who reads
}

// Messages of one transaction keep the order of their staging. OR-08.
func orderWithinTransaction(k *kit) {
	tx := k.begin()
	var ids []string
	for n := range 5 {
		ids = append(ids, stagedIDs(k.stageIn(tx, k.msgs(n+1)...))...)
	}
	k.commit(tx)
	k.takeIDs(ids)
}

// Messages of transactions that follow each other keep their order. OR-08.
func orderAcrossTransactions(k *kit) {
	var ids []string
	for range 10 {
		ids = append(ids, k.stage(k.msg(), k.msg())...)
	}
	k.takeIDs(ids)
}

// A transaction that staged first and commits last is found, though later ones were published already. OR-08.
func lateCommitIsNotSkipped(k *kit) {
	late := k.begin()
	lateIDs := stagedIDs(k.stageIn(late, k.msg(), k.msg(waybill.Key("key"))))
	ctx, cancel := context.WithTimeout(k.ctx, time.Second)
	defer cancel()
	early := []waybill.Message{k.msg(waybill.ID(waybill.NewID())), k.msg(waybill.ID(waybill.NewID()), waybill.Key("key"))}
	if err := k.tryStage(ctx, early...); err != nil {
		k.undeclared(fmt.Sprintf("transactions that stage at the same time (%v)", err))
	}
	k.drainIDs([]string{early[0].ID, early[1].ID})
	k.none("the late transaction has not committed")
	k.commit(late)
	k.drainIDs(lateIDs)
	k.none("everything was published")
}

// Concurrent transactions can commit in any order: a member that hands out meanwhile gets every message once. OR-08.
func concurrentCommitsAllArrive(k *kit) {
	const writers, rounds = 4, 10
	seen := map[string]bool{}
	suitetest.Parallel(writers+1, func(w int) {
		if w < writers {
			for i := range rounds {
				k.stageBusy(k.msg(waybill.ID(fmt.Sprintf("%d-%d", w, i))),
					k.msg(waybill.ID(fmt.Sprintf("%d-%dk", w, i)), waybill.Key(strconv.Itoa(i%3))))
			}
			return
		}
		for len(seen) < 2*writers*rounds {
			id := k.drain(1)[0].ID
			k.failIf(seen[id], "message %s was handed out again after it had been published", id)
			seen[id] = true
		}
	})
	k.none("everything was published")
}

// A difference of two times saturates in Go at 292 years, and a number of microseconds overflows as a duration at the
// same bound. The usual "never" of other languages is the year 9999, so that stores meet both.

// never is the usual expiry of systems that know no other "never".
var never = time.Date(9999, time.December, 31, 23, 59, 59, 999_999_000, time.UTC)

// A message that expires in centuries is handed out with a life of centuries, at first and as a retry. ST-11.
func expiresInYear9999(k *kit) {
	const century = 100 * 365 * 24 * time.Hour
	for _, at := range []time.Time{time.Date(2400, time.January, 1, 0, 0, 0, 0, time.UTC), never} {
		m := k.msg(waybill.OccurredAt(at))
		m.Expires = at
		ids := k.stage(m)
		for attempt := range 2 {
			r := k.takeIDs(ids)[0]
			k.failIf(!r.Expires || r.ExpiresIn < century, "a message that expires at %s has %s left at attempt %d, expires: %v", at, r.ExpiresIn, attempt+1, r.Expires)
			e := &r.Envelope
			k.failIf(!e.Expires.Equal(at) || !e.Time.Equal(at),
				"a message of %s that expires then is handed out as one of %s that expires at %s", at, e.Time, e.Expires)
			if attempt == 0 {
				k.retry(r, 0)
			} else {
				k.published(r)
			}
		}
	}
	k.none("all were published")
}
