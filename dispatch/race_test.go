//go:build race

package dispatch

const modelled = 20
