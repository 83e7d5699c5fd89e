//go:build !race

package checker_test

const defaultHistories = 10_000
