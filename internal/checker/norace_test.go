//go:build !race

package checker_test

const nightlyHistories = 10_000
