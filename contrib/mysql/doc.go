// Package waybillmysql is a store for MySQL and MariaDB: an outbox and an inbox beside the application's own tables.
//
//	store, err := waybillmysql.Open("user:password@tcp(db:3306)/shop", waybillmysql.Options{Source: "/orders"})
//	defer store.Close()
//	err = store.Migrate(ctx) // when you deploy
//
//	tx, err := store.DB().BeginTx(ctx, nil)
//	defer tx.Rollback() // does nothing after the commit
//	_, err = tx.ExecContext(ctx, "INSERT INTO orders (id) VALUES (?)", order.ID)
//	_, err = store.Stage(ctx, tx, orderPlaced.Message(order))
//	err = tx.Commit()
//
// A [Store] is a core.OutboxStore, a waybill.Stager[*sql.Tx] and a core.Inbox[*sql.Tx]. It has the capabilities
// core.Presence, core.Checker, core.ClockSeeder, core.Cleaner, core.BatchInbox, core.Marker, core.InboxPurger,
// waybill.Canceller[*sql.Tx], admin.Migrator, admin.Inspector and admin.Redriver. It is no core.Waiter, since MySQL has
// no notifications: an idle relay reads four times a second by default, in 6 round trips with all else that it does;
// see relay.Options.PollMax.
//
// # Guarantees
//
// Stage writes with the caller's transaction: its rows are committed or rolled back with it. A page is read from one
// snapshot, and its transaction ids are exact: a transaction that stages first locks one of 256 rows for share, and the
// rows without a lock tell a relay which transactions have ended. Each method that writes is one transaction, which
// runs again if another one makes it fail. A session that was removed, or that lost the partition, changes nothing.
//
// The settle deletes published rows, and abandoned ones are kept with reason and error, unless Options.Retention says
// otherwise. A (route, id) is known as a duplicate for as long as its row exists. Names are compared by their bytes.
//
// The inbox's mark and the handler's writes are committed together. After a deadlock the server has rolled everything
// back, and would commit later statements one by one. [Store.Do] turns autocommit off and looks for the mark before it
// commits, so that a handler that swallows a deadlock has no effect; it runs again.
//
// A killed process is missed at once (GET_LOCK), if the connection leads to the server itself.
//
// # Concurrency
//
// A Store is safe for concurrent use, by any number of processes. No statement of the store waits for a lock that a
// transaction of the application holds on a record: such a record is left out, or answered as locked or busy, alone. A
// scheduled message whose neighbour in the index of ids is locked keeps its old number when it comes due.
//
// The store's own transactions are READ COMMITTED. Those of the application can have any level. Under REPEATABLE READ,
// [Store.Cancel] knows the messages of the transaction's snapshot only.
//
// # Ownership
//
// Close closes the two pools of [Open]. A transaction belongs to its caller: Stage never begins, commits or rolls back.
// [Store.DB] is for business transactions.
//
// # Limits
//
// MySQL 8.0.13 or MariaDB 10.6, and InnoDB. One primary: [Store.Check] refuses Galera, and several primaries
// (auto_increment_increment above 1). All connections lead to that primary; a fail-over to a server with another
// server_id counts as a restore. After a restore, raise the row "epoch" of waybill_meta.
//
// Rows must come from Stage: an INSERT by hand locks none of the 256 rows, so a relay can miss its row until the next
// sweep. XA transactions are not supported: some servers release such locks when they prepare one.
//
// The server ends a connection of the store's own pool that is silent for five seconds, so that a frozen process keeps
// no lock. With [New] there is one pool, and the server's wait_timeout decides.
//
// The wait of a statement is bounded by innodb_lock_wait_timeout; that error is an outage. A body and its row must fit
// in max_allowed_packet: Check compares it with Options.Limits.
//
// The outbox table has three indexes: its order, ids, keys. A record that waits for a time, expires, was held or has
// ended has a row in waybill_outbox_aside, too, and a dedupe key has one in waybill_outbox_dedupe; each costs a
// statement more. A relay reads in the order of staging, and so passes over the rows of other routes and relays, and
// over published ones that the retention keeps.
//
// [Open] lets the store's own pool send several statements at once, which takes about a third of the round trips.
// With [New] they go one by one, and published records are looked at before they are deleted.
//
// The stored mark of the clock is up to a second above the stamps that were settled.
//
// Not here: core.Waiter, core.Limiter, admin.BlockedKeys, admin.Purger, admin.DriftChecker. No control
// records of the kinds "from" and "decide" are written or read.
package waybillmysql

// StagerGrants are the privileges of a login that only stages messages that are due at once, in the database "shop":
// without times, expiries and dedupe keys. It stops neither a route nor the keys of others. Give it those on the
// application's own tables, too.
const StagerGrants = `
GRANT SELECT (id, route, source), INSERT (route, id, topic, source, k, slot, due_at, ends_at, ready_since, flags, hlc, dedupe_key, attrs, body) ON shop.waybill_outbox TO 'service'@'%';
GRANT SELECT ON shop.waybill_outbox_marks TO 'service'@'%';
`

// ProducerGrants are the privileges of a login that only stages and cancels. It is trusted with the messages of others:
// a dedupe key and a cancel change rows.
const ProducerGrants = `
GRANT SELECT, INSERT, UPDATE, DELETE ON shop.waybill_outbox TO 'service'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON shop.waybill_outbox_aside TO 'service'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON shop.waybill_outbox_dedupe TO 'service'@'%';
GRANT SELECT ON shop.waybill_outbox_marks TO 'service'@'%';
GRANT SELECT ON shop.waybill_outbox_partitions TO 'service'@'%';
GRANT SELECT ON shop.waybill_outbox_routes TO 'service'@'%';
GRANT INSERT ON shop.waybill_outbox_notices TO 'service'@'%';
GRANT SELECT ON shop.waybill_meta TO 'service'@'%';
`

// ServiceGrants are the privileges of a login that does everything but migrate: stage, relay, consume, operate.
const ServiceGrants = `
GRANT SELECT, INSERT, UPDATE, DELETE ON shop.waybill_outbox TO 'service'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON shop.waybill_outbox_aside TO 'service'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON shop.waybill_outbox_dedupe TO 'service'@'%';
GRANT SELECT, UPDATE ON shop.waybill_outbox_marks TO 'service'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON shop.waybill_outbox_members TO 'service'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON shop.waybill_outbox_fence TO 'service'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON shop.waybill_outbox_partitions TO 'service'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON shop.waybill_outbox_routes TO 'service'@'%';
GRANT SELECT, INSERT, DELETE ON shop.waybill_outbox_notices TO 'service'@'%';
GRANT SELECT, INSERT (act, phase, who, via, origin, action, target, filter, ids, body_before, body_after, result) ON shop.waybill_outbox_audit TO 'service'@'%';
GRANT SELECT, INSERT, DELETE ON shop.waybill_inbox TO 'service'@'%';
GRANT SELECT, INSERT, UPDATE ON shop.waybill_meta TO 'service'@'%';
`
