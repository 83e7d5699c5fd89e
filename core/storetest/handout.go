package storetest

import (
	"time"

	"github.com/waybill-go/waybill"
	"github.com/waybill-go/waybill/core"
	"github.com/waybill-go/waybill/core/internal/suitetest"
	"github.com/waybill-go/waybill/internal/patience"
)

var timeChecks = []named{
	{"delay-is-honoured", delayIsHonoured},
	{"deliver-at-is-honoured", deliverAtIsHonoured},
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

var readChecks = []named{
	{"calls-heed-their-context", callsHeedTheirContext},
	{"unreadable-row-is-reported", unreadableRowIsReported},
	{"age-counts-from-due", ageCountsFromDue},
	{"counts-per-state", countsPerState},
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

var settleChecks = []named{
	{"settle-heeds-its-context", settleHeedsItsContext},
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

var blockChecks = []named{
	{"key-continues-after-abandoned", keyContinuesAfterAbandoned},
	{"key-blocks-after-abandoned", keyBlocksAfterAbandoned},
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
