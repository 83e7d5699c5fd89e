package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	if d := time.Since(start); d < short-slack {
		k.fail("a message with a delay of %s was handed out after %s", short, d)
	}
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
	if d := time.Until(at); d > time.Second {
		k.fail("a message was handed out %s before its time", d)
	}
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
	ready, err := k.driver.look(k.ctx, k.route)
	k.must("read", err)
	if len(ready) != 1 {
		k.fail("%d records are in line, want 1", len(ready))
	}
	self := k.driver.self.Session
	ctx, cancel := context.WithCancel(k.ctx)
	cancel()
	start := time.Now()
	for what, call := range map[string]func() error{
		"heartbeat": func() error { _, err := k.store.Heartbeat(ctx, core.HeartbeatRequest{}); return err },
		"read":      func() error { _, err := k.store.Read(ctx, self, core.ReadRequest{Slots: all(k.route)}); return err },
		"due":       func() error { _, err := k.store.Due(ctx, self, all(k.route), 1); return err },
		"hold": func() error {
			_, err := k.store.Hold(ctx, self, core.HoldRequest{Refs: []core.Ref{ready[0].Ref}})
			return err
		},
	} {
		if err := call(); err == nil || waybill.ClassOf(err) != waybill.ClassOutage {
			k.fail("%s with an ended context: got %w, want an outage", what, err)
		}
	}
	if d := time.Since(start); d > patience.For(suitetest.Patience) {
		k.fail("calls with an ended context took %s", d)
	}
	if ready, err = k.driver.look(k.ctx, k.route); err != nil || len(ready) != 1 || ready[0].Holder != 0 {
		k.fail("after calls with an ended context there are %d records in line, and the error is %w", len(ready), err)
	}
	k.takeIDs(ids)
}

// A row that cannot be read is handed out with Record.Err, beside its siblings, and can be abandoned. DB-01.
func unreadableRowIsReported(k *kit) {
	c, ok := core.As[Corrupter](k.h)
	if !ok {
		k.undeclared("a harness that can spoil a row")
	}
	ids := k.stage(k.msgs(3)...)
	rs := k.takeIDs(ids)
	k.must("spoil a row", c.Corrupt(k.ctx, k.route, rs[1].Seq))
	k.release(rs...)
	rs = k.take(3)
	for i := range rs {
		if bad := i == 1; (rs[i].Err != nil) != bad {
			k.fail("record %d is unreadable: %v; Record.Err is %v", i, bad, rs[i].Err)
		}
	}
	k.settle(core.Published(&rs[0]), core.Abandon(&rs[1], waybill.ReasonUndecodable, rs[1].Err), core.Published(&rs[2]))
	k.none("one is abandoned, the others are published")
}

// Record.Age is the time since the record became due, not since a retry or a hand-out. DB-11.
func ageCountsFromDue(k *kit) {
	staged := time.Now()
	k.stage(k.msg(waybill.Delay(short)))
	r := k.take(1)[0]
	if r.Age > time.Since(staged)-short+slack {
		k.fail("a record that was due a moment ago has the age %s", r.Age)
	}
	k.sleep(short)
	k.retry(r, 0)
	if r = k.take(1)[0]; r.Age < short-slack {
		k.fail("a record that was due more than %s ago has the age %s", short, r.Age)
	}
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
			if (c.Reason != waybill.ReasonNone) != (c.State == core.StateAbandoned) {
				k.fail("%d records in state %s are counted with the reason %q", c.N, c.State, c.Reason)
			}
			if c.Oldest < 0 || c.Oldest > time.Since(start)+slack {
				k.fail("the oldest of some fresh records in state %s has the age %s", c.State, c.Oldest)
			}
		}
	}
	want := map[core.State]int64{core.StatePending: 2, core.StateProcessing: 1, core.StateFailed: 1}
	if ok && kept != nil {
		want[core.StateAbandoned] = 2
		if reasons[waybill.ReasonRejected] != 1 || reasons[waybill.ReasonAttempts] != 1 {
			k.fail("counted %v, want one abandoned record for each of two reasons", reasons)
		}
	}
	for state, n := range want {
		if got[state] != n {
			k.fail("counted %d records in state %s, want %d", got[state], state, n)
		}
	}
}

var settleChecks = []named{
	{"published-is-gone", publishedIsGone},
	{"retry-is-due-later", retryIsDueLater},
	{"retry-keeps-last-error", retryKeepsLastError},
	{"release-costs-nothing", releaseCostsNothing},
	{"abandoned-is-terminal", abandonedIsTerminal},
	{"settle-heeds-its-context", settleHeedsItsContext},
}

// A published record is terminal: gone, or kept as published. DB-01.
func publishedIsGone(k *kit) {
	ids := k.stage(k.msgs(2)...)
	k.published(k.takeIDs(ids)...)
	k.none("they were published")
	for _, id := range ids {
		if rec, ok := k.stored(id); ok && rec != nil && rec.State != core.StatePublished {
			k.fail("a published record is stored as %s", rec.State)
		}
	}
}

