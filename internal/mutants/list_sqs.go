package main

// queued are faults of the SQS transport.
func queued() []mutant {
	const declare, wire = "transport/sqs/declare.go", "transport/sqs/wire.go"
	const topic = "transport/sqs/topic.go"
	client := group{pkg: "./transport/sqs/snsclient"}.of(
		mutant{id: "sns-fault", fault: "SNS's word on whose fault a failed entry is gets lost", file: "transport/sqs/snsclient/snsclient.go", old: ", SenderFault: f.SenderFault", new: "", tests: "^TestPublishBatch$"},
		mutant{id: "sns-pages", fault: "only the first subscriptions of a topic are seen", file: "transport/sqs/snsclient/snsclient.go", old: "pages.HasMorePages(); {", new: "len(have) == 0; {", tests: "^TestSubscriptions$"},
	)
	client = append(client, group{pkg: "./core/repeats"}.of(
		mutant{id: "repeats-known", fault: "a message that is sent again on purpose is dropped", file: "core/repeats/repeats.go", old: "\t\tdelete(m.ids, key)\n", new: "", tests: "^TestRepeatsHaveOneID$"},
		mutant{id: "repeats-edited", fault: "an edited message is a repeat", file: "core/repeats/repeats.go", old: "_, _ = h.Write(e.Body)", new: "_ = e.Body", tests: "^TestRepeatsHaveOneID$"},
		mutant{id: "repeats-bound", fault: "the memory of repeats has no bound", file: "core/repeats/repeats.go", old: "len(m.ids) >= maxMessages", new: "len(m.ids) < 0", tests: "^TestMemoryIsBounded$"},
	)...)
	return append(client, group{pkg: "./transport/sqs"}.of(
		mutant{id: "sqs-lost-copied", fault: "a delivery that is known to be lost is copied beside its message", file: "transport/sqs/settle.go", old: "case h.state != held, h.lost && acks[i].Verdict != core.VerdictDone:", new: "case h.state != held:", tests: "^TestLostDeliveryIsNotCopied$"},
		mutant{id: "sqs-retry-free", fault: "a free retry counts an attempt", file: "transport/sqs/copies.go", old: "a.SameAttempt || due >", new: "due >", tests: "^TestConformance$/^standard$/^retry-free$"},
		mutant{id: "sqs-repeats", fault: "each repeat of a publish without an answer leaves a copy", file: "transport/sqs/publish.go", old: "cmp.Or(p.t.repeats.ID(e), waybill.NewID())", new: "cmp.Or(waybill.NewID(), p.t.repeats.ID(e))", tests: "^TestConformance$/^fifo$/^publish-again-unanswered$"},
		mutant{id: "sqs-rates", fault: "few requests for messages are in progress", file: "transport/sqs/receiver.go", old: "const maxPolls = 16", new: "const maxPolls = 2", tests: "^TestNearBest$"},
		mutant{id: "sqs-rates-requests", fault: "few requests to send are in progress", file: "transport/sqs/options.go", old: "DefaultRequests      = 32", new: "DefaultRequests      = 8", tests: "^TestNearBest$"},
		mutant{id: "sqs-parked-order", fault: "parked messages come in the order in which SQS has them after a look", file: "transport/sqs/parked.go", old: "return a.at.Compare(b.at)", new: "return b.at.Compare(a.at)", tests: "^TestLookAtParkedHidesNothing$"},
		mutant{id: "sqs-parked-hidden", fault: "a look leaves messages hidden", file: "transport/sqs/parked.go", old: "changes = append(changes, change{0, m.raw.ReceiptHandle, 0})", new: "changes = changes[:0]", tests: "^TestLookAtParkedHidesNothing$"},
		mutant{id: "sqs-parked-lapsed", fault: "a message whose hiding is over is replayed all the same", file: "transport/sqs/parked.go", old: "\t\tlost[slot] = true\n", new: "\t\tlost[slot] = false\n", tests: "^TestSlowReplay$"},
		mutant{id: "sqs-parked-again", fault: "a message that is parked again is replayed again", file: "transport/sqs/parked.go", old: "!late && !removed && !w.replayed[identity(&m.dec.env)]", new: "!late && !removed", tests: "^TestParkedMeanwhile$"},
		mutant{id: "sqs-parked-later", fault: "a message that was parked after the call began is replayed", file: "transport/sqs/parked.go", old: "!w.begun.IsZero() && m.sent()", new: "w.begun.IsZero() && m.sent()", tests: "^TestParkedMeanwhile$"},
		mutant{id: "sqs-parked-reason", fault: "a message that SQS moved has no reason", file: "transport/sqs/parked.go", old: "p.Reason = waybill.ReasonDeliveries", new: "_ = p.Reason", tests: "^TestParkedBySQS$"},
		mutant{id: "sqs-parked-failed", fault: "a replay that failed deletes the parked message", file: "transport/sqs/parked.go", old: "\t\tif m.Err == nil {\n\t\t\tsent", new: "\t\tif m.Err == nil || len(items) > 1 {\n\t\t\tsent", tests: "^TestReplayFails$"},
		mutant{id: "sqs-parked-bound", fault: "a walk hides any number of messages", file: "transport/sqs/parked.go", old: "if w.passed >= w.most {", new: "if w.passed >= w.most && w.most < 0 {", tests: "^TestParkedLimits$"},
		mutant{id: "sqs-parked-redriven", fault: "a look at a dead-letter queue moves its messages on", file: "transport/sqs/parked.go", old: "!= \"\" {\n\t\t\treturn misconfigured(op, \"dead", new: "== \"-\" {\n\t\t\treturn misconfigured(op, \"dead", tests: "^TestParkedLimits$"},
		mutant{id: "sns-unverified", fault: "messages go to a topic of SNS whose subscriptions nothing has verified", file: topic, old: "return t.verifySubscriptions(ctx, opPublish)", new: "return nil", tests: "^TestSubscriptionsAreVerified$"},
		mutant{id: "sns-gone", fault: "messages go to a topic of SNS although Check has missed a subscription", file: topic, old: "t.verified.Store(len(problems) == 0)", new: "t.verified.CompareAndSwap(false, len(problems) == 0)", tests: "^TestPublishToTopic$"},
		mutant{id: "sns-not-raw", fault: "a subscription that wraps messages passes", file: topic, old: "raw != \"true\"", new: "raw == \"\"", tests: "^TestSubscriptionsAreVerified$"},
		mutant{id: "sns-filter", fault: "a filter policy that excludes topics of the bindings passes", file: topic, old: "if !slices.ContainsFunc(values, func(v any) bool { return passes(v, topic) }) {", new: "if len(topic) == 0 {", tests: "^TestSubscriptionsAreVerified$"},
		mutant{id: "sns-filter-header", fault: "a filter policy over an attribute that no message has passes", file: topic, old: "case !sends(key) &&", new: "case key == \"\" && !sends(key) &&", tests: "^TestSubscriptionsAreVerified$"},
		mutant{id: "sns-keeps-out", fault: "a queue whose policy keeps SNS out is taken", file: declare, old: "sub != nil && arn != \"\" && !admits", new: "sub == nil && arn != \"\" && !admits", tests: "^TestTopicMaySend$"},
		mutant{id: "sns-bound", fault: "a batch for SNS has the size that SQS takes", file: "transport/sqs/send.go", old: "url, bound := \"\", maxTopicBytes", new: "url, bound := \"\", maxBytes", tests: "^TestTopicResults$"},
		mutant{id: "sns-astray", fault: "a topic that no queue of Bindings expects is a success over SNS", file: "transport/sqs/publish.go", old: "len(t.opts.Bindings) > 0 && len(queues) == 0", new: "len(t.opts.Bindings) == 0 && len(queues) != 0", tests: "^TestPublishToTopic$"},
		mutant{id: "sns-topic-only", fault: "a missing topic of SNS stops one topic of a relay at a time", file: "transport/sqs/errors.go", old: "op == opPublish && !strings.Contains(name, \":\")", new: "op == opPublish", tests: "^TestTopicErrors$"},
		mutant{id: "sqs-retention", fault: "a queue that drops its messages early is taken", file: declare, old: "number(s) < int(t.opts.Retention/time.Second) {", new: "number(s) < 0*int(t.opts.Retention/time.Second) {", tests: "^TestDeclare$"},
		mutant{id: "sqs-hold-default", fault: "what a killed process holds comes after more than ten seconds", file: "transport/sqs/options.go", old: "DefaultHoldFor       = 9 * time.Second", new: "DefaultHoldFor       = 10 * time.Second", tests: "^TestKilledProcessIsMissed$"},
		mutant{id: "sqs-wrapped", fault: "what SNS has wrapped is handled", file: wire, old: "return json.Unmarshal(body, &n) == nil && n.Type", new: "return json.Unmarshal(body, &n) != nil && n.Type", tests: "^TestWrappedBySNS$"},
		mutant{id: "sqs-wrapped-copy", fault: "a copy of what SNS has wrapped is handled", file: wire, old: "(len(m.MessageAttributes) == 0 || d.rest.Unread == unreadSNS) && wrapped", new: "len(m.MessageAttributes) == 0 && wrapped", tests: "^TestWrappedBySNS$"},
		mutant{id: "sqs-wrapped-alike", fault: "JSON that looks like SNS's is refused", file: wire, old: "n.Type == \"Notification\" && n.TopicArn != \"\" && n.MessageID != \"\"", new: "n.MessageID != \"\"", tests: "^TestWrappedBySNS$"},
	)...)
}
