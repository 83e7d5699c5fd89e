// Package outboxtest is the conformance suite for stores of the contract in core. An adapter author calls [Run]
// from a test with a [Harness] around the store. The store's core.StoreTraits and the optional interfaces of the
// harness decide which checks run. The suite knows no backend, needs no engine, and compares no texts.
//
//	func TestConformance(t *testing.T) {
//		outboxtest.Run(t, func(t *testing.T) outboxtest.Harness { return newHarness(t) })
//	}
//
// A single [Check] is a plain function that returns an error, so that a program can run it against a live store too:
// every check works on a route of its own, with a name and with sessions that no other check uses.
//
// # Guarantees
//
// Each check's comment names the damage that a store without the promise does. The suite is itself tested with
// deliberately broken stores: for each check there is one at least that the check must catch.
//
// # Concurrency
//
// Checks of one harness can run side by side, except those that set the database back. Many use the store from several
// goroutines. If the harness can open a second store on the same data, half of the members use that one.
//
// # Ownership
//
// The caller owns the harness and closes the resources that it opened. Checks end the transactions they begin, make
// their sessions leave, and leave records on their own routes.
//
// # Limits
//
// Checks wait on real delays of a few hundred milliseconds, unless the harness has a [Clock]; in a bubble of
// testing/synctest ([RunInBubble]) those waits take no time. A call that must not wait for a lock has ten seconds.
// The suite accepts everything that a store is allowed to do: return fewer records than asked for with More set, ignore
// Skip and Leave, keep published records.
package outboxtest
