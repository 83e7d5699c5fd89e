// Package core is the contract for adapters: the interfaces through which the engines (packages relay, consumer, inbox
// and dispatch) use a database or a broker. An application needs package waybill, not this one. An adapter author needs
// both.
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
// spread over 64 slots. A [Member], which is one run of one process, owns partitions: ranges of slots of a route. It
// alone works in its partitions: it reads in staging order, remembers the records it handed out, and settles them. It
// stores a hand-out as a hold only where others must see it. The engine makes all policy decisions: the owner of a
// partition, the death of a member, the time of a hand-out. A store reads, compares and writes.
//
// # Guarantees
//
//   - One table decides every change of state ([Next]), and package rules everything else that is the same in every
//     store. Stores persist what these say; they never decide.
//   - A batch has exactly one place for errors: its [Results], one slot a message in input order.
//   - Traits are promises. Their zero value promises nothing. The conformance suites test exactly the declared ones.
//   - Every method of an OutboxStore is atomic. The engine can repeat a call after a lost answer: the second call
//     changes nothing that the first one changed. No method waits for a lock that a caller's transaction holds on a
//     record.
//   - A store refuses a stale call by the session, by the owner of the partition and by the version of the record,
//     never by a clock.
//
// # Concurrency
//
// Each interface says which methods are called concurrently. The methods of an OutboxStore are called from several
// goroutines and several processes at once. [Stamper] is safe for concurrent use. Values are not synchronised: the
// caller must not share one between goroutines without a lock.
//
// # Ownership
//
// A function never keeps or changes a slice, map or byte slice of its caller after it returned, unless its comment has
// an exception. Results belong to the caller. An adapter closes only resources that it opened.
//
// # Limits
//
// Times do not cross the contract of stores, only durations do: no two clocks are compared. Text is UTF-8 without NUL.
// Times of messages are kept to the microsecond. Error texts are capped at [MaxErrorBytes] and carry no payload.
package core
