// Package faults breaks the calls between an engine and its store, transport or inbox on purpose: it makes them fail
// before or after they had an effect, loses their answers, delays them, or hangs. A script decides call by call, so a
// test says exactly what goes wrong, and when. It is for tests of services and of adapters.
//
// # Guarantees
//
// A call without a fault goes to the decorated value unchanged, and so does its answer. The capabilities of the
// decorated value are found through core.As as before; their calls are not broken.
//
// # Concurrency
//
// A decorator is as safe as the value that it decorates. A script is called for one call at a time.
//
// # Ownership
//
// Nothing is kept or closed.
//
// # Limits
//
// The process is not killed, and no connection is cut: the broken calls look so to the caller only.
package faults
