// Package relay moves messages from an outbox to a broker: read, publish, settle, with the three overlapped.
//
// A [Relay] serves one or more routes of one [core.OutboxStore], each to one [core.Publisher]. Start as many relays on
// an outbox as you like: they divide its partitions between them.
//
// # Guarantees
//
//   - A record counts as published only after the publisher said that the broker confirmed and routed it. Every record
//     that was taken up is published, retried, abandoned with a reason, or released.
//   - No publish starts later than a lease after the latest successful renewal was sent, by the relay's own monotonic
//     clock, and a publish that is still in progress then is cancelled. A lost lease is logged and counted; the relay
//     joins anew.
//   - Other relays go on with the partitions of a killed relay: within 1.5 s where both are connected to a store that
//     is an [core.Presence], else within the lease and a second.
//   - On a route with [waybill.OrderPerKey] messages of a key are sent in staged order, one in flight at a time unless
//     the publisher promises more. Nothing of a key is sent behind one that failed.
//   - An outage costs no attempt. It opens a breaker for the route, or for one topic of it; one record at a time
//     probes. After 5 s the partitions of the route go to a relay whose broker works, if there is one.
//   - One bad record never stops the others: a row that cannot be read, an expired one, one that crashed its relays.
//   - After a first message was published and settled no error of the store or its publisher ends [Relay.Run]. Before
//     that, a misconfiguration does, unless the same call has worked already.
//   - A paused route is not sent; a limited one never exceeds its rate; while several routes have work, each gets its
//     share by weight, and no lane starves.
//   - [Relay.RunOnce] ends with nothing due, or with an error that counts the due records that are left and names their
//     owners.
//   - One of the relays of a store cleans it. Neither that nor the look for unserved routes delays a message.
//   - A [Fleet] serves many outboxes. A message to one without a relay is taken up after the next look at it, if there
//     is a place. There are two looks a second, or 20 pages if the outboxes fill more than ten. Places go in turn.
//     An outbox without work costs its part of the looks, and a visit an hour, which cleans it. One that fails
//     disturbs no other, and ends no [Fleet.Run].
//   - When its context ends, Run sends nothing more, waits up to DrainTimeout for the confirms, and leaves: other
//     relays go on at once.
//
// # How it works
//
// A [dispatch.Dispatcher] decides the time and the range of each read, the records that may go, and the owner of each
// partition. The relay sends those records and classifies the results.
//
// One goroutine, the loop, owns all state and takes no lock. It starts blocking calls on goroutines of their own: those
// that the dispatcher asks for, at most one of a kind, one wait, and several publishes. Ready records of a route travel
// together in one Publish call; when it returns, the next of each key are ready. Calls do not wait for each other, so a
// hot key delays its own messages only. While publishes are in progress, the first confirms wait up to 10 ms for more
// of them, unless a record waits for one; a crash can repeat the messages of that time.
//
// The store has a hold of a record before the record is sent, if other processes must know: of a retry, of a
// cancellable record, and of a record that a dead relay may have had out. A record of the last kind goes 100 records
// at a time, more as they pass, and in half as many each time that a relay dies with them.
//
// Routes of equal weight do not wait for each other. If weights differ, or a route has lanes, those that have work
// divide one window of records in flight. The lanes of a limited route share its tokens.
//
// The files are layers, from the API down to the options; see engine.go. The state of a run is divided into structs,
// each with one job: tasks, member, publishes, waits, presence, upkeep, pass and drain, and for each route keys and
// breakers.
//
// # Concurrency
//
// A Relay is safe for concurrent use, but only one Run or RunOnce goes on at a time; a second one is an error. Pause,
// Resume, Wake and Health may be called at any time, from anywhere but the Logger's handler. Hooks are called from one
// goroutine.
//
// # Ownership
//
// A relay closes neither its store nor its publishers. Close them after Run has returned.
//
// # Limits
//
// The relay holds about Window × BatchSize records a route, and as many again that wait behind one of their key, and
// about four times BatchBytes of bodies. A publisher that ignores its context can keep a goroutine alive after Run.
// Rates, weights and pauses are this relay's own: two relays publish at twice the rate.
package relay
