// Package sharedtest has what tests of several packages share and what needs no server: a log that can be read while
// it is written, golden files, a publisher, and an outbox store whose calls fail. Only tests import it.
//
// # Guarantees
//
// None beyond the doc comments.
//
// # Concurrency
//
// A Log and a Publisher are safe for concurrent use. Set the fields of a Store and of a Publisher before the first
// call.
//
// # Ownership
//
// A Publisher keeps the envelopes that it gets.
//
// # Limits
//
// A Log and a Publisher keep everything in memory.
package sharedtest
