// Package memory is a store in memory: an outbox, an inbox and a tiny table of strings for business writes, with
// transactions over all three. It is for tests and for programs that need no durability: nothing survives the process.
// It is the reference that other stores are compared with.
//
// A [Store] is an core.OutboxStore, a waybill.Stager[*Tx], a core.Inbox[*Tx], and has the capabilities core.Waiter,
// admin.Counter, waybill.Canceller[*Tx], admin.Inspector, admin.Redriver, admin.KeyKeeper and core.Cleaner, among
// others.
//
// # Guarantees
//
// The semantics are those of a database. What a transaction writes becomes visible at once and as a whole when it
// commits. A sequence number is drawn when a row is staged, not when its transaction commits: a rollback leaves a gap,
// and a record may appear after one with a greater number. A transaction draws its mark before its first number, so
// that the marks of a page are exact. Two transactions that stage the same (route, id) or dedupe key, withdraw the same
// message, or mark the same inbox key, meet: the second waits until the first has ended.
//
// The seven methods of core.OutboxStore wait for nobody: what a transaction has locked is answered as busy, or locked.
// The answers to the same calls are the same: nothing depends on a wall clock, if Options.Now is given, on goroutines,
// or on the order of a map.
//
// Published records are gone with their settle and abandoned ones are kept with reason and error, unless
// Options.Retention says otherwise; [Store.Clean] deletes what was kept for long enough, and abandons what expired
// while it waited. (route, id) is known as a duplicate for as long as its record exists.
//
// Whatever changes what the owner of a unit remembers tells it by a control record: cancelling and replacing, with the
// commit; the commands of operators and the cleaning, at once.
//
// # Concurrency
//
// A Store is safe for concurrent use; a [Tx] belongs to one goroutine at a time. No lock is held while anything waits,
// and all waiting is on channels and timers, so that a Store works under testing/synctest with virtual time.
//
// # Ownership
//
// Stage copies what it is given, and methods return copies. Nothing needs to be closed.
//
// # Limits
//
// Values written with [Tx.Put] have no isolation beyond read committed: the last commit wins. All data stays in memory,
// inbox marks, and what Options.Retention keeps, for as long as the Store lives. Reading, settling and staging take
// logarithmic time in the number of records. List and Redrive sort all records, and BlockedKeys visits all keys of a
// route.
package memory
