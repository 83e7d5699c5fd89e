package main

// root are faults of package waybill.
func root() []mutant {
	const file = "backoff.go"
	return group{pkg: "."}.of(
		mutant{id: "root-jitter-equal", fault: "the equal jitter is off", file: file, old: "return d/2 + chance.N(d/2+1)", new: "return d", tests: "^TestBackoffSpreads$"},
		mutant{id: "root-jitter-share", fault: "the jitter by a share is off", file: file, old: "(2*chance.Float64()-1)", new: "(0*chance.Float64())", tests: "^TestBackoffSpreads$"},
		mutant{id: "root-attempts", fault: "there is one attempt too many", file: file, old: "limit > 0 && attempt >= limit", new: "limit > 0 && attempt > limit", tests: "^TestBackoffAttempts$"},
		mutant{id: "root-validate-stage", fault: "a value that does not fit is staged", file: "topic.go", old: "\terr := validate(v)\n", new: "\tvar err error\n", tests: "^TestValidate$"},
		mutant{id: "root-validate-handle", fault: "a body that does not fit reaches the handler", file: "topic.go", old: "err := validate(v); err != nil {", new: "err := validate(v); err != nil && e == nil {", tests: "^TestValidate$"},
		mutant{id: "root-validate-pointer", fault: "a method of the pointer is not asked", file: "topic.go", old: "any((*T)(nil)).(validator); ok {", new: "any((*T)(nil)).(validator); ok && false {", tests: "^TestValidate$/^pointer_method$"},
	)
}

