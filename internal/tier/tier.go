// Package tier says which tests run when, and whether a test without its server fails or is skipped.
//
//	func TestThousandRestarts(t *testing.T) {
//		tier.Nightly(t, "kills a hundred processes: 2 minutes")
//
// The gate (make test) decides in minutes whether a change may land; the nightly tier (make nightly) has the time for
// tests that repeat, kill and wait. CONTRIBUTING.md has the table of both.
//
//	WAYBILL_TEST_NIGHTLY=1          the nightly tests run, too
//	WAYBILL_TEST_SERVERS=required   a missing server fails its tests; so it is where CI is set
//	WAYBILL_TEST_SERVERS=optional   a missing server skips its tests: the default
//	WAYBILL_TEST_SERVERS=none       no server is started: their tests are skipped
//	WAYBILL_TEST_SKIPPED=file       each package adds a line to the file for each server that it lacks
//
// # Guarantees
//
// Nothing else skips a test for its tier or for its server.
//
// # Concurrency
//
// All functions are safe for concurrent use.
//
// # Limits
//
// The tier is that of the process: a parent that starts test binaries hands on the variables.
package tier

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"
)

// The environment variables.
const (
	VariableNightly = "WAYBILL_TEST_NIGHTLY"
	VariableServers = "WAYBILL_TEST_SERVERS"
	VariableSkipped = "WAYBILL_TEST_SKIPPED"
)

// TB is what this package needs of a *testing.T.
type TB interface {
	Helper()
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// IsNightly says whether this is a nightly run: a test may then take more cases than in the gate.
func IsNightly() bool { return os.Getenv(VariableNightly) != "" }

// Nightly leaves the test to the nightly run. The reason names the cost of the test.
func Nightly(tb TB, why string) {
	tb.Helper()
	if !IsNightly() {
		tb.Skipf("nightly: %s (%s=1 runs it)", why, VariableNightly)
	}
}

// NoServers says whether tests start no server here.
func NoServers() bool { return os.Getenv(VariableServers) == "none" }

// required says whether a missing server is a failure.
func required() bool {
	switch os.Getenv(VariableServers) {
	case "required":
		return true
	case "optional", "none":
		return false
	default:
		return os.Getenv("CI") != ""
	}
}

// Missing ends a test that lacks a server or a program: it fails where those are required, and is skipped elsewhere.
// The text names the missing server and the command that installs it.
func Missing(tb TB, format string, args ...any) {
	tb.Helper()
	what := fmt.Sprintf(format, args...)
	if required() {
		tb.Fatalf("%s (%s=optional skips the tests that need it)", what, VariableServers)
		return
	}
	note(what)
	tb.Skipf("SKIPPED, NOT TESTED: %s", what)
}

var noted sync.Map // the texts that this process has written

// note adds a line to the file of VariableSkipped, once for each text.
func note(what string) {
	path := os.Getenv(VariableSkipped)
	if _, before := noted.LoadOrStore(what, true); before || path == "" {
		return
	}
	name := "?"
	if info, ok := debug.ReadBuildInfo(); ok {
		name = strings.TrimSuffix(info.Path, ".test")
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600) //nolint:gosec // the run of the tests names the file
	if err != nil {
		return // the line is a courtesy: the test is skipped all the same
	}
	defer func() { _ = f.Close() }()
	_, _ = fmt.Fprintf(f, "%s\t%s\n", name, strings.ReplaceAll(what, "\n", " "))
}
