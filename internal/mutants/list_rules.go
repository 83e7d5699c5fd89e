package main

// ruled are the rules that keep the promises of dispatch (docs/dispatch.md), each broken.
func ruled() []mutant {
	g := group{pkg: "./dispatch", args: []string{"-rules.seeds=300"}}
	second := g
	second.spare = true // a rule that two places keep: the list above breaks the other one
	return append(g.of(
		mutant{id: "rule-load-held", fault: "what waits in a new partition does not come with it", file: "dispatch/readresult.go", old: "if g := rt.groupOf(w.Slot); g != nil && slices.Contains(r.newlyOwned, g) {", new: "if g := rt.groupOf(w.Slot); g != nil && w.Why == core.BlockedByHold && slices.Contains(r.newlyOwned, g) {", tests: "^TestRules$/^LoadHeld$"},
		mutant{id: "rule-load-out", fault: "what others have out of a new partition does not come with it", file: "dispatch/readresult.go", old: "if g := rt.groupOf(w.Slot); g != nil && slices.Contains(r.newlyOwned, g) {", new: "if g := rt.groupOf(w.Slot); g != nil && w.Why != core.BlockedByHold && slices.Contains(r.newlyOwned, g) {", tests: "^TestRetryThatIsOutAtAnother$"},
		mutant{id: "rule-foreign", fault: "a record that another session holds is handed out", file: "dispatch/env.go", old: "return holder != 0 && holder != e.session", new: "return holder != 0 && holder != e.session && false", tests: "^TestRules$/^ForeignHold$"},
		mutant{id: "rule-again", fault: "a record that another session held is not read again", file: "dispatch/revisit.go", old: "rt.revisits.bySeq[ref.Seq] == nil && !rt.forAnyMember(name)", new: "rt.revisits.bySeq[ref.Seq] == nil && !rt.forAnyMember(name) && false", tests: "^TestRules$/^Again$"},
		mutant{id: "rule-hint", fault: "a partition's hint is where the front is", file: "dispatch/group.go", old: "\t\treadAfter := min(g.stable, g.cursor, g.floor)\n", new: "\t\treadAfter := g.cursor\n\t\tif readAfter == g.cursor {\n\t\t\tl.note(g.slots, readAfter)\n\t\t\tcontinue\n\t\t}\n", tests: "^TestRules$/^Hint$"},
		mutant{id: "rule-upper", fault: "what may be running goes up to the snapshot", file: "dispatch/database.go", old: "if upper := result.LastSeqXmax; upper > 0 {", new: "if upper := min(result.LastSeqXmax, result.SnapshotXmax); upper > 0 {", tests: "^TestRules$/^Upper$"},
		mutant{id: "rule-hazard-keys", fault: "a page of a key behind a walk is taken in", file: "dispatch/key.go", old: "if hazard < from {", new: "if false {", tests: "^TestRules$/^HazardKeys$"},
		mutant{id: "rule-hazard-pass", fault: "keyed records behind a walk go at once", file: "dispatch/key.go", old: "case hazard < rec.Seq:", new: "case false:", tests: "^TestRules$/^PassHazard$"},
		mutant{id: "rule-recent", fault: "a record that was settled after a read was sent is taken from the read", file: "dispatch/forget.go", old: "item.route.recent.read[item.Record.Seq] = true", new: "item.route.recent.read[item.Record.Seq] = false", tests: "^TestRules$/^Recent$"},
		mutant{id: "rule-unstored", fault: "a key goes on before the end of a record is stored", file: "dispatch/handout.go", old: "case o.Reason() != waybill.ReasonExpired:", new: "case false:", tests: "^TestRules$/^Unstored$"},
		mutant{id: "rule-take-locked", fault: "a locked record lets its key go on", file: "dispatch/hold.go", old: "case core.HoldSkipped:\n\t\td.putOff(item)", new: "case core.HoldSkipped:\n\t\td.finish(item)\n\t\td.advance(k)", tests: "^TestRules$/^TakeLocked$"},
		mutant{id: "rule-no-control", fault: "notices are not carried out", file: "dispatch/notice.go", old: "d.notices.more = len(result.Notices) >= noticeLimit", new: "if true {\n\t\treturn\n\t}\n\td.notices.more = len(result.Notices) >= noticeLimit", tests: "^TestRules$/^Control$"},
		mutant{id: "rule-lower", fault: "a notice is deleted before the hint is lowered", file: "dispatch/notice.go", old: "if rt.isHinted(&c) {", new: "if false {", tests: "^Test(RequeuedBelowTheHint|RedrivenWithoutKeyBelowTheHint)$"},
		mutant{id: "rule-restore-read", fault: "a read result of a database that went back is believed", file: "dispatch/readresult.go", old: "if !result.IsMember || d.db.isOlder(result) {", new: "if !result.IsMember {", tests: "^TestRules$/^Restore$"},
		mutant{id: "rule-gapped-peers", fault: "a late member counts the time that it was away", file: "dispatch/peers.go", old: "|| p.heartbeats != m.Heartbeats || d.self.renewedLate {", new: "|| p.heartbeats != m.Heartbeats {", tests: "^TestRules$/^Gapped$"},
		mutant{id: "rule-deadline", fault: "something is handed out after the deadline", file: "dispatch/presence.go", old: "return d.now.Before(d.StartBy())", new: "return true", tests: "^TestRules$/^Deadline$"},
		mutant{id: "rule-two-retries", fault: "the second of two retries of a key goes when it is due", file: "dispatch/key.go", old: "if s < seq {\n\t\t\treturn true", new: "if s < seq && k.blockers[s] != core.BlockedByRetry {\n\t\t\treturn true", tests: "^TestTwoRetriesOfAKey$"},
		mutant{id: "rule-fence-read", fault: "a partition that a read result shows at another is kept", file: "dispatch/readresult.go", old: "result.Owned[i] & rt.owned(); lost != 0 {", new: "result.Owned[i] & rt.owned(); lost != 0 && false {", tests: "^TestPartitionThatIsAnothersIsDropped$"},
		mutant{id: "rule-presence-grace", fault: "a member that has a token does not ask before it starts something", file: "dispatch/presence.go", old: "until.Before(deadline) {", new: "until.Before(deadline) && false {", tests: "^TestWhoIsFlaggedStartsNothing$"},
		mutant{id: "rule-theirs", fault: "a notice of a partition that goes is carried out", file: "dispatch/notice.go", old: "return rt.owned().Has(c.Slot) && !rt.isReleasing(c.Slot)", new: "return true", tests: "^TestNoticeOfAPartitionThatGoes$"},
	), second.of(
		mutant{id: "rule-hazard-from", fault: "a page of a key begins behind a walk", file: "dispatch/read.go", old: "from := min(k.resume-1, g.hazard())", new: "from := k.resume - 1", tests: "^TestRules$/^HazardKeys$"},
		mutant{id: "rule-restore-heartbeat", fault: "a membership of a database that went back is believed", file: "dispatch/heartbeat.go", old: "if !membership.IsMember || d.db.epoch != \"\" && membership.StoreEpoch != \"\" && membership.StoreEpoch != d.db.epoch {", new: "if !membership.IsMember {", tests: "^TestRules$/^Restore$"},
		mutant{id: "rule-gapped-heartbeat", fault: "a late member removes others", file: "dispatch/heartbeat.go", old: "if !d.self.renewedLate {", new: "if true {", tests: "^TestRules$/^Gapped$"},
		mutant{id: "rule-fence-membership", fault: "a partition that the membership gives to another is kept", file: "dispatch/ownership.go", old: "case u != nil && !mine:", new: "case false:", tests: "^TestPartitionThatIsAnothersIsDropped$"},
	)...)
}
