// Package conns gives connections of pgx.
//
// # Guarantees
//
//   - A connection that was left in a transaction, busy or closed does not go back to its pool.
//   - What [Source.Own] returns never goes back: it ends with the caller's last word, or with the process.
//
// # Concurrency
//
// A [Source] is safe for concurrent use. A connection is for one goroutine at a time.
//
// # Ownership
//
// The pool stays the caller's to close. Over a pgxpool.Pool an own connection is beside the pool, made with its
// configuration.
//
// # Limits
//
// An own connection is not counted by the pool.
package conns
