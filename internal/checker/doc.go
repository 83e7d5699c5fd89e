// Package checker proves order and delivery: relays run over stores and brokers that fail before and after every step,
// a [Ledger] keeps the calls and the arrivals, and one verifier judges. It is for tests.
//
// # Guarantees
//
// [Ledger.Verify] reports every message that was lost, every one that arrived although it was never committed or was
// cancelled unsent, every inversion of first arrivals of a key in per-key mode, everything that passed an abandoned
// head that blocks, every effect that is missing or doubled, every arrival before its time, and attempts without a
// refusal. An exact ledger also reports partitions that change hands although their owner did not give them up, members
// that are removed before their lease is over, publishes after a lease, of another's records, or at two members at
// once, outcomes that should have been refused, and due and free records that are not handed out within [Options].Limit
// when everything works. The tests break engine and store on purpose and see that each break is found.
//
// # Concurrency
//
// All types are safe for concurrent use. An exact ledger lets one call of the store run at a time, so that the order of
// its entries is the order of events.
//
// # Ownership
//
// Decorators own nothing: the maker of a store or a publisher closes it. [Ledger.Wait] waits for the calls that a
// decorator lets happen late.
//
// # Limits
//
// A seed fixes a history's plan and the dice of each relay, not the interleaving of goroutines: replay a seed some
// dozen times. The ledger is kept in memory and compares the messages of a key pair by pair: histories are to be small.
package checker
