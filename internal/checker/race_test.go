//go:build race

package checker_test

// nightlyHistories: the race detector makes a history five times as slow.
const nightlyHistories = 2_000
