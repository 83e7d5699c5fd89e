// Package obs is the telemetry that the engines share: the trace context of a message, buckets, and the limiting of
// repeated log lines.
//
// # Guarantees
//
// Without a configured provider the functions cost next to nothing.
//
// # Concurrency
//
// Everything is safe for concurrent use unless its comment says otherwise.
//
// # Ownership
//
// Of the arguments only the logger and the providers are kept.
//
// # Limits
//
// Texts are bounded before they get here.
package obs
