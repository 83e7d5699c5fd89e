package main

import "slices"

// decided are faults of the rules that all stores share. A truth table compares a store with them, so that it says
// nothing about a store that calls them: other checks know what must come out.
func decided() []mutant {
	const row, withdraw, settle, hold, heads, meet = "core/rules/row.go", "core/rules/withdraw.go", "core/rules/settle.go", "core/rules/hold.go", "core/rules/heads.go", "core/rules/meet.go"
	return slices.Concat(group{pkg: "./core/storetest"}.of(
		mutant{id: "rules-cancel-held", fault: "what a member holds is cancelled", file: withdraw, old: "case r.Holder != 0:", new: "case r.Holder < 0:", tests: "^TestSuiteAcceptsGoodStore$/^cancel-of-held-is-in-flight$"},
		mutant{id: "rules-cancel-due", fault: "what is due is cancelled", file: withdraw, old: "case r.Ready() && !r.Withdrawable", new: "case r.Retry() && !r.Withdrawable", tests: "^TestSuiteAcceptsGoodStore$/^cancel-of-due-is-in-flight$"},
		mutant{id: "rules-cancel-crashed", fault: "what crashed is in flight though it is held before it is handed out", file: withdraw, old: "r.Crashes == 0 && !u", new: "!u", tests: "^TestSuiteAcceptsGoodStore$/^cancel-after-a-crash$"},
		mutant{id: "rules-cancel-left", fault: "what a member held that has left is withdrawn though its successor hands it out", file: withdraw, old: "r.Crashes == 0 && !u", new: "!r.MaybeSent && !u", tests: "^TestSuiteAcceptsGoodStore$/^cancel-after-a-leave$"},
		mutant{id: "rules-cancel-maybe", fault: "a cancelled retry that may have been sent says it was not", file: withdraw, old: "case r.MaybeSent || u", new: "case u", tests: "^TestSuiteAcceptsGoodStore$/^cancel-says-maybe$"},
		mutant{id: "rules-cancel-window", fault: "what a dead member can have had out says it was not sent", file: row, old: "!r.Timer() && r.Seq <= u.Careful", new: "!r.Timer() && r.Seq <= min(u.Careful, 0)", tests: "^TestSuiteAcceptsGoodStore$/^cancel-says-maybe$"},
		mutant{id: "rules-cancel-tell", fault: "a cancelled head leaves its key waiting", file: withdraw, old: "r.Live() && !r.Timer() || r.Blocks", new: "r.Blocks", tests: "^TestSuiteAcceptsGoodStore$/^owner-is-told-of-cancel$"},
		mutant{id: "rules-purge-tell", fault: "a key waits for what was purged", file: withdraw, old: "r.Live() && !r.Timer() || r.Blocks", new: "r.Live() && !r.Timer()", tests: "^TestSuiteAcceptsGoodStore$/^owner-is-told-of-(purge|deletion)$"},
		mutant{id: "rules-end-maybe", fault: "an end forgets that a dead member can have sent it", file: withdraw, old: "r.MaybeSent || u.Suspects(r)\n\tend.Version", new: "r.MaybeSent\n\tend.Version", tests: "^TestSuiteAcceptsGoodStore$/^cancel-after-an-end-and-a-redrive$"},
		mutant{id: "rules-maybe", fault: "an outcome forgets that it may have been sent", file: settle, old: "r.MaybeSent || o.Unknown()", new: "r.MaybeSent", tests: "^TestSuiteAcceptsGoodStore$/^cancel-says-maybe$"},
		mutant{id: "rules-requeue-crashes", fault: "a redrive keeps the crashes", file: settle, old: "back.Attempts, back.Crashes, back.Deliveries = 0, 0, 0", new: "back.Attempts, back.Deliveries = 0, 0", tests: "^TestSuiteAcceptsGoodStore$/^(redrive-|cancel-after)"},
		mutant{id: "rules-sweep-owned", fault: "the cleaning ends what its owner can have out", file: heads, old: "(r.Waits || u.Owner == 0)\n\treturn ends, ends && r.Keyed", new: "true\n\treturn ends, ends && r.Keyed", tests: "^TestSuiteAcceptsGoodStore$/^clean-"},
		mutant{id: "rules-sweep-tell", fault: "a key waits for a retry that was swept", file: heads, old: "r.Keyed && r.Retry()\n}", new: "r.Keyed && r.Timer()\n}", tests: "^TestSuiteAcceptsGoodStore$/^owner-is-told-of-sweep$"},
		mutant{id: "rules-decide-owned", fault: "an operator ends what its owner can have out", file: heads, old: "r.Withdrawable || u.Owner == 0)", new: "true)", tests: "^TestSuiteAcceptsGoodStore$/^decisions-through-owner$"},
	), group{pkg: "./core/outboxtest"}.of(
		mutant{id: "rules-version", fault: "a stale outcome is stored", file: row, old: "r.Live() && r.Ref == ref", new: "r.Live() && r.Seq == ref.Seq", tests: "^TestMemory$"},
		mutant{id: "rules-settle-owner", fault: "an outcome of who lost the unit is stored", file: settle, old: "case r.Holder != self && !owns:", new: "case false:", tests: "^TestMemory$"},
		mutant{id: "rules-settle-crashes", fault: "a refusal keeps the crashes", file: settle, old: "c.Due, c.In, c.Crashes = true, o.In(), 0", new: "c.Due, c.In = true, o.In()", tests: "^TestMemory$"},
		mutant{id: "rules-released-foreign", fault: "a release ends the hold of another session", file: settle, old: "r.Holder != 0 && r.Holder != self {", new: "r.Holder < 0 {", tests: "^TestMemory$"},
		mutant{id: "rules-released-due", fault: "a retry that is handed back is due at once", file: settle, old: "c.Due, c.In = true, o.In()\n\t\t}", new: "c.Due = true\n\t\t}", tests: "^TestMemory$"},
		mutant{id: "rules-take-held", fault: "what another holds is taken", file: hold, old: "case r.Holder != 0 || locked:", new: "case locked:", tests: "^TestMemory$"},
		mutant{id: "rules-take-own", fault: "records of foreign units are taken", file: hold, old: "case !owns:", new: "case false:", tests: "^TestMemory$"},
		mutant{id: "rules-giveup-term", fault: "a unit that was given up before is fenced", file: hold, old: "case term > asked:", new: "case false:", tests: "^TestMemory$"},
	), group{pkg: "./core/rules"}.of(
		mutant{id: "rules-meet-beat", fault: "a member that lives is removed", file: meet, old: "m != nil && m.Beat == r.Beat", new: "m != nil", tests: "^TestMeet$"},
		mutant{id: "rules-meet-owner", fault: "a unit is taken from its owner", file: meet, old: "return u.Owner == m.From && u.Unit == m.Unit", new: "return u.Unit == m.Unit", tests: "^TestMeet$"},
		mutant{id: "rules-meet-late", fault: "a late renewal sets the beat back", file: meet, old: "case self.Beat > old.Beat:", new: "case self.Beat != old.Beat:", tests: "^TestMeet$"},
		mutant{id: "rules-meet-term", fault: "new units begin at the old term", file: meet, old: "Term: kept.Term + 1", new: "Term: kept.Term", tests: "^TestMeet$"},
		mutant{id: "rules-meet-flag", fault: "a flag stays with a new presence", file: meet, old: "old.Flag && old.Presence == self.Presence", new: "old.Flag", tests: "^TestMeet$"},
		mutant{id: "rules-meet-careful", fault: "a dead member's units keep no bound of care", file: meet, old: "max(u.Careful, last)", new: "max(u.Careful, 0*last)", tests: "^TestMeet$"},
		mutant{id: "rules-meet-kept", fault: "a route that nobody serves loses its hint", file: meet, old: "k.Low, k.Careful, k.Term = min(k.Low, u.Low),", new: "k.Low, k.Careful, k.Term = max(k.Low, u.Low)+1000000,", tests: "^TestMeet$"},
		mutant{id: "rules-meet-units", fault: "the units of a member that is gone are not freed", file: meet, old: "t.give(u, 0)", new: "_ = u", tests: "^TestMeet$"},
		mutant{id: "rules-meet-retire", fault: "units that nobody serves any more stay", file: meet, old: "used[u.Unit.Route] = used[u.Unit.Route] || u.Owner != 0", new: "used[u.Unit.Route] = used[u.Unit.Route] || u.Term != 0", tests: "^TestMeet$"},
		mutant{id: "rules-meet-hint", fault: "a late member stores where its successor begins", file: meet, old: "m.To == self.Session && t.Self.Beat >= self.Beat", new: "m.To == self.Session", tests: "^TestMeet$"},
		mutant{id: "rules-meet-to", fault: "a unit passes to a session that is no member", file: meet, old: "m.To != 0 && t.member(m.To) == nil", new: "m.To < 0", tests: "^TestMeet$"},
		mutant{id: "rules-meet-locked", fault: "a member that a transaction has locked loses its units", file: meet, old: "if err != nil || !ok {\n\t\treturn err\n\t}\n\tfor i", new: "if _ = ok; err != nil {\n\t\treturn err\n\t}\n\tfor i", tests: "^TestMeet$"},
		mutant{id: "rules-meet-itself", fault: "a member that removed itself moves units", file: meet, old: "at < 0 || self == nil ||", new: "at < 0 ||", tests: "^TestMeet$"},
	), group{pkg: "./store/postgres", server: true}.of( // whose SQL is compared with the rules
		mutant{id: "rules-giveup-foreign", fault: "a unit goes with records that another holds", file: hold, old: "(r.Holder == 0 || r.Holder == self)", new: "true", tests: "^TestSuite$/^rules-give-up$"},
		mutant{id: "rules-obstacle", fault: "a retry without a key holds the others without one", file: heads, old: "case r.Retry() && r.Keyed:", new: "case r.Retry():", tests: "^TestSuite$/^rules-hold$"},
	))
}