// A failed attempt counts, and the record is due again after the delay, by the store's clock. DB-01, DB-18.
func retryIsDueLater(k *kit) {
	ids := k.stage(k.msgs(2)...)
	rs := k.takeIDs(ids)
	if rs[0].Failed || rs[0].Attempts != 0 {
		k.fail("a fresh record: attempts %d, failed %v", rs[0].Attempts, rs[0].Failed)
	}
	start := time.Now()
	k.settle(core.Retry(&rs[0], errNo, short), core.Retry(&rs[1], errNo, far))
	k.state("after a failed attempt", ids[0], StoredRecord{State: core.StateFailed, Attempts: 1, LastError: errNo.Error()})
	r := k.takeIDs(ids[:1])[0]
	if d := time.Since(start); d < short-slack {
		k.fail("a retry after %s was handed out after %s", short, d)
	}
	if r.Attempts != 1 || r.Crashes != 0 || !r.Failed {
		k.fail("after a failed attempt: attempts %d, crashes %d, failed %v", r.Attempts, r.Crashes, r.Failed)
	}
	k.retry(r, 0)
	if r = k.takeIDs(ids[:1])[0]; r.Attempts != 2 {
		k.fail("after two failed attempts: attempts %d", r.Attempts)
	}
	k.none("the other is due in an hour")
}

// The last error is kept, capped and cleaned as core.ErrorText does, until a newer one replaces it. DB-18.
func retryKeepsLastError(k *kit) {
	ids := k.stage(k.msg())
	texts := []string{"first", "second ü 🗝 'quoted' \"twice\"", strings.Repeat("ü", 5*core.MaxErrorBytes), "nul \x00 and \xff"}
	for i, text := range texts {
		r := k.takeIDs(ids)[0]
		k.settle(core.Retry(&r, errors.New(text), 0))
		k.state(fmt.Sprintf("after error %d", i), ids[0],
			StoredRecord{State: core.StateFailed, Attempts: i + 1, LastError: core.ErrorText(errors.New(text))})
	}
	k.release(k.takeIDs(ids)...)
	k.state("after a release", ids[0],
		StoredRecord{State: core.StateFailed, Attempts: len(texts), LastError: core.ErrorText(errors.New(texts[len(texts)-1]))})
}

// A released record is as it was before it was held, pending or failed. A retry may wait once more. DB-01.
func releaseCostsNothing(k *kit) {
	ids := k.stage(k.msg())
	k.release(k.takeIDs(ids)...)
	k.state("after a release", ids[0], StoredRecord{State: core.StatePending})
	r := k.takeIDs(ids)[0]
	if r.Attempts != 0 || r.Crashes != 0 || r.Failed {
		k.fail("after a release: attempts %d, crashes %d, failed %v", r.Attempts, r.Crashes, r.Failed)
	}
	k.retry(r, 0)
	k.release(k.takeIDs(ids)...)
	k.state("after a failed attempt and a release", ids[0], StoredRecord{State: core.StateFailed, Attempts: 1, LastError: errNo.Error()})
	if r = k.takeIDs(ids)[0]; r.Attempts != 1 || !r.Failed {
		k.fail("after a failed attempt and a release: attempts %d, failed %v", r.Attempts, r.Failed)
	}
	start := time.Now()
	k.settle(core.Release(&r, short, false))
	k.takeIDs(ids)
	if d := time.Since(start); d < short-slack {
		k.fail("a release for %s was handed out after %s", short, d)
	}
}

// An abandoned record is never handed out again and keeps its reason and error; the attempt counts if one was made.
// DB-01.
func abandonedIsTerminal(k *kit) {
	reasons := []waybill.Reason{
		waybill.ReasonRejected, waybill.ReasonAttempts, waybill.ReasonUndecodable,
		waybill.ReasonExpired, waybill.ReasonCrashed, waybill.Reason("an_adapter's_own"),
	}
	ids := k.stage(k.msgs(len(reasons))...)
	rs := k.takeIDs(ids)
	out := make([]core.Outcome, len(rs))
	for i := range rs {
		out[i] = core.Abandon(&rs[i], reasons[i], errNo)
	}
	k.settle(out...)
	k.none("all are abandoned")
	for i, id := range ids {
		if rec, ok := k.stored(id); !ok || rec == nil {
			continue // a store may be told not to keep them
		}
		want := StoredRecord{State: core.StateAbandoned, Reason: reasons[i], LastError: errNo.Error()}
		if out[i].CountsAttempt() {
			want.Attempts = 1
		}
		k.state("abandoned for "+string(reasons[i]), id, want)
	}
}

// A settle with an ended context that fails, fails in every slot, and the records can be settled afterwards. DB-01.
func settleHeedsItsContext(k *kit) {
	ids := k.stage(k.msgs(2)...)
	rs := k.takeIDs(ids)
	ctx, cancel := context.WithCancel(k.ctx)
	cancel()
	res := k.store.Settle(ctx, k.driver.self.Session, outcomes(rs, core.Published))
	if len(res) != 2 || (res[0] == nil) != (res[1] == nil) {
		k.fail("a settle of two outcomes with an ended context gave %v, want one result for each", res)
	}
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

// On a route that blocks, an abandoned message holds its key, and no other. OR-04.
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
