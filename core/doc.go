// Package core is the contract for adapters: what the engines (packages relay, consumer, inbox and dispatch) need of a
// database or a broker. An application needs package waybill, not this one. An adapter author needs both.
//
// # Where to begin
//
// A database implements [OutboxStore], and [waybill.Stager] with a [Stamper]. A database that gives messages their
// effects implements [Inbox]. A broker implements [Publisher], [Subscriber], or both as [Transport]. Everything else is
// an optional capability, found with [As]. The conformance suites in the folders below check an adapter against its
// own traits.
//
// # Records and members
//
// A record is a stored envelope with its [State]. A sequence is the store's staging order. The records of a route are
// spread over 64 slots. A [Member], which is one run of one process, owns units: ranges of slots of a route. Inside its
// units it is alone: it reads in staging order, remembers what it handed out, and settles. A hand-out is written down,
// as a hold, only where somebody else must see it. All policy is the engine's: who owns what, who is dead, what is
// handed out when. A store reads, compares and writes.
//
// # Guarantees
//
//   - One table decides every change of state ([Next]); stores persist an outcome, they never decide.
//   - A batch has exactly one place for errors: its [Results], one slot a message in input order.
//   - Traits are promises. Their zero value promises nothing; the conformance suites test exactly what is declared.
//   - Every method of an OutboxStore is atomic. It may be sent again after a lost answer: the second call changes
//     nothing that the first one changed. No method waits for a lock that a caller's transaction holds on a record.
//   - What a store must refuse is refused by the session, by the owner of the unit and by the version of the record,
//     never by a clock.
//
// # Concurrency
//
// Interfaces say per method what is called concurrently. The methods of an OutboxStore are called from several
// goroutines and several processes at once. [Stamper] is safe for concurrent use. Values are not synchronised: whoever
// holds one owns it.
//
// # Ownership
//
// A callee never keeps or changes a slice, map or byte slice that it was passed after it returned, unless its comment
// says so. What it returns belongs to the caller. An adapter closes only what it opened.
//
// # Limits
//
// No time crosses the contract of stores, only durations: no two clocks are compared. Text is UTF-8 without NUL. Times
// of messages are kept to the microsecond. Error texts are capped at [MaxErrorBytes] and carry no payload.
package core
