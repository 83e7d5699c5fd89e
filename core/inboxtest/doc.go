// Package inboxtest is the conformance suite for inboxes. An adapter author calls [Run] from a test with a [Harness]
// that can write an effect in the inbox's transaction and count the committed ones. The suite knows no backend and
// compares no error texts. A single [Check] is a plain function that returns an error.
//
// # Guarantees
//
// Each check's comment names the promise and the requirement row. The suite is itself tested with deliberately broken
// inboxes: a named check must catch each of them.
//
// # Concurrency
//
// Checks of one harness run one after the other; some of them use the inbox from several goroutines, with several
// transactions at once. An inbox that allows one transaction at a time is fine.
//
// # Ownership
//
// The caller owns the harness and closes the resources that it opened. Checks leave marks of consumers with names of
// their own.
//
// # Limits
//
// A check that waits for a second transaction to meet the first gives it a tenth of a second; in a bubble of
// testing/synctest ([RunInBubble]) that takes no time.
package inboxtest
