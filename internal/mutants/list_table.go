package main

// tabled are faults of the table transport.
func tabled() []mutant {
	const receiver, settle, pump, wait, transport, upkeep = "transport/table/receiver.go", "transport/table/settle.go", "transport/table/pump.go", "transport/table/wait.go", "transport/table/transport.go", "transport/table/upkeep.go"
	return group{pkg: "./transport/table"}.of(
		mutant{id: "table-check", fault: "the store is not checked", file: transport, old: "if err := c.Check(ctx); err != nil {", new: "if err := c.Check(ctx); err != nil && ctx.Err() != nil {", tests: "^TestStoreIsChecked$"},
		mutant{id: "table-check-again", fault: "a check that failed counts as passed", file: transport, old: "\tif err := c.Check(ctx); err != nil {\n", new: "\tt.checked = true\n\tif err := c.Check(ctx); err != nil {\n", tests: "^TestStoreIsChecked$"},
		mutant{id: "table-err", fault: "a record that cannot be read is delivered as if it were whole", file: receiver, old: "Err: rec.Err, Handle: h}", new: "Handle: h}", tests: "^TestUnreadableIsTold$"},
		mutant{id: "table-limit", fault: "Receive returns more than it was asked for", file: receiver, old: "min(r.limit, r.handlers-r.busy, r.prefetch-len(r.out))", new: "min(r.handlers-r.busy, r.prefetch-len(r.out))", tests: "^TestReceiveBounds$"},
		mutant{id: "table-handlers", fault: "a receiver has more in hand than handlers", file: receiver, old: "min(r.limit, r.handlers-r.busy, r.prefetch-len(r.out))", new: "min(r.limit, r.prefetch-len(r.out))", tests: "^TestReceiveBounds$"},
		mutant{id: "table-call-limit", fault: "a call to the store that hangs is never given up", file: pump, old: "context.WithTimeout(r.base, c.Limit())", new: "context.WithCancel(r.base)", tests: "^TestHangingCallIsGivenUp$"},
		mutant{id: "table-close-wait", fault: "Close does not wait for what it has to write", file: receiver, old: "for r.started && !r.d.Left() && ctx.Err() == nil {", new: "for r.started && !r.d.Left() && ctx.Err() != nil {", tests: "^TestCloseWaitsForSettles$"},
		mutant{id: "table-close-calls", fault: "Close does not wait for calls that it cancelled", file: receiver, old: "for r.calls.running > 0 && grace.Err() == nil {", new: "for r.calls.running > 0 && grace.Err() != nil {", tests: "^TestCloseLeavesNoCallBehind$"},
		mutant{id: "table-close-settle", fault: "Close leaves a Settle without an answer", file: receiver, old: "h.pending.answer(errClosed(\"settle\"))", new: "_ = h.pending", tests: "^TestCloseAnswersSettles$"},
		mutant{id: "table-attempt", fault: "attempts are counted from zero", file: receiver, old: "Attempt: rec.Attempts + 1,", new: "Attempt: rec.Attempts,", tests: "^Test(Crash|Outage)$"},
		mutant{id: "table-redeliveries", fault: "redeliveries are not told", file: receiver, old: "Redeliveries: rec.Crashes,", new: "", tests: "^TestCrash$"},
		mutant{id: "table-pipelined", fault: "InOrder gets one of a key at a time", file: receiver, old: "route.Pipelined = r.prefetch", new: "route.Pipelined = 1", tests: "^TestGivenBackInOrder$"},
		mutant{id: "table-blocked-pipe", fault: "with BlockAfterAbandon several of a key are out", file: receiver, old: "sub.InOrder && !q.BlockAfterAbandon", new: "sub.InOrder", tests: "^TestParkedBlocksItsKeyInOrder$"},
		mutant{id: "table-lost-told", fault: "a handler is not told that its message is lost", file: settle, old: "go h.onLoss() // without the lock", new: "_ = h.onLoss", tests: "^TestHandlerOfALostMessage$"},
		mutant{id: "table-consumer-loss", fault: "the consumer does not ask to be told of a loss", file: "consumer/process.go", old: "m.session.losses.WhenLost(m.d, lost)", new: "_ = lost", tests: "^TestHandlerOfALostMessage$"},
		mutant{id: "table-lost-late", fault: "who asks after the loss is not told of it", file: receiver, old: "\tif lost {\n\t\tfn()\n\t}", new: "\t_ = lost", tests: "^Test(HandlerOfALostMessage|ConformanceMemory)$"},
		mutant{id: "table-lost-settle", fault: "a settle of a lost delivery counts as done", file: settle, old: "case h.lost: // known since it was\n\t\tr.forget(h)\n\t\treturn nil, waybill.ErrLeaseLost", new: "case h.lost && h.onLoss == nil && h.state == gone: // known since it was\n\t\tr.forget(h)\n\t\treturn nil, waybill.ErrLeaseLost", tests: "^TestLeaseLost$"},
		mutant{id: "table-settled-err", fault: "a settle that was fenced off counts as done", file: settle, old: "\tr.forget(h)\n\ts.answer(err)", new: "\tr.forget(h)\n\ts.answer(nil)", tests: "^TestLeaseLost$"},
		mutant{id: "table-drop", fault: "a dropped message is parked", file: settle, old: "if !drop {", new: "if !drop || s.ack.Reason != \"\" {", tests: "^Test(ConformanceMemory|Parks)$"},
		mutant{id: "table-delay", fault: "a retry comes at once", file: settle, old: "return core.Retry(rec, cause, s.ack.Delay)", new: "return core.Retry(rec, cause, 0)", tests: "^Test(Outage|ConformanceMemory)$"},
		mutant{id: "table-retry-released", fault: "a released message waits", file: settle, old: "return core.Release(rec, 0, false)", new: "return core.Retry(rec, cause, 0)", tests: "^Test(ConformanceMemory|Crash)$"},
		mutant{id: "table-stir", fault: "other receivers learn of a retry by the poll only", file: settle, old: "r.t.stir(r, s.delay)", new: "_ = s", tests: "^TestSharedQueueOverADeafWaiter$"},
		mutant{id: "table-wait-retry", fault: "a waiter that failed is never asked again", file: wait, old: "t.waitAt = now.Add(d)\n", new: "t.waitAt = now.Add(d + 1000*time.Hour)\n", tests: "^TestWaiterFails$"},
		mutant{id: "table-wait-jitter", fault: "a waiter that failed is asked again at once", file: wait, old: "t.waitAt = now.Add(d)\n", new: "t.waitAt = now\n", tests: "^TestWaiterFails$"},
		mutant{id: "table-hasty", fault: "wake-ups that lead to nothing follow at once for ever", file: wait, old: "r.wakeups.hasty > maxHasty &&", new: "r.wakeups.hasty < 0 &&", tests: "^TestVainWakeups$"},
		mutant{id: "table-heard", fault: "news wakes nobody", file: wait, old: "\t\tr.wake(now)\n\t}\n}\n\n// stir", new: "\t}\n}\n\n// stir", tests: "^Test(TimersFireWhenDue|VainWakeups|SubscriptionsDoNotWakeLate)$"},
		mutant{id: "table-wait-routes", fault: "the wait is for one queue only", file: wait, old: "routes = append(routes, r.queue)", new: "routes = []string{r.queue}", tests: "^TestDeafWaiter$"},
		mutant{id: "table-poll", fault: "with a waiter nobody polls", file: receiver, old: "o.PollMin = o.PollMax", new: "o.PollMin, o.PollMax = 1000*time.Hour, 1000*time.Hour", tests: "^TestDeafWaiter$"},
		mutant{id: "table-outage-told", fault: "an outage is not told", file: pump, old: "r.err = errtext.Within(\"waybill/table: receive: queue \"+r.queue, err)\n\t\tr.notify()", new: "_ = errtext.Within(\"waybill/table: receive: queue \"+r.queue, err)", tests: "^TestOutage$"},
		mutant{id: "table-outage-over", fault: "the end of an outage is not told", file: pump, old: "r.outage = outageOver\n\t\t\t\tr.notify()", new: "r.outage = outageOver", tests: "^TestReceiveSaysThatAnOutageIsOver$"},
		mutant{id: "table-long", fault: "a slow handler is not told of", file: pump, old: "held >= longHeld*r.opts.Lease", new: "held >= 1000*longHeld*r.opts.Lease", tests: "^TestSlowHandlers$"},
		mutant{id: "table-batch", fault: "the lease of a queue's own options is ignored", file: "transport/table/options.go", old: "return q.or(o.base())", new: "q.Lease = 0\n\treturn q.or(o.base())", tests: "^TestLeaseOfAQueue$"},
		mutant{id: "table-clean-jitter", fault: "all processes clean at the same moment", file: upkeep, old: "wait := rand.N(interval); pause", new: "wait := interval; pause", tests: "^TestCleansAtItsOwnTime$"},
		mutant{id: "table-clean-more", fault: "cleaning does not go on while there is more", file: upkeep, old: "case err == nil && done.Elected && done.More:", new: "case err == nil && done.Elected && done.More && ctx.Err() != nil:", tests: "^TestCleansAllThereIs$"},
		mutant{id: "table-second-closed", fault: "a transport that is closed opens receivers", file: transport, old: "if t.closed {\n\t\tr.cancel()", new: "if t.closed && t.base == nil {\n\t\tr.cancel()", tests: "^TestConformanceMemory$/^transport-close$"},
		mutant{id: "table-wildcard", fault: "bindings with a wildcard are accepted", file: transport, old: "strings.ContainsAny(b, \"*#\")", new: "strings.ContainsAny(b, \"\")", tests: "^TestBadInput$"},
	)
}
