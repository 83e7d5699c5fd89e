// Package core is the contract of Waybill: messages, topics, codecs, the state machine of a stored message, and the
// small interfaces that stores, transports and inboxes implement. The engines (packages relay, consumer and inbox) are
// written against it and never against a database or a broker. An adapter author needs to read nothing else but, for a
// store, package core/outbox.
//
// # Vocabulary
//
// A [Message] is what the application stages: an [Envelope] and directives for the outbox (routes, due time). An
// Envelope is everything that travels. A record is a stored envelope with its [State]. A route is a named lane in an
// outbox ("default" if none); a relay serves one or more routes, each to one [Publisher]. A topic is the routing key
// ("orders.placed"). A key is the ordering key. A sequence is the store's staging order. What the engine needs of a
// store is in package core/outbox, with the words for it: members, units, holds.
//
// # Guarantees
//
//   - One table decides every change of state ([Next]); stores persist an outcome, they never decide.
//   - A batch has exactly one place for errors: its [Results], one slot a message in input order.
//   - [ClassOf] is the one question about an error: outage, rejected, permanent or unknown.
//   - Traits are promises. Their zero value promises nothing; the conformance suites test exactly what is declared.
//
// # Concurrency
//
// Interfaces say per method what is called concurrently. Values (Envelope, Message, options) are not
// synchronised: whoever holds one owns it. Topic, Stamper and codecs are safe for concurrent use.
//
// # Ownership
//
// A callee never keeps or changes a slice, map or byte slice that it was passed after it returned, unless its comment
// says so; what it returns belongs to the caller. An adapter closes only what it opened.
//
// # Limits
//
// [Limits] bounds what can be staged (sizes, counts, name lengths), by default to what every adapter can carry. Text is
// UTF-8 without NUL. Times are kept to the microsecond. Error texts are capped at [MaxErrorBytes] and carry no payload.
package core
