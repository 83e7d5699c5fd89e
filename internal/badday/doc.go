// Package badday holds tests only. Producers, a relay and consumers with the inbox work on real servers while a bad day
// happens: a standby is promoted, a disk is full, a certificate expires, a password is changed, a clock is wrong, a
// process freezes, a cluster loses its majority, a broker is replaced. Afterwards each message that was committed has
// exactly one effect. What such a day may lose is counted too: docs/operating.md says what it is.
//
// The tests count and bound no times, and run beside all others. A run with WAYBILL_BADDAY=long repeats each
// misfortune.
package badday
