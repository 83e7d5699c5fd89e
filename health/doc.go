// Package health answers probes over HTTP for programs that run relays and consumers: /livez, /readyz and /healthz.
//
//	handler, err := health.New(health.Options{
//		Engines: map[string]health.Checker{"orders": orderRelay, "billing": billingConsumer},
//		Deep: map[string]health.Checker{
//			"store": health.Store(outbox, 5*time.Minute),
//			"bus":   health.Transport(bus),
//		},
//	})
//	http.Handle("/", handler)
//
// # Guarantees
//
//   - /livez is 503 only when a restart helps: an engine hangs, or ended with an error. It never waits for a database
//     or a broker.
//   - /readyz is 503 while an engine does not work.
//   - /healthz asks the deep checks too: schema, broker, age of the backlog. It is 503 if a check failed. A degraded
//     part alone leaves it at 200.
//   - Each answer names the checks, and the causes of the failed ones. Texts hold no secrets and no payload.
//   - A question ends after Options.Timeout, also if a checker hangs. Probes that arrive meanwhile share its answer, so
//     that many of them cost as much as one.
//
// # Concurrency
//
// A handler is safe for concurrent use.
//
// # Ownership
//
// The handler keeps the maps of its Options; do not change them. It closes nothing.
//
// # Limits
//
// The text of a check has at most [core.MaxErrorBytes]. The handler asks for no password: listen where only your probes
// can reach it.
package health
