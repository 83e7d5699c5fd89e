// Package upkeep has what everybody does who hands out the records of a store: count them for gauges, and keep the
// store clean.
//
// # Guarantees
//
// The gauges of a relay and of a table queue have the same names, and an alert on them needs to know neither. A route
// without records is reported as 0, so an absent series means that no process runs.
//
// # Concurrency
//
// A [Gauges] is safe for concurrent use; a [Round] is not.
//
// # Ownership
//
// The package keeps no argument of a call.
//
// # Limits
//
// There is one series for each route and state.
package upkeep
