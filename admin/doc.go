// Package admin is the API for operators: stored records, blocked keys, parked messages, counts, the schema.
//
// # Capabilities
//
//   - [Inspector] shows stored records, [Redriver] puts failed and abandoned ones back, [Counter] counts them.
//   - [Purger] deletes records for good, such as all those of a tenant.
//   - [Decider] ends records that are due or wait. [DecideAll] ends, and [PurgeAll] deletes, all of a filter.
//   - [Explainer] lists the block reasons of a record. [WhyWaits] explains why it waits.
//   - [BlockedKeys] lists keys that wait behind a message, and decides about that message.
//   - [ParkedQueue] shows, edits, replays and purges messages that consumers gave up.
//   - Package audit has the record of the acts of operators.
//   - [Migrator] creates and upgrades the schema, and [DriftChecker] compares the schema with the adapter's needs.
//
// Each store and each transport has some of them. Find them with [core.As]:
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
// Results belong to the caller. An adapter keeps none of its arguments.
//
// # Limits
//
// A page has at most [MaxPageLimit] records and looks at no more than [MaxPageBudget] rows. A filter holds at most
// [MaxFilterValues] values in a field.
package admin
