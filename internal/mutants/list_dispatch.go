package main

// dispatched are faults of the dispatcher. Its own rules are switched off one by one by a test of the package.
func dispatched() []mutant {
	const share, settle, hold, peers, meet = "dispatch/share.go", "dispatch/settle.go", "dispatch/hold.go", "dispatch/peers.go", "dispatch/meet.go"
	return group{pkg: "./dispatch", args: []string{"-skip", "^Test(Histories|Rules)$"}}.of(
		mutant{id: "dispatch-alone", fault: "a lone suspect goes beside others", file: "dispatch/hand.go", old: "return d.work.out == 0\n", new: "return true\n", tests: "^TestLoneSuspectWaits$"},
		mutant{id: "dispatch-fewer", fault: "shares do not heed the number of handlers", file: share, old: "(t.load[a.Session]+more)*max(b.Handlers, 1) < (t.load[b.Session]+than)*max(a.Handlers, 1)", new: "t.load[a.Session]+more < t.load[b.Session]+than", tests: "^TestSharesFollowHandlers$"},
		mutant{id: "dispatch-able", fault: "a member that is not able gets free units", file: share, old: "best == nil || able && !bestAble || t.fewer(m, 1, best, 1)", new: "best == nil || t.fewer(m, 1, best, 1)", tests: "^TestGiveUpThatIsLate$"},
		mutant{id: "dispatch-stopping", fault: "a stopping member takes units", file: share, old: "to.Session == d.session && !d.self.stopping {", new: "to.Session == d.session {", tests: "^TestStoppingMemberTakesNothing$"},
		mutant{id: "dispatch-orphaned", fault: "the units of an owner that vanished are taken without care", file: share, old: "if o.Owner != 0 {\n\t\t\t\td.peers.orphaned[o.Unit] = true\n\t\t\t}", new: "", tests: "^TestUnitsOfWhoHasNoRow$"},
		mutant{id: "dispatch-no-moves", fault: "members never give units to one that has fewer", file: share, old: "if from == d.session {\n\t\t\td.leave(d.byName[route])", new: "if from == 0 {\n\t\t\td.leave(d.byName[route])", tests: "^TestControlOfAUnitThatGoes$"},
		mutant{id: "dispatch-lease", fault: "members are dead after twice their lease", file: peers, old: "c.sent.Sub(p.since) >= lease {", new: "c.sent.Sub(p.since) >= 2*lease {", tests: "^TestDeadAfterItsLease$"},
		mutant{id: "dispatch-rowless", fault: "units of an owner without a row are never free", file: peers, old: "d.peers.vanished[u.Owner] = true // its units are free now", new: "_ = u", tests: "^TestUnitsOfWhoHasNoRow$"},
		mutant{id: "dispatch-look", fault: "nobody looks when a lease ends", file: peers, old: "\t} else {\n\t\td.peers.lookBy(p.since.Add(lease))\n\t}", new: "\t}", tests: "^TestDeadAfterItsLease$"},
		mutant{id: "dispatch-busy", fault: "the outcome of a locked record is dropped", file: settle, old: "again = append(again, item)", new: "_ = again", tests: "^TestQueueHistories$"},
		mutant{id: "dispatch-changed", fault: "a record that changed is not read again", file: settle, old: "if item.outcome.Event() != core.EventConfirmed || item.recheck {\n\t\td.revise(item)\n\t}", new: "", tests: "^TestChangedIsReadAgain$"},
		mutant{id: "dispatch-urgent", fault: "a retry waits for other outcomes", file: settle, old: "\t\ts.urgent = true\n", new: "", tests: "^TestRetryDoesNotWaitForOthers$"},
		mutant{id: "dispatch-gather", fault: "outcomes are not gathered", file: settle, old: "at = at.Add(d.opts.Gather)", new: "at = at.Add(0)", tests: "^TestExpiredOfAKeyAreStoredTogether$"},
		mutant{id: "dispatch-retry-due", fault: "a retry waits for the poll", file: settle, old: "d.timers.askBy(d.now.Add(o.In()))", new: "_ = o", tests: "^TestWhatFollowsAFailedOneComesBack$"},
		mutant{id: "dispatch-released", fault: "a released record counts as held on", file: settle, old: "item.Record.Version++\n\t\td.putBack(item)", new: "d.putBack(item)", tests: "^TestLateHoldAndRelease$"},
		mutant{id: "dispatch-settle-limit", fault: "a settle that the store does not answer in full counts as stored", file: settle, old: "if len(o.res) != len(o.outcomes) {", new: "if o.res = append(o.res, make(core.Results, max(0, len(o.outcomes)-len(o.res)))...); len(o.res) != len(o.outcomes) {", tests: "^TestMissingResults$"},
		mutant{id: "dispatch-window", fault: "windows of suspects are never halved", file: hold, old: "firstWindow >> min(first.Record.Crashes, 30)", new: "firstWindow >> 0", tests: "^TestWindowsAreHalved$"},
		mutant{id: "dispatch-late-hold", fault: "what is out for long gets no hold", file: hold, old: "item.state == itemOut && !item.held && item.at.Before(before)", new: "item.state == itemOut && item.held && item.at.Before(before)", tests: "^TestLateHoldAndRelease$"},
		mutant{id: "dispatch-locked", fault: "a locked record is not asked for again", file: hold, old: "item.at = d.now.Add(min(lockedAfter<<min(item.tries, 4), time.Second))", new: "rt.wants = without(rt.wants, item)", tests: "^TestQueueHistories$"},
		mutant{id: "dispatch-next-in", fault: "a timer waits for the poll", file: "dispatch/due.go", old: "\t\td.timers.askBy(next)\n", new: "\t\t_ = next\n", tests: "^TestTwoRetriesOfAKey$"},
		mutant{id: "dispatch-long-pause", fault: "a long pause that is doubled is none", file: "dispatch/queue.go", old: "if pause > most>>n {", new: "if pause<<n > most {", tests: "^TestLongPauses$"},
		mutant{id: "dispatch-moved", fault: "timers that were put in line are not looked for", file: "dispatch/due.go", old: "\t\t\trt.pace.wake(d.now)\n\t\t\trt.queue.lookNext(d.now)\n", new: "\t\t\t_ = rt\n", tests: "^TestTimersGoOnceTheyAreInLine$"},
		mutant{id: "dispatch-retried-hold", fault: "a due retry stays held by itself", file: "dispatch/due.go", old: "delete(k.holds, rec.Seq)", new: "_ = k.holds", tests: "^TestQueueHistories$"},
		mutant{id: "dispatch-care", fault: "care never ends", file: meet, old: "\t\tm.Moves = append(m.Moves, d.endCare()...)\n", new: "", tests: "^TestHintThatIsLate$"},
		mutant{id: "dispatch-topic-walk", fault: "what was passed of a blocked topic is not read again", file: "dispatch/hand.go", old: "g.addWalk(seq-1, g.cursor)", new: "_, _ = g, seq", tests: "^TestTopicStaysBlocked$"},
		mutant{id: "dispatch-topic-key", fault: "keys whose head was blocked stay blocked", file: "dispatch/hand.go", old: "k.topic = \"\"\n\t\t\td.advance(k)", new: "k.topic = \"\"", tests: "^TestKeyOfABlockedTopicGoesOn$"},
		mutant{id: "dispatch-recall", fault: "the next of a key passes one that comes again", file: "dispatch/hand.go", old: "d.unline(o)\n\t\to.state, o.Suspect, o.alone = itemQueued, false, false\n\t\trt.load.held--\n\t\tk.busy--\n\t\tk.insert(o)", new: "_ = rt", tests: "^TestWhatFollowsAFailedOneComesBack$"},
		mutant{id: "dispatch-wake", fault: "a wake-up during a read is forgotten", file: "dispatch/route.go", old: "p.readAt, p.idle, p.again = now, 0, true", new: "p.readAt, p.idle = now, 0", tests: "^TestWakeDuringARead$"},
		mutant{id: "dispatch-say", fault: "the next of a key passes one that may have arrived, and whose unit stays after all", file: "dispatch/unsaid.go", old: "d.recall(item) // the unit", new: "_ = rt // the unit", tests: "^TestWhatFollowsOneThatMayHaveArrivedWaits$"},
		mutant{id: "dispatch-hlc", fault: "a route in the order of stamps is in the order of sequences", file: "dispatch/key.go", old: "cmp.Or(cmp.Compare(a.Record.Envelope.HLC, b.Record.Envelope.HLC), cmp.Compare(a.Record.Seq, b.Record.Seq))", new: "cmp.Compare(a.Record.Seq, b.Record.Seq)", tests: "^TestOrderOfStamps$"},
	)
}
