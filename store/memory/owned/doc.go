// Package owned is the outbox in memory behind the contract of package core/outbox. It is for tests and for programs
// that need no durability, and it is the reference that other stores are compared with.
//
// # Guarantees
//
// The semantics are those of a database with transactions. A sequence number is drawn when a row is staged, not when
// its transaction commits: a rollback leaves a gap, and a record may appear after one with a greater number. A
// transaction draws its mark before its first number, so that the marks of a page are exact. The answers to the same
// calls are the same: nothing depends on a wall clock, if Options.Now is given, on goroutines, or on the order of a
// map.
//
// # Concurrency
//
// A [Store] is safe for concurrent use; a [Tx] belongs to one goroutine at a time. Nothing ever waits: what another
// transaction has locked is answered with outbox.ErrBusy where a database would wait.
//
// # Ownership
//
// Stage copies what it is given, and methods return copies. Nothing needs to be closed.
//
// # Limits
//
// A dedupe key makes a record withdrawable, and nothing else: a second live one with it is not refused. An id that a
// transaction has cancelled can be staged anew when that one has committed. Abandoned records are never deleted.
package owned
