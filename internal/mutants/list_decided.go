package main

import "slices"

// decided are faults of the rules that all stores share. A truth table compares a store with them, so that it says
// nothing about a store that calls them: other checks know what must come out.
func decided() []mutant {
	const row, cancel, settle, hold, heads, heartbeat = "core/rules/row.go", "core/rules/cancel.go", "core/rules/settle.go", "core/rules/hold.go", "core/rules/heads.go", "core/rules/heartbeat.go"
	return slices.Concat(group{pkg: "./core/storetest"}.of(
		mutant{id: "rules-cancel-held", fault: "what a member holds is cancelled", file: cancel, old: "case r.Holder != 0:", new: "case r.Holder < 0:", tests: "^TestSuiteAcceptsGoodStore$/^cancel-of-held-is-in-flight$"},
		mutant{id: "rules-cancel-due", fault: "what is due is cancelled", file: cancel, old: "case r.Ready() && !r.Cancellable", new: "case r.Retry() && !r.Cancellable", tests: "^TestSuiteAcceptsGoodStore$/^cancel-of-due-is-in-flight$"},
		mutant{id: "rules-cancel-crashed", fault: "what crashed is in flight though it is held before it is handed out", file: cancel, old: "r.Crashes == 0 && !u", new: "!u", tests: "^TestSuiteAcceptsGoodStore$/^cancel-after-a-crash$"},
		mutant{id: "rules-cancel-left", fault: "what a member held that has left is cancelled though its successor hands it out", file: cancel, old: "r.Crashes == 0 && !u", new: "!r.MaybeSent && !u", tests: "^TestSuiteAcceptsGoodStore$/^cancel-after-a-leave$"},
		mutant{id: "rules-cancel-maybe", fault: "a cancelled retry that may have been sent says it was not", file: cancel, old: "case r.MaybeSent || u", new: "case u", tests: "^TestSuiteAcceptsGoodStore$/^cancel-says-maybe$"},
		mutant{id: "rules-cancel-window", fault: "what a dead member can have had out says it was not sent", file: row, old: "!r.Timer() && r.Seq <= u.UncertainUpTo", new: "!r.Timer() && r.Seq <= min(u.UncertainUpTo, 0)", tests: "^TestSuiteAcceptsGoodStore$/^cancel-says-maybe$"},
		mutant{id: "rules-cancel-tell", fault: "a cancelled head leaves its key waiting", file: cancel, old: "r.Live() && !r.Timer() || r.Blocks", new: "r.Blocks", tests: "^TestSuiteAcceptsGoodStore$/^owner-is-notified-of-cancel$"},
		mutant{id: "rules-purge-tell", fault: "a key waits for what was purged", file: cancel, old: "r.Live() && !r.Timer() || r.Blocks", new: "r.Live() && !r.Timer()", tests: "^TestSuiteAcceptsGoodStore$/^owner-is-notified-of-(purge|deletion)$"},
		mutant{id: "rules-end-maybe", fault: "an end forgets that a dead member can have sent it", file: cancel, old: "r.MaybeSent || u.Suspects(r)\n\tend.Version", new: "r.MaybeSent\n\tend.Version", tests: "^TestSuiteAcceptsGoodStore$/^cancel-after-an-end-and-a-redrive$"},
		mutant{id: "rules-maybe", fault: "an outcome forgets that it may have been sent", file: settle, old: "r.MaybeSent || o.Unknown()", new: "r.MaybeSent", tests: "^TestSuiteAcceptsGoodStore$/^cancel-says-maybe$"},
		mutant{id: "rules-requeue-crashes", fault: "a redrive keeps the crashes", file: settle, old: "back.Attempts, back.Crashes, back.Deliveries = 0, 0, 0", new: "back.Attempts, back.Deliveries = 0, 0", tests: "^TestSuiteAcceptsGoodStore$/^(redrive-|cancel-after)"},
		mutant{id: "memory-repair-mark", fault: "a redriven record with another body does not say what it was", file: "store/memory/redrive.go", old: "content.Repair(&r.env, bytes.Clone(req.Body))", new: "_ = content.Header\n\t\t\t\tr.env.Body = bytes.Clone(req.Body)", tests: "^TestSuiteAcceptsGoodStore$/^redrive-marks-repaired$"},
		mutant{id: "rules-sweep-owned", fault: "the cleaning ends what its owner can have out", file: heads, old: "(r.Waits || u.Owner == 0)\n\treturn ends, ends && r.Keyed", new: "true\n\treturn ends, ends && r.Keyed", tests: "^TestSuiteAcceptsGoodStore$/^clean-"},
		mutant{id: "rules-sweep-tell", fault: "a key waits for a retry that was swept", file: heads, old: "r.Keyed && r.Retry()\n}", new: "r.Keyed && r.Timer()\n}", tests: "^TestSuiteAcceptsGoodStore$/^owner-is-notified-of-sweep$"},
		mutant{id: "rules-decide-owned", fault: "an operator ends what its owner can have out", file: heads, old: "r.Cancellable || u.Owner == 0)", new: "true)", tests: "^TestSuiteAcceptsGoodStore$/^decisions-through-owner$"},
		mutant{id: "rules-blocked-topic", fault: "a topic that no queue is bound for blocks no key in the list", file: heads, old: "topic && trials[st.Envelope.Topic] == 0 {", new: "topic {", tests: "^TestSuiteAcceptsGoodStore$/^keys-behind-a-paused-topic$"},
		mutant{id: "rules-blocked-behind", fault: "a key behind which nothing waits is blocked by its topic", file: heads, old: "topic && k.Behind == 0 {", new: "topic && k.Behind < 0 {", tests: "^TestSuiteAcceptsGoodStore$/^rules-heads$"},
	), group{pkg: "./core/parked"}.of(
		mutant{id: "parked-limit", fault: "a look at parked messages takes more than it wants", file: "core/parked/parked.go", old: "return limit - len(found), nil", new: "return limit, nil", tests: "^TestReads$"},
		mutant{id: "parked-body", fault: "a list of parked messages keeps their bodies in memory", file: "core/parked/parked.go", old: "if !body {", new: "if body {", tests: "^TestReads$"},
		mutant{id: "parked-listed", fault: "a list of parked messages looks at all of them", file: "core/parked/parked.go", old: "looked < s.MaxListed", new: "looked >= 0", tests: "^TestReads$"},
		mutant{id: "parked-expired", fault: "a replay takes messages whose time is over", file: "core/parked/parked.go", old: "m.Reason == waybill.ReasonExpired || m.Envelope.Expired(time.Now())", new: "m.Reason == waybill.ReasonExpired && m.Envelope.Expired(time.Now())", tests: "^TestChanges$"},
		mutant{id: "parked-changes", fault: "a replay goes on after its limit", file: "core/parked/parked.go", old: "return c.req.Limit - c.done", new: "return c.req.Limit", tests: "^TestChanges$"},
		mutant{id: "parked-faster", fault: "a message that another call changed counts", file: "core/parked/parked.go", old: "m.Changed {\n\t\t\tc.done++", new: "m.Changed || m.Err == nil {\n\t\t\tc.done++", tests: "^TestChanges$"},
		mutant{id: "parked-fixed", fault: "a message that cannot be replayed is", file: "core/parked/parked.go", old: "case m.Fixed != nil:", new: "case m.Fixed != nil && !c.replay:", tests: "^TestChanges$"},
		mutant{id: "parked-edit", fault: "a message that the edit refuses is replayed", file: "core/parked/parked.go", old: "return c.refuse(m, refused), nil", new: "return true, nil", tests: "^TestChanges$"},
		mutant{id: "parked-mark", fault: "a message with an edited body does not say what it was", file: "core/parked/parked.go", old: "content.Repair(&m.Envelope, body)", new: "m.Envelope.Body = body", tests: "^TestEditIsMarked$"},
		mutant{id: "parked-load", fault: "a message that is gone ends a replay that edits", file: "core/parked/parked.go", old: "errors.Is(err, waybill.ErrNotFound) {", new: "errors.Is(err, waybill.ErrNotFound) && !c.replay {", tests: "^TestEditIsMarked$"},
		mutant{id: "parked-rate", fault: "a replay has steps of any size beside its rate", file: "core/parked/parked.go", old: "min(c.size, int(req.PerSecond/10))", new: "c.size", tests: "^TestRate$"},
		mutant{id: "parked-cancelled", fault: "a replay goes on when its context ends", file: "core/parked/parked.go", old: "if ctx.Err() != nil {", new: "if ctx == nil {", tests: "^TestCancelled$"},
		mutant{id: "parked-close", fault: "a walk is not closed", file: "core/parked/parked.go", old: "defer w.Close(ctx)\n\tfor looked", new: "for looked", tests: "^TestReads$"},
	), group{pkg: "./core/outboxtest"}.of(
		mutant{id: "rules-version", fault: "a stale outcome is stored", file: row, old: "r.Live() && r.Ref == ref", new: "r.Live() && r.Seq == ref.Seq", tests: "^TestMemory$"},
		mutant{id: "rules-settle-owner", fault: "an outcome of who lost the partition is stored", file: settle, old: "case r.Holder != self && !owns:", new: "case false:", tests: "^TestMemory$"},
		mutant{id: "rules-settle-crashes", fault: "a refusal keeps the crashes", file: settle, old: "c.Due, c.In, c.Crashes = true, o.In(), 0", new: "c.Due, c.In = true, o.In()", tests: "^TestMemory$"},
		mutant{id: "rules-released-foreign", fault: "a release ends the hold of another session", file: settle, old: "r.Holder != 0 && r.Holder != self {", new: "r.Holder < 0 {", tests: "^TestMemory$"},
		mutant{id: "rules-released-due", fault: "a retry that is handed back is due at once", file: settle, old: "c.Due, c.In = true, o.In()\n\t\t}", new: "c.Due = true\n\t\t}", tests: "^TestMemory$"},
		mutant{id: "rules-take-held", fault: "what another holds is taken", file: hold, old: "case r.Holder != 0 || locked:", new: "case locked:", tests: "^TestMemory$"},
		mutant{id: "rules-take-own", fault: "records of foreign partitions are taken", file: hold, old: "case !owns:", new: "case false:", tests: "^TestMemory$"},
		mutant{id: "rules-giveup-term", fault: "a partition that was released before is fenced", file: hold, old: "case term > asked:", new: "case false:", tests: "^TestMemory$"},
	), group{pkg: "./health"}.of(
		mutant{id: "health-least", fault: "a least number looks exact in a check of the backlog", file: "health/deep.go", old: "case n.AtLeast:", new: "case n.AtLeast && n.N < 0:", tests: "^TestBacklogIsTooOld$"},
	), group{pkg: "./core/rules"}.of(
		mutant{id: "rules-sample-more", fault: "a least number is the estimate, and so can be more than there is", file: "core/rules/sample.go", old: "(few+8-4*math.Sqrt(few+4))", new: "(few+2)", tests: "^TestSample$"},
		mutant{id: "rules-count-more", fault: "a least number is what was counted", file: "core/rules/sample.go", old: "n = max(n-1, 0)", new: "_ = n", tests: "^TestSampleCount$"},
		mutant{id: "rules-count-apart", fault: "what was counted beside the sample counts as a part of it", file: "core/rules/sample.go", old: "outside, least = seen, seen+hits", new: "least = seen + hits", tests: "^TestSampleCount$"},
		mutant{id: "rules-ahead-ready", fault: "a due record before another one of its key is not in its way", file: heads, old: "if k.Ready < seq {", new: "if k.Ready > seq {", tests: "^TestHeads$"},
		mutant{id: "rules-next-held", fault: "an operator ends a record behind one that is being sent", file: heads, old: "k.Retry != 0 || k.Held != 0", new: "k.Retry != 0", tests: "^TestHeads$"},
		mutant{id: "rules-head-abandoned", fault: "an abandoned record behind a retry is the head", file: heads, old: "r.Seq == k.Head(true), r", new: "r.Seq == k.Abandoned, r", tests: "^TestHeads$"},
		mutant{id: "rules-head-owned", fault: "an operator ends the first in line, which its owner can have out", file: heads, old: "case next && u.Owner != 0:", new: "case next && u.Owner < 0:", tests: "^TestHeads$"},
		mutant{id: "rules-decided-told", fault: "a decision that was void is pending for ever", file: heads, old: "d.Number != 0 && !told ||", new: "d.Number < 0 && !told ||", tests: "^TestDecided$"},
		mutant{id: "rules-heartbeat-beat", fault: "a member that lives is removed", file: heartbeat, old: "m != nil && m.Heartbeats == r.Heartbeats", new: "m != nil", tests: "^TestHeartbeat$"},
		mutant{id: "rules-heartbeat-owner", fault: "a partition is taken from its owner", file: heartbeat, old: "return u.Owner == m.From && u.Partition == m.Partition", new: "return u.Partition == m.Partition", tests: "^TestHeartbeat$"},
		mutant{id: "rules-heartbeat-late", fault: "a late renewal sets the heartbeats back", file: heartbeat, old: "case self.Heartbeats > old.Heartbeats:", new: "case self.Heartbeats != old.Heartbeats:", tests: "^TestHeartbeat$"},
		mutant{id: "rules-heartbeat-term", fault: "new partitions begin at the old term", file: heartbeat, old: "Term: kept.Term + 1", new: "Term: kept.Term", tests: "^TestHeartbeat$"},
		mutant{id: "rules-heartbeat-flag", fault: "a flag stays with a new presence", file: heartbeat, old: "old.Suspected && old.Presence == self.Presence", new: "old.Suspected", tests: "^TestHeartbeat$"},
		mutant{id: "rules-heartbeat-uncertain", fault: "a dead member's partitions keep no bound of care", file: heartbeat, old: "max(u.UncertainUpTo, last)", new: "max(u.UncertainUpTo, 0*last)", tests: "^TestHeartbeat$"},
		mutant{id: "rules-heartbeat-kept", fault: "a route that nobody serves loses its hint", file: heartbeat, old: "k.ReadAfter, k.UncertainUpTo, k.Term = min(k.ReadAfter, u.ReadAfter),", new: "k.ReadAfter, k.UncertainUpTo, k.Term = max(k.ReadAfter, u.ReadAfter)+1000000,", tests: "^TestHeartbeat$"},
		mutant{id: "rules-heartbeat-partitions", fault: "the partitions of a member that is gone are not freed", file: heartbeat, old: "t.give(u, 0)", new: "_ = u", tests: "^TestHeartbeat$"},
		mutant{id: "rules-heartbeat-retire", fault: "partitions that nobody serves any more stay", file: heartbeat, old: "used[u.Partition.Route] = used[u.Partition.Route] || u.Owner != 0", new: "used[u.Partition.Route] = used[u.Partition.Route] || u.Term != 0", tests: "^TestHeartbeat$"},
		mutant{id: "rules-heartbeat-hint", fault: "a late member stores where its successor begins", file: heartbeat, old: "m.To == self.Session && t.Self.Heartbeats >= self.Heartbeats", new: "m.To == self.Session", tests: "^TestHeartbeat$"},
		mutant{id: "rules-heartbeat-to", fault: "a partition passes to a session that is no member", file: heartbeat, old: "m.To != 0 && t.member(m.To) == nil", new: "m.To < 0", tests: "^TestHeartbeat$"},
		mutant{id: "rules-heartbeat-locked", fault: "a member that a transaction has locked loses its partitions", file: heartbeat, old: "if err != nil || !ok {\n\t\treturn err\n\t}\n\tfor i", new: "if _ = ok; err != nil {\n\t\treturn err\n\t}\n\tfor i", tests: "^TestHeartbeat$"},
		mutant{id: "rules-heartbeat-itself", fault: "a member that removed itself moves partitions", file: heartbeat, old: "at < 0 || self == nil ||", new: "at < 0 ||", tests: "^TestHeartbeat$"},
	), group{pkg: "./store/postgres", server: true}.of( // whose SQL is compared with the rules
		mutant{id: "rules-giveup-foreign", fault: "a partition goes with records that another holds", file: hold, old: "(r.Holder == 0 || r.Holder == self)", new: "true", tests: "^TestSuite$/^rules-release$"},
		mutant{id: "postgres-head-held", fault: "a record behind one that is being sent is the head", file: "store/postgres/decide.go", old: "AND (e.retry OR e.hold <> 0) AND (e.retry OR ` + heldWaits + `)) AS due", new: "AND e.retry) AS due", tests: "^TestSuite$/^rules-heads$"},
		mutant{id: "rules-block reason", fault: "a retry without a key holds the others without one", file: heads, old: "case r.Retry() && r.Keyed:", new: "case r.Retry():", tests: "^TestSuite$/^rules-hold$"},
	))
}
