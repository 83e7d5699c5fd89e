// Package storetest is the conformance suite for the side of a store that applications and operators use: staging,
// dedupe keys, replacing and cancelling, the order of sequences, waiting, cleaning and retention, inspecting,
// redriving, and the heads of blocked keys. Package outboxtest checks the side that the engine uses. An adapter author
// calls [Run] from a test with a [Harness] around the store. The capabilities that core.As finds decide which checks
// run. The suite knows no backend and compares no error texts.
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Harness { return newHarness(t) })
//	}
//
// [Benchmark] measures staging. A single [Check] is a plain function that returns an error, so that a program can run
// it against a live store too: every check works on routes of its own with names that no other check uses.
//
// In each check the suite plays the engine, as simply as possible: one member owns the check's routes, holds the
// records that it hands out, lets a key wait while a record of it is out, and carries out the decisions of operators.
//
// # Guarantees
//
// Each check's comment names the promise and the requirement row. The suite is itself tested with deliberately broken
// stores: for each check there is one at least that the check must catch.
//
// # Concurrency
//
// Checks of one harness run one after the other; some of them use the store from several goroutines. [RunSpread] runs
// checks of several harnesses side by side.
//
// # Ownership
//
// The caller owns the harness and closes the resources that it opened. Checks end the transactions they begin, make
// their members leave, and leave records on their own routes.
//
// # Limits
//
// Checks wait on real delays of a few hundred milliseconds, and one for the ten seconds after which an operator is told
// that no owner carries a decision out; in a bubble of testing/synctest ([RunInBubble]) those waits take no time. The
// suite accepts everything that a store is allowed to do: wake early, keep no abandoned record, let its only writer be
// busy.
package storetest
