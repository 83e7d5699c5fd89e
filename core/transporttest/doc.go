// Package transporttest is the conformance suite for transports. An adapter's author fills in a [Harness], calls [Run]
// from a test, and learns which promise of core.Publisher and core.Subscriber is broken:
//
//	func TestConformance(t *testing.T) {
//		transporttest.Run(t, func(t *testing.T) transporttest.Harness {
//			h := transporttest.Of(newTransport(t))
//			h.Restart = restartBroker
//			return h
//		})
//	}
//
// An adapter of one direction sets Harness.Publisher and Harness.Reader, or Harness.Subscriber and Harness.Writer.
//
// # Guarantees
//
// The suite tests exactly what the transport's traits declare: a check of something that is not declared reports
// [ErrNotDeclared] and is skipped by Run. Every check is an ordinary function without package testing, so that a
// program can run it on a live broker; see [Checks]. The suite itself is tested: transports that are broken on purpose
// must each fail a named check.
//
// An adapter cannot crash the suite or hang it: a panic, a call that goes on after its context ended, and a result of
// the wrong shape are failures of the check. Only a panic in a goroutine of the adapter's own ends the test binary.
//
// # Concurrency
//
// Run makes one subtest a check, one after the other, each with a harness of its own. A newHarness that calls
// t.Parallel makes them run at the same time; [RunSpread] runs as many at once as it is given harnesses. [RunInBubble]
// runs each in a testing/synctest bubble, for transports that do no I/O.
//
// # Ownership
//
// A check closes the receivers that it opened, and some close the transport; the harness cleans up the rest. It must
// tolerate a second Close. Queues are left behind.
//
// # Limits
//
// Checks wait on real timers: up to 20 s for events that must happen, 300 ms for events that must not, and 2 s for
// calls over a cut link. Every check ends within [Timeout]. A HoldFor of more than 15 s is not waited for. Checks count
// on an undisturbed broker: a connection lost by accident can fail a check that forbids duplicates.
package transporttest
