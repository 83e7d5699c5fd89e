// Package schema creates, upgrades, checks and removes the tables of the outbox and the inbox, and puts the names that
// the options choose into SQL.
//
// # Guarantees
//
//   - Migrations are embedded files, numbered, applied in order in one transaction under a lock. Each part keeps its
//     version in the table waybill_meta.
//   - A program works beside a schema that is newer, unless a migration says otherwise in its first line.
//   - [Migrations.Drift] reads the catalogs alone and needs no permission but to connect.
//
// # Concurrency
//
// Everything is safe for concurrent use. Several processes may migrate at once.
//
// # Ownership
//
// Connections are the caller's.
//
// # Limits
//
// Names of tables have at most 48 bytes. No name may hold {.
package schema