// relay are faults of the relay.
func relay() []mutant {
	const publish, breaker, member = "relay/publish.go", "relay/breaker.go", "relay/member.go"
	return group{pkg: "./relay", args: []string{"-skip", "^TestUnroutable(HasItsOwnHorizon|BacklogIsProbed)$"}}.of(
		mutant{id: "relay-trial-retries", fault: "retries come back again and again while a trial has no answer", file: "relay/outcome.go", old: "in = max(in, triedBy)", new: "in = max(in, 0)", tests: "^TestRetriesWaitForATrial$"},
		mutant{id: "relay-stored-retry", fault: "a retry stores the error with its secrets", file: "relay/outcome.go", old: "core.Retry(&item.Record, e.stored(err), in)", new: "core.Retry(&item.Record, err, in)", tests: "^TestStoredErrorsAreWithoutSecrets$"},
		mutant{id: "relay-stored-unroutable", fault: "commands cannot see that a message is unroutable", file: "relay/outcome.go", old: "if errors.Is(err, waybill.ErrUnroutable) {", new: "if errors.Is(err, nil) {", tests: "^TestStoredErrorsAreWithoutSecrets$"},
		mutant{id: "relay-two-routes", fault: "a message is staged on the first of its routes alone", file: "core/stamp.go", old: "for j, r := range routes {", new: "for j, r := range routes[:1] {", tests: "^TestOneMessageOnTwoRoutes$"},
		mutant{id: "relay-overdue", fault: "nobody hears of a publisher that does not return", file: "relay/loop.go", old: "\tnext = earliest(next, e.stepOverdue())\n", new: "", tests: "^TestOverduePublishIsSaid$"},
		mutant{id: "relay-after", fault: "the broker's own delay for a message is ignored", file: publish, old: "if errors.As(err, &ce) && ce.After > 0 {", new: "if errors.As(err, &ce) && ce.After < 0 {", tests: "^TestBrokersDelayOfAMessage$"},
		mutant{id: "relay-outage-after", fault: "the broker's own delay in an outage is ignored", file: breaker, old: "if errors.As(cause, &e) && e.After > 0 {", new: "if errors.As(cause, &e) && e.After < 0 {", tests: "^TestBrokersDelayInAnOutage$"},
		mutant{id: "relay-lost-metric", fault: "a lost lease is not counted", file: member, old: "\te.tel.leaseLost(e.base, rt)\n\te.warn(nil, \"relay.lease_lost\", \"an outcome", new: "\te.warn(nil, \"relay.lease_lost\", \"an outcome", tests: "^TestLeaseLost$"},
		mutant{id: "relay-session-metric", fault: "a lost session is not counted", file: member, old: "\t\te.tel.leaseLost(e.base, rt)\n\t\te.freeBehindKey(rt)", new: "\t\te.freeBehindKey(rt)", tests: "^TestSessionLost$"},
		mutant{id: "relay-shift-read", fault: "what is read keeps its age while it waits", file: member, old: "shift(result.Ranges[i].Records, d)", new: "shift(result.Ranges[i].Records, 0)", tests: "^TestLifeCountsFromTheRead$"},
		mutant{id: "relay-life-far", fault: "the life of a record that expires in centuries overflows", file: member, old: "if records[i].ExpiresIn <= math.MaxInt64-d {", new: "if records[i].ExpiresIn <= math.MaxInt64 {", tests: "^TestExpiresInYear9999$"},
		mutant{id: "relay-permanent", fault: "a permanent refusal loses its reason", file: publish, old: "reason := waybill.ReasonOf(err)\n", new: "reason := waybill.ReasonNone\n", tests: "^TestCleaning$"},
		mutant{id: "relay-behind", fault: "what stands behind a failed record counts as an attempt", file: publish, old: "errors.Is(err, waybill.ErrPredecessorFailed), c.ended(err):", new: "c.ended(err):", tests: "^TestBehindCostsNothing$"},
		mutant{id: "relay-panic-class", fault: "a panic over many records costs each an attempt", file: publish, old: "class := waybill.ClassOutage\n\t\tif n == 1 {", new: "class := waybill.ClassOutage\n\t\tif n >= 1 {", tests: "^TestBrokenPublisher$"},
		mutant{id: "relay-results", fault: "a missing result counts as a confirm", file: publish, old: "if res = c.publishParts(ctx); len(res) != n {", new: "if res = c.publishParts(ctx); len(res) != n {\n\t\tres = append(res, make(core.Results, max(n-len(res), 0))...)[:n]\n\t}\n\tif len(res) != n {", tests: "^TestBrokenPublisher$"},
		mutant{id: "relay-ask-unroutable", fault: "a custom back-off is asked about unroutable messages", file: publish, old: "errors.Is(err, waybill.ErrPredecessorFailed) || errors.Is(err, waybill.ErrUnroutable) {", new: "errors.Is(err, waybill.ErrPredecessorFailed) {", tests: "^TestCustomBackoffIsAskedAboutRefusals$"},
		mutant{id: "relay-misconfigured", fault: "a misconfigured publisher that has worked ends the run", file: publish, old: "errors.Is(err, waybill.ErrMisconfigured) && !e.worked.routes[rt.Name]", new: "errors.Is(err, waybill.ErrMisconfigured)", tests: "^TestMisconfiguredAfterwards$"},
		mutant{id: "relay-contact", fault: "a refusal is no contact, and a password that is wrong later ends the run", file: publish, old: "answered = answered || res[i] == nil || class", new: "answered = answered || res[i] == nil || class == 99 && class", tests: "^TestARefusalIsContact$"},
		mutant{id: "relay-queue", fault: "a queue on a route of the relay is not noticed", file: member, old: "if m.Capacity <= 1 || m.Session", new: "if m.Capacity <= 1<<20 || m.Session", tests: "^TestQueueOnARoute$"},
		mutant{id: "relay-generation", fault: "an outage of an old call opens the breaker again", file: breaker, old: "\tif b.opened > generation {\n\t\treturn\n\t}\n\tif b.failures == 0 {", new: "\tif b.failures == 0 {", tests: "^TestBackWithinTwoSeconds$"},
		mutant{id: "relay-old-success", fault: "a confirm of an old call closes the breaker", file: breaker, old: "rt.breakers.route.failures > 0 && rt.breakers.route.opened <= generation", new: "rt.breakers.route.failures > 0", tests: "^TestOldConfirmEndsNoOutage$"},
		mutant{id: "relay-topic-only", fault: "an outage of one topic pauses the route", file: breaker, old: "!errors.As(err, &ce) || !ce.TopicOnly || topic == \"\"", new: "!errors.As(err, &ce) || topic != \"\" || topic == \"\"", tests: "^TestOutageOfOneTopic$"},
		mutant{id: "relay-breaker-count", fault: "the outages in a row are forgotten, so that probes do not get rarer", file: breaker, old: "d, _, _ := delays.Next(b.failures, cause)", new: "d, _, _ := delays.Next(1, cause)", tests: "^TestOutageCostsTimeNotAttempts$"},
		mutant{id: "relay-half", fault: "a half open breaker lets all records go", file: breaker, old: "!rt.breakers.route.until.IsZero() || rt.breakers.route.half && rt.breakers.route.trial != nil", new: "!rt.breakers.route.until.IsZero()", tests: "^TestOutageCostsTimeNotAttempts$"},
		mutant{id: "relay-count-bound", fault: "a scrape waits for a store that does not count", file: "internal/upkeep/gauges.go", old: "context.WithTimeout(ctx, countTimeout)", new: "context.WithTimeout(ctx, 10*countTimeout)", tests: "^TestMetricsWithoutCounts$"},
		mutant{id: "relay-stop-writes", fault: "a stop cancels what the store has to write", file: member, old: "if c.Kind() == dispatch.CallRead {\n\t\tfrom = e.upkeep.ctx", new: "if c.Limit() >= 0 {\n\t\tfrom = e.upkeep.ctx", tests: "^TestStopDrains$"},
		mutant{id: "relay-fatal-late", fault: "a misconfigured store that has worked ends the run", file: member, old: "errors.Is(err, waybill.ErrMisconfigured) && first", new: "errors.Is(err, waybill.ErrMisconfigured) && (first || true)", tests: "^TestMisconfiguration$"},
		mutant{id: "relay-fatal-settled", fault: "a call that is made for the first time ends a run that has settled something", file: member, old: "!e.worked.store[method] && !e.worked.store[dispatch.CallSettle]", new: "!e.worked.store[method]", tests: "^TestFirstCallAfterSuccess$"},
		mutant{id: "relay-twice", fault: "a relay runs twice at a time", file: "relay/relay.go", old: "if !r.running.CompareAndSwap(false, true) {", new: "if !r.running.CompareAndSwap(false, true) && r.store == nil {", tests: "^TestOneRunAtATime$"},
		mutant{id: "relay-trial-topic", fault: "after a refused trial the topic stays blocked", file: breaker, old: "\t\t\tended(b)\n\t\t\te.d.PauseTopic(rt.Name, topic, false)\n", new: "\t\t\tended(b)\n", tests: "^TestRefusedTrialEndsTheOutageOfATopic$"},
		mutant{id: "relay-gauge-topic", fault: "a topic that was forgotten for another one stays in the gauge", file: breaker, old: "\t\t\t\te.tel.breaker(e.base, rt, -1)\n\t\t\t\tbreak\n", new: "\t\t\t\tbreak\n", tests: "^TestGaugeOfManyTopics$"},
		mutant{id: "relay-release-failed", fault: "a released retry of a paused topic comes back at once", file: "relay/outcome.go", old: "b != nil && item.Record.Failed {", new: "b != nil && item.Record.Failed && in > 0 {", tests: "^TestRetriesWaitForTheirTopic$"},
		mutant{id: "relay-stop-unknown", fault: "what is cut off at the drain limit counts as not sent", file: "relay/stop.go", old: "\t\t\te.release(item, true)\n", new: "\t\t\te.release(item, false)\n", tests: "^TestStopDuringAPublish$"},
		mutant{id: "relay-stop-hangs", fault: "a stop waits for a store that hangs", file: "relay/stop.go", old: "stopSettle = 5 * time.Second", new: "stopSettle = 50 * time.Second", tests: "^TestStopWhileTheStoreHangs$"},
		mutant{id: "relay-no-leave", fault: "a stop waits for a leave that the store refuses", file: member, old: "\t\te.drain.noLeave = true // the leave", new: "\t\te.drain.noLeave = false // the leave", tests: "^TestStopWithoutALeave$"},
		mutant{id: "relay-backlog-failed", fault: "messages that wait for a retry are not in the backlog of health", file: "relay/health.go", old: "n.State != core.StatePending && n.State != core.StateFailed || !r.serves", new: "n.State != core.StatePending || !r.serves", tests: "^TestBacklogOfFailed$"},
		mutant{id: "relay-paused-keys", fault: "health does not count the keys that wait for a paused topic", file: "dispatch/status.go", old: "if k.topic != \"\" {\n\t\t\t\tn++", new: "if k.topic == \"\" {\n\t\t\t\tn++", tests: "^TestUnroutableGoesOnAtOnce$"},
		mutant{id: "relay-pipelined-tail", fault: "a later record of a key is not released behind a failed one", file: publish, old: "case ok && first < i: // the error belongs to an earlier one\n\t\t\te.release(item, false)", new: "case ok && first < i: // the error belongs to an earlier one\n\t\t\te.failed(item, err, c)", tests: "^TestFaultsLoseNothingAndKeepOrder$"},
		mutant{id: "relay-presence-late", fault: "the first message waits for what shows that the relay is there", file: "relay/presence.go", old: "e.counts.Published == 0 &&", new: "e.counts.Published < 0 &&", tests: "^TestFirstMessageWaitsForNoPresence$"},
		mutant{id: "relay-late-part", fault: "a part of a call begins after the lease", file: "relay/publish.go", old: "if from > 0 && !c.lease.holds() {", new: "if from > 0 && c.lease == nil {", tests: "^TestNoPartBeginsAfterTheLease$"},
		mutant{id: "relay-expired-lines", fault: "each message that expired has a line of its own", file: "relay/outcome.go", old: "if !ok {\n\t\t\tlevel = slog.LevelDebug", new: "if !ok && suppressed > 0 {\n\t\t\tlevel = slog.LevelDebug", tests: "^TestManyExpired$"},
	)
}
