package main

// inboxed are faults of the inbox.
func inboxed() []mutant {
	const inbox, batch, purge, marks, hashes = "inbox/inbox.go", "inbox/batch.go", "inbox/purge.go", "inbox/atleastonce.go", "internal/content/content.go"
	return group{pkg: "./inbox"}.of(
		mutant{id: "inbox-repaired", fault: "who sends a message can say that it is a repaired one", file: inbox, old: "\tkey.ContentHash = was\n", new: "\tkey.ContentHash = \"\"\n\t_ = was\n", tests: "^TestARepairedMessage$"},
		mutant{id: "inbox-hash-topic", fault: "a message of another topic with a known id vanishes as a duplicate", file: hashes, old: "{e.Topic, e.Type, e.Key, e.Tenant}", new: "{e.Key, e.Tenant}", tests: "^TestOtherContentIsAConflict$"},
		mutant{id: "inbox-hash-border", fault: "two fields of a hash run together", file: hashes, old: "append(binary.BigEndian.AppendUint64(h.room, uint64(len(field))), field...)", new: "append(binary.BigEndian.AppendUint64(h.room, 0)[:len(h.room)], field...)", tests: "^TestOtherContentIsAConflict$"},
		mutant{id: "inbox-hash-batch", fault: "in a batch a conflict counts as handled", file: batch, old: "statuses[i] = waybill.HandlerLeftOut // Handle finds the same and says so\n\t\t\tcase", new: "_ = i\n\t\t\tcase", tests: "^TestOtherContentIsAConflict$"},
		mutant{id: "inbox-check", fault: "the store's check is not passed on", file: inbox, old: "h.Check = c.Check", new: "_ = c", tests: "^TestStoreIsPassedOn$"},
		mutant{id: "inbox-source", fault: "a message without a source is another one in each queue, although its source is declared", file: inbox, old: "source = b.opts.Source\n", new: "source = d.Queue\n", tests: "^TestDeclaredSource$"},
		mutant{id: "inbox-pool", fault: "the store's pool is not passed on", file: inbox, old: "h.Pool = p.Pool", new: "_ = p", tests: "^TestStoreIsPassedOn$"},
		mutant{id: "inbox-again", fault: "a second run sees what the first did to the value", file: inbox, old: "first = false\n\t\t\treturn fn(ctx, tx, v)", new: "return fn(ctx, tx, v)", tests: "^TestHandlerRunsAgainWithAFreshValue$"},
		mutant{id: "inbox-duplicate", fault: "a duplicate counts as handled", file: inbox, old: "case status == core.InboxDuplicate:\n\t\t\treturn waybill.HandlerDuplicate, nil", new: "case status == core.InboxDuplicate:\n\t\t\treturn waybill.HandlerProcessed, nil", tests: "^ExampleHandler$"},
		mutant{id: "inbox-key-consumer", fault: "marks do not name their consumer", file: inbox, old: "core.InboxKey{Consumer: b.consumer, Source: source, ID: id, ContentHash", new: "core.InboxKey{Source: source, ID: id, ContentHash", tests: "^ExampleHandler$"},
		mutant{id: "inbox-horizon", fault: "the retry time ignores that messages come again", file: inbox, old: "b.opts.retention() - b.opts.horizon()", new: "b.opts.retention()", tests: "^TestAtLeastOnceRefuses$"},
		mutant{id: "inbox-batch-plain", fault: "without a batch inbox, handlers get batches", file: batch, old: "h.BatchSize, h.BatchWait = 0, 0\n\t\treturn h", new: "return h", tests: "^TestStoreIsPassedOn$"},
		mutant{id: "inbox-batch-again", fault: "in a batch a second run sees what the first did to the values", file: batch, old: "first = false\n\t\t\treturn fn(ctx, tx, news)", new: "return fn(ctx, tx, news)", tests: "^TestBatchRunsAgainWithFreshValues$"},
		mutant{id: "inbox-batch-len", fault: "a batch takes a missing status for a success", file: batch, old: "if len(marks) != len(keys) {", new: "if marks = append(marks, make([]core.InboxStatus, max(0, len(keys)-len(marks)))...); len(marks) != len(keys) {", tests: "^TestBrokenBatchStore$"},
		mutant{id: "inbox-batch-slot", fault: "in a batch duplicates are told of the wrong messages", file: batch, old: "statuses[i] = waybill.HandlerDuplicate", new: "statuses[n+0*i] = waybill.HandlerDuplicate", tests: "^TestBatchWithDuplicates$"},
		mutant{id: "inbox-batch-fresh", fault: "in a batch fn gets duplicates", file: batch, old: "news[n] = items[i]", new: "news[n] = items[n]", tests: "^TestBatchWithDuplicates$"},
		mutant{id: "inbox-forget", fault: "an at-least-once handler that failed keeps its claim until the lease ends", file: marks, old: "_ = a.store.ForgetMark(after, key, token) //", new: "_ = after //", tests: "^TestAtLeastOnce$"},
		mutant{id: "inbox-forget-stop", fault: "a claim is not given up if the handler failed since its context ended", file: marks, old: "after, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTime)", new: "after, cancel := context.WithTimeout(ctx, finishTime)", tests: "^TestAtLeastOnceAtAStop$"},
		mutant{id: "inbox-finish-stop", fault: "an effect gets no mark if its context ended meanwhile", file: marks, old: "after, stop := context.WithTimeout(context.WithoutCancel(ctx), finishTime)", new: "after, stop := context.WithTimeout(ctx, finishTime)", tests: "^TestAtLeastOnceAtAStop$"},
		mutant{id: "inbox-begun", fault: "the lease of an at-least-once run is measured from the answer of the store", file: marks, old: "!errors.Is(err, waybill.ErrInFlight) {\n\t\t\treturn begun, state, err", new: "!errors.Is(err, waybill.ErrInFlight) {\n\t\t\treturn time.Now(), state, err", tests: "^TestAtLeastOnceLease$"},
	)
}
