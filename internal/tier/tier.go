// Package tier says which tests run when. The gate (make test) decides in minutes whether a change may land; the
// nightly tier (make nightly) has the time for what repeats, kills and waits.
//
//	func TestThousandRestarts(t *testing.T) {
//		tier.Nightly(t, "kills a hundred processes: 2 minutes")
//
// # Guarantees
//
// A test that calls [Nightly] runs whenever [Variable] is set. No other condition skips it.
//
// # Concurrency
//
// Both functions are safe for concurrent use.
//
// # Limits
//
// The tier is that of the process: a parent that starts test binaries hands on the variable.
package tier

import "os"

// Variable is the environment variable that turns the nightly tests on.
const Variable = "WAYBILL_TEST_NIGHTLY"

// TB is what [Nightly] needs of a *testing.T.
type TB interface {
	Helper()
	Skipf(format string, args ...any)
}

// IsNightly says whether this is a nightly run: a test may then take more cases than in the gate.
func IsNightly() bool { return os.Getenv(Variable) != "" }

// Nightly leaves the test to the nightly run. The reason says what the test costs.
func Nightly(tb TB, why string) {
	tb.Helper()
	if !IsNightly() {
		tb.Skipf("nightly: %s (%s=1 runs it)", why, Variable)
	}
}
