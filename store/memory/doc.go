// Package memory is a store in memory: an outbox, an inbox and a tiny table of strings for business writes, with
// transactions over all three. It is for tests and for programs that need no durability: nothing survives the process.
//
// A [Store] is a core.OutboxStore, a core.Stager[*Tx], a core.Inbox[*Tx], and has the capabilities core.Waiter,
// core.LeaseExtender, core.Counter, core.Canceller[*Tx], core.Inspector, core.Redriver and core.KeyKeeper, among others.
//
// # Guarantees
//
// The semantics are those of a database. What a transaction writes becomes visible at once and as a whole when it
// commits; the sequence is given then, so that it follows the order of commits and, within a transaction, of staging.
// Two transactions that stage the same (route, id) or dedupe key, withdraw the same message, or mark the same inbox key,
// meet: the second waits until the first has ended. Leases have tokens, expire by the store's clock, and an expired one that is taken over counts as a crash.
// Per-key order, best effort and HLC order are kept as core.OutboxStore says. Published records are gone with their
// settle and abandoned ones are kept with reason and error, unless Options.Retention says otherwise; [Store.Clean]
// deletes what was kept for long enough, and abandons what expired while it waited. (route, id) is known as a duplicate
// for as long as its record exists.
//
// # Concurrency
//
// A Store is safe for concurrent use; a [Tx] belongs to one goroutine at a time. No lock is held while anything waits,
// and all waiting is on channels and timers, so that a Store works under testing/synctest with virtual time.
//
// # Ownership
//
// Stage copies what it is given and Claim returns copies. Nothing needs to be closed.
//
// # Limits
//
// Values written with [Tx.Put] have no isolation beyond read committed: the last commit wins. All data stays in memory,
// inbox marks, and what Options.Retention keeps, for as long as the Store lives. Claims, settles and staging take logarithmic time
// in the number of records, apart from topics that a claim skips, which it steps over. List, Redrive, BlockedKeys and
// DecideHead sort or visit all records.
package memory
