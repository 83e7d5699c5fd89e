// Package pipetx is a transaction of pgx that saves round trips: its BEGIN goes with the first statement, and queued
// statements go with its COMMIT.
//
// # Guarantees
//
//   - A [Tx] is a pgx.Tx like any other, with savepoints and the connection's default isolation, except that Commit is
//     refused: [Tx.End] commits.
//   - The BEGIN goes with an Exec or a QueryRow that has arguments. Other first statements are sent after it.
//   - After an error the server skips the rest: the queued statements are committed with all others, or none is.
//   - After the end nothing reaches the connection.
//
// # Concurrency
//
// As a pgx.Tx it is for one goroutine at a time. The end waits for a statement that another goroutine still runs.
//
// # Ownership
//
// The connection stays the caller's. A transaction whose end failed may be open still: the caller rolls it back, and
// does not give a connection back that is not idle.
//
// # Limits
//
// The answers of queued statements are not seen. A transaction that has used LargeObjects takes a round trip more.
package pipetx
