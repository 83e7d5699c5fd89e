package main

// shown are faults of the dashboard.
func shown() []mutant {
	const actions, guard, messages, brake = "dashboard/actions.go", "dashboard/guard.go", "dashboard/messages.go", "dashboard/brake.go"
	return group{pkg: "./dashboard"}.of(
		mutant{id: "dashboard-purge-next", fault: "a purge does only its first step", file: actions, old: "if step.Next == 0 {", new: "if step.Next >= 0 {", tests: "^TestActionsOnManyMessages$"},
		mutant{id: "dashboard-way-in", fault: "without users everybody comes in", file: "dashboard/rights.go", old: "case d.opts.Open:", new: "case len(d.opts.Users) == 0:", tests: "^TestWithoutUsersTheTokenIsTheWayIn$"},
		mutant{id: "dashboard-any-token", fault: "any token is a way in", file: guard, old: "if same(q.Get(\"token\"), d.token) {", new: "if q.Get(\"token\") != \"\" {", tests: "^TestWithoutUsersTheTokenIsTheWayIn$"},
		mutant{id: "dashboard-token-stays", fault: "the token stays in the address", file: guard, old: "	q.Del(\"token\")\n", new: "", tests: "^TestTheTokenDoesNotStayInTheAddress$"},
		mutant{id: "dashboard-host", fault: "a name that leads to this machine passes as its own", file: guard, old: `return err == nil || name == "localhost"`, new: `return err == nil || name != ""`, tests: "^TestHosts$"},
		mutant{id: "dashboard-hosts", fault: "a name beside those of the options passes", file: guard, old: "if len(o.Hosts) > 0 {", new: "if len(o.Hosts) > 5 {", tests: "^TestHosts$"},
		mutant{id: "dashboard-listing", fault: "the folder of the files is listed", file: "dashboard/dashboard.go", old: "GET /static/{file}", new: "GET /static/", tests: "^TestStaticFilesAreNotListed$"},
		mutant{id: "dashboard-right-preview", fault: "a preview asks for no right", file: actions, old: "	if err := demand(r, a.right()); err != nil {\n		return err\n	}\n	data, err := d.dryRun", new: "	data, err := d.dryRun", tests: "^TestRights$"},
		mutant{id: "dashboard-right-edit", fault: "an edit takes the right to act only", file: actions, old: "return RightEdit", new: "return RightAct", tests: "^TestRights$"},
		mutant{id: "dashboard-seal-user", fault: "one user does what another one was shown", file: actions, old: "s.token, s.via, s.user, sealed", new: "s.token, sealed", tests: "^TestRights$"},
		mutant{id: "dashboard-edit-many", fault: "one body is for many messages", file: actions, old: "if len(f.IDs)+len(f.Positions) == 0 {", new: "if f.IsZero() {", tests: "^TestEditsAreForOneMessageThatIsShown$"},
		mutant{id: "dashboard-edit-blind", fault: "a body that is hidden is edited", file: actions, old: "if !d.editable(&p) {", new: "if false {", tests: "^TestEditsAreForOneMessageThatIsShown$"},
		mutant{id: "dashboard-edit-other", fault: "an edit takes another message than the one shown", file: actions, old: "if hashOf(p.Envelope.Body) != a.Edit.Before {", new: "if false {", tests: "^TestEditOfAnotherBody$"},
		mutant{id: "dashboard-begin", fault: "nothing is logged before an act begins", file: actions, old: `"event", "dashboard.begin"`, new: `"event", "dashboard.begun"`, tests: "^TestEditsAreInTheLog$"},
		mutant{id: "dashboard-proxy-from", fault: "everybody can be a proxy's user", file: "dashboard/rights.go", old: "if p.UserHeader == \"\" || !p.has(r.RemoteAddr) {", new: "if p.UserHeader == \"\" || r.RemoteAddr == \"\" {", tests: "^TestUsersOfAProxy$"},
		mutant{id: "dashboard-proxy-twice", fault: "of two names of a user the first counts", file: "dashboard/rights.go", old: "len(names) != 1 ||", new: "len(names) == 0 ||", tests: "^TestUsersOfAProxy$"},
		mutant{id: "dashboard-brake", fault: "guesses of a password have not to wait", file: brake, old: "at.wrong >= free {", new: "at.wrong >= 1000*free {", tests: "^TestGuessesAreSlow$"},
		mutant{id: "dashboard-brake-double", fault: "the wait does not double", file: brake, old: "firstDelay<<min(at.wrong-free, 20)", new: "firstDelay<<min(at.wrong-free, 0)", tests: "^TestGuessesAreSlow$"},
		mutant{id: "dashboard-brake-address", fault: "a client that tries many names has not to wait", file: brake, old: "b.count(ofAddress, freeOfAddress, now)", new: "_ = ofAddress", tests: "^TestGuessesOfManyNamesAreSlow$"},
		mutant{id: "dashboard-brake-network", fault: "each address of a network of IPv6 counts alone", file: brake, old: "addr.Prefix(64)", new: "addr.Prefix(128)", tests: "^TestGuessesOfManyNamesAreSlow$"},
		mutant{id: "dashboard-brake-bound", fault: "the counts of guesses have no bound", file: brake, old: "	delete(b.of, first)\n", new: "	_ = first\n", tests: "^TestCountsOfGuessesAreBounded$"},
		mutant{id: "dashboard-queue", fault: "any number of passwords wait to be compared", file: brake, old: "> maxComparing+maxQueued {", new: "> 100*maxQueued {", tests: "^TestFewPasswordsAreComparedAtATime$"},
		mutant{id: "dashboard-logout", fault: "a copy of the cookie lives on after the logout", file: "dashboard/session.go", old: "cookie: value}, !ended", new: "cookie: value}, !ended || true", tests: "^TestLogoutEndsEveryCopy$"},
		mutant{id: "dashboard-logout-full", fault: "an ended session comes back when the memory is full", file: "dashboard/session.go", old: "		s.init()\n", new: "		clear(s.ended)\n", tests: "^TestEndedSessionsDoNotComeBack$"},
		mutant{id: "dashboard-logout-stream", fault: "the stream of an ended session goes on", file: "dashboard/overview.go", old: "!goesOn {", new: "!goesOn && false {", tests: "^TestLogoutEndsStreams$"},
		mutant{id: "dashboard-cookie-proxy", fault: "a cookie behind a proxy that ends TLS is not secure", file: "dashboard/session.go", old: "d.opts.Proxy.TLS && d.opts.Proxy.has(r.RemoteAddr)", new: "false", tests: "^TestCookiesOfHTTPS$"},
		mutant{id: "dashboard-refused", fault: "a refused action is not logged", file: "dashboard/errors.go", old: "r.Method == http.MethodPost && status/100 == 4", new: "r.Method == http.MethodPut && status/100 == 4", tests: "^TestRefusedActionsAreInTheLog$"},
		mutant{id: "dashboard-audit", fault: "an act is done although its begin cannot be recorded", file: "admin/audit/audit.go", old: "	if err != nil {\n		return fmt.Errorf(\"nothing", new: "	if err != nil && ctx.Err() != nil {\n		return fmt.Errorf(\"nothing", tests: "^TestActsAreInTheAuditRecord$"},
		mutant{id: "dashboard-audit-queue", fault: "an act on a queue is in no audit record", file: actions, old: "core.As[audit.Recorder](b.Store); ok {", new: "core.As[audit.Recorder](b.Store); ok && !onQueue {", tests: "^TestActsAreInTheAuditRecord$"},
		mutant{id: "dashboard-token", fault: "a form without a valid token is accepted", file: guard, old: "if !ok || subtle.Con", new: "if !ok && subtle.Con", tests: "^TestForgedRequests$"},
		mutant{id: "dashboard-seal", fault: "what was not shown is done", file: actions, old: "if !hmac.Equal(", new: "if false && !hmac.Equal(", tests: "^TestOnlyWhatWasShownIsDone$"},
		mutant{id: "dashboard-search", fault: "a search for rare messages does not end", file: messages, old: "|| time.Since(began) > d.timeouts.search {", new: "|| time.Since(began) > 100*d.timeouts.search {", tests: "^TestSearchesEnd$"},
		mutant{id: "dashboard-steps", fault: "the steps of a search do not grow", file: messages, old: "min(2*p.Budget, admin.MaxPageBudget)", new: "min(p.Budget, admin.MaxPageBudget)", tests: "^TestSearchesEnd$"},
		mutant{id: "dashboard-shared", fault: "each viewer asks the store", file: "dashboard/state.go", old: "now.Sub(d.state.at) >= freshFor", new: "now.Sub(d.state.at) >= 0", tests: "^TestViewersShareTheQuestions$"},
		mutant{id: "dashboard-waits", fault: "the page of a message does not say why it waits", file: messages, old: "data.Waits, data.Other = why.String(), why.Other;", new: "data.Other = why.Other;", tests: "^TestWhyItWaits$"},
		mutant{id: "dashboard-session-password", fault: "a session outlives the password that began it", file: "dashboard/session.go", old: "s.sign(\"session\", payload, s.passwordOf(strings.TrimPrefix(who, member)))", new: "s.sign(\"session\", payload, strings.TrimPrefix(who, member))", tests: "^TestUsersAreReplaced$"},
	)
}
