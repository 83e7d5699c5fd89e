// Package sqlite is the embedded store: an outbox and an inbox in one SQLite file, in pure Go, without a server.
// Several processes of one machine can share the file.
//
//	store, err := sqlite.Open(ctx, "shop.db", sqlite.Options{Source: "/orders", AutoMigrate: true})
//	defer store.Close(ctx)
//
//	tx, err := store.DB().BeginTx(ctx, nil)
//	defer tx.Rollback() // does nothing after the commit
//	_, err = tx.ExecContext(ctx, "INSERT INTO orders (id) VALUES (?)", order.ID)
//	_, err = store.Stage(ctx, tx, orderPlaced.Message(order))
//	err = tx.Commit()
//
// [Open] opens a file with the settings that the guarantees need. [New] uses a *sql.DB of the application, and
// [Migrations] creates the tables as a step of the deployment.
//
// A [Store] is a core.OutboxStore, a waybill.Stager[*sql.Tx] and a core.Inbox[*sql.Tx]. It has the capabilities
// core.Waiter, core.Checker, admin.Migrator, admin.DriftChecker, core.ClockSeeder, admin.Counter, core.Cleaner,
// admin.Inspector, waybill.Canceller[*sql.Tx], admin.Redriver and admin.BlockedKeys, among others. It is also a
// core.Limiter, for consumers on one machine.
//
// # Guarantees
//
// Stage writes with the caller's transaction: its rows are committed or rolled back with it, if they are in the same
// file. Connections with an attached file are refused, since SQLite commits files with a WAL one after the other.
// SQLite has one writer at a time, so the sequence is the order of commits: a page misses nothing up to its Last, and
// its transaction ids say that no transaction runs. A page is read from one snapshot. Each method that writes is one
// transaction. A session that was removed, or that lost the partition, changes nothing.
//
// The settle deletes published rows, and abandoned ones are kept with reason and error, unless Options.Retention says
// otherwise. A (route, id) is known as a duplicate for as long as its row exists.
//
// Dedupe keys, replacing ([waybill.Replace]) and [Store.Cancel] act in the caller's transaction. Cancelled records are
// deleted at once unless Options.Retention keeps them. Cancel, Replace, Redrive, DecideHead and Clean write a control
// record when they change a record that an owner remembers.
//
// [Store.Clean] deletes records whose retention has expired. It abandons records that expired while they waited for a
// time, or for a member that serves their route; other ready records are left to their owner. When an abandoned record
// that blocks its key is deleted, the key goes on.
//
// The epoch has two parts: a random number that the migration writes, and the row "epoch" of the meta table. Raise that
// row after a restore. The random number reveals a file that was put in the place of another, and the last sequence
// reveals an older copy.
//
// A program works with a newer schema, unless the meta table has a row "compatible" with a version that the program
// does not know: then Check and the first use refuse. All other migrations only add. [Store.Drift] lists the
// differences between the file and the schema of this release.
//
// Open sets WAL and synchronous=FULL: committed data survives the process, the machine and a power cut, if the disk
// keeps its promises. With [New] the application sets them, and Check refuses less, synchronous=NORMAL included.
//
// # Concurrency
//
// A Store is safe for concurrent use. Within a process its writes queue for their turn. Between processes, and with
// business transactions, they wait for SQLite's lock, at most for Options.BusyTimeout, and then fail as an outage. So
// no record is ever locked alone, and no outcome is core.ErrLocked. But a transaction that stays open stops every other
// writer of the file, the renewals of members included. Keep transactions much shorter than a lease, and never call a
// network within one. Read, Heartbeat without a session, and Due with nothing due take no lock.
//
// SQLite does not queue processes. On a slow disk, a process that writes without a pause can keep another one waiting
// for longer than five seconds: then raise Options.BusyTimeout, or let one process write.
//
// SQLite has no clock of its own. Due times and ages are measured by the clock of the calling process. The processes
// share one machine, so they share its clock.
//
// Wait looks at SQLite's data_version every few milliseconds on a connection of its own, which costs about ten
// microseconds and no lock. It looks at the tables only after another connection has committed.
//
// # Ownership
//
// Close closes the database if Open opened it. A transaction belongs to its caller: Stage never begins, commits or
// rolls back. [Store.DB] is for business transactions; with Open they begin immediate, so that reading before writing
// cannot fail for a lock.
//
// # Limits
//
// The file must be on a local disk; SQLite's locks do not work on network file systems. Open refuses in-memory
// databases: use package store/memory. Do not open and close the file by other means (os.Open) in a process that uses
// it: that drops SQLite's POSIX locks.
//
// SQLite has no MD5, so a row that plain SQL inserts has no slot. Leave it NULL: the reader computes it.
//
// A message that the same transaction staged, due at once and not cancellable, is in flight for Cancel: SQLite does
// not tell it from a message that others can have read.
//
// There is no presence: after a killed process the others wait for its lease.
//
// Some errors (disk full, a cancelled write) make SQLite roll back the whole transaction by itself. If an inbox handler
// swallows such an error, its later writes are not part of the transaction. Do then reports an error, and the handler
// runs again. Return errors of the database.
package sqlite
