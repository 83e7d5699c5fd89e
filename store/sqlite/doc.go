// Package sqlite is the embedded store: an outbox and an inbox in one SQLite file, in pure Go, without a server. Several
// processes of one machine may share the file.
//
// [Open] opens a file with the settings that the guarantees need and is the way to begin; [New] uses a *sql.DB of the
// application's own. A [Store] is a core.OutboxStore, a core.Stager[*sql.Tx], a core.Inbox[*sql.Tx], and has the
// capabilities core.Waiter, core.LeaseExtender, core.Checker, core.Migrator, core.ClockSeeder, core.Counter, core.Inspector,
// core.Canceller[*sql.Tx], core.Redriver and core.KeyKeeper, among others.
//
// # Guarantees
//
// What Stage writes lives or dies with the caller's transaction. SQLite has one writer at a time, so the sequence is the
// order of commits, and claims cannot interleave: a claim is one transaction that holds the write lock for a bounded
// number of rows. Every claim has a fencing token that is larger than all before it, also after a backup was restored.
// Published rows are deleted by their settle and abandoned ones are kept with reason and error, unless Options.Retention
// says otherwise. The window in which a (route, id) is known as a duplicate is the time for which its row exists.
//
// Dedupe keys, replacing ([core.Replace]) and [Store.Cancel] act in the caller's transaction; with one writer no claim can
// come between. Withdrawn records are deleted at once unless Options.Retention keeps them.
//
// [Store.Clean] deletes what was kept for long enough and abandons what expired while it waited; a relay calls it every
// minute, and one process at a time cleans. When an abandoned record that blocks its key is deleted, the key goes on.
//
// A program works beside a newer schema, unless its meta table has a row "compatible" with a version that the program
// does not know: then Check, the first Stage and the first Claim refuse. Migrations only add otherwise. [Store.Drift]
// lists the differences between the file and what this release makes.
//
// Open sets WAL and synchronous=FULL: what was committed survives the process, the machine and a power cut, as far as
// the disk keeps its promises. With [New] that is up to the application.
//
// # Concurrency
//
// A Store is safe for concurrent use. Within a process its writes queue for their turn; between processes, and with
// business transactions, they wait for SQLite's lock, at most for Options.BusyTimeout, and then fail as an outage. A
// transaction that stays open therefore stops every other writer of the file, the relay and the inbox included: keep
// transactions short and never call a network within one. An inbox handler holds the write lock while it runs, so
// handlers of one file run one at a time.
//
// SQLite has no clock of its own. Due times, leases and ages are measured by the clock of the process that asks; the
// processes share one machine, so they share its clock.
//
// A sleeping relay looks at SQLite's data_version every few milliseconds on a connection of its own, which costs about
// ten microseconds and no lock, and at the tables only after another connection has committed.
//
// # Ownership
//
// Close closes the database if Open opened it. A transaction belongs to whoever began it: Stage never begins, commits
// or rolls back. [Store.DB] is for business transactions; with Open they begin immediate, so that reading before
// writing cannot fail for a lock.
//
// # Limits
//
// The file must be on a local disk; SQLite's locks do not work on network file systems. In-memory databases are refused
// by Open: use package store/memory. Do not open and close the file by other means (os.Open) in a process that uses it:
// that drops SQLite's POSIX locks.
//
// BlockedKeys goes over the keys of all live messages of the route, a thousand a step; the other operations of operators
// look at no more rows than their page allows.
//
// Some errors (disk full, a cancelled write) make SQLite roll the whole transaction back by itself. If an inbox handler
// swallows such an error, what it writes afterwards is not part of the transaction any more; Do then reports an error,
// and the handler runs again. Return errors of the database.
package sqlite
