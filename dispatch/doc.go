// Package dispatch hands out the records of an outbox, in order, one owner at a time. Relays and table queues share it.
//
// A [Dispatcher] is one member of an outbox. It owns partitions of its routes. It reads them in staging order, hands
// out records, and stores their outcomes. It knows neither database nor clock: it says which calls a store should get
// ([Dispatcher.Calls]), takes in the answers ([Dispatcher.Done]), and is told the time with each.
//
// The Dispatcher is made of parts, each with a file of its own. env.go: the state that all of them may read. self.go,
// peers.go, presence.go, meet.go, own.go, share.go and rejoin.go: membership, and the owners of partitions.
// database.go, group.go, look.go and page.go: reading. route.go, partition.go, item.go, key.go, topics.go, revisit.go
// and forget.go: the records and keys in memory. queue.go: queues. hold.go, hand.go, settle.go, control.go, due.go and
// giveup.go: the way of a record. call.go: the calls of the store.
//
// # Guarantees
//
//   - Every visible ready record of its partitions up to the cursor is handed out, or in memory, or not before the
//     resume point of its key, or not before the position of a walk, or known to be held or locked by another, or in
//     the range of a read under way.
//   - Records of one key of an ordered route are handed out in the order of their sequence, each after the one before
//     was concluded; nothing of a key is handed out behind a record that waits for a retry.
//   - Records that become visible late, because their transaction was slow, are found when it ends, even if reads have
//     passed them.
//   - Nothing is handed out later than a lease after the latest successful beat was sent.
//   - The records that a dead member may have had out are handed out in windows, whose records are held before. A
//     window that kills its member is halved, down to the one record that did it.
//
// # Concurrency
//
// A Dispatcher belongs to one goroutine. Calls run on goroutines of their own, several at once.
//
// # Ownership
//
// An Item belongs to the caller of Hand until Conclude.
//
// # Limits
//
// It holds at most Window records that are ready or out, and eight times as many that wait behind one of their key.
// MaxKeys bounds the keys that it remembers because they wait. Beyond it, it forgets them, and asks the store when it
// meets one. A bound may cost speed, never progress: see docs/dispatch.md.
package dispatch
