package chance_test

import (
	"testing"

	"github.com/waybill-go/waybill/internal/chance"
)

// The same seed gives the same numbers; without a seed they are others.
func TestSeed(t *testing.T) {
	draw := func() (all [4]float64) {
		for i := range 2 {
			all[2*i], all[2*i+1] = float64(chance.N(1<<40)), chance.Float64()
		}
		return all
	}
	with := func(seed uint64) [4]float64 {
		defer chance.Seed(seed)()
		return draw()
	}
	if a, b := with(1), with(1); a != b {
		t.Errorf("seed 1 gave %v, then %v", a, b)
	}
	if a, b := with(1), with(2); a == b {
		t.Errorf("seeds 1 and 2 both gave %v", a)
	}
	if a, b := draw(), with(1); a == b {
		t.Errorf("without a seed: the numbers of seed 1, %v", a)
	}
}
