// Package limitertest is the conformance suite for limiters. An adapter author calls [Run] from a test with two
// limiters that share their limits, as two processes would. The suite knows no backend and compares no error texts. A
// single [Check] is a plain function that returns an error.
//
// # Guarantees
//
// Each check's comment names the promise. The suite is itself tested with deliberately broken limiters: a named check
// must catch each of them.
//
// # Concurrency
//
// Checks run one after the other; some of them call both limiters from several goroutines.
//
// # Ownership
//
// The caller owns the limiters. Checks leave limits with names of their own.
//
// # Limits
//
// A check that needs the clock to go on waits for a twentieth of a second; in a bubble of testing/synctest that takes
// no time. The behaviour in a crash is not tested.
package limitertest
