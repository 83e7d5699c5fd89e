package main

// shown are faults of the dashboard.
func shown() []mutant {
	const actions, guard, messages = "dashboard/actions.go", "dashboard/guard.go", "dashboard/messages.go"
	return group{pkg: "./dashboard"}.of(
		mutant{id: "dashboard-purge-next", fault: "a purge does only its first step", file: actions, old: "if step.Next == 0 {", new: "if step.Next >= 0 {", tests: "^TestActionsOnManyMessages$"},
		mutant{id: "dashboard-proxy", fault: "a proxy that sets X-Real-Ip only passes as this machine", file: guard, old: `"X-Real-Ip", "Via"`, new: `"Via"`, tests: "^TestWithoutUsersOnlyThisMachineMayLook$"},
		mutant{id: "dashboard-host", fault: "a name that leads to this machine passes as this machine", file: guard, old: `host != "localhost" && (err != nil || !ip.IsLoopback())`, new: `host == "" && (err != nil || !ip.IsLoopback())`, tests: "^TestWithoutUsersOnlyThisMachineMayLook$"},
		mutant{id: "dashboard-token", fault: "a form without a valid token is accepted", file: guard, old: "if !ok || subtle.Con", new: "if !ok && subtle.Con", tests: "^TestForgedRequests$"},
		mutant{id: "dashboard-seal", fault: "what was not shown is done", file: actions, old: "if !hmac.Equal(", new: "if false && !hmac.Equal(", tests: "^TestOnlyWhatWasShownIsDone$"},
		mutant{id: "dashboard-search", fault: "a search for rare messages does not end", file: messages, old: "|| time.Since(began) > d.timeouts.search {", new: "|| time.Since(began) > 100*d.timeouts.search {", tests: "^TestSearchesEnd$"},
		mutant{id: "dashboard-steps", fault: "the steps of a search do not grow", file: messages, old: "min(2*p.Budget, admin.MaxPageBudget)", new: "min(p.Budget, admin.MaxPageBudget)", tests: "^TestSearchesEnd$"},
		mutant{id: "dashboard-shared", fault: "each viewer asks the store", file: "dashboard/state.go", old: "now.Sub(d.state.at) >= freshFor", new: "now.Sub(d.state.at) >= 0", tests: "^TestViewersShareTheQuestions$"},
		mutant{id: "dashboard-waits", fault: "the page of a message does not say why it waits", file: messages, old: "data.Waits, data.Other = why.String(), why.Other;", new: "data.Other = why.Other;", tests: "^TestWhyItWaits$"},
	)
}
