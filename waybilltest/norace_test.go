//go:build !race

package waybilltest

const shuffled = false
