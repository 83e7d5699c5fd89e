package main

// commanded are faults of the command and of the adapters that it opens.
func commanded() []mutant {
	const migrate, load, rabbit = "cli/migrate.go", "cli/config/load.go", "cli/adapters/rabbitmq.go"
	all := group{pkg: "./cli"}.of(
		mutant{id: "cli-down-loses", fault: "migrate down drops messages that it was not forced to", file: migrate, old: "lost = lost || l.Rows > 0", new: "lost = lost && l.Rows > 0", tests: "^TestMigrateDownKeepsMessagesOfAFile$"},
		mutant{id: "cli-end-total", fault: "the progress of an end takes what matched so far for all", file: "cli/due.go", old: "int64(sum.Ended), 0)", new: "int64(sum.Ended), int64(sum.Matched))", tests: "^TestProgressOfAnEnd$"},
		mutant{id: "cli-depths-missing", fault: "a queue that is missing hides the counts of the others", file: "cli/dlqdepths.go", old: "case errors.Is(err, waybill.ErrNotFound):", new: "case errors.Is(err, waybill.ErrNotFound) && n > 0:", tests: "^TestDLQWithoutAQueue$"},
		mutant{id: "cli-filter-utf8", fault: "each server answers for itself to a text that no message can hold", file: "cli/filter.go", old: "if !utf8.ValidString(v) {", new: "if !utf8.ValidString(v) && v == \"\" {", tests: "^TestBadArguments$"},
		mutant{id: "cli-topic-perhaps", fault: "list calls a topic wrong that stands behind the rows that it looks at", file: "cli/list.go", old: "len(found.Records) == 0 && found.Next == 0 {", new: "len(found.Records) == 0 {", tests: "^TestList$"},
		mutant{id: "cli-topic-of-others", fault: "list calls a topic wrong of which no message matches the other flags", file: "cli/list.go", old: "found, err := inspector.List(ctx, admin.Filter{Topics: []string{topic}}", new: "found, err := inspector.List(ctx, *f", tests: "^TestList$"},
		mutant{id: "cli-topic-bound", fault: "list looks for a topic in all rows", file: "cli/list.go", old: "Limit: 1, Budget: page.Budget", new: "Limit: 1, Budget: 50 * page.Budget", tests: "^TestScanIsBounded$"},
		mutant{id: "cli-list-route", fault: "list does not say that no relay serves a route", file: "cli/list.go", old: "c.unserved(route)", new: "_ = route", tests: "^TestMistakesAreSaid$"},
		mutant{id: "cli-perhaps-empty", fault: "a store that cannot tell whether a record waits counts as empty", file: "cli/status.go", old: "if n == 0 && !more {", new: "if n == 0 && (!more || n == 0) {", tests: "^TestLeastNumberIsNotEmpty$"},
		mutant{id: "cli-down-above", fault: "migrate down takes a version that is not there", file: migrate, old: "if to > newest {", new: "if to > newest+100 {", tests: "^TestMigrateDownKeepsMessagesOfAFile$"},
		mutant{id: "cli-waits-topic", fault: "nobody says that no queue is bound for a topic", file: "admin/waits.go", old: "case in.Trial != nil:", new: "case in.Trial != nil && in.Locked:", tests: "^TestWhyItWaits$"},
		mutant{id: "cli-waits-deeper", fault: "nobody says why the message before it waits", file: "admin/waits.go", old: "} else if deeper {", new: "} else if !deeper {", tests: "^TestWhyItWaits$"},
		mutant{id: "cli-status-out", fault: "status names the newest message that is out first", file: "cli/status.go", old: "cmp.Compare(b.Oldest, a.Oldest)", new: "cmp.Compare(a.Oldest, b.Oldest)", tests: "^TestStatusOfMessagesOut$"},
		mutant{id: "cli-policy-checked", fault: "a retry policy is not checked", file: "cli/settings.go", old: "range policy.Validate(\"\")", new: "range policy.Validate(\"\")[:0]", tests: "^TestNamedRetryPolicies$"},
		mutant{id: "cli-status-first", fault: "status explains a message that is not due", file: "cli/status.go", old: "if l.Records[i].DueIn == 0 {", new: "if l.Records[i].DueIn >= 0 {", tests: "^TestStatus$"},
	)
	all = append(all, group{pkg: "./cli/config"}.of(
		mutant{id: "cli-key-twice", fault: "a key that is given twice hides the other problems of the file", file: "cli/config/tree.go", old: ", parser.AllowDuplicateMapKey())", new: ")", tests: "^TestKeyGivenTwice$"},
		mutant{id: "cli-diff-list", fault: "a route that is paused for the first time is said to need a restart", file: "cli/config/diff.go", old: "if n.kind == list && len(n.items) > 0", new: "if n.kind == list && len(n.items) > 99", tests: "^TestDiff$"},
		mutant{id: "config-policy-section", fault: "the settings of a store or transport cannot name a retry policy", file: "cli/config/decode.go", old: "node: n, policies: d.policies", new: "node: n", tests: "^TestNamedRetryPolicies$"},
		mutant{id: "config-policy-twice", fault: "a mistake in a retry policy is told of each setting that names it", file: "cli/config/decode.go", old: "		of := decoder{}\n		of.into(d.policies.fields[n.text], join(PolicyKey, n.text), v)", new: "		d.into(d.policies.fields[n.text], path, v)", tests: "^TestNamedRetryPolicies$"},
		mutant{id: "cli-service-link", fault: "the variables of a Kubernetes Service are settings", file: load, old: "serviceLink(path, value) || ", new: "", tests: "^TestServiceLinks$"},
	)...)
	const validate = "cli/validate.go"
	all = append(all, group{pkg: "./cli", server: true}.of(
		mutant{id: "cli-migrate-recorded", fault: "migrate up is in no audit record", file: "cli/migrate.go", old: "c.actOnTables(ctx, s.Up)", new: "s.Up(ctx)", tests: "^TestAuditRecord$"},
		mutant{id: "cli-migrate-first", fault: "migrate up that makes the audit record is not in it", file: "cli/act.go", old: "err != nil || !c.recorded(ctx, to) {", new: "err != nil || c.recorded(ctx, to) {", tests: "^TestAuditRecord$"},
		mutant{id: "cli-topology-recorded", fault: "nobody sees which queues topology gc has deleted", file: "cli/topology.go", old: "c.acts.entry.Add(name)", new: "_ = name", tests: "^TestTopologyIsRecorded$"},
		mutant{id: "cli-validate-declares", fault: "validate declares the exchange", file: validate, old: "env.Passive = true", new: "env.Passive = false", tests: "^TestValidateOfABroker$"},
		mutant{id: "cli-validate-delays", fault: "validate looks for no subscription", file: validate, old: "subs := v.c.conf.subscriptionsOf(name)", new: "subs := v.c.conf.subscriptionsOf(name)[:0]", tests: "^TestValidateOfABroker$"},
		mutant{id: "cli-validate-unbound", fault: "validate looks at no topic that waits", file: validate, old: "for i := range page.Records {\n\t\ttopics =", new: "for i := range page.Records[:0] {\n\t\ttopics =", tests: "^TestValidateOfABroker$"},
	)...)
	return append(all, group{pkg: "./cmd/waybill", server: true}.of(
		mutant{id: "cli-store-shared", fault: "two relays of a store have one store value", file: "cli/daemon.go", old: "served[e.store] = true", new: "served[e.store] = false", tests: "^TestTwoRelaysOfOneStore$"},
		mutant{id: "cli-pause-stays", fault: "a pause stays when the list of routes is taken out of the settings", file: "cli/reload.go", old: "ok && len(set.Routes) == 0", new: "!ok && len(set.Routes) == 0", tests: "^TestSignals$"},
		mutant{id: "cli-users-stay", fault: "a reload leaves the users of the dashboard as they are", file: "cli/reload.go", old: "err = d.page.SetUsers(users)", new: "_ = users", tests: "^TestUsersOfARunningDaemon$"},
		mutant{id: "cli-users-password", fault: "the file of a user's password is not looked at", file: "cli/reload.go", old: "l.Dashboard.Users[name].Password.Stamp()", new: "name", tests: "^TestUsersOfARunningDaemon$"},
		mutant{id: "cli-rekeyed", fault: "a key that was changed needs a restart", file: "cli/transform.go", old: "k.now.Store(f.now.Load())", new: "f.now.Load()", tests: "^TestSignedRoute$"},
		mutant{id: "cli-rekeyed-wrong", fault: "a key that is wrong takes the place of the old one", file: "cli/transform.go", old: "\t\t\tbad(k.path+\".\"+key, err.Error())\n\t\t\treturn\n", new: "\t\t\tbad(k.path+\".\"+key, err.Error())\n", tests: "^TestSignedRoute$"},
		mutant{id: "cli-rotated-rabbitmq", fault: "a rotated password of RabbitMQ is not read again", file: rabbit, old: "if err != nil || u.User == nil || u.Query", new: "if err != nil || u.User != nil || u.Query", tests: "^TestRotatedBrokerPassword$"},
	)...)
}
