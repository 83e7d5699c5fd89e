//go:build !race

package dispatch

// modelled says how much of the model runs: it belongs to one goroutine, so that the race detector only makes it slow.
const modelled = 1
