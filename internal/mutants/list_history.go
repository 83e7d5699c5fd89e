package main

// histories are faults that random histories find: some soon, the rarest in some thousands.
func histories() []mutant {
	return append(group{pkg: "./internal/checker", args: []string{"-histories", "5000"}, gated: true}.of(
		mutant{id: "history-outage", fault: "an outage counts as a refusal", file: "relay/publish.go", old: "case waybill.ClassOutage:\n\t\tif !e.drain.begun", new: "case waybill.ClassOutage + 100:\n\t\tif !e.drain.begun", tests: allHistories},
		mutant{id: "history-answer", fault: "a lost answer counts as success", file: "relay/publish.go", old: "if res[i] == nil {", new: "if res[i] == nil || classify(res[i]) == waybill.ClassOutage {", tests: allHistories},
		mutant{id: "history-key", fault: "a key goes on beside the one before", file: "dispatch/key.go", old: "for k.busy < rt.Pipelined &&", new: "for k.busy <= rt.Pipelined &&", tests: allHistories},
	), group{pkg: "./internal/checker", args: []string{"-histories", "40000"}, gated: true, slow: true}.of(
		mutant{id: "history-retry", fault: "a retry does not block its key", file: "dispatch/settle.go", old: "k.block(item.Record.Seq, core.BlockedByRetry)", new: "_ = k", tests: allHistories},
		mutant{id: "history-blocks", fault: "abandoned records block nothing", file: "dispatch/settle.go", old: "case o.State() == core.StateAbandoned && rt.Blocks &&", new: "case false &&", tests: allHistories},
		mutant{id: "history-removed", fault: "members are removed at sight", file: "dispatch/peers.go", old: "c.sent.Sub(p.since) < lease:", new: "c.sent.Sub(p.since) < 0:", tests: allHistories},
		mutant{id: "history-out", fault: "partitions are released without what is out", file: "dispatch/release.go", old: "item.state == itemOut {", new: "item.state == itemOut && false {", tests: allHistories},
		mutant{id: "history-kept", fault: "partitions are never given up", file: "dispatch/release.go", old: "if u.releasing && !u.tryAt.After(d.now) {", new: "if false {", tests: allHistories},
	)...)
}

// spares are faults of which other lines guard the same.
func spares() []mutant {
	return group{pkg: "./internal/checker", args: []string{"-histories", "2000"}, gated: true, slow: true, spare: true}.of(
		mutant{id: "spare-late", fault: "a late publish starts anyway", file: "relay/publish.go", old: "if !c.lease.holds() {", new: "if false {", tests: allHistories},
		mutant{id: "spare-unsent", fault: "what was behind a lost answer counts as unsent", file: "relay/publish.go", old: "c.ended(err):\n\t\t\te.release(item, true)", new: "c.ended(err):\n\t\t\te.release(item, false)", tests: allHistories},
	)
}

const allHistories = "^TestHistories$"

// remembered are faults of the memory store. Most histories would not find them: the dispatcher guards the same.
func remembered() []mutant {
	return append(group{pkg: "./core/outboxtest"}.of(
		mutant{id: "memory-next-left", fault: "a full Take does not tell of records before one that it had held", file: "store/memory/hold.go", old: "scope.UpToSeq = min(scope.UpToSeq, slices.MaxFunc(found, bySeq).seq)", new: "scope.UpToSeq = min(scope.UpToSeq, found[want.KeylessLimit-1].seq)", tests: "^TestMemory$/^deletes$/^next-says-what-it-passed$"},
		mutant{id: "memory-crashes", fault: "the store forgets who removed a member", file: "store/memory/heartbeat.go", old: "r.crashes++", new: "_ = r", tests: "^TestMemory$"},
		mutant{id: "memory-short-timer", fault: "a timer of 1 ms is due at once", file: "store/memory/stage.go", old: "due := now.Add(row.Delay)", new: "due := now.Add(row.Delay.Truncate(2e6))", tests: "^TestMemory$/^deletes$/^short-delays-are-kept$"},
		mutant{id: "rules-short-retry", fault: "a retry in less than 10 ms is due at once", file: "core/rules/settle.go", old: "c.Due, c.In, c.Crashes = true, o.In(), 0", new: "c.Due, c.In, c.Crashes = true, o.In().Truncate(1e7), 0", tests: "^TestMemory$/^deletes$/^short-delays-are-kept$"},
		mutant{id: "memory-due-half", fault: "a part of which a member owns half brings nothing due", file: "store/memory/due.go", old: "if part.Slots &= rt.owned(self); part.Slots == 0 {", new: "if part.Slots&^rt.owned(self) != 0 || part.Slots == 0 {", tests: "^TestMemory$"},
	), group{pkg: "./core/storetest"}.of()...)
}
