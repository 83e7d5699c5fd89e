// Package dispatch hands out the records of an outbox, in order, one owner at a time. Relays and table queues share it.
//
// A [Dispatcher] is one member of an outbox. It owns partitions of its routes. It reads them in staging order, hands
// out records, and stores their outcomes. It knows neither database nor clock: it says which calls a store should get
// ([Dispatcher.Calls]), takes in the answers ([Dispatcher.Done]), and is told the time with each.
//
// # Files
//
// The Dispatcher is made of parts, each with a file of its own:
//
//	env.go                                    the state that all parts may read
//	self.go, peers.go, presence.go            this member, the other members, and tokens of connections
//	heartbeat.go, ownership.go, rebalance.go  the call that renews the member, and the owners of partitions
//	release.go, rejoin.go                     the ends of an ownership: by will, and by a lost lease
//	database.go, group.go, read.go,           reading: how far the reads have come, what to ask for next, and the
//	readresult.go, progress.go                way of an answer into memory
//	route.go, partition.go, item.go, key.go,  the records and keys in memory
//	topics.go, revisit.go, forget.go
//	hold.go, handout.go, settle.go, due.go,   the way of a record: it is held, handed out, concluded, retried
//	notice.go, unreported.go
//	queue.go                                  routes that are queues, whose members ask for records by Hold
//	call.go                                   the calls of the store, their limits and pauses
//	status.go, options.go                     what callers ask and set
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
//   - Nothing is handed out later than a lease after the latest successful heartbeat was sent.
//   - The records that a dead member may have had out are handed out in crash windows, whose records are held before. A
//     crash window that kills its member is halved, down to the one record that did it.
//
// # Concurrency
//
// A Dispatcher belongs to one goroutine. Calls run on goroutines of their own, several at once.
//
// # Ownership
//
// An Item belongs to the caller of HandOut until Conclude.
//
// # Limits
//
// It holds at most Window records that are ready or out, and eight times as many that wait behind one of their key.
// MaxKeys bounds the keys that it remembers because they wait. Beyond it, it forgets them, and asks the store when it
// reads a record of one. A bound may cost speed, never progress: see docs/dispatch.md.
package dispatch
