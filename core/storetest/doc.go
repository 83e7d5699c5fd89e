// Package storetest is the conformance suite for outbox stores. An adapter author calls [Run] from a test with a
// [Harness] around the store; what the store promises in core.StoreTraits, and the capabilities that core.As finds, decide
// what is checked. The suite knows no backend and compares no error texts.
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Harness { return newHarness(t) })
//	}
//
// [Benchmark] runs the shared benchmarks. A single [Check] is a plain function that returns an error, so that a program
// can run it against a live store too: every check works on routes of its own with names that nobody else uses.
//
// # Guarantees
//
// Each check's comment names the promise and the requirement row. The suite is itself tested with deliberately broken
// stores, each of which one named check must catch.
//
// # Concurrency
//
// Checks of one harness run one after the other; some of them use the store from several goroutines. [RunSpread] runs
// checks of several harnesses side by side.
//
// # Ownership
//
// The harness belongs to the caller, who closes what it opened. Checks end the transactions they begin and leave
// records on their own routes.
//
// # Limits
//
// Checks wait on real leases and delays of a few hundred milliseconds; in a bubble of testing/synctest ([RunInBubble])
// those waits take no time. What a store may legitimately do (return fewer records than asked for, one record a key,
// More with no record) is accepted.
package storetest
