// Package postgres keeps an outbox and an inbox in PostgreSQL 13 or later. It is the reference store of package core.
//
// An application stages with [Outbox.Stage] in its own pgx transaction, in the transactions of [Outbox.UnitOfWork], or
// over database/sql with [Outbox.SQL] or [NewSQLStager]; a relay reads and settles through the same [Outbox].
// [Migrations] creates the tables: waybill_outbox with those that begin with its name, and waybill_meta, in the schema
// "waybill", unless the options say otherwise. The database must be encoded in UTF-8.
//
// # Guarantees
//
//   - Stage and each method of [core.OutboxStore] are one round trip, for any number of messages. (The first Stage of a
//     process asks once more, to seed its clock. Removing a member takes one more. A Settle that meets a lock, or a row
//     that the database refuses, is sent again in halves.) Messages staged through [Outbox.UnitOfWork] go with the
//     COMMIT.
//   - No method of [core.OutboxStore] waits for a lock that a caller's transaction holds on a record.
//   - Our own transactions leave nothing in the session and end after ten seconds. They work through poolers that
//     share connections by transaction, if pgx does: set default_query_exec_mode to exec, or simple_protocol. Only
//     LISTEN does not; [Outbox.Wait] notices and polls.
//   - Times of schedules and retries come from the database's clock.
//   - Ids, keys, routes and topics are compared byte by byte (COLLATE "C"), in every locale of the database: no upgrade
//     of the system's locales makes an index wrong, and unique values stay unique.
//   - Deadlocks and serialisation failures of our own transactions are run again, at no cost to the message.
//
// # database/sql
//
// A service whose one pool is a *sql.DB (GORM, sqlx, ent, bun) makes its outbox with [NewSQLOutbox], its inbox with
// [NewSQLInbox], and migrates over [SQLDB]. The relay then takes pgx's connections out of that pool, which must have
// been opened with pgx's driver. It needs some for long: see [NewSQLOutbox] before you bound the pool. Only staging,
// and the inbox once its table is there, work with any driver: [NewSQLStager], [NewSQLInbox].
//
// # Records
//
// Each message has one row for each of its routes, all in one table. A row without a due time and without a settling
// time is ready. The sequence number is a column default, drawn after the transaction has its id. A trigger computes
// the slot of a row that brings none. So both hold for rows that are inserted by hand. The sequence must keep CACHE 1;
// [Outbox.Check] looks at that.
//
// An id that the program chose is in a unique index. To stage it a second time on a route is a no-op while its record
// exists: by default until it is published. An id that Waybill made is in an index only while the message needs one:
// scheduled, cancellable, waiting, held or settled.
//
// # Marks
//
// The marks of [core.ReadResult] are ids of top-level transactions. A read takes one snapshot for all its parts. It
// looks up the last number that was drawn. If numbers were drawn since the caller's last read, it then draws an id
// itself. The transactions that drew these numbers have lower ids. Two-phase commit and savepoints need nothing more.
// But a Stage, a row put in by hand, or a change that an owner must know of notifies a relay that sleeps. PostgreSQL
// refuses to prepare such a transaction: set Options.DisableNotify in all programs, relays among them.
//
// # Fence
//
// The fence is the member's row, locked FOR KEY SHARE, which a renewal does not wait for. Records are locked with SKIP
// LOCKED only.
//
// # Limits
//
// [Inbox], [SQLInbox] and the stores are limiters for consumers ([core.Limiter]). A limit is one row of the table
// waybill_inbox_limits, or of a table named after that of the inbox. Processes share a limit if they name the same
// table. A change compares the version of the row; no lock is held between two statements.
//
// # Cancelling messages
//
// A dedupe key belongs to one live message of its route and topic: until that is published, abandoned or cancelled. A
// second one is a duplicate; Staged says so, with the id of the live one. With Replace the newest wins instead.
//
// [Outbox.Cancel] cancels by id or by dedupe key. It can cancel scheduled messages, those that wait for a retry,
// and those that were staged as cancellable, which a dedupe key implies. A message that a relay holds cannot be
// cancelled: Cancel leaves it alone, and Replace takes the dedupe key from it. The relay waits for neither.
//
// All this is one statement in the caller's transaction, and costs nothing where it is not used. If a key may go on,
// its owner is told in the same transaction. Two transactions that cancel one message wait for each other. The
// database ends a deadlock between callers' transactions; Waybill does not run those again.
//
// Under REPEATABLE READ a message that changed hands is a serialisation failure: the caller runs its transaction again.
// Staging with dedupe keys reads only the rows in its way, so it is no such failure under SERIALIZABLE; replacing reads
// first.
//
// A cancelled record is deleted at once unless Options.Retention keeps it. Cancel only with an Outbox of the same
// Retention. The role needs the grants of a canceller.
//
// # Operators
//
// [Outbox.Inspect], [Outbox.List], [Outbox.Redrive], [Outbox.BlockedKeys], [Outbox.DecideHead] and [Outbox.Counts] use
// indexes and work in bounded steps: a page has a limit, and a budget of rows to look at.
//
// A filter of ids finds its rows by an index, and so does one of abandoned records by reason, or by that state alone.
// Other filters look through the records of each route in staging order, page by page.
//
// A record that is put back becomes ready at its place. A notice tells its owner, in the same transaction. A
// record that a relay holds stays with the relay: then a decision fails with waybill.ErrInFlight, and a redrive passes
// the record over.
//
// # Cleaning
//
// By default a published record is deleted by its settle, an abandoned one is kept for ever, and a cancelled one is
// gone with the transaction that cancelled it. Options.Retention says otherwise. [Outbox.Clean] deletes records that
// were kept for long enough, in batches. It abandons records that expired while they waited for a time, and due and
// expired ones in partitions without an owner; in other partitions the owner does. One process at a time cleans: the
// lease is a row of waybill_meta that ends by itself. When an abandoned record that blocks its key is deleted, the key
// goes on.
//
// # Upgrades
//
// Migrate first, then replace the programs one by one. A program works beside any newer schema, unless a migration says
// in its first line "-- compatible: N": from then on programs must know version N, and older ones are refused at their
// start, by Check, Seed and the first Stage, with what to do. Programs that run at that time are not told: end them
// first. All other migrations only add: tables, indexes, columns that are nullable or have a default. A program
// beside a schema that is too old says that the migrations must be run. [Outbox.Drift] lists every difference between
// the live schema and the one that this release makes; it reads the catalogs alone.
//
// # Presence
//
// [Outbox.Acquire] takes a session-level advisory lock on a connection of its own. It has proven that this connection
// is direct: a notification reached it. Others see at once when the lock is gone, and never wait for it. A server that
// was restarted since the member's latest renewal has lost all locks, and reports none as missing. The number of a lock
// is random and above 2^62: a program that takes advisory locks of 64 bits should stay below. There is no presence
// behind a pooler that shares connections by transaction, or with Options.DisableNotify.
//
// # Restores and failover
//
// Every page carries the timeline of the server and an epoch. A promoted standby has another timeline, and so has a
// restore to a point in time: members join anew. After a restore that keeps the timeline, such as of a file system's
// snapshot, call [Outbox.Restored]. Published records that came back are published again, for the inbox to recognise.
//
// # Rows put in by hand
//
// INSERT INTO waybill.waybill_outbox (topic, body) VALUES ('orders.placed', '{"id": 1}') is enough: the other columns
// have defaults. The trigger that computes the slot also notifies a relay that sleeps, unless the role may not read the
// sequence waybill_outbox_wake, or the row brings its slot. Such a row is found by the relay's next heartbeat, a third
// of its lease later (three seconds), or by the poll, within half a second to twenty. The default of source is
// [Options].Source of the first store that migrated the table. Its owner can change it; [Outbox.Drift] ignores it.
//
// # TLS
//
// The connection string of the pool decides: sslmode=verify-full and sslrootcert, with sslcert and sslkey for a client
// certificate. Wait's own connection uses the same configuration.
//
// # Concurrency
//
// Everything is safe for concurrent use, with one exception: one Wait at a time for each Outbox.
//
// # Ownership
//
// Pools and databases stay the caller's. An Outbox owns one connection, which Wait opens and which ends with Wait's
// context or [Outbox.Close], and one for each Acquire, which ends with its context. Over a pgx pool these are beside
// the pool; over a *sql.DB they are taken from it. Stage keeps no body and no header of its caller.
//
// # Limits
//
// Counts are exact up to 10,000 rows of a route and kind, and estimates above; published records that are kept are not
// counted, but passed over. Names of tables have at most 48 bytes. No name may hold {, nor may that of the schema.
package postgres
