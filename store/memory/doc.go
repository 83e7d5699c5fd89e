// Package memory is a store in memory, for tests and for programs that need no durability.
//
//	store, err := memory.New(memory.Options{Source: "/orders"})
//	tx := store.Begin()
//	defer tx.Rollback() // does nothing after the commit
//	tx.Put("order/17", "placed")
//	_, err = store.Stage(ctx, tx, orderPlaced.Message(order))
//	err = tx.Commit()
//
// It has an outbox, an inbox and a table of strings for business writes, with transactions over all three. Nothing
// survives the process. Other stores are compared with it.
//
// A [Store] is a core.OutboxStore, a waybill.Stager[*Tx] and a core.Inbox[*Tx]. It has the capabilities core.Waiter,
// admin.Counter, waybill.Canceller[*Tx], admin.Inspector, admin.Redriver, admin.BlockedKeys and core.Cleaner, among
// others. It is also a core.Limiter, for limits within one process.
//
// # Guarantees
//
// The semantics are those of a database. The writes of a transaction become visible at once and as a whole when it
// commits. A sequence number is drawn when a row is staged, not when its transaction commits: a rollback leaves a gap,
// and a record can appear after one with a greater number. A transaction draws its id before its first number, so the
// transaction ids of a page are exact. Two transactions conflict if they stage the same (route, id) or dedupe key,
// cancel the same message, or mark the same inbox key: the second waits until the first has ended.
//
// The seven methods of core.OutboxStore never wait for a transaction: a record that a transaction has locked is
// reported as busy, or locked. The same calls get the same answers: with Options.Now nothing depends on a wall clock,
// on goroutines, or on the order of a map.
//
// The settle deletes published records, and abandoned ones are kept with reason and error, unless Options.Retention
// says otherwise. [Store.Clean] deletes records whose retention has expired, and abandons records that expired while
// they waited. (route, id) is known as a duplicate for as long as its record exists.
//
// A change of a record that the owner of its partition remembers tells that owner by a notice: cancelling and
// replacing with the commit, the commands of operators and the cleaning at once.
//
// # Concurrency
//
// A Store is safe for concurrent use; a [Tx] belongs to one goroutine at a time. No lock is held during a wait, and all
// waiting is on channels and timers, so a Store works under testing/synctest with virtual time.
//
// # Ownership
//
// Stage copies its arguments, and methods return copies. Nothing needs to be closed.
//
// # Limits
//
// Values written with [Tx.Put] have no isolation beyond read committed: the last commit wins. All data stays in memory
// for as long as the Store lives, including inbox marks and the records that Options.Retention keeps. Reading, settling
// and staging take logarithmic time in the number of records. List and Redrive sort all records, and BlockedKeys visits
// all keys of a route.
package memory
