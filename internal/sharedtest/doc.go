// Package sharedtest has the helpers that tests of several packages share and that need no server: a log that can be
// read while it is written, golden files, a publisher, small messages and the calls of a transport that must succeed,
// an outbox store whose calls fail, and one that knows its members. Only tests import it.
//
// # Guarantees
//
// None beyond the doc comments.
//
// # Concurrency
//
// A Log, a Publisher and a PresenceStore are safe for concurrent use. Set the fields of a Store, a PresenceStore and a
// Publisher before the first call.
//
// # Ownership
//
// A Publisher keeps the envelopes that it gets.
//
// # Limits
//
// A Log and a Publisher keep everything in memory.
package sharedtest
