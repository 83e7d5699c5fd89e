package main

// redis are faults of the transport over Redis Streams.
func redis() []mutant {
	const dir = "transport/redisstreams/"
	const publish, store, lib, take, settle, recovered, leave, receiver, parked = dir + "lua/publish.lua", dir + "store.go", dir + "lua/lib.lua", dir + "lua/take.lua", dir + "lua/settle.lua", dir + "lua/recover.lua", dir + "lua/leave.lua", dir + "receiver.go", dir + "lua/replay.lua"
	return group{pkg: "./transport/redisstreams", server: true}.of(
		mutant{id: "redis-together", fault: "bodies that become large at once come together", file: take, old: "bytes = bytes + #f end", new: "bytes = bytes + 0 * #f end", tests: "^TestReceiveIsBounded$"},
		mutant{id: "redis-together-released", fault: "released bodies come together", file: take, old: "  if full() then break end\n", new: "", tests: "^TestReceiveIsBounded$"},
		mutant{id: "redis-stale", fault: "a message goes by old bindings", file: publish, old: "~= ARGV[1] then", new: "== 'never' then", tests: "^TestBindingsAreCurrent$"},
		mutant{id: "redis-stale-copy", fault: "a transaction begins by old bindings", file: store, old: "version.Val() != c.routing.version {", new: "version.Val() == \"never\" {", tests: "^TestBindingsChangeMeanwhile$"},
		mutant{id: "redis-guard", fault: "bindings that change before the transaction do not count", file: store, old: "p.Do(ctx, \"WATCH\", t.keys.version())", new: "p.Do(ctx, \"ECHO\", \"\")", tests: "^TestBindingsChangeMeanwhile$"},
		mutant{id: "redis-discard", fault: "a transaction stays open on a connection of the pool", file: store, old: "_ = conn.Do(ctx, \"DISCARD\").Err()", new: "_ = conn", tests: "^TestBindingsChangeMeanwhile$"},
		mutant{id: "redis-entry-error", fault: "a message that a queue did not take counts", file: store, old: "if err, ok := id.(error); ok {", new: "if err, ok := id.(error); ok && n < 0 {", tests: "^TestQueueIsSomethingElse$"},
		mutant{id: "redis-multi", fault: "messages are sent outside a transaction", file: store, old: "if err := firstError(begun); err != nil ||", new: "if err := firstError(begun[:2]); err != nil ||", tests: "^TestNoTransactions$"},
		mutant{id: "redis-full", fault: "a full queue takes a message", file: publish, old: ">= bound then code", new: "> bound then code", tests: "^TestMaxLen$"},
		mutant{id: "redis-behind", fault: "a message behind one that was refused is stored", file: publish, old: "failed[key] = true", new: "failed[key] = false", tests: "^TestMaxLen$"},
		mutant{id: "redis-fence", fault: "a delivery of another receiver is settled", file: settle, old: "elseif holder ~= me then", new: "elseif holder == 'never' then", tests: "^TestSettleIsFenced$"},
		mutant{id: "redis-release-count", fault: "a release counts as a redelivery", file: settle, old: "release(queue, id, count - 1)", new: "release(queue, id, count)", tests: "^TestCountsAreExact$"},
		mutant{id: "redis-death-count", fault: "a death does not count", file: lib, old: "release(queue, p[1], p[4])", new: "release(queue, p[1], p[4] - 1)", tests: "^TestCountsAreExact$"},
		mutant{id: "redis-forget", fault: "what is done stays in the stream", file: lib, old: "  redis.call('XDEL', queue, id)\n", new: "", tests: "^TestStreamHoldsWhatIsNotDone$"},
		mutant{id: "redis-trim", fault: "a stream is trimmed", file: publish, old: "redis.call('XADD', KEYS[m[q]], '*',", new: "redis.call('XADD', KEYS[m[q]], 'MAXLEN', 1000, '*',", tests: "^TestStreamHoldsWhatIsNotDone$"},
		mutant{id: "redis-trim-many", fault: "a stream is trimmed by a transaction", file: store, old: "args = append(args, add, names[q], anyID)", new: "args = append(args, add, names[q], \"MAXLEN\", 1000, anyID)", tests: "^TestStreamHoldsWhatIsNotDone$"},
		mutant{id: "redis-copy", fault: "a retry loses a field", file: lib, old: "for i = 1, #left, 2 do", new: "for i = 3, #left, 2 do", tests: "^TestForeignEntrySurvives$"},
		mutant{id: "redis-reclaim", fault: "what a dead receiver held is lost", file: take, old: "if c['pending'] > 0 then", new: "if c['pending'] > 99999 then", tests: "^TestCountsAreExact$"},
		mutant{id: "redis-due", fault: "a due retry stays", file: take, old: "'-inf', t, 'LIMIT'", new: "'-inf', t - 3600000, 'LIMIT'", tests: "^TestCountsAreExact$"},
		mutant{id: "redis-active", fault: "two receivers are active", file: take, old: "active ~= '' and active ~= me then", new: "active == 'never' then", tests: "^TestInOrderTakeOver$"},
		mutant{id: "redis-order", fault: "new messages come before released ones", file: take, old: "for _, p in ipairs(redis.call('XPENDING', queue, GROUP, '-', '+', limit, RELEASED)) do", new: "for _, p in ipairs(redis.call('XPENDING', queue, GROUP, '-', '+', limit, 'never')) do", tests: "^TestCountsAreExact$"},
		mutant{id: "redis-recover", fault: "what came with a lost answer waits for its time", file: receiver, old: "	if unsure {\n", new: "	if unsure && closed {\n", tests: "^TestLostAnswers$"},
		mutant{id: "redis-recover-count", fault: "a lost answer counts as a delivery", file: recovered, old: "p[4] - 1)", new: "p[4])", tests: "^TestLostAnswers$"},
		mutant{id: "redis-unsure", fault: "a settle that happened is told to be lost", file: dir + "settle.go", old: "codeNobodys && !h.unsure", new: "codeNobodys", tests: "^TestLostAnswers$"},
		mutant{id: "redis-leave", fault: "a receiver that closes keeps what it held", file: leave, old: "release_held(KEYS[1], ARGV[1], 0)", new: "", tests: "^TestConformance$"},
		mutant{id: "redis-renew-active", fault: "a renewal in order does not keep the receiver active", file: dir + "lua/renew.lua", old: "if redis.call('GET', KEYS[2]) == ARGV[1] then", new: "if redis.call('GET', KEYS[2]) == 'never' then", tests: "^TestInOrderRenewed$"},
		mutant{id: "redis-leave-active", fault: "a receiver in order that closes keeps the others waiting", file: leave, old: "if redis.call('GET', KEYS[3]) == ARGV[1] then", new: "if redis.call('GET', KEYS[3]) == 'never' then", tests: "^TestInOrderLeaves$"},
		mutant{id: "redis-replay-full", fault: "a replay fills a queue beyond its bound", file: parked, old: ">= bound then return 2", new: "> bound + 100 then return 2", tests: "^TestReplayIntoAFullQueue$"},
		mutant{id: "redis-walk-page", fault: "a listing repeats the last message of each page", file: dir + "parked.go", old: "w.from = \"(\" + w.page", new: "w.from = w.page", tests: "^TestParkedPages$"},
		mutant{id: "redis-replay", fault: "a replayed message stays parked", file: parked, old: "redis.call('XDEL', KEYS[2], ARGV[1])", new: "", tests: "^TestForeignEntrySurvives$"},
		mutant{id: "redis-remade", fault: "a queue that was deleted stays so", file: dir + "release.go", old: "if !r.t.opts.Passive {", new: "if r.t.opts.Passive {", tests: "^TestEverythingIsDeleted$"},
		mutant{id: "redis-drained", fault: "a full server keeps consumers from work", file: dir + "scripts.go", old: "redis.NewScript(\"#!lua flags=allow-oom\\n\" + luaLib + source)", new: "redis.NewScript(luaLib + source)", tests: "^TestFullServerIsDrained$"},
		mutant{id: "redis-evicts", fault: "a server that evicts keys passes Check", file: dir + "transport.go", old: "policy != \"noeviction\" &&", new: "policy == \"never\" &&", tests: "^TestEvictingServer$"},
		mutant{id: "redis-wait-in-vain", fault: "the question for replicas waits behind a script that the server does not know", file: dir + "store.go", old: "run := publishScript.Eval //", new: "run := publishScript.EvalSha //", tests: "^TestConfirm$"},
		mutant{id: "redis-unverified", fault: "nobody hears that eviction was not looked at", file: dir + "transport.go", old: "slog.LevelWarn, \"redisstreams.unverified\"", new: "slog.LevelDebug, \"redisstreams.unverified\"", tests: "^TestEvictingServer$"},
		mutant{id: "redis-gone", fault: "a retry of a trimmed entry counts as settled", file: settle, old: "if not new then code = 3 end", new: "", tests: "^TestTrimmedEntries$"},
		mutant{id: "redis-gone-release", fault: "a release of a trimmed entry counts as settled", file: settle, old: "if not release(queue, id, count - 1) then code = 3 end", new: "release(queue, id, count - 1)", tests: "^TestTrimmedEntries$"},
		mutant{id: "redis-gone-due", fault: "nobody hears of a retry that was trimmed", file: take, old: "if not copy(KEYS[3], id, queue) then gone = gone + 1 end", new: "copy(KEYS[3], id, queue)", tests: "^TestTrimmedEntries$"},
		mutant{id: "redis-gone-held", fault: "nobody hears that what a closing receiver held was trimmed", file: leave, old: "return gone", new: "return 0", tests: "^TestTrimmedEntries$"},
		mutant{id: "redis-wait", fault: "a message counts without its replica", file: store, old: "have < int64(t.opts.Replicas)", new: "have < 0", tests: "^TestConfirm$"},
	)
}
