// Package mongoproxy gives FerretDB transactions, for tests. FerretDB accepts the commands of a transaction and commits
// each of them at once. The DocumentDB extension of PostgreSQL, on which FerretDB stands, can do better: its SQL
// functions take part in a transaction of PostgreSQL.
//
// A [Proxy] stands between clients and FerretDB. It passes on each command that belongs to no transaction. The commands
// of a transaction it executes itself, in a transaction of PostgreSQL with one snapshot (REPEATABLE READ).
//
// # Guarantees
//
// As in MongoDB, a transaction reads one snapshot and its own writes; a failed command ends it; a conflict is error 112
// with the label TransientTransactionError; a command of a transaction that has ended is error 251. A transaction ends
// when its client's connection closes, or when it lasts longer than [Options].Lifetime.
//
// # Concurrency
//
// A proxy serves any number of clients.
//
// # Ownership
//
// The caller closes the proxy. It owns neither FerretDB nor PostgreSQL.
//
// # Limits
//
// It is not MongoDB. A conflicting write waits some milliseconds before it fails, since PostgreSQL waits for locks.
// There is no replica set, so no fail-over, no change stream, no retryable write and no unknown result of a commit.
// It speaks OP_MSG, without compression.
package mongoproxy
