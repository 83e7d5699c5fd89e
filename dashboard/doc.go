// Package dashboard is a page for operators. It shows the state of outboxes and queues, lists the problems, and offers
// the actions against them.
//
//	page, err := dashboard.New(dashboard.Options{
//		Outboxes: []dashboard.Outbox{{Name: "shop", Store: store, Relay: relay}},
//		Queues:   []dashboard.Queue{{Name: "billing.orders", Parked: bus}},
//		Metrics:  reader,
//	})
//	http.Handle("/waybill/", page) // with Options.Path "/waybill"
//
// # Guarantees
//
//   - Every value that comes from outside is escaped. No script or style stands in a page, and the Content-Security-
//     Policy allows none, so what a message holds is shown and never executed.
//   - Each action is a POST with a token of the session, from the page's own origin. It shows its effect first, asks,
//     and leaves lines in the log: event=dashboard.begin and, with its result, dashboard.action.
//   - A user needs a password, the token of SignInURL, or a proxy that names the user, unless Open.
//   - With ReadOnly no action exists. Without ShowBodies no body leaves the process.
//   - A page asks a store a bounded number of bounded questions. All viewers share the answers on the overview: at most
//     one set of questions in two seconds. The list of members is asked at most once in five seconds.
//   - Looking joins nothing, renews nothing and takes no lock that others wait for.
//
// # Concurrency
//
// A Dashboard is safe for concurrent use.
//
// # Ownership
//
// It keeps the Options, and changes and closes nothing in them.
//
// # Limits
//
// A page shows at most 100 records, and a body of at most 256 KiB. The charts reach back ten minutes, while a browser
// looks or Run runs. Sessions end after twelve hours, at the logout, and when the process ends.
package dashboard
