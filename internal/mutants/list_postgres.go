package main

// postgresql are faults of the Postgres store.
func postgresql() []mutant {
	const settle, heads = "store/postgres/settle.go", "store/postgres/heads.go"
	const take, due = "store/postgres/hold.go", "store/postgres/due.go"
	all := group{pkg: "./store/postgres", server: true}.of(
		mutant{id: "postgres-blocked-page", fault: "a list of blocked keys ends behind a thousand keys that are not blocked", file: heads, old: "if steps < keySteps {", new: "if steps <= keySteps {", tests: "^TestBlockedKeysBehindOthers$"},
		mutant{id: "postgres-blocked-topic", fault: "a topic that no queue is bound for blocks no key in the list", file: heads, old: "strpos(x.last_error, ` + text + `) > 0", new: "strpos(x.last_error, ` + text + `) < 0", tests: "^TestKeysBehindATopicAmongOthers$"},
		mutant{id: "postgres-lock-unseen", fault: "the process that has locked a record is not found", file: "store/postgres/hindrances.go", old: "l.transactionid = o.xmax", new: "l.transactionid = o.xmin", tests: "^TestLockedByIsNamed$"},
		mutant{id: "postgres-repeated", fault: "the text of a row stays for the next ones", file: "store/postgres/record.go", old: "if string(text) != r.last {", new: "if r.last == \"\" {", tests: "^TestSuite$"},
		mutant{id: "postgres-due-held", fault: "what is out counts as due", file: "store/postgres/count.go", old: "WHERE due AND state <> {processing}", new: "WHERE due", tests: "^TestSuite$/^what-is-due-is-counted$"},
		mutant{id: "postgres-slow-trigger", fault: "a record whose trigger takes too long fails all outcomes of its call", file: settle, old: "e.Class == waybill.ClassOutage && dberr.SQLState(err) != tookTooLong", new: "e.Class == waybill.ClassOutage && dberr.SQLState(err) != \"\"", tests: "^TestSlowIsNoOutage$"},
		mutant{id: "postgres-slow-deadline", fault: "a slow record uses up the time of its call", file: settle, old: "\t\tleft /= 2\n", new: "\t\tleft *= 2\n", tests: "^TestSettleParts$"},
		mutant{id: "postgres-heeded-all", fault: "a bulk command is deleted by the first owner that heeds it", file: settle, old: "un.owner = $1), 0) AS rest", new: "un.owner = $1), 0) & 0 AS rest", tests: "^TestNoticeFrom$"},
		mutant{id: "postgres-released-foreign", fault: "a release ends the hold of another session", file: settle, old: "` NOT IN (0, $1) AS others", new: "` NOT IN (0, $1) AND u.n < 0 AS others", tests: "^TestConformance$/^release-leaves-the-hold-of-another$"},
		mutant{id: "postgres-take-from", fault: "a Take goes over all that was deleted", file: take, old: "r.seq > $8 AND r.seq <= $9 AND ` + keylessSQL + ` AND r.hold <> $1", new: "r.seq > least($8, -1) AND r.seq <= $9 AND ` + keylessSQL + ` AND r.hold <> $1", tests: "^TestQueueBehindAnOldSnapshot$"},
		mutant{id: "postgres-take-left", fault: "a Take does not say which records its bytes left out", file: take, old: "SELECT CASE WHEN count(*) = $4 THEN least($9, max(w.seq)) ELSE $9 END FROM w", new: "SELECT least($9, max(w.seq)) FROM w", tests: "^TestConformance$/^next-says-what-it-passed$"},
		mutant{id: "postgres-key-plan", fault: "a page of a key can go over the records of all keys", file: "store/postgres/read_sql.go", old: "(r.key, r.seq) > (u.key, u.lo) AND (r.key, r.seq) <= (u.key, u.hi)", new: "r.key = u.key AND r.seq > u.lo AND r.seq <= u.hi", tests: "^TestPlansBesideDeadRows$"},
		mutant{id: "postgres-key-room", fault: "the answer about each key has room for a full page", file: "store/postgres/read.go", old: "c.first = 1", new: "c.first = 64", tests: "^TestRoomOfShortKeys$"},
		mutant{id: "postgres-key-from", fault: "a page of a key goes over its records from the first one", file: "store/postgres/read_sql.go", old: "(r.key, r.seq) > (u.key, u.lo) AND", new: "(r.key, r.seq + 0) > (u.key, u.lo) AND", tests: "^TestPageOfALongKey$"},
		mutant{id: "postgres-told-read", fault: "a read goes over all notices that were heeded", file: "store/postgres/read_sql.go", old: "AND c.number > $4", new: "AND c.number > 0 * $4", tests: "^TestNoticeBehindAnOldSnapshot$"},
		mutant{id: "postgres-told-heartbeat", fault: "a heartbeat goes over all notices that were heeded", file: "store/postgres/heartbeat_sql.go", old: "AND c.number > $2", new: "AND c.number > 0 * $2", tests: "^TestNoticeBehindAnOldSnapshot$"},
		mutant{id: "postgres-due-new", fault: "a Due answers what is held although it is told not to", file: due, old: "AND p.repeats AND", new: "AND", tests: "^TestConformance$/^due-new-leaves-out-own$"},
		mutant{id: "postgres-due-more", fault: "a Due does not say that more is held than it answers", file: due, old: "if held > 0 {", new: "if held < 0 {", tests: "^TestConformance$/^due-new-leaves-out-own$"},
		mutant{id: "postgres-due-since", fault: "a Due goes over all that was sent", file: due, old: "CASE WHEN p.ago = 0 THEN", new: "CASE WHEN p.ago >= 0 THEN", tests: "^TestDueBehindAnOldSnapshot$"},
		mutant{id: "postgres-own-held", fault: "what a transaction could not replace counts as staged by it", file: "store/postgres/cancel_sql.go", old: "o.version = 1 AND o.hold = 0", new: "o.version = 1", tests: "^TestCancelOfWhatCouldNotBeReplaced$"},
		mutant{id: "postgres-release-stale", fault: "a release leaves the hold on another version of what is out", file: "store/postgres/release.go", old: "r.seq NOT IN (SELECT o.seq FROM o)", new: "r.seq NOT IN (SELECT unnest($7::bigint[]))", tests: "^TestConformance$/^release-ends-holds-of-other-versions$"},
		mutant{id: "postgres-due-half", fault: "a part of which a member owns half brings nothing due", file: "store/postgres/due.go", old: "AND p.slots & o.slots <> 0", new: "AND p.slots & ~o.slots = 0", tests: "^TestConformance$/^due-leaves-out-slots-alone$"},
		mutant{id: "postgres-leave-removes", fault: "a member that leaves removes nobody", file: "store/postgres/heartbeat.go", old: "\t\tif !membership.Known {\n", new: "\t\tif !membership.Known || m.ExcludeKeys {\n", tests: "^TestConformance$/^leave-comes-last$"},
		mutant{id: "postgres-move-nobody", fault: "a member stores about partitions that are not its own", file: "store/postgres/heartbeat_sql.go", old: "$6 = $1::bigint AND EXISTS", new: "EXISTS", tests: "^TestSuite$/^rules-moves$"},
		mutant{id: "postgres-tidy", fault: "partitions that nobody serves any more stay", file: "store/postgres/heartbeat.go", old: "membership.Known && idle(&membership)", new: "membership.Known && !membership.Known && idle(&membership)", tests: "^TestConformance$/^dropped-routes-are-unserved$"},
		mutant{id: "postgres-cancel-crashed", fault: "what crashed is in flight though it is held before it is handed out", file: "store/postgres/cancel_sql.go", old: " AND o.crashes = 0 THEN", new: "  THEN", tests: "^TestSuite$/^cancel-after-a-crash$"},
		mutant{id: "postgres-cancel-left", fault: "what a member held that has left is cancelled though its successor hands it out", file: "store/postgres/cancel_sql.go", old: "AND o.crashes = 0 THEN", new: "AND NOT o.maybe_sent THEN", tests: "^TestSuite$/^cancel-after-a-leave$"},
		mutant{id: "postgres-own-changed", fault: "what a transaction has changed counts as staged by it", file: "store/postgres/dedupe_sql.go", old: ", version = o.version + (o.hold = 0)::int", new: "", tests: "^TestCancelOfWhatCouldNotBeReplaced$"},
		mutant{id: "postgres-datestyle", fault: "times come in the form of the role", file: "store/postgres/transact.go", old: "set_config('datestyle', 'ISO', true), ", new: "", tests: "^TestQueryModes$"},
		mutant{id: "postgres-bytea", fault: "bodies come in the form of the role", file: "store/postgres/transact.go", old: " set_config('bytea_output', 'hex', true),", new: "", tests: "^TestQueryModes$"},
		mutant{id: "postgres-mark-read", fault: "a stamp that is too far ahead is the mark of every new process", file: "store/postgres/clock.go", old: "WHERE s.hlc BETWEEN 0 AND b.at", new: "WHERE s.hlc > 0", tests: "^TestSuite$/^high-water-is-bounded$"},
		mutant{id: "postgres-mark-lag", fault: "an old stamp that was just settled keeps a new one out of the mark", file: "store/postgres/clock.go", old: "highest.Millis() < o.marked.Load()+markLag.Milliseconds()", new: "o.marked.Load() != 0", tests: "^TestSuite$/^high-water-survives-publishing$"},
		mutant{id: "postgres-mark-written", fault: "settling leaves a mark that is too far ahead", file: "store/postgres/clock.go", old: "u BETWEEN 1 AND b.at", new: "u > 0", tests: "^TestSuite$/^high-water-is-bounded$"},
		mutant{id: "postgres-mark-told", fault: "nobody hears of a stamp that is too far ahead", file: "store/postgres/clock.go", old: "if m.highest <= m.counts && err == nil {", new: "if m.highest != 0 && err == nil {", tests: "^TestStampTooFarAheadStopsNoStaging$"},
		mutant{id: "postgres-mark-stops", fault: "a process whose clock is slow stages below the mark without a word", file: "store/postgres/clock.go", old: "err := s.stamper.Clock().SeedCapped(m.counts)", new: "err := s.stamper.Clock().Seed(0)", tests: "^TestSlowClockStages$"},
		mutant{id: "postgres-mark-heals", fault: "a mark that is too far ahead stays", file: "store/postgres/clock.go", old: " OR m.value > b.at AND x.stamp > 0)", new: ")", tests: "^TestMarkTooFarAheadHeals$"},
		mutant{id: "postgres-id-taken-keyed", fault: "with a dedupe key the id of another service makes a message a duplicate", file: "store/postgres/dedupe_sql.go", old: "(k.source <> r.source)::int", new: "(k.source < '')::int", tests: "^TestSuite$/^id-of-another-source-is-refused$"},
	)
	const grants, outbox = "store/postgres/internal/schema/grants.go", "store/postgres/internal/schema/migrations/0002_outbox_create.up.sql"
	const wait = "store/postgres/internal/listen/wait.go"
	all = append(all, group{pkg: "./store/postgres/internal/listen"}.of(
		mutant{id: "postgres-far-look", fault: "a relay far away looks before each read", file: wait, old: "return fresh && w.far() &&", new: "return fresh && !w.far() &&", tests: "^TestFarRelayReadsOn$"},
		mutant{id: "postgres-far-spin", fault: "a relay far away reads again and again", file: wait, old: "\tw.fresh = false\n", new: "", tests: "^TestFarRelayReadsOn$"},
		mutant{id: "postgres-far-rare", fault: "a relay far away reads again after each record, however rare", file: wait, old: " && w.gap < 2*w.trip", new: "", tests: "^TestFarRelayReadsOn$"},
		mutant{id: "postgres-far-busy", fault: "a busy machine counts as a far database", file: wait, old: "w.trip == 0 || d < w.trip", new: "w.trip == 0 || d > w.trip", tests: "^TestFarRelayReadsOn$"},
	)...)
	const moves = "store/postgres/import.go"
	all = append(all, group{pkg: "./internal/docs", server: true}.of(
		mutant{id: "postgres-import-order", fault: "moved rows stand in the order of their ids as text", file: moves, old: "o = \"old.\" + o", new: "o = \"old.\" + o + \"::text\"", tests: "^TestMovingRealTables$/^faststream$/^command$"},
		mutant{id: "postgres-import-body", fault: "a moved body becomes hexadecimal digits", file: moves, old: "{name: \"body\", expression: \"old.body\"}", new: "{name: \"body\", expression: \"convert_to(old.body::text, 'UTF8')\"}", tests: "^TestMovingRealTables$/^sqlalchemy$/^command$"},
		mutant{id: "postgres-import-zone", fault: "old times shift by the time zone of the session", file: moves, old: "{name: \"occurred_at\", expression: \"old.created_at AT TIME ZONE 'UTC'\"}", new: "{name: \"occurred_at\", expression: \"old.created_at AT TIME ZONE 'Europe/Athens'\"}", tests: "^TestMovingRealTables$/^protean$/^command$"},
		mutant{id: "postgres-import-ended", fault: "a row that the old system gave up is sent", file: moves, old: "CASE WHEN old.status = 'failed' THEN {abandoned}", new: "CASE WHEN old.status = '' THEN {abandoned}", tests: "^TestMovingRealTables$/^forze$/^command$"},
		mutant{id: "postgres-import-dry", fault: "a dry run of an import moves a batch", file: moves, old: "b.Queue(\"ROLLBACK\")", new: "b.Queue(\"SELECT 1\")", tests: "^TestMovingRealTables$/^forze$/^command$"},
		mutant{id: "postgres-import-expiry", fault: "a moved message expires before it is due", file: moves, old: "greatest(old.send_after, now()) + old.expiration", new: "old.created_at + old.expiration", tests: "^TestMovingRealTables$/^sqlalchemy$/^command$"},
	)...)
	return append(all, group{pkg: "./internal/e2e", server: true}.of(
		mutant{id: "postgres-grant-columns", fault: "a producer writes the relay's columns", file: grants, old: "\"INSERT (\"+stagedColumns+\"), SELECT (seq", new: "\"INSERT, SELECT (seq", tests: "^TestHostileProducer$/^cache_statement$"},
		mutant{id: "postgres-slot-check", fault: "a slot that no relay can read is taken", file: outbox, old: "CHECK (slot BETWEEN 0 AND 63)", new: "CHECK (slot < 300)", tests: "^TestHostileProducer$/^cache_statement$"},
		mutant{id: "postgres-times-check", fault: "a time of another age is taken", file: outbox, old: "CHECK (\n        occurred_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'", new: "CHECK (\n        occurred_at BETWEEN '0001-01-01 00:00:00+00' AND '294276-12-31 23:00:00+00'", tests: "^TestHostileProducer$/^simple_protocol$"},
		mutant{id: "postgres-bound-routes", fault: "a producer of one route stages on others", file: grants, old: "WITH CHECK ({routes_only} AND {sources_only})", new: "WITH CHECK ({sources_only})", tests: "^TestProducerOfItsOwnRoute$"},
		mutant{id: "postgres-bound-sees", fault: "a producer of one route sees the rows of others", file: grants, old: "USING ({routes_only}) WITH CHECK", new: "USING (true) WITH CHECK", tests: "^TestProducerOfItsOwnRoute$"},
		mutant{id: "postgres-bound-sources", fault: "a producer of one source stages in the name of others", file: grants, old: "WITH CHECK ({routes_only} AND {sources_only})", new: "WITH CHECK ({routes_only})", tests: "^TestProducerOfItsOwnRoute$"},
		mutant{id: "postgres-bound-lanes", fault: "a producer of one route cannot use its lanes", file: grants, old: "split_part(route, '/', 1)", new: "route", tests: "^TestProducerOfItsOwnRoute$"},
		mutant{id: "postgres-id-taken", fault: "the id of another service makes a message a duplicate", file: "store/postgres/stage.go", old: ") o WHERE o.source <> r.source LIMIT 1", new: ") o WHERE o.source < '' LIMIT 1", tests: "^TestIDOfAnotherIsTold$"},
		mutant{id: "postgres-canceller-changes", fault: "a canceller of one source cancels messages of others", file: grants, old: "FOR UPDATE TO {role} USING ({sources_only})", new: "FOR UPDATE TO {role} USING (true)", tests: "^TestCancellerOfItsOwnRoute$"},
		mutant{id: "postgres-canceller-deletes", fault: "a canceller of one source deletes messages of others", file: grants, old: "FOR DELETE TO {role} USING ({sources_only})", new: "FOR DELETE TO {role} USING (true)", tests: "^TestCancellerOfItsOwnRoute$"},
		mutant{id: "postgres-canceller-tells", fault: "a canceller of one route tells the relays of others", file: grants, old: "WITH CHECK ({routes_only} AND kind = {key_kind})", new: "WITH CHECK (kind = {key_kind})", tests: "^TestCancellerOfItsOwnRoute$"},
		mutant{id: "postgres-canceller-ends", fault: "a canceller has a relay end messages of others", file: grants, old: "WITH CHECK ({routes_only} AND kind = {key_kind})", new: "WITH CHECK ({routes_only} AND kind >= {key_kind})", tests: "^TestCancellerOfItsOwnRoute$"},
	)...)
}
