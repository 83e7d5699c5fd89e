package main

// contributed are faults of the adapters that are modules of their own.
func contributed() []mutant {
	const declare, transport = "contrib/nats/declare.go", "contrib/nats/transport.go"
	all := group{pkg: "./contrib/nats"}.of(
		mutant{id: "nats-native", fault: "a handler gets the reply subject of its message", file: "contrib/nats/settle.go", old: "Subject: h.m.Subject, Header: h.m.Header", new: "Subject: h.m.Subject, Reply: h.m.Reply, Header: h.m.Header", tests: "^TestNative$"},
		mutant{id: "nats-dangerous", fault: "a stream that loses confirmed messages is taken", file: declare, old: "dangerous(&have); setting != \"\"", new: "dangerous(&have); setting == cure", tests: "^TestDangerousStream$"},
		mutant{id: "nats-storage", fault: "a stream in memory is taken", file: declare, old: "c.Storage != jetstream.FileStorage", new: "c.Storage < 0", tests: "^TestDangerousStream$"},
		mutant{id: "nats-persist", fault: "a stream that persists later is taken", file: declare, old: "c.PersistMode != jetstream.DefaultPersistMode", new: "c.PersistMode < 0", tests: "^TestDangerousStream$"},
		mutant{id: "nats-age", fault: "a stream that drops what is old is taken", file: declare, old: "case c.MaxAge > 0:", new: "case c.MaxAge < 0:", tests: "^TestDangerousStream$"},
		mutant{id: "nats-per-subject", fault: "a stream that drops what is old of a subject is taken", file: declare, old: "c.MaxMsgsPerSubject > 0 && !c.DiscardNewPerSubject", new: "c.MaxMsgsPerSubject > 1<<40", tests: "^TestDangerousStream$"},
		mutant{id: "nats-per-subject-new", fault: "a stream that refuses what is new of a subject is not taken", file: declare, old: "c.MaxMsgsPerSubject > 0 && !c.DiscardNewPerSubject", new: "c.MaxMsgsPerSubject > 0", tests: "^TestDangerousStream$"},
		mutant{id: "nats-no-ack", fault: "a stream that confirms nothing is taken", file: declare, old: "case c.NoAck:", new: "case c.NoAck && c.Sealed:", tests: "^TestDangerousStream$"},
		mutant{id: "nats-transform", fault: "a stream that changes subjects is taken", file: declare, old: "case c.SubjectTransform != nil:", new: "case c.SubjectTransform != nil && c.Sealed:", tests: "^TestDangerousStream$"},
		mutant{id: "nats-sealed", fault: "a sealed stream is taken", file: declare, old: "case c.Sealed:", new: "case c.Sealed && c.NoAck:", tests: "^TestDangerousStream$"},
		mutant{id: "nats-inactive", fault: "a consumer that is deleted when nobody asks is taken", file: declare, old: "case have.InactiveThreshold > 0 || have.MemoryStorage", new: "case have.MemoryStorage", tests: "^TestDeclareRefuses$"},
		mutant{id: "nats-consumer-memory", fault: "a consumer whose state is in memory is taken", file: declare, old: "have.InactiveThreshold > 0 || have.MemoryStorage ||", new: "have.InactiveThreshold > 0 ||", tests: "^TestDeclareRefuses$"},
		mutant{id: "nats-headers-only", fault: "a consumer without bodies is taken", file: declare, old: "have.MemoryStorage || have.HeadersOnly:", new: "have.MemoryStorage:", tests: "^TestDeclareRefuses$"},
		mutant{id: "nats-synced", fault: "three replicas count as synced", file: "contrib/nats/options.go", old: "{ return o.SyncAlways }", new: "{ return o.SyncAlways || o.Replicas >= 3 }", tests: "^TestSynced$"},
		mutant{id: "nats-old", fault: "a server that is too old is waited for", file: transport, old: "tooOld(v) {", new: "tooOld(v) && v == \"\" {", tests: "^TestOldServers$"},
		mutant{id: "nats-old-minor", fault: "versions are compared by their first number", file: transport, old: "(major < 2 || major == 2 && minor < 10)", new: "major < 2", tests: "^TestOldServers$"},
		mutant{id: "nats-hold-default", fault: "what a killed process holds comes after more than ten seconds", file: "contrib/nats/options.go", old: "o.HoldFor = 9 * time.Second", new: "o.HoldFor = 10 * time.Second", tests: "^TestAckWaitOfDefault$"},
		mutant{id: "nats-pull-bytes", fault: "a pull has no bound in bytes", file: "contrib/nats/settle.go", old: "n, bytes, pullFor.Nanoseconds()", new: "n, 0*bytes, pullFor.Nanoseconds()", tests: "^TestPullsAreBounded$"},
		mutant{id: "nats-pull-large", fault: "a message larger than a pull never comes", file: "contrib/nats/receiver.go", old: "r.large = !r.came", new: "r.large = false", tests: "^TestPullsAreBounded$"},
		mutant{id: "nats-renew", fault: "what waits for Receive is not renewed", file: "contrib/nats/receiver.go", old: "_ = r.renew(r.life, h)", new: "_ = h", tests: "^TestFetchedIsRenewed$"},
		mutant{id: "nats-due", fault: "the time of a retry in centuries overflows", file: "contrib/nats/settle.go", old: "now.Add(a.Delay).Add(time.Millisecond-1)", new: "now.Add(a.Delay + time.Millisecond - 1)", tests: "^TestRetryInCenturies$"},
		mutant{id: "nats-repeats", fault: "each repeat of a publish without an answer leaves a copy", file: "contrib/nats/publish.go", old: "ids[i] != \"\" {", new: "ids[i] != \"\" && t == nil {", tests: "^TestConformance$/^publish-again-unanswered$"},
		mutant{id: "nats-repeat-refused", fault: "a repeat whose first try is on its way is refused", file: "contrib/nats/errors.go", old: "code.ErrorCode == codeRepeatInProgress", new: "code.Code == codeRepeatInProgress", tests: "^TestClasses$"},
	)
	const publish, position, receiver, settle = "contrib/kafka/publish.go", "contrib/kafka/position.go", "contrib/kafka/receiver.go", "contrib/kafka/settle.go"
	all = append(all, group{pkg: "./contrib/kafka"}.of(
		mutant{id: "kafka-held-bytes", fault: "each partition holds as many bytes as if it were alone", file: receiver, old: "min(bufferBytes, heldBytes/len(r.positions))", new: "bufferBytes", tests: "^TestPartitionsShareBytes$"},
		mutant{id: "kafka-receive-bytes", fault: "Receive returns bodies without a bound", file: receiver, old: "if most > 0 && bytes >= most || !p.handOut(e) {", new: "if !p.handOut(e) {", tests: "^TestConformance$/^receive-bytes$"},
		mutant{id: "kafka-join", fault: "a message that is published again is a second copy", file: publish, old: "old != nil && sameRecord", new: "old != nil && t == nil && sameRecord", tests: "^TestPublishAgain(MakesNoCopies|OnKafka)$"},
		mutant{id: "kafka-made-anew", fault: "a publisher never goes on with a topic that was made anew", file: publish, old: "t.client.PurgeTopicsFromProducing(topic)", new: "_ = topic", tests: "^TestBusIsDeleted$"},
		mutant{id: "kafka-deleted", fault: "a publisher does not name a topic that was deleted", file: publish, old: "errors.Is(list[topic].Err, kerr.UnknownTopicOrPartition) {", new: "errors.Is(list[topic].Err, kerr.UnknownTopicOrPartition) && t == nil {", tests: "^TestBusIsDeleted$"},
		mutant{id: "kafka-receives-old", fault: "a receiver never goes on with a topic that was made anew", file: receiver, old: "if topicUnknown(e.Err) {", new: "if topicUnknown(e.Err) && r == nil {", tests: "^TestBusIsDeleted$"},
		mutant{id: "kafka-alone", fault: "a refused message fails its batch", file: publish, old: "!f.ended.Load() || !refused(f.err)", new: "!f.ended.Load() || refused(f.err)", tests: "^TestRefusedMessageFailsAlone$"},
		mutant{id: "kafka-put-back", fault: "a release counts as a delivery", file: position, old: "= false, e.count-1, p.outs-1, true", new: "= false, e.count, p.outs-1, true", tests: "^TestPositionModel$"},
		mutant{id: "kafka-counts", fault: "the counts of deliveries are not stored", file: position, old: "length |= 1", new: "first.count = 0", tests: "^TestCountsSurviveAKill$"},
		mutant{id: "kafka-metadata", fault: "the metadata of a commit has no bound", file: position, old: "len(meta)+splitBytes*p.outs > maxMetadata", new: "len(meta) < 0", tests: "^TestMetadataIsBounded$"},
		mutant{id: "kafka-retention", fault: "messages that were deleted unread are skipped in silence", file: receiver, old: "x.LogStartOffset > from &&", new: "x.LogStartOffset < 0 &&", tests: "^TestDeletedUnread$"},
		mutant{id: "kafka-forgotten", fault: "a queue without its positions receives everything again", file: "contrib/kafka/topology.go", old: "case known && len(offsets) == 0:", new: "case known && len(offsets) < 0:", tests: "^TestForgottenPositions$"},
		mutant{id: "kafka-undo", fault: "a settle that failed is stored later", file: settle, old: "h.p.undo(h.e)", new: "h.p.dirty = true", tests: "^TestFailedSettleIsUndone$"},
		mutant{id: "kafka-drain", fault: "a partition moves while its handlers run", file: receiver, old: "left = left || p.outs > 0", new: "left = left || p.outs < 0", tests: "^TestHandOverWaitsForHandlers$"},
		mutant{id: "kafka-tell", fault: "a handler is not told that its delivery is another's", file: receiver, old: "tell = append(tell, h.lost)", new: "_ = h.lost", tests: "^TestHandOverTellsHandlers$"},
		mutant{id: "kafka-synced", fault: "two replicas count as synced", file: "contrib/kafka/topics.go", old: "d.Partitions.NumReplicas() >= 3", new: "d.Partitions.NumReplicas() >= 2", tests: "^TestSynced$"},
	)...)
	const gorm = "contrib/gorm/gorm.go"
	all = append(all, group{pkg: "./contrib/gorm", server: true}.of(
		mutant{id: "gorm-outside", fault: "a handler writes outside the transaction of its inbox", file: gorm, old: "db.Statement.ConnPool = tx\n", new: "_ = tx\n", tests: "^TestFailedHandler$"},
		mutant{id: "gorm-shared", fault: "a handler's transaction stays in the application's gorm.DB", file: gorm, old: "{NewDB: true, Context: ctx}", new: "{NewDB: true}", tests: "^TestServiceWithConcurrentRequests$"},
		mutant{id: "gorm-prepared", fault: "a transaction with prepared statements is refused", file: gorm, old: "ok := pool.(*gorm.PreparedStmtTX); ok {", new: "ok := pool.(*gorm.PreparedStmtTX); ok && prepared == nil {", tests: "^TestServiceWithConcurrentRequests$"},
	)...)
	const store, schema, mysqlErrs = "contrib/mysql/store.go", "contrib/mysql/schema.go", "contrib/mysql/errors.go"
	return append(all, group{pkg: "./contrib/mysql", server: true}.of(
		mutant{id: "mysql-flush", fault: "a server that syncs its log once a second is taken", file: "contrib/mysql/schema.go", old: "case flush != 1 && flush != 3:", new: "case flush == 0:", tests: "^TestUnsyncedLogs$"},
		mutant{id: "mysql-sync-binlog", fault: "a server that does not sync its binary log is taken", file: "contrib/mysql/schema.go", old: "case log != \"0\" && sync != 1:", new: "case log != \"0\" && sync < 0:", tests: "^TestUnsyncedLogs$"},
		mutant{id: "mysql-count-least", fault: "the least number of records counts as an estimate", file: "contrib/mysql/count.go", old: "c.N, c.AtLeast = t.sample.Count(", new: "c.N, _ = t.sample.Count(", tests: "^TestCountsSayHowExactTheyAre$"},
		mutant{id: "mysql-count-cost", fault: "a count reads all records of a route", file: "contrib/mysql/count.go", old: "countReadySQL, t.now, t.route, t.s.countLimits.entries)", new: "countReadySQL, t.now, t.route, 16*t.s.countLimits.entries)", tests: "^TestCountsSayHowExactTheyAre$"},
		mutant{id: "mysql-count-reason", fault: "a reason that only later rows have is missing", file: "contrib/mysql/count.go", old: "if k.state == core.StateAbandoned && t.counts[k] == nil {", new: "if k.state == core.StateAbandoned && t.sample == nil {", tests: "^TestCountsSayHowExactTheyAre$"},
		mutant{id: "mysql-count-stands", fault: "an estimate stands still while a backlog drains", file: "contrib/mysql/count.go", old: "t.sample.Count(f.n, t.hits[f.countKind], beside, false)", new: "f.n, beside < 0", tests: "^TestCountsSayHowExactTheyAre$"},
		mutant{id: "mysql-count-held", fault: "what is out counts as waiting, too", file: "contrib/mysql/count.go", old: "all.N, all.Due = max(all.N-h.n, 0), max(all.Due-h.due, 0)", new: "_ = h.due", tests: "^TestCountsSayHowExactTheyAre$"},
		mutant{id: "mysql-count-due", fault: "no more timers count as due than were looked at", file: "contrib/mysql/count.go", old: "|| f.due == f.n && f.n > 0 {", new: "{", tests: "^TestCountsSayHowExactTheyAre$"},
		mutant{id: "mysql-count-empty", fault: "a route with more rows than are looked at counts as empty", file: "contrib/mysql/count.go", old: "if all.N == 0 && !all.AtLeast {", new: "if all.N == 0 {", tests: "^TestCountsSayHowExactTheyAre$"},
		mutant{id: "mysql-keeps", fault: "connections of Open keep the server's default of autocommit", file: store, old: "cfg.Params[\"autocommit\"], cfg.Params[\"completion_type\"] = \"1\", \"0\"", new: "cfg.Params[\"completion_type\"] = \"0\"", tests: "^TestConnectionsThatKeepTransactions$"},
		mutant{id: "mysql-chains", fault: "connections of Open keep the server's default of completion_type", file: store, old: "cfg.Params[\"autocommit\"], cfg.Params[\"completion_type\"] = \"1\", \"0\"", new: "cfg.Params[\"autocommit\"] = \"1\"", tests: "^TestConnectionsThatKeepTransactions$"},
		mutant{id: "mysql-keeps-check", fault: "a pool without autocommit passes Check", file: schema, old: "case commits != \"1\" || completion", new: "case completion", tests: "^TestConnectionsThatKeepTransactions$"},
		mutant{id: "mysql-chains-check", fault: "a pool that chains transactions passes Check", file: schema, old: "case commits != \"1\" || completion != \"NO_CHAIN\":", new: "case commits != \"1\":", tests: "^TestConnectionsThatKeepTransactions$"},
		mutant{id: "mysql-locked", fault: "a record that a transaction keeps locked waits for its turn", file: "contrib/mysql/hindrances.go", old: "in.Locked = true", new: "in.Locked = false", tests: "^TestLockersAreNamed$"},
		mutant{id: "mysql-one-of", fault: "one of several transactions is named as the one that locks", file: "contrib/mysql/hindrances.go", old: "if len(out) > 1 {", new: "if len(out) > 99 {", tests: "^TestLockersAreNamed$"},
		mutant{id: "mysql-unnamed", fault: "without PROCESS nobody hears why a record waits", file: "contrib/mysql/hindrances.go", old: "if err != nil && kindOf(err) == kindMisconfigured {", new: "if err != nil && kindOf(err) == kindTooBig {", tests: "^TestLockersAreNamed$"},
		mutant{id: "mysql-statements", fault: "a binary log of statements passes Check", file: schema, old: "log != \"0\" && format == \"STATEMENT\"", new: "log != \"0\" && format == \"\"", tests: "^TestBinaryLog$"},
		mutant{id: "mysql-no-log", fault: "without a binary log its format counts", file: schema, old: "log != \"0\" && format == \"STATEMENT\"", new: "log != \"-\" && format == \"STATEMENT\"", tests: "^TestConnectionsThatKeepTransactions$"},
		mutant{id: "mysql-statements-class", fault: "a write that the binary log refuses is the message's fault", file: mysqlErrs, old: "1665: kindMisconfigured, ", new: "", tests: "^TestErrorClasses$"},
		mutant{id: "mysql-life-far", fault: "the life of a record that expires in centuries overflows", file: store, old: "time.Duration(min(max(us, -most), most))", new: "time.Duration(min(max(us, -most), us))", tests: "^TestStore$/^repeatable_read$/^expires-in-centuries$"},
		mutant{id: "mysql-due-half", fault: "a part of which a member owns half brings nothing due", file: "contrib/mysql/due.go", old: "if part.Slots &= own; part.Slots == 0 {", new: "if part.Slots&^own != 0 || part.Slots == 0 {", tests: "^TestOutbox$/^repeatable_read$/^due-leaves-out-slots-alone$"},
		mutant{id: "mysql-release-locked", fault: "a locked record that is not out keeps its partition from being given up", file: "contrib/mysql/hold.go", old: "&& (isOut(r) || r.Holder == w.self) {", new: "{", tests: "^TestOutbox$/^repeatable_read$/^release-passes-over-what-changed-and-is-locked$"},
		mutant{id: "mysql-sweep-partition", fault: "what expired in a partition that nobody owns waits for the owner of another one", file: "contrib/mysql/ops.go", old: "\n\t\t\tAND u.from_slot <= waybill_outbox_aside.slot AND u.to_slot > waybill_outbox_aside.slot", new: "", tests: "^TestStore$/^repeatable_read$/^clean-leaves-what-is-due-to-its-owner$"},
		mutant{id: "mysql-mark-read", fault: "a stamp that is too far ahead is the mark", file: "contrib/mysql/stage.go", old: "newest WHERE hlc`+counts+`", new: "newest`+`", tests: "^TestStore$/^repeatable_read$/^high-water-is-bounded$"},
		mutant{id: "mysql-mark-written", fault: "settling leaves a mark that is too far ahead", file: "contrib/mysql/settle.go", old: "st.res[i] == nil && s <= bound", new: "st.res[i] == nil", tests: "^TestStore$/^repeatable_read$/^high-water-is-bounded$"},
		mutant{id: "mysql-stager-columns", fault: "a login that may only stage writes the relay's columns", file: "contrib/mysql/doc.go", old: "GRANT SELECT (id, route, source), INSERT (route, id, topic, source, k, slot, due_at, ends_at, ready_since, flags, hlc, dedupe_key, attrs, body) ON", new: "GRANT SELECT (id, route, source), INSERT ON", tests: "^TestHostileStager$"},
		mutant{id: "mysql-slot-check", fault: "a slot that no relay reads is taken", file: "contrib/mysql/schema.sql", old: "CHECK (slot < 64)", new: "CHECK (slot < 256)", tests: "^TestHostileStager$"},
		mutant{id: "mysql-key-taken", fault: "a dedupe key of another service makes a message a duplicate", file: "contrib/mysql/stage.go", old: "live[0].Envelope.Source != r.Envelope.Source:", new: "live[0].Envelope.Source < r.Envelope.Source[:0]:", tests: "^TestStore$/^repeatable_read$/^dedupe-key-of-another-source-is-refused$"},
		mutant{id: "mysql-id-taken", fault: "the id of another service makes a message a duplicate", file: "contrib/mysql/stage.go", old: "if err == nil && found && source != r.Envelope.Source {", new: "if err == nil && found && source < r.Envelope.Source[:0] {", tests: "^TestStore$/^repeatable_read$/^id-of-another-source-is-refused$"},
		mutant{id: "mysql-audit-columns", fault: "a login chooses the time of its line in the audit record", file: "contrib/mysql/doc.go", old: "GRANT SELECT, INSERT (act, phase, who, via, origin, action, target, filter, ids, body_before, body_after, result) ON", new: "GRANT SELECT, INSERT ON", tests: "^TestAuditIsOnlyAddedTo$"},
	)...)
}
