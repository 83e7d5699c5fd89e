//go:build !race

package dispatch

import (
	"flag"
	"testing"

	"pgregory.net/rapid"

	"github.com/waybill-go/waybill/internal/tier"
)

// TestHistories runs random worlds with random faults, and shrinks what fails to the fewest faults. More of them:
// go test -run TestHistories ./dispatch -rapid.checks=1000. The gate decides about a change, not about luck: it has the
// same hundred worlds each time, beside what TestExplore visits. The nightly run has new ones, five times as many and
// more.
func TestHistories(t *testing.T) { // DB-23 DB-24 DB-25 DB-22 OR-02 OR-04 OR-08
	t.Parallel()
	messages := 0
	rounds := 1
	if tier.IsNightly() {
		rounds = max(5/modelled, 1)
	} else if f := flag.Lookup("rapid.seed"); f.Value.String() == "0" {
		if err := f.Value.Set("1"); err != nil {
			t.Fatal(err)
		}
	}
	for range rounds {
		rapid.Check(t, func(t *rapid.T) {
			faults := rapid.SliceOfN(rapid.Bool(), 26, 26).Draw(t, "faults")
			s := newSim(drawConfig(rapid.Uint64().Draw(t, "seed"), func(n uint64) bool { return faults[n] }))
			s.run()
			messages += len(s.arrivals)
			if r := s.report(); r != "" {
				t.Fatalf("%s\n%+v", r, s.cfg)
			}
		})
	}
	t.Logf("%d messages", messages)
}
