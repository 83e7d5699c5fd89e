// Package conns gives connections of pgx from either kind of pool: a pgxpool.Pool, or a sql.DB whose driver is pgx's.
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
// configuration. Over a sql.DB it is one of the pool's, which counts in SetMaxOpenConns until it ends: only so its
// password, TLS and hooks are those of the pool.
//
// # Limits
//
// A sql.DB of another driver, and one whose driver wraps pgx's, cannot be used: the first use says so. If the
// configuration of a sql.DB has a hook OnNotification, that gets the notifications of an own connection.
package conns
