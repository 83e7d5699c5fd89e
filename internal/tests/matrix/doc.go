// Package matrix holds tests only. Every store works with every transport: a relay and a consumer run as processes of
// their own between the two, are killed in the middle, several times each, and every message has exactly one effect.
//
// In the ordinary run every store and every transport takes part at least once. WAYBILL_MATRIX=all runs all pairs, as
// `make matrix` does.
package matrix
