//go:build race

package checker_test

// defaultHistories: the race detector makes a history five times as slow. `make nightly` runs 10,000 more without it.
const defaultHistories = 500
