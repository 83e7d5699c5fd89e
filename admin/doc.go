// Package admin is what operators ask an adapter, and what they get: stored records, blocked keys, parked messages,
// counts, the schema.
//
// # Capabilities
//
//   - [Inspector] shows stored records, [Redriver] puts failed and abandoned ones back, [Counter] counts them.
//   - [KeyKeeper] lists the keys that wait behind a message, and decides about that message.
//   - [ParkedQueue] lists, replays and purges what consumers gave up.
//   - [Migrator] creates and upgrades the schema, and [DriftChecker] compares it with what the adapter needs.
//
// A store or a transport has those of them that it can have. Find them with [core.As]:
//
//	inspector, ok := core.As[admin.Inspector](outbox)
//
// # Guarantees
//
// Every call is bounded: none reads a whole table, and none holds a lock while it waits for its caller. Bad input gets
// one [waybill.InvalidError] that lists all problems, and changes nothing.
//
// # Concurrency
//
// Every capability is safe for concurrent use, beside running relays and consumers.
//
// # Ownership
//
// What a method returns belongs to the caller. An adapter keeps nothing that it was passed.
//
// # Limits
//
// A page has at most [MaxPageLimit] records and looks at no more than [MaxPageBudget] rows. A filter holds at most
// [MaxFilterValues] values in a field.
package admin
