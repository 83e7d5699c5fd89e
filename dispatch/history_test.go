package dispatch

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/waybill-go/waybill"
)

func envInt(name string, def int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return def
}

// randomConfig is a world as a seed says.
func randomConfig(seed uint64) simConfig {
	return drawConfig(seed, func(n uint64) bool { return seed*0x9E3779B97F4A7C15>>(20+n)&1 != 0 })
}

// drawConfig is a world with the faults that bit chooses.
func drawConfig(seed uint64, bit func(n uint64) bool) simConfig {
	order := waybill.OrderPerKey
	if bit(22) && bit(23) {
		order = []waybill.Order{waybill.OrderBestEffort, waybill.OrderBestEffortHLC}[seed%2]
	}
	return simConfig{
		order: order,
		seed:  seed, members: 2 + int(seed%3), keys: 5, batch: 2 + int(seed%7), lease: time.Second, run: 8 * time.Second, settle: 20 * time.Second,
		long: bit(0), cancel: bit(1), freeze: bit(2), kill: bit(3), loseAnswers: bit(4), refuse: bit(5), redrive: bit(6), join: bit(7), delay: bit(8), outage: bit(9),
		owner: bit(10), block: bit(11) && bit(12), restore: bit(13) && bit(14) && bit(15), poison: bit(16) && bit(17), slow: bit(18),
		presence: bit(19), decide: bit(20), requeue: bit(24) && bit(11) && bit(12), pipeline: bit(21),
		noSweeps: bit(25), depth: []int{0, 4, 2, 8}[seed%4], routes: 1 + int(seed%2),
	}
}

// TestSeeds runs the worlds of many seeds, from WAYBILL_DISPATCH_SEED on, WAYBILL_DISPATCH_HISTORIES of them. With
// WAYBILL_DISPATCH_TRACE=1 it prints all that happened.
func TestSeeds(t *testing.T) {
	t.Parallel()
	from, bad := envInt("WAYBILL_DISPATCH_SEED", 1), 0
	for i := range envInt("WAYBILL_DISPATCH_HISTORIES", 20/modelled) {
		s := newSim(randomConfig(uint64(from + i)))
		s.trace = os.Getenv("WAYBILL_DISPATCH_TRACE") != ""
		s.run()
		for _, line := range s.log {
			t.Log(line)
		}
		if r := s.report(); r != "" {
			t.Errorf("%s", r)
			if bad++; bad >= 5 {
				break
			}
		}
	}
}
