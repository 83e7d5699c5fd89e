// Package outages holds tests only. Producers, a relay and consumers with the inbox work on real servers while a bad
// day happens: a standby is promoted, a disk is full, a certificate expires, a password is changed, a clock is wrong, a
// process freezes, a cluster loses its majority, a broker is replaced. Afterwards each message that was committed has
// exactly one effect. The messages that such a day may lose are counted, too: docs/operating.md lists them.
//
// The tests count and bound no times, and run beside all others. A run with WAYBILL_BADDAY=long repeats each
// misfortune.
package outages
