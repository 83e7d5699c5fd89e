// Package faults holds tests only. Relays run as processes of their own over a real PostgreSQL, and are killed,
// frozen, cut off and poisoned while messages flow. After all of that each committed message arrives, and those of a
// key arrive in order.
//
// The tests bound times, and so run without the race detector and after all others. A test run with
// WAYBILL_ACCIDENTS=long repeats each accident more often.
package faults
