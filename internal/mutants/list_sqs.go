package main

// queued are faults of the SQS transport.
func queued() []mutant {
	const declare, wire = "transport/sqs/declare.go", "transport/sqs/wire.go"
	return group{pkg: "./transport/sqs"}.of(
		mutant{id: "sqs-retention", fault: "a queue that drops its messages early is taken", file: declare, old: "number(s) < int(t.opts.Retention/time.Second) {", new: "number(s) < 0*int(t.opts.Retention/time.Second) {", tests: "^TestDeclare$"},
		mutant{id: "sqs-hold-default", fault: "what a killed process holds comes after more than ten seconds", file: "transport/sqs/options.go", old: "DefaultHoldFor       = 9 * time.Second", new: "DefaultHoldFor       = 10 * time.Second", tests: "^TestKilledProcessIsMissed$"},
		mutant{id: "sqs-wrapped", fault: "what SNS has wrapped is handled", file: wire, old: "return json.Unmarshal(body, &n) == nil && n.Type", new: "return json.Unmarshal(body, &n) != nil && n.Type", tests: "^TestWrappedBySNS$"},
		mutant{id: "sqs-wrapped-copy", fault: "a copy of what SNS has wrapped is handled", file: wire, old: "(len(m.MessageAttributes) == 0 || d.rest.Unread == unreadSNS) && wrapped", new: "len(m.MessageAttributes) == 0 && wrapped", tests: "^TestWrappedBySNS$"},
		mutant{id: "sqs-wrapped-alike", fault: "JSON that looks like SNS's is refused", file: wire, old: "n.Type == \"Notification\" && n.TopicArn != \"\" && n.MessageID != \"\"", new: "n.MessageID != \"\"", tests: "^TestWrappedBySNS$"},
	)
}
