// Package dberr reads an error of PostgreSQL, or of the way to it: its class, whether the transaction may simply be run
// again, and the cure.
//
// # Guarantees
//
// Each error names the operation and keeps the driver's error in its chain. An error that a change of configuration
// would cure matches [waybill.ErrMisconfigured] and says which change. An error of any driver counts whose type has a
// method SQLState.
//
// # Concurrency
//
// There are only functions without state.
//
// # Ownership
//
// Nothing is kept.
//
// # Limits
//
// An SQLSTATE that is not known has no class.
package dberr
