// Package demo is a shop that runs in one process, without a server: an outbox in SQLite, an in-memory transport, a
// relay, two consumers, and a dashboard over all of it. It has traffic, and troubles for an operator: a message that no
// broker takes, a key that is blocked, a message that its handler gives up, a route that no relay serves.
//
// `waybill relay --demo` runs it, and tests of the dashboard do.
package demo
