// Package waybilltest tests applications that use Waybill, in the style of net/http/httptest: everything in memory, no
// server, no sleeping.
//
// There are six ways, from the smallest to the most real:
//
//   - [Deliver] calls one handler of any database with one delivery, and returns the runner's verdict on the result.
//     [Delivery] makes deliveries of a topic's value; build the raw, foreign or poison ones by hand.
//   - [NewRecorder] makes a [Recorder]: a waybill.Stager of any transaction that keeps the staged messages, for
//     producers. [Require] and [Values] read it.
//   - [New] makes an [Env]: an outbox, an inbox and a table of strings in memory. The messages of a transaction are
//     handled when it is committed, before [Env.Do] returns: step by step, on the test's goroutine. A scheduled message
//     fires at once; [Sent] has its due time. A handler's error is returned to the test.
//   - Package sqltest is the same for handlers and producers over *sql.Tx, on SQLite in memory.
//   - [Run] runs the real relay and consumer over memory adapters on virtual time (testing/synctest): retries,
//     timers, leases and outages take their time, and no time passes for the test.
//   - [Simulate] does so hundreds of times, with random faults, and tells the seed and the faults of a history that
//     fails.
//
// # Guarantees
//
// Store, inbox, stamping, cancel and dedupe keys are those of store/memory, which passes the same conformance suites as
// the stores for production. An Env is deterministic: its clock stands still until [Flow.Advance], messages are handled
// in staged order, then timers by due time. Handlers get the context that the runner gives them: a staged message names
// the handled one as its cause.
//
// # Concurrency
//
// A [Recorder] is safe for concurrent use. An Env and a [Loop] belong to the test's goroutine. A handler may stage and
// call Env.Do; the messages of that transaction are handled when the present handler has returned. The lists that
// methods return are copies.
//
// # Ownership
//
// Nothing outlives the test: Run stops its engines, New starts nothing.
//
// # Limits
//
// An Env has no leases, no concurrency, no order by key beyond staged order, and no transport: bindings do not filter.
// Use Run for these. A Recorder does not know whether a transaction was committed. SQL runs only in package sqltest: a
// handler with another transaction than *memory.Tx or *sql.Tx, such as pgx.Tx, needs its own database, or Deliver with
// a handler made of its inner function.
// This package imports testing; do not import it from code that goes into a binary.
package waybilltest
