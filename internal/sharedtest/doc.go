// Package sharedtest has what tests of several packages share and what needs no server: a log that can be read while it
// is written, and golden files. Tests alone import it.
//
// # Guarantees
//
// None beyond the doc comments.
//
// # Concurrency
//
// A Log is safe for concurrent use.
//
// # Ownership
//
// Nothing is kept after a call.
//
// # Limits
//
// A Log keeps everything in memory.
package sharedtest
