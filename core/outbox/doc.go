// Package outbox is the contract between the engine that hands out the records of an outbox (package dispatch) and the
// databases that keep them.
//
// The records of a route are spread over 64 slots. A member, which is one run of one process, owns units: ranges of
// slots of a route. Inside its units it is alone: it reads in staging order, remembers what it handed out, and settles.
// A hand-out is written down, as a hold, only where somebody else must see it. All policy is the engine's: who owns
// what, who is dead, what is handed out when. A store reads, compares and writes.
//
// # Guarantees
//
// Every method is atomic, and may be sent again after a lost answer: the second call changes nothing that the first one
// changed. No method waits for a lock that a caller's transaction holds on a record. What a method must refuse is
// refused by the session, by the owner of the unit and by the version of the record, never by a clock.
//
// # Concurrency
//
// Methods are called from several goroutines and several processes at once.
//
// # Ownership
//
// What a method returns belongs to the caller. A store keeps no slice that it was given.
//
// # Limits
//
// No time crosses the contract, only durations: no two clocks are compared.
package outbox
