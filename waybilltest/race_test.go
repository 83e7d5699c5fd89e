//go:build race

package waybilltest

// shuffled says that the race detector is on: it has Go's scheduler choose at random.
const shuffled = true
