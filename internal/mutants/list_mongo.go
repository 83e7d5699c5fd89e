package main

// mongodb are faults of the MongoDB store.
func mongodb() []mutant {
	const errs, inbox = "store/mongo/errors.go", "store/mongo/inbox.go"
	const pkg = "./store/mongo"
	return append(group{pkg: pkg}.of(
		mutant{id: "mongo-role-inbox", fault: "the role of a producer reads the inbox", file: "store/mongo/roles.go", old: `{[]string{"routes"}, []string{"find"}},`, new: `{[]string{"routes", "inbox"}, []string{"find"}},`, tests: "^TestRoles$"},
		mutant{id: "mongo-role-check", fault: "the role of a consumer is too small for its check", file: "store/mongo/roles.go", old: "\t\t{[]string{\"tickets\"}, []string{\"find\", \"insert\", \"remove\"}},\n", new: "", tests: "^TestRoles$"},
		mutant{id: "mongo-group", fault: "a removed member settles in a group", file: "store/mongo/transact.go", old: "known < len(selves)", new: "known < 0", tests: "^TestConformance$/^group-with-a-removed-session-is-refused$"},
		mutant{id: "mongo-journal", fault: "a commit is answered from memory", file: "store/mongo/transact.go", old: "w.Journal = &journal", new: "_ = journal", tests: "^TestWritesAskForTheJournal$"},
		mutant{id: "mongo-blocked", fault: "blocked writes are the message's fault", file: errs, old: "371: kindOutage, ", new: "", tests: "^TestErrorClasses$"},
		mutant{id: "mongo-interrupted", fault: "an ended command is the message's fault", file: errs, old: "11601: kindOutage, ", new: "", tests: "^TestErrorClasses$"},
		mutant{id: "mongo-old-transaction", fault: "a transaction that is too old does not run again", file: errs, old: "225: kindConflict, ", new: "", tests: "^TestErrorClasses$"},
		mutant{id: "mongo-prepared", fault: "a transaction that a prepared one was in the way of does not run again", file: errs, old: "267: kindConflict, ", new: "", tests: "^TestErrorClasses$"},
		mutant{id: "mongo-cache", fault: "a transaction that is too large for the cache is tried for ever", file: errs, old: ", 373: kindTooBig", new: "", tests: "^TestErrorClasses$"},
		mutant{id: "mongo-refusal-values", fault: "the error of a refused command has values of documents", file: "store/mongo/refused.go", old: "func (r *refusal) Error() string { return r.text }", new: "func (r *refusal) Error() string { return r.text + r.err.Error() }", tests: "^TestRefusalNamesThePrivilege$"},
		mutant{id: "mongo-refusal-role", fault: "the error of a refused command names roles that lack the privilege, too", file: "store/mongo/refused.go", old: "if !slices.ContainsFunc(needs, func(a string) bool { return !found[a] }) {", new: "if len(found) > 0 {", tests: "^TestRefusalNamesThePrivilege$"},
	), group{pkg: pkg, server: true}.of(
		mutant{id: "mongo-password", fault: "a wrong password is an outage without a cure", file: errs, old: "if c == kindMisconfigured {", new: "if c == kindMisconfigured && false {", tests: "^TestUsers$"},
		mutant{id: "mongo-audit-removes", fault: "a list of the audit record asks for the right to remove from it", file: "store/mongo/audit.go", old: "\tcur, err := s.audit.Find(ctx,", new: "\t_, _ = s.audit.DeleteMany(ctx, bson.M{\"_id\": -1})\n\tcur, err := s.audit.Find(ctx,", tests: "^TestPrivileges$"},
		mutant{id: "mongo-key-taken", fault: "a dedupe key of another service makes a message a duplicate", file: "store/mongo/stage.go", old: "holder != nil && l.foreign(holder, r)", new: "holder != nil && l.foreign(holder, r) && r.Replace", tests: "^TestStore$/^dedupe-key-of-another-source-is-refused$"},
		mutant{id: "mongo-id-taken", fault: "the id of another service makes a message a duplicate", file: "store/mongo/stage.go", old: "e.Source != r.Envelope.Source", new: "e.Source < r.Envelope.Source[:0]", tests: "^TestStore$/^id-of-another-source-is-refused$"},
		mutant{id: "mongo-count-least", fault: "the least number of records counts as an estimate", file: "store/mongo/count.go", old: "c.Estimated, c.AtLeast = true, c.AtLeast || vague", new: "c.Estimated = vague || true", tests: "^TestCountsSayHowExactTheyAre$"},
		mutant{id: "mongo-head-held", fault: "a record behind one that is being sent is the head", file: "store/mongo/heads.go", old: "held := bson.M{\"$gt\": int64(0)}", new: "held := bson.M{\"$lt\": int64(0)}", tests: "^TestStore$/^rules-heads$"},
		mutant{id: "mongo-count-sample", fault: "a count above the limit is the span of the sequences", file: "store/mongo/count.go", old: "n, vague := sample.Count(f.n, hits[k], 0, false)", new: "n, vague := high-low+1+0*hits[k], false", tests: "^TestCountsSayHowExactTheyAre$"},
		mutant{id: "mongo-count-held", fault: "what is out is scaled as the first records are", file: "store/mongo/count.go", old: "if k.state == core.StateProcessing && !t.held.more {", new: "if k.state == core.StateProcessing && t.held.more {", tests: "^TestCountsOfUnlikeRecords$"},
		mutant{id: "mongo-count-reason", fault: "a reason that only later records have is missing", file: "store/mongo/count.go", old: "if _, seen := all[k]; !seen {", new: "if _, seen := all[k]; !seen && false {", tests: "^TestCountsOfUnlikeRecords$"},
		mutant{id: "mongo-count-exact", fault: "an estimate of ready records counts as exact", file: "store/mongo/count.go", old: "c.Estimated, c.AtLeast = true, c.AtLeast || vague", new: "c.AtLeast = c.AtLeast || vague", tests: "^TestCountsSayHowExactTheyAre$"},
		mutant{id: "mongo-long-run", fault: "a handler that takes longer than a transaction may last costs no attempt", file: inbox, old: "case hasCode(err, 251) && took >= s.longRun:", new: "case hasCode(err, 251) && took < 0:", tests: "^TestHandlerBeyondTheTransactionsLimit$"},
		mutant{id: "mongo-swallowed", fault: "a handler that swallows the end of its transaction runs on and on", file: inbox, old: "case ended && hasCode(err, 251):", new: "case ended && hasCode(err, -1):", tests: "^TestHandlersThatRunAgain$"},
		mutant{id: "mongo-replaced-key", fault: "a message that was replaced in flight is never redriven", file: "store/mongo/cancel.go", old: "bson.M{\"dedupe\": \"\", \"dedupe_key\": \"\"}}", new: "bson.M{\"dedupe\": \"\"}}", tests: "^TestStore$/^redrive-of-what-was-replaced$"},
		mutant{id: "mongo-sweep-partition", fault: "what expired in a partition that nobody owns waits for the owner of another one", file: "store/mongo/clean.go", old: "if free != 0 {", new: "if free != 0 && d == nil {", tests: "^TestStore$/^clean-leaves-what-is-due-to-its-owner$"},
		mutant{id: "mongo-mark-read", fault: "a stamp that is too far ahead is the mark", file: "store/mongo/sequence.go", old: "if d.HLC <= bound {", new: "if d.HLC != bound {", tests: "^TestStore$/^high-water-is-bounded$"},
		mutant{id: "mongo-mark-written", fault: "settling leaves a mark that is too far ahead", file: "store/mongo/transact.go", old: "\"$lte\": bson.A{stamp, bound}", new: "\"$ne\": bson.A{stamp, bound}", tests: "^TestStore$/^high-water-is-bounded$"},
		mutant{id: "mongo-mark-near", fault: "one stamp that is too far ahead keeps those settled with it from the mark", file: "store/mongo/settle.go", old: "stamp <= bound {", new: "stamp < 0 && bound > 0 {", tests: "^TestStore$/^high-water-is-bounded$"},
	)...)
}
