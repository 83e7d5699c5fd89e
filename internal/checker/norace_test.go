//go:build !race

package checker_test

const defaultHistories = 3_000
