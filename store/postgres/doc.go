// Package postgres keeps an outbox and an inbox in PostgreSQL 13 or later. It is the reference store.
//
// An application stages with [Outbox.Stage] in its own pgx transaction, in the transactions of [Outbox.UnitOfWork], or
// over database/sql with [Outbox.SQL] or [NewSQLStager]; a relay claims and settles through the same [Outbox]; a
// consumer's handlers write in the transactions of an [Inbox] or [SQLInbox]. [Migrations] creates the tables:
// waybill_outbox, waybill_inbox and waybill_meta in the schema "waybill", unless the options say otherwise.
//
// # Guarantees
//
//   - Stage, Claim, Settle and ExtendLeases are one round trip each, whatever the number of messages. (The first Stage
//     of a process asks once more, to seed its clock; a Claim that finds nothing looks up to four times.) What is staged
//     through [Outbox.UnitOfWork] goes with the COMMIT, and costs no round trip.
//   - A claim of a route in key order returns per key a contiguous prefix of what is due, and nothing of a key of which
//     another claim holds a record, a retry is waited for, or something earlier is left. Claims of one key exclude each
//     other by advisory locks on 64 hashed shards, taken and given back within the claim.
//   - Every settle compares the fencing token. Times of leases, schedules and retries come from the database's clock.
//   - Our own transactions are READ COMMITTED whatever the default is, and leave nothing in the session. They work
//     through poolers that share connections by transaction, if pgx does: set default_query_exec_mode to exec, or
//     simple_protocol. Only LISTEN does not; [Outbox.Wait] notices and polls.
//   - What a claim reads is bounded and served by partial indexes: settled, scheduled and leased rows, and the rows
//     behind a blocked key, do not slow others. A claim's update is nearly always HOT, so indexes stay small.
//   - Ids, keys, routes and topics are compared byte by byte (COLLATE "C"), whatever the database's locale: no upgrade of
//     the system's locales makes an index wrong, and what is unique stays so.
//   - Deadlocks and serialisation failures are run again, at no cost to the message.
//
// # Withdrawing messages
//
// A message with a dedupe key is the only live one with it on its route and topic: until it is published, abandoned or
// withdrawn, a second one is a duplicate, which Staged says together with the id of the live one. With Replace the newest
// wins instead. [Outbox.Cancel] withdraws by id or by dedupe key. All of it happens in the caller's transaction and in
// one statement, and costs nothing where it is not used. What a relay holds cannot be withdrawn: cancelling it leaves it
// alone; replacing it takes the dedupe key from it, so that the relay's settle waits for the caller's transaction. Two
// transactions that withdraw one message wait for each other; the database ends a deadlock among the callers'
// transactions, not Waybill. Under REPEATABLE READ a message that changed hands is a serialisation failure, for the caller
// to run again. Withdrawn records are deleted at once unless Options.Retention keeps them. Only an Outbox with the same
// Retention should withdraw, and the role needs the grants of a canceller.
//
// # Operators
//
// [Outbox.Inspect], [Outbox.List], [Outbox.Redrive], [Outbox.BlockedKeys], [Outbox.DecideHead] and [Outbox.Counts] go by
// indexes, in bounded steps: a page has a limit, and a budget of rows to look at. A filter of ids, or of abandoned
// records (by reasons, or only that state), finds its rows by an index; others are looked for in staging order, page by
// page. What is put back becomes due at once at its place: it holds back later messages of its key from the commit on,
// and the next claim finds it wherever that stands. A relay that holds a record keeps it: the decision is then
// core.ErrInFlight, or the redrive passes it over.
//
// # Cleaning
//
// By default a published record is deleted by its settle, an abandoned one is kept for ever, and a withdrawn one is gone
// with the transaction that withdrew it. Options.Retention says otherwise. [Outbox.Clean] deletes what has been kept for
// long enough, in batches, and abandons what expired while it waited (leased records are left to their relay); a relay
// calls it every minute. One process at a time cleans: the lease is a row of waybill_meta that ends by itself. When an
// abandoned record that blocks its key is deleted, the key goes on.
//
// # Upgrades
//
// Migrate first, then replace the programs one by one. A program works beside any newer schema, unless a migration says
// in its first line "-- compatible: N": from then on programs must know version N, and older ones are refused at their
// start, by Check, Seed and the first Stage, with what to do. Programs that run at that time are not told: end them
// first. All other migrations only add: tables, indexes, columns that are nullable or have a default. A program beside a
// schema that is too old says that the migrations must be run. [Outbox.Drift] lists every difference between the live
// schema and the one that this release makes; it reads the catalogs alone.
//
// # Restores and failover
//
// A database that went back in time needs nothing to be done, also under relays that run on: their positions are hints
// and find everything within some laps, leases end by themselves (a cleaner's lease that ends beyond reason counts as none), and
// the running clocks stay ahead of the stamps that came back. What had been published and came back is published again,
// for the inbox to recognise. Until the first lap has met such records, they may arrive in another order than before, if
// the sequence did not go back or was overtaken before the next claim; what had never arrived keeps its order, unless it
// was abandoned and came back as live. A large number of records that came back, of few keys, goes out at about a batch
// a lap at first; restart the relays to have it faster.
//
// # Rows put in by hand
//
// INSERT INTO waybill.waybill_outbox (topic, body) VALUES ('orders.placed', '{"id": 1}') is enough: the other columns
// have defaults. Such rows notify nobody and are found by the poll, within half a second.
//
// # Order
//
// Transactions that run at the same time take sequences in one order and may commit in the other. Two messages of one
// key keep their order if their transactions meet on a row before they stage, such as the row of the aggregate. What
// commits late is never skipped: it is found within a lap of the claims over the rows behind them, usually at once.
//
// # TLS
//
// The connection string of the pool says it all, as for every client: sslmode=verify-full, sslrootcert, and sslcert and
// sslkey for a client certificate. Wait's own connection uses the same configuration.
//
// # Concurrency
//
// Everything is safe for concurrent use, with one exception: one Wait at a time for each Outbox. Any number of
// processes may claim from one table.
//
// # Ownership
//
// Pools and databases stay the caller's. An Outbox owns one connection, which Wait opens and which ends with Wait's
// context or [Outbox.Close]. Bodies and headers that were passed to Stage are not kept.
//
// # Limits
//
// Staging an id again is a duplicate only for as long as its record exists: by default until it was published. Counts
// leave out published records that are kept. A claim takes at most 10,000 records. Order by HLC is not offered. Counts are exact up to
// 10,000 live rows a route and estimates above. Names of tables have at most 48 bytes. No name may hold {, nor may that of the schema.
package postgres
