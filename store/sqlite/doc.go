// Package sqlite is the embedded store behind the contract of package core: an outbox and an inbox in one
// SQLite file, in pure Go, without a server. Several processes of one machine may share the file.
//
// [Open] opens a file with the settings that the guarantees need and is the way to begin; [New] uses a *sql.DB of the
// application's own. A [Store] is an core.OutboxStore, a waybill.Stager[*sql.Tx], a core.Inbox[*sql.Tx], and has the
// capabilities core.Waiter, core.Checker, admin.Migrator, admin.DriftChecker, core.ClockSeeder, admin.Counter,
// core.Cleaner, admin.Inspector, waybill.Canceller[*sql.Tx], admin.Redriver and admin.KeyKeeper, among others.
//
// # Guarantees
//
// What Stage writes lives or dies with the caller's transaction. SQLite has one writer at a time, so the sequence is
// the order of commits: a page misses nothing up to its Last, and its marks say that nothing is under way. All that a
// page answers is of one snapshot. Each method that writes is one transaction. A session that was removed, or that
// lost the unit, changes nothing.
//
// Published rows are deleted by their settle and abandoned ones are kept with reason and error, unless
// Options.Retention says otherwise. The window in which a (route, id) is known as a duplicate is the time for which
// its row exists.
//
// Dedupe keys, replacing ([waybill.Replace]) and [Store.Cancel] act in the caller's transaction. Withdrawn records are
// deleted at once unless Options.Retention keeps them. Whoever changes what an owner remembers writes a control
// record: Cancel, Replace, Redrive, DecideHead and Clean do.
//
// [Store.Clean] deletes what was kept for long enough, and abandons what expired while it waited for a time or for
// somebody who serves its route; what is in line is its owner's. When an abandoned record that blocks its key is
// deleted, the key goes on.
//
// The epoch is a random number that the migration writes, and the row "epoch" of the meta table: raise it after a
// restore. A file that was put in the place of another is noticed by that number, and an older copy by the last
// sequence.
//
// A program works beside a newer schema, unless its meta table has a row "compatible" with a version that the program
// does not know: then Check and the first use refuse. Migrations only add otherwise. [Store.Drift] lists the
// differences between the file and what this release makes.
//
// Open sets WAL and synchronous=FULL: what was committed survives the process, the machine and a power cut, as far as
// the disk keeps its promises. With [New] that is up to the application.
//
// # Concurrency
//
// A Store is safe for concurrent use. Within a process its writes queue for their turn; between processes, and with
// business transactions, they wait for SQLite's lock, at most for Options.BusyTimeout, and then fail as an outage. So
// no record is ever locked alone, and no outcome is core.ErrBusy; but a transaction that stays open stops every
// other writer of the file, the renewals of members included. Keep transactions much shorter than a lease, and never
// call a network within one. Read, Meet without a session, and Due with nothing due take no lock.
//
// SQLite has no clock of its own. Due times and ages are measured by the clock of the process that asks; the
// processes share one machine, so they share its clock.
//
// Whoever waits looks at SQLite's data_version every few milliseconds on a connection of its own, which costs about ten
// microseconds and no lock, and at the tables only after another connection has committed.
//
// # Ownership
//
// Close closes the database if Open opened it. A transaction belongs to whoever began it: Stage never begins, commits
// or rolls back. [Store.DB] is for business transactions; with Open they begin immediate, so that reading before
// writing cannot fail for a lock.
//
// # Limits
//
// The file must be on a local disk; SQLite's locks do not work on network file systems. In-memory databases are
// refused by Open: use package store/memory. Do not open and close the file by other means (os.Open) in a process
// that uses it: that drops SQLite's POSIX locks.
//
// SQLite has no MD5, so that a row that plain SQL inserts has no slot. Leave it NULL: whoever reads the row computes
// it.
//
// What a transaction staged itself, due at once and not withdrawable, is in flight for a Cancel in the same
// transaction: SQLite does not tell it from what others may have read.
//
// There is no presence: a killed process costs its lease.
//
// Some errors (disk full, a cancelled write) make SQLite roll the whole transaction back by itself. If an inbox handler
// swallows such an error, what it writes afterwards is not part of the transaction any more; Do then reports an
// error, and the handler runs again. Return errors of the database.
package sqlite
