// Package relay moves messages from an outbox to a broker: claim, publish, settle, with the three overlapped.
//
// A [Relay] serves one or more routes of one [core.OutboxStore], each to one [core.Publisher]. Start as many relays on an
// outbox as you like.
//
// # Guarantees
//
//   - A record counts as published only after the publisher said that the broker confirmed and routed it. Every claimed
//     record is settled once: published, retried, abandoned with a reason, or released.
//   - No publish starts after the relay's own monotonic deadline, which is counted from before the claim was sent. A lost
//     lease is logged and counted; it changes nothing.
//   - On a route with [core.OrderPerKey] messages of a key are sent in staged order, one in flight at a time unless the
//     publisher promises more. A failure hands the rest of its key back, in the same settle.
//   - An outage costs no attempt. It opens a breaker for the route, or for one topic of it; one record at a time probes.
//   - One bad record never stops its batch: a row that cannot be read, an expired one, one that crashed its relays.
//   - After a first success no error of the store or the publisher ends [Relay.Run]. Before it, a misconfiguration does.
//   - A paused route is neither claimed nor sent; a limited one never exceeds its rate; while several routes have work, each
//     gets its share by weight, and no lane starves.
//   - One of the relays of a store cleans it. Neither that nor the look for unserved routes delays a message.
//   - When its context ends, Run stops claiming, returns what was not sent at once, and waits up to DrainTimeout for what
//     was.
//
// # How it works
//
// One goroutine, the loop, owns all state and takes no lock. It starts blocking calls on goroutines of their own: at most
// one claim, one settle, one lease extension and one wait, and several publishes. A claim is requested while fewer than
// Window batches are held; a settle takes everything that was finished meanwhile. So these calls overlap, and each of
// them is as large as the others are slow. While publishes are in progress, a few confirms that nobody waits for gather for
// up to 10 ms; what a crash makes arrive twice may be so much more.
//
// A claim is spread over lanes: a lane is the records of one key, in order; a record without a key is a lane of its own.
// What stands at the head of a lane is ready. Ready records of a route travel together in one Publish call; when it
// returns, the next of each lane are ready. Calls do not wait for each other, so a hot key slows nobody but itself.
//
// Routes without a limit share claims. If their weights are equal, a claim asks for all of them, and the store gives each a
// fair share. If not, a route of which a claim left something behind is busy: a claim asks for the busy route that got
// least by its weight, together with all that are not busy, so that idle routes and lanes cost nothing and are never
// passed over. Busy routes divide the window. A limited route is claimed apart, for what it can send within a second.
//
// # Concurrency
//
// A Relay is safe for concurrent use, but only one Run or RunOnce goes on at a time; a second one is an error. Pause, Resume
// and Health may be called at any time, from anywhere but the Logger's handler. Hooks are called from one goroutine.
//
// # Ownership
//
// A relay closes neither its store nor its publishers. Close them after Run has returned.
//
// # Limits
//
// The relay holds at most Window × BatchSize records a route, and about Window × BatchBytes of bodies. A publisher that
// ignores its context can keep a goroutine alive after Run. Rates, weights and pauses are this relay's own: two relays publish
// at twice the rate.
package relay
